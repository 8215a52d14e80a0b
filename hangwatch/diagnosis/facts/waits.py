"""Who waits, and where: the edges of the wait-for graph that start at living ranks.

A rank waits at a *wait point*: a place (the n-th collective of a group), a channel (a
send or recv that its peer has to match), or a set-up call that all ranks make
together. What a rank merely issued and works on beside is no wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from hangwatch.diagnosis.facts.activity import GIL_STALE_S, waits_in_collective
from hangwatch.diagnosis.facts.channels import turn
from hangwatch.diagnosis.facts.devices import oldest
from hangwatch.diagnosis.facts.job import NEW_GROUP, SETTING_UP, Job, seconds
from hangwatch.diagnosis.facts.wait_points import Channel, Place, Setup, Wait, WaitPoint
from hangwatch.model.frames import program_thread
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.snapshot import GroupProgress, NewGroup, OpRecord, RankSnapshot, ThreadStack

MOMENT_S = 1.0
"""Who has been in a set-up call for less waits for nobody yet, unless others are in it for longer:
a thread may make groups of its own again and again, while the program is elsewhere."""


def awaited_setups(job: Job, ranks: Iterable[RankSnapshot]) -> frozenset[Setup]:
    """The set-up calls in which somebody waits for others."""
    waiting = (rank for rank in ranks if _in_setup_s(rank) >= MOMENT_S)
    return frozenset(setup for rank in waiting if (setup := setup_of(job, rank)) is not None)


def living(job: Job, rank: RankSnapshot, setups: frozenset[Setup]) -> Iterator[Wait]:
    """The waits of a rank that is alive. setups: see awaited_setups()."""
    setup = setup_of(job, rank)
    if setup is not None and setup in setups:
        yield in_setup(job, rank, setup, _in_setup_s(rank))
        return
    at = oldest(job, rank.rank)
    if at:
        yield from _of_device(job, rank.rank, at)
        return
    blocked = list(_blocked(job, rank))
    program = program_thread(rank)
    main = [wait for wait in blocked if _is_of(program, wait, rank)]
    others = [wait for wait in blocked if wait not in main]
    in_collective = waits_in_collective(rank, job.snapshot.sources)
    yield from main
    if main or in_collective is False:
        yield from (wait._replace(apart=True) for wait in others)
    else:
        # Autograd runs its hooks in threads of the device, for which main waits.
        yield from (wait._replace(firm=in_collective is True) for wait in others)
    if main or in_collective is not False:
        taken = {wait.wait_point for wait in blocked}
        yield from (wait for wait in pending(job, rank) if wait.wait_point not in taken)
        if not blocked and not _is_stale(rank):
            yield from by_counters(job, rank)


def _of_device(job: Job, rank: int, positions: Sequence[int]) -> Iterator[Wait]:
    """Where the device of a rank is; where its program is, no dump tells.

    The first calls that it has to run in other groups stand there too: what nobody is at
    yet may be waiting for a rank all the same.

    A program can be far ahead, so that a call of long ago may just have begun: nobody has
    waited for longer than nothing has moved, where that is known.
    """
    still_s = job.ranks[rank].pending_age_s
    groups = {job.ops[rank][positions[0]][0]}
    for position in job.devices[rank]:
        gid, record = job.ops[rank][position]
        behind = position not in positions
        if behind and (gid in groups or record.p2p):
            continue
        groups.add(gid)
        wait_point = wait_point_of(job, rank, position)
        if wait_point is not None:
            yield Wait(
                rank,
                wait_point,
                min(seconds(record.issued_age_s), math.inf if still_s is None else still_s),
                firm=False,
                op=record.op,
                record=record,
                site=record.site,
                apart=behind,
            )


def _is_of(program: ThreadStack | None, wait: Wait, rank: RankSnapshot) -> bool:
    """Whether it is the thread that trains that waits there."""
    tid = program.tid if program is not None else rank.pid
    return wait.record is None or wait.record.thread in (0, rank.pid, tid)


def _is_stale(rank: RankSnapshot) -> bool:
    """Whether its sampled counters are old: its sampler has not run for a while."""
    return seconds(rank.gil_age_s) >= GIL_STALE_S


def setup_of(job: Job, rank: RankSnapshot) -> Setup | None:
    """The set-up call that a rank is in."""
    if rank.in_call == NEW_GROUP:
        made = _new_group_of(rank)
        if made is not None and made.group.ranks:
            return Setup(NEW_GROUP, "", made.number, job.gid(made.group))
        site = rank.in_call_site
        return Setup(NEW_GROUP, f"{site.file}:{site.line}" if site else "")
    if rank.in_call == "init_process_group" or (rank.phase is Phase.INIT and not rank.in_call):
        return Setup("init_process_group")
    return None


def in_setup(job: Job, rank: RankSnapshot, setup: Setup, age_s: float) -> Wait:
    """A rank that is in a set-up call."""
    made = _new_group_of(rank)
    place = Place(job.gid(SETTING_UP), made.number) if made is not None else None
    return Wait(
        rank.rank,
        setup,
        age_s,
        firm=True,
        op=setup.call,
        record=job.record(rank.rank, place) if place is not None else None,
        site=rank.in_call_site,
    )


def _new_group_of(rank: RankSnapshot) -> NewGroup | None:
    """The call of new_group that a rank is in, None where it is not known."""
    return rank.new_groups[-1] if rank.in_call == NEW_GROUP and rank.new_groups else None


def _in_setup_s(rank: RankSnapshot) -> float:
    return seconds(rank.in_call_age_s if rank.in_call else rank.phase_age_s)


def _blocked(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """What a thread of the rank is inside of."""
    for position in job.unfinished.get(rank.rank, ()):
        record = job.ops[rank.rank][position][1]
        if record.state is not OpState.BLOCKED:
            continue
        age_s = seconds(
            record.issued_age_s if record.blocked_age_s is None else record.blocked_age_s
        )
        wait_point = wait_point_of(job, rank.rank, position)
        if wait_point is not None:
            connects = record.p2p and _connects(job, rank.rank, position)
            yield Wait(
                rank.rank,
                wait_point,
                age_s,
                firm=not connects,
                op=record.op,
                record=record,
                site=record.site,
                connects=connects,
            )


def _connects(job: Job, rank: int, position: int) -> bool:
    """Whether a rank is still in a call that leaves its message to the device.

    NCCL makes the connection in it. What the program posts next is not known: it may be the other
    half of the same batch.
    """
    gid, record = job.ops[rank][position]
    progress = job.progress[rank].get(gid)
    if progress is None or not progress.in_order:
        return False
    return record.blocked_age_s is None or record.blocked_age_s >= record.issued_age_s


def wait_point_of(job: Job, rank: int, position: int) -> WaitPoint | None:
    """Where a call of a rank waits, None for one that can wait for nobody."""
    gid, record = job.ops[rank][position]
    if not record.p2p:
        return Place(gid, record.seq) if record.seq > 0 else None
    if record.peer == rank:
        return None
    sends = record.wire.startswith("send")
    return Channel(gid, rank, record.peer, sends, record.tag, *turn(job, rank, position))


def pending(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """The earliest unfinished collective of each group.

    A call that was issued and never waited for stays ISSUED in the page for
    ever: it counts only where c10d's own record says that it is unfinished.
    """
    first: dict[int, OpRecord] = {}
    for position in job.unfinished.get(rank.rank, ()):
        gid, record = job.ops[rank.rank][position]
        waits = record.state is OpState.ISSUED and not record.p2p and record.seq > 0
        if waits and gid not in first and _unfinished(job, rank, gid, record):
            first[gid] = record
    for gid, record in first.items():
        yield Wait(
            rank.rank,
            Place(gid, record.seq),
            seconds(record.issued_age_s) or seconds(rank.pending_age_s),
            firm=False,
            op=record.op,
            record=record,
            site=record.site,
        )


def by_counters(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """Where a rank waits, as far as c10d's counters tell.

    They say that something is unfinished, not in which group, nor always how far all
    before it is complete: the last place entered is taken where nothing was completed. Nobody
    waits in a group for longer than it has issued nothing there.
    """
    if rank.flight or rank.pending_age_s is None:
        return
    pending_s = seconds(rank.pending_age_s)
    for gid, progress in job.progress.get(rank.rank, {}).items():
        if progress.alive and progress.enqueued > max(0, progress.completed):
            complete = _complete(job, gid, progress)
            if complete < 0 or complete >= progress.enqueued:
                complete = progress.enqueued - 1
            place = Place(gid, complete + 1)
            record = job.record(rank.rank, place)
            if record is None or record.state is OpState.ISSUED:
                issued_s = progress.changed_age_s
                age_s = pending_s if issued_s is None else min(pending_s, seconds(issued_s))
                if issued_s is None or age_s >= MOMENT_S:
                    yield Wait(rank.rank, place, age_s, firm=False, vague=True)


def _complete(job: Job, gid: int, progress: GroupProgress) -> int:
    """The last place of a group that is complete on a rank, by its counters; -1 for none.

    Threads of gloo's note what they have completed in any order, so its count may be one
    of long before. What all have entered and another has completed is complete here, too.
    """
    if progress.in_order or progress.completed < 0:
        return progress.completed
    return max(progress.completed, job.settled(gid))


def _unfinished(job: Job, rank: RankSnapshot, gid: int, record: OpRecord) -> bool:
    if rank.flight:
        return True
    progress = job.progress.get(rank.rank, {}).get(gid)
    return progress is not None and 0 <= _complete(job, gid, progress) < record.seq
