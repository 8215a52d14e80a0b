"""Where a rank is that has a device: not where its program is, which runs ahead.

The program enqueues calls, often many and in several groups, and the device runs them
in that order: it is at the oldest that is unfinished. What is enqueued behind that
is no arrival. A device that stands at nothing, although it has work, is stuck itself:

- others have completed a call that needs every rank, and it has not: its device ran no
  further, or can no longer tell (after an error no event completes). Not where members came
  with different calls: NCCL pairs them all the same, and lets the one that needs less go;
- it has begun nothing of what it has to run: the device tells so itself (beacons), or the
  recorder takes these times. The program's calls are not late then, what it enqueued
  before them is;
- all stand at one call, and its program alone has stopped enqueuing what follows:
  after an error of the device the program gets no further either. Not where all are
  known to have begun it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import Channel, Place, Wait, WaitPoint
from hangwatch.model.operations import OPERATIONS


class Stuck(NamedTuple):
    """What shows that the device of a rank is stuck itself."""

    place: Place | None
    """The place that it has not run, or not alone; None for a point-to-point call."""
    sure: bool
    """Not so where only its program says so, by having stopped."""


def oldest(job: Job, rank: int) -> list[int]:
    """The positions of the calls that a rank's device is at: one, or a coalesced group.

    The oldest that is unfinished; where it is known which have begun, the oldest of those.
    """
    positions = job.devices.get(rank, [])
    if not positions:
        return []
    own = job.ops[rank]
    # Of two groups the later call may have begun, on another stream, and the earlier one wait
    # for it.
    gid, first = own[next((at for at in positions if own[at][1].begun), positions[0])]
    here = gid, first.p2p, first.seq
    return [at for at in positions if (own[at][0], own[at][1].p2p, own[at][1].seq) == here]


def needed(job: Job, waits: Sequence[Wait], stuck: Collection[int]) -> list[Wait]:
    """The waits that count: where devices are, and what leads to ranks that nothing else does.

    What is enqueued behind the call that a device is at waits for nobody yet. But it may be
    all that tells of a rank which has run everything, and issues nothing more.
    """
    if not job.devices:
        return list(waits)
    now = [wait for wait in waits if not _is_behind(wait) and wait.rank not in stuck]
    behind = [wait for wait in waits if _is_behind(wait) and wait.rank not in stuck]
    if not behind:
        return now
    known = {wait.rank for wait in now}
    for wait_point in {wait.wait_point for wait in now}:
        known.update(_lacking(job, wait_point, stuck) if isinstance(wait_point, Place) else ())
        if isinstance(wait_point, Channel):
            known.add(wait_point.peer)
    new = {
        wait_point
        for wait_point in {wait.wait_point for wait in behind}
        if _lacking(job, wait_point, stuck) - known
    }
    return now + [wait for wait in behind if wait.wait_point in new]


def _is_behind(wait: Wait) -> bool:
    return wait.apart and wait.record is not None and wait.record.device


def _lacking(job: Job, wait_point: WaitPoint, stuck: Collection[int]) -> set[int]:
    """The members that have not issued a call, or that will not run it."""
    if not isinstance(wait_point, Place):
        return set()
    return {
        member
        for member in job.members(wait_point.gid)
        if not job.arrived(member, wait_point)
        or (member in stuck and not job.passed(member, wait_point))
    }


def are_untimed(waits: Collection[Wait]) -> bool:
    """Whether devices run what ranks wait in, and of none it is known that it has come to it."""
    records = [wait.record for wait in waits]
    return bool(records) and all(
        record is not None and record.device and record.begun is None for record in records
    )


def stuck_devices(job: Job, disputed: Mapping[int, int]) -> dict[int, Stuck]:
    """Ranks whose device is stuck itself.

    disputed: gid to the first place where its members came with different calls.
    """

    def is_disputed(place: Place) -> bool:
        return place.seq >= disputed.get(place.gid, math.inf)

    at: dict[int, Place] = {}
    found: dict[int, Stuck] = {}
    for rank in job.devices:
        gid, record = job.ops[rank][oldest(job, rank)[0]]
        here = None if record.p2p else Place(gid, record.seq)
        if here is not None and not is_disputed(here):
            at[rank] = here
        places = (place for place in _unfinished(job, rank) if not is_disputed(place))
        place = next((place for place in places if _outrun(job, rank, place, here)), None)
        if place is not None or _began_nothing(job, rank):
            found[rank] = Stuck(place or here, sure=True)
    return found | _silent(job, at, found)


def without_company(job: Job, stuck: Mapping[int, Stuck]) -> dict[int, Stuck]:
    """Of stuck devices those that are not all together before one call.

    Where nobody waits for any of them, there is nobody to compare them with either.
    """
    at: dict[Place, set[int]] = {}
    for rank, one in stuck.items():
        if one.place is not None:
            at.setdefault(one.place, set()).add(rank)
    together = {
        rank
        for place, ranks in at.items()
        if ranks >= set(job.members(place.gid))
        for rank in ranks
    }
    return {rank: one for rank, one in stuck.items() if rank not in together}


def not_passed(job: Job, stuck: Mapping[int, Stuck]) -> dict[int, Stuck]:
    """Of stuck devices those that are not behind all others.

    One that has not run what is complete elsewhere, and that nobody waits for, waits itself.
    """
    return {
        rank: one
        for rank, one in stuck.items()
        if one.place is None
        or not any(job.passed(member, one.place) for member in job.members(one.place.gid))
    }


def _unfinished(job: Job, rank: int) -> Iterator[Place]:
    """The first unfinished place of each group, as far as a device runs it."""
    seen: set[int] = set()
    for position in job.devices[rank]:
        gid, record = job.ops[rank][position]
        if not record.p2p and gid not in seen:
            seen.add(gid)
            yield Place(gid, record.seq)


def _outrun(job: Job, rank: int, place: Place, here: Place | None) -> bool:
    """Whether others have completed what this rank has not, or nobody else is needed for it.

    here: where its device is.
    """
    record = job.record(rank, place)
    others = [member for member in job.members(place.gid) if member != rank]
    past = [member for member in others if job.passed(member, place)]
    if not others:
        return place == here
    operation = OPERATIONS.get(record.wire) if record is not None else None
    if operation is not None and operation.needs_all:
        return bool(past)
    return len(past) == len(others)


def _began_nothing(job: Job, rank: int) -> bool:
    """Whether the device has begun none of its unfinished calls: it is busy with something else."""
    own = job.ops[rank]
    return all(own[position][1].begun is False for position in job.devices[rank])


def _silent(job: Job, at: Mapping[int, Place], stuck: Collection[int]) -> dict[int, Stuck]:
    """Of the members that all stand at one place those that enqueued less than the others."""
    found: dict[int, Stuck] = {}
    for place in dict.fromkeys(at.values()):
        members = job.members(place.gid)
        if any(at.get(member) != place or member in stuck for member in members):
            continue
        if all((call := job.record(rank, place)) and call.begun for rank in members):
            continue  # each device is in the call itself, whatever its program is at
        furthest: dict[int, int] = {}
        for rank in members:
            for gid in job.progress.get(rank, {}):
                furthest[gid] = max(furthest.get(gid, 0), job.reached[gid].get(rank, 0))
        behind = [
            rank
            for rank in members
            if any(
                job.reached[gid].get(rank, 0) < furthest[gid] for gid in job.progress.get(rank, {})
            )
        ]
        if len(behind) < len(members):
            found.update(dict.fromkeys(behind, Stuck(place, sure=False)))
    return found
