"""Who waits, and where: the edges of the wait-for graph that start at ranks.

A rank waits at a *spot*: a place (the n-th collective of a group), a channel (a
send or recv that its peer has to match), or a set-up call that all ranks make
together. What a rank merely issued and works on beside is no wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangwatch.diagnosis.activity import waits_in_collective
from hangwatch.diagnosis.endings import Cause, How
from hangwatch.diagnosis.channels import turn
from hangwatch.diagnosis.job import Place, seconds
from hangwatch.frames import with_source
from hangwatch.types import OpState, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangwatch.diagnosis.endings import Ending
    from hangwatch.diagnosis.job import Job
    from hangwatch.types import OpRecord, RankSnapshot, Site

SETUP_CALLS = ("init_process_group", "new_group")
FAILED_WITHIN = 4
"""A call that raised is where a rank ended if it is among its last so many."""
MAX_PEERS = 4096
"""Channels of one recv from any source; a larger group is cut, not searched."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A point-to-point call of ``waiter`` that ``peer`` has to match."""

    gid: int
    waiter: int
    peer: int
    sends: bool
    """Whether the waiter sends; else it receives."""
    tag: int
    turn: int
    """How many calls like it the waiter has under way before it."""
    nth: int
    """How many calls like it the waiter ever made before it, -1 where unknown."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A call that all ranks of the job make together."""

    call: str
    where: str = ""
    """The line that makes it, for calls that a program makes more than once."""


