"""Finds the call that the device of a rank is at, behind its program.

The program enqueues calls, often many and in several groups, and the device runs them in that
order: it is at the oldest unfinished one, and has not reached the calls behind it. A device with
queued work that is at no call is itself stuck:

- others have completed a call that needs every rank, and this device has not: it stopped, or can
  no longer report (after an error no event completes). This does not hold if members entered
  different calls: NCCL pairs them nevertheless, and releases the rank that needs less;
- it has begun none of its calls, as its beacons or the times of the recorder show. Then earlier
  work of the program is late, and not the calls;
- all are at one call, and only the program of this device stopped enqueuing more: after an error of
  the device the program stops too. This does not hold if all are known to have begun the call.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import Channel, Slot, Wait, WaitPoint
from hangwatch.model.operations import OPERATIONS


class Stuck(NamedTuple):
    """The evidence that the device of a rank is stuck itself."""

    slot: Slot | None
    """The slot that it has not run, or not alone; None for a point-to-point call."""
    sure: bool
    """False where only its program shows it, by having stopped."""


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
    """The waits that count: at the current calls of devices, and waits that alone lead to a rank.

    A call that is enqueued behind the current call of a device waits for no rank yet. But it may
    be the only one that leads to a rank which has run everything and issues nothing more.
    """
    if not job.devices:
        return list(waits)
    now: list[Wait] = []
    behind: list[Wait] = []
    for wait in waits:
        if wait.rank not in stuck:
            is_behind = wait.in_thread and wait.record is not None and wait.record.device
            (behind if is_behind else now).append(wait)
    if not behind:
        return now
    known = {wait.rank for wait in now}
    for wait_point in {wait.wait_point for wait in now}:
        known |= _lacking(job, wait_point, stuck)
        if isinstance(wait_point, Channel):
            known.add(wait_point.peer)
    points = {wait.wait_point for wait in behind}
    new = {wait_point for wait_point in points if _lacking(job, wait_point, stuck) - known}
    return now + [wait for wait in behind if wait.wait_point in new]


def _lacking(job: Job, wait_point: WaitPoint, stuck: Collection[int]) -> set[int]:
    """The members that have not issued a call, or that will not run it."""
    if not isinstance(wait_point, Slot):
        return set()
    return {
        member
        for member in job.members(wait_point.gid)
        if not job.arrived(member, wait_point)
        or (member in stuck and not job.passed(member, wait_point))
    }


def are_untimed(waits: Collection[Wait]) -> bool:
    """Return True if devices run the calls that ranks wait in, and none is known to be there."""
    records = [wait.record for wait in waits]
    return bool(records) and all(
        record is not None and record.device and record.begun is None for record in records
    )


def stuck_devices(job: Job, disputed: Mapping[int, int]) -> dict[int, Stuck]:
    """Ranks whose device is stuck itself.

    disputed: gid to the first slot where its members came with different calls.
    """

    def is_disputed(slot: Slot) -> bool:
        return slot.seq >= disputed.get(slot.gid, math.inf)

    at: dict[int, Slot] = {}
    found: dict[int, Stuck] = {}
    for rank, positions in job.devices.items():
        gid, record = job.ops[rank][oldest(job, rank)[0]]
        here = None if record.p2p else Slot(gid, record.seq)
        if here is not None and not is_disputed(here):
            at[rank] = here
        unfinished = [job.ops[rank][position] for position in positions]
        first: dict[int, Slot] = {}
        for gid, record in unfinished:
            if not record.p2p:
                first.setdefault(gid, Slot(gid, record.seq))
        slots = (slot for slot in first.values() if not is_disputed(slot))
        slot = next((slot for slot in slots if _outrun(job, rank, slot, here)), None)
        # A device that has begun none of its unfinished calls is busy with something else.
        if slot is not None or all(record.begun is False for _, record in unfinished):
            found[rank] = Stuck(slot or here, sure=True)
    return found | _silent(job, at, found)


def without_company(job: Job, stuck: Mapping[int, Stuck]) -> dict[int, Stuck]:
    """The stuck devices that are not all together before one call.

    Where no rank waits for any of them, there is none to compare them with either.
    """
    at: dict[Slot | None, set[int]] = defaultdict(set)
    for rank, evidence in stuck.items():
        at[evidence.slot].add(rank)
    return {
        rank: evidence
        for rank, evidence in stuck.items()
        if (slot := evidence.slot) is None or not at[slot] >= {*job.members(slot.gid)}
    }


def not_passed(job: Job, stuck: Mapping[int, Stuck]) -> dict[int, Stuck]:
    """The stuck devices that are not behind all others.

    A device that has not run a call that is complete elsewhere, and that no rank waits for, is
    itself waiting.
    """
    return {
        rank: evidence
        for rank, evidence in stuck.items()
        if (slot := evidence.slot) is None
        or not any(job.passed(member, slot) for member in job.members(slot.gid))
    }


def _outrun(job: Job, rank: int, slot: Slot, here: Slot | None) -> bool:
    """Return True if others have completed a slot that this rank has not, or none has to.

    here: the slot that its device is at.
    """
    record = job.record(rank, slot)
    others = [member for member in job.members(slot.gid) if member != rank]
    past = [member for member in others if job.passed(member, slot)]
    if not others:
        return slot == here
    operation = OPERATIONS.get(record.wire) if record is not None else None
    if operation is not None and operation.needs_all:
        return bool(past)
    return len(past) == len(others)


def _silent(job: Job, at: Mapping[int, Slot], stuck: Collection[int]) -> dict[int, Stuck]:
    """The members that are at one slot with all others, and enqueued less than some of them."""
    found: dict[int, Stuck] = {}
    for slot in dict.fromkeys(at.values()):
        members = job.members(slot.gid)
        if any(at.get(member) != slot or member in stuck for member in members):
            continue
        if all((call := job.record(rank, slot)) and call.begun for rank in members):
            continue  # each device is in the call itself, whatever its program is at
        furthest: dict[int, int] = defaultdict(int)
        for rank in members:
            for gid in job.progress.get(rank, {}):
                furthest[gid] = max(furthest[gid], job.reached[gid].get(rank, 0))
        behind = [
            rank
            for rank in members
            if any(job.reached[g].get(rank, 0) < furthest[g] for g in job.progress.get(rank, {}))
        ]
        if len(behind) < len(members):
            found.update(dict.fromkeys(behind, Stuck(slot, sure=False)))
    return found
