"""Where ranks were when they ended, for those that did not end by themselves."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hangwatch.diagnosis.facts.endings import Cause, Ending, How, timed_out, went_on
from hangwatch.diagnosis.facts.job import Job, seconds
from hangwatch.diagnosis.facts.stores import for_keys
from hangwatch.diagnosis.facts.wait_points import Place, Wait, WaitPoint
from hangwatch.diagnosis.facts.waits import (
    awaited_setups,
    by_counters,
    in_setup,
    living,
    pending,
    setup_of,
    wait_point_of,
)
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import OpState
from hangwatch.model.snapshot import RankSnapshot

FAILED_WITHIN = 4
"""A call that raised is where a rank ended if it is among its last so many."""


COUNTED_S = 2.0
"""What was issued so long before a rank ended is in its counts."""


def find_waits(
    job: Job, ended: Mapping[int, Ending], disputed: Mapping[int, int] | None = None
) -> list[Wait]:
    """All waits of all ranks, living and ended, in the order of the ranks.

    A rank that ended by itself waits for nothing, whatever it was in. ``disputed``:
    gid to the first place where its members differ, once that is known.
    """
    waits: list[Wait] = []
    alive = [rank for number, rank in job.ranks.items() if number not in ended]
    setups = awaited_setups(job, alive)
    for number in sorted(job.ranks):
        rank = job.ranks[number]
        end = ended.get(number)
        if end is None:
            waits.extend(living(job, rank, setups))
        elif end.how is not How.CLEAN and end.cause is not Cause.OWN:
            found = list(_ended(job, rank, ended))
            in_dispute = _in_dispute(job, rank, end, disputed or {})
            if all(_is_before(wait.wait_point, in_dispute) for wait in found):
                found = in_dispute or found
            waits.extend(wait._replace(over=True) for wait in found)
    return waits + for_keys(job, ended, waits)


def _in_dispute(
    job: Job, rank: RankSnapshot, end: Ending, disputed: Mapping[int, int]
) -> list[Wait]:
    """The disputed places that a rank raised after: its calls failed, c10d counts them done."""
    if end.cause is not Cause.ECHO:
        return []
    return [
        Wait(rank.rank, Place(gid, disputed[gid]), end.age_s, firm=False)
        for gid in job.progress.get(rank.rank, {})
        if gid in disputed and job.arrived(rank.rank, Place(gid, disputed[gid]))
    ]


def _is_before(wait_point: WaitPoint, waits: Iterable[Wait]) -> bool:
    """Whether a place comes before one that a rank waits in: it has been there long ago."""
    return isinstance(wait_point, Place) and any(
        isinstance(wait.wait_point, Place)
        and wait_point.gid == wait.wait_point.gid
        and wait_point.seq < wait.wait_point.seq
        for wait in waits
    )


def _ended(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Wait]:
    """Where a rank was that did not end by itself.

    In a set-up call, in the call that it was blocked in or that raised, or, where
    C++ waited, in the earliest that is not complete.
    """
    end = ended[rank.rank]
    setup = setup_of(job, rank)
    if setup is not None:
        yield in_setup(job, rank, setup, seconds(rank.in_call_age_s) or end.age_s)
        return
    position = _last_position(job, rank.rank)
    if position is not None:
        record = job.ops[rank.rank][position][1]
        wait_point = wait_point_of(job, rank.rank, position)
        if wait_point is not None:
            yield Wait(
                rank.rank,
                wait_point,
                seconds(record.issued_age_s),
                firm=True,
                op=record.op,
                record=record,
                site=record.site,
            )
        return
    if end.cause is Cause.ECHO or rank.pending_age_s is not None:
        known = list(pending(job, rank)) or list(_beside_the_gone(job, rank, ended))
        yield from known or by_counters(job, rank)


def _last_position(job: Job, rank: int) -> int | None:
    ops = job.ops.get(rank, [])
    for position in range(len(ops) - 1, -1, -1):
        gid, record = ops[position]
        if record.state is OpState.BLOCKED:
            return position
        # One that is waited for raises as late as that.
        late = position >= len(ops) - FAILED_WITHIN or record.is_async
        if record.state is OpState.FAILED and late and not went_on(job, rank, gid, record):
            return position
    return None


def _beside_the_gone(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Wait]:
    """The places that a rank was in with members that are gone, by the counters.

    These are sampled, so they may be a step behind, and those of the ranks that
    failed with it tell more. c10d may count what has failed as done.
    """
    end = ended[rank.rank]
    if rank.flight and job.ops.get(rank.rank):
        yield from _in_its_last_group(job, rank, ended)
        return
    groups = _used(job, rank)
    # What raised was C++'s: a group in which Python made the last call is not the one.
    by_cpp = [gid for gid in groups if not _made_by_python(job, rank.rank, gid)]
    for gid in by_cpp or groups:
        reached = job.reached[gid]
        causes = {m: ended[m].cause for m in job.members(gid) if m in ended}
        gone = [member for member, cause in causes.items() if cause is Cause.OWN]
        if not gone and timed_out(end):
            # The launcher has ended those that it had waited for in vain.
            gone = [member for member, cause in causes.items() if cause is Cause.TERMINATED]
        seqs = [reached.get(member, 0) for member in causes if member not in gone]
        # Who came to its end is missing from the place after its last one.
        seqs += [reached.get(m, 0) + (ended[m].how is How.CLEAN) for m in gone]
        place = Place(gid, max(seqs, default=0))
        if any(not job.passed(member, place) for member in gone):
            age_s = seconds(rank.pending_age_s) or end.age_s
            op = _guess(rank, job.snapshot.sources)
            yield Wait(rank.rank, place, age_s, firm=False, op=op, vague=len(groups) > 1)


def _used(job: Job, rank: RankSnapshot) -> list[int]:
    """The groups of a rank in which anybody has made a call: it was in one of them."""
    return [gid for gid in job.progress.get(rank.rank, {}) if any(job.reached[gid].values())]


def _in_its_last_group(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Wait]:
    """The recorder knows all calls: it raised out of the last one, or one just before it."""
    gid, last = job.ops[rank.rank][-1]
    if last.p2p or not any(member in ended for member in job.members(gid)):
        return
    calls = sorted(
        (own.seq, seconds(own.issued_age_s))
        for key, own in job.ops[rank.rank]
        if key == gid and not own.p2p
    )
    others = [
        job.reached[gid].get(member, 0)
        for member in job.members(gid)
        if member != rank.rank and not _is_behind(job, gid, calls, ended.get(member), member)
    ]
    place = Place(gid, min([last.seq, *(seq + 1 for seq in others)]))
    if all(job.arrived(member, place) for member in job.members(gid)):
        return
    age_s = seconds(rank.pending_age_s) or ended[rank.rank].age_s
    op = _guess(rank, job.snapshot.sources) or last.op
    vague = len(_used(job, rank)) > 1
    yield Wait(rank.rank, place, age_s, firm=False, op=op, vague=vague)


def _is_behind(
    job: Job, gid: int, calls: Sequence[tuple[int, float]], end: Ending | None, rank: int
) -> bool:
    """Whether a rank's count is one of before its last moments: it is taken twice a second.

    Not where a rank that raised was further than that for longer, nor at the end of a program.
    calls: places of the one that raised, in order, and for how long it has been there.
    """
    if end is None or end.in_shutdown or end.cause is Cause.ECHO or job.ranks[rank].flight:
        return False
    least = job.reached[gid].get(rank, 0) + FAILED_WITHIN
    # Of what is not recorded any more it is known that it was made before the first one after it.
    after = bisect_right(calls, (least, math.inf))
    return after < len(calls) and calls[after][1] - end.age_s < COUNTED_S


def _made_by_python(job: Job, rank: int, gid: int) -> bool:
    """Whether the last call in a group that is known of a rank is recorded in its page."""
    record = job.record(rank, Place(gid, job.reached[gid].get(rank, 0)))
    return record is not None and record.source == "page"


def _guess(rank: RankSnapshot, sources: Mapping[str, str]) -> str:
    """What C++ issues in backward is the all_reduce of DistributedDataParallel."""
    site = with_source(rank.exception.site, sources) if rank.exception else None
    return "all_reduce" if site and site.source and ".backward(" in site.source else ""