Spot = Place | Channel | Setup


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits at a spot."""

    rank: int
    spot: Spot
    age_s: float
    firm: bool
    """It is known to be blocked; else its unfinished work is all that is known."""
    op: str = ""
    record: OpRecord | None = None
    site: Site | None = None
    over: bool = False
    """It waited until it ended, or until the call raised."""


def find_waits(job: Job, ended: Mapping[int, Ending]) -> list[Wait]:
    """All waits of all ranks, in the order of the ranks."""
    waits: list[Wait] = []
    for number in sorted(job.ranks):
        rank = job.ranks[number]
        end = ended.get(number)
        if end is None:
            waits.extend(_living(job, rank))
        elif end.how is not How.CLEAN and end.cause is not Cause.OWN:
            waits.extend(_until_the_end(job, rank, ended))
    return waits


def _living(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    setup = _setup(rank)
    if setup is not None:
        yield Wait(
            rank.rank,
            setup,
            seconds(rank.in_call_age_s or rank.phase_age_s),
            firm=True,
            op=setup.call,
            site=rank.in_call_site,
        )
        return
    blocked = list(_blocked(job, rank))
    yield from blocked
    if blocked or waits_in_collective(rank, job.snapshot.sources) is not False:
        taken = {wait.spot for wait in blocked}
        yield from (wait for wait in _pending(job, rank) if wait.spot not in taken)


def _setup(rank: RankSnapshot) -> Setup | None:
    if rank.in_call == "new_group":
        site = rank.in_call_site
        return Setup("new_group", f"{site.file}:{site.line}" if site else "")
    if rank.in_call == "init_process_group" or (rank.phase is Phase.INIT and not rank.in_call):
        return Setup("init_process_group")
    return None


def _blocked(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """What a thread of the rank is inside of."""
    for position, (gid, record) in enumerate(job.ops.get(rank.rank, [])):
        if record.state is not OpState.BLOCKED:
            continue
        age_s = seconds(
            record.issued_age_s if record.blocked_age_s is None else record.blocked_age_s
        )
        for spot in _spots(job, rank.rank, position, gid, record):
            yield Wait(
                rank.rank, spot, age_s, firm=True, op=record.op, record=record, site=record.site
            )


def _spots(job: Job, rank: int, position: int, gid: int, record: OpRecord) -> list[Spot]:
    if not record.p2p:
        return [Place(gid, record.seq)] if record.seq > 0 else []
    peers = (record.peer,) if record.peer >= 0 else job.members(gid)[:MAX_PEERS]
    sends = record.wire.startswith("send")
    return [
        Channel(gid, rank, peer, sends, record.tag, *turn(job, rank, position))
        for peer in peers
        if peer != rank
    ]


def _pending(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """The earliest unfinished collective of each group.

    A call that was issued and never waited for stays ISSUED in the page for
    ever: it counts only where c10d's own record says that it is unfinished.
    """
    waits_since_s = seconds(rank.pending_age_s)
    first: dict[int, OpRecord] = {}
    known: set[int] = set()
    for gid, record in job.ops.get(rank.rank, []):
        if record.p2p or record.seq < 1:
            continue
        known.add(gid)
        if (
            record.state is OpState.ISSUED
            and gid not in first
            and _unfinished(job, rank, gid, record)
        ):
            first[gid] = record
    for gid, record in first.items():
        age_s = seconds(record.issued_age_s) or waits_since_s
        place = Place(gid, record.seq)
        yield Wait(
            rank.rank, place, age_s, firm=False, op=record.op, record=record, site=record.site
        )
    if rank.flight or rank.pending_age_s is None:
        return
    for gid, progress in job.progress.get(rank.rank, {}).items():
        if gid not in first and progress.alive and 0 <= progress.completed < progress.enqueued:
            yield Wait(rank.rank, Place(gid, progress.completed + 1), waits_since_s, firm=False)


def _unfinished(job: Job, rank: RankSnapshot, gid: int, record: OpRecord) -> bool:
    if rank.flight:
        return True
    progress = job.progress.get(rank.rank, {}).get(gid)
    return progress is not None and 0 <= progress.completed < record.seq


def _until_the_end(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Wait]:
    """Where a rank was that did not end by itself.

    In the call that it was blocked in, the one that raised, or, where C++ waited,
    in its earliest unfinished one.
    """
    end = ended[rank.rank]
    setup = _setup(rank)
    if setup is not None:
        yield Wait(
            rank.rank, setup, end.age_s, firm=True, op=setup.call, site=rank.in_call_site, over=True
        )
        return
    position = None
    ops = job.ops.get(rank.rank, [])
    for i in range(len(ops) - 1, -1, -1):
        if ops[i][1].state is OpState.BLOCKED or (
            ops[i][1].state is OpState.FAILED and i >= len(ops) - FAILED_WITHIN
        ):
            position = i
            break
    if position is not None:
        gid, record = ops[position]
        for spot in _spots(job, rank.rank, position, gid, record):
            yield Wait(
                rank.rank,
                spot,
                seconds(record.issued_age_s),
                firm=True,
                op=record.op,
                record=record,
                site=record.site,
                over=True,
            )
        return
    if end.cause is Cause.ECHO:
        pending = list(_pending(job, rank)) or list(_last_places(job, rank, ended))
        for wait in pending:
            yield Wait(
                rank.rank,
                wait.spot,
                wait.age_s,
                firm=False,
                op=wait.op,
                record=wait.record,
                site=wait.site,
                over=True,
            )


def _last_places(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Wait]:
    """Where a rank was that C++ put into a collective, by the counters alone.

    They are sampled, so they may be a step behind, and those of the ranks that
    failed with it tell more. c10d may count what has failed as done.
    """
    for gid in job.progress.get(rank.rank, {}):
        gone = [
            member
            for member in job.members(gid)
            if member in ended and ended[member].cause is Cause.OWN
        ]
        seqs = [
            job.reached[gid].get(member, 0)
            for member in job.members(gid)
            if member in ended and ended[member].cause is Cause.ECHO
        ]
        seqs += [job.reached[gid].get(m, 0) + (ended[m].how is How.CLEAN) for m in gone]
        place = Place(gid, max(seqs))
        if place.seq > 0 and any(not job.passed(member, place) for member in gone):
            op = _guess(rank, job.snapshot.sources)
            yield Wait(rank.rank, place, ended[rank.rank].age_s, firm=False, op=op, over=True)


def _guess(rank: RankSnapshot, sources: Mapping[str, str]) -> str:
    """What C++ issues in backward is the all_reduce of DistributedDataParallel."""
    site = with_source(rank.exception.site, sources) if rank.exception else None
    return "all_reduce" if site and site.source and ".backward(" in site.source else ""
