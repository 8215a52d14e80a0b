"""Matches point-to-point calls: the k-th send to the k-th recv of a peer and a tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hangwatch.diagnosis.facts.job import Job, at_most_half
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, WaitPoint
from hangwatch.model.kinds import OpState
from hangwatch.model.snapshot import OpRecord

MAX_SENDERS = 4096
"""Ranks that may answer a recv from any source; a larger group is cut, not searched."""


def turn(job: Job, rank: int, position: int) -> tuple[int, int]:
    """(unfinished calls like it before it, all calls like it before it or -1)."""
    gid, record = job.ops[rank][position]
    alike = [
        earlier
        for at, earlier in job.ops[rank][:position]
        if at == gid
        and earlier.p2p
        and (earlier.wire, earlier.peer, earlier.tag) == (record.wire, record.peer, record.tag)
    ]
    counted = _are_counted(_in_group(job, rank, gid), record.wire)
    return _under_way(alike), len(alike) if counted else -1


def answers(other: WaitPoint, wait_point: Channel) -> bool:
    """Return True if a rank at ``other`` makes the call that ``wait_point`` needs of it."""
    return (
        isinstance(other, Channel)
        and (other.gid, other.sends) == (wait_point.gid, not wait_point.sends)
        and other.peer in (wait_point.waiter, ANYONE)
    )


def is_posted(job: Job, wait_point: Channel, peer: int) -> bool:
    """Return True if ``peer`` has made the call that a send or recv needs of it."""
    calls = _in_group(job, peer, wait_point.gid)
    alike = _answering(calls, wait_point)
    if wait_point.nth >= 0 and _are_counted(calls, _wanted(wait_point)):
        return len(alike) > wait_point.nth
    return _under_way(alike) > wait_point.turn


def is_guessed(job: Job, wait_point: Channel) -> bool:
    """Return True if a peer may have made the call that is_posted() does not find.

    It waits for none of its calls, so complete and incomplete calls look the same.
    """
    calls = _in_group(job, wait_point.peer, wait_point.gid)
    return not _is_whole(calls) and _forgets(_answering(calls, wait_point))


def senders(job: Job, wait_point: Channel) -> tuple[int, ...]:
    """The ranks that may send the message that a recv from any source waits for."""
    members = job.members(wait_point.gid)[: MAX_SENDERS + 1]
    return tuple(rank for rank in members if rank != wait_point.waiter)


def sending(job: Job, wait_point: Channel, peer: int) -> int:
    """The number of unreceived messages of ``peer`` for a recv from any source."""
    return _under_way(_answering(_in_group(job, peer, wait_point.gid), wait_point))


def sent(job: Job, wait_point: Channel, ranks: Sequence[int]) -> dict[int, int]:
    """The number of messages for a recv that each of some ranks has sent since one moment.

    That is the start, if all is known, or the first collective that is on record for all of them.
    Empty if their rings have no common moment.
    """
    known = all(r in job.ranks and _is_whole(_in_group(job, r, wait_point.gid)) for r in ranks)
    since = dict.fromkeys(ranks, 0) if known else _first_in_common(job, ranks)
    return {
        rank: len(_answering(_in_group(job, rank, wait_point.gid, start), wait_point))
        for rank, start in since.items()
    }


def fewest(counts: Mapping[int, int]) -> tuple[int, ...]:
    """At most half of the ranks: all sent fewer than the others, which sent the same number."""
    least = min(counts.values(), default=0)
    behind = tuple(rank for rank, count in counts.items() if count == least)
    others = {count for count in counts.values() if count != least}
    return behind if at_most_half(behind, counts) and len(others) == 1 else ()


def _first_in_common(job: Job, ranks: Sequence[int]) -> dict[int, int]:
    """Rank to the position in its ring of a collective that all of them have there."""
    at: list[dict[tuple[int, int], int]] = [
        {
            (gid, record.seq): position
            for position, (gid, record) in enumerate(job.ops.get(rank, ()))
            if not record.p2p and record.seq > 0
        }
        for rank in ranks
    ]
    common = set.intersection(*map(set, at)) if at else set()
    if not common:
        return {}
    first = min(common, key=lambda place: (sum(places[place] for places in at), place))
    return {rank: places[first] for rank, places in zip(ranks, at, strict=True)}


def _answering(calls: Iterable[OpRecord], wait_point: Channel) -> list[OpRecord]:
    """Those of a peer's calls that match the wait point's."""
    return [
        call
        for call in calls
        if call.wire.startswith(_wanted(wait_point))
        and call.peer in (wait_point.waiter, ANYONE)
        and call.tag == wait_point.tag
    ]


def _wanted(wait_point: Channel) -> str:
    return "recv" if wait_point.sends else "send"


def _under_way(calls: Sequence[OpRecord]) -> int:
    """Count the calls that are not complete.

    A call that no thread waits for stays ISSUED when it is complete, unless a device runs it.
    If some were waited for, the ISSUED calls are not complete.
    """
    forgets = _forgets(calls)
    return sum(
        1
        for call in calls
        if call.state is OpState.BLOCKED
        or (call.state is OpState.ISSUED and (call.device or not forgets))
    )


def _forgets(calls: Sequence[OpRecord]) -> bool:
    """Return True if no call of several was waited for."""
    return bool(calls) and all(call.state is OpState.ISSUED and not call.device for call in calls)


def _in_group(job: Job, rank: int, gid: int, since: int = 0) -> list[OpRecord]:
    calls = job.ops.get(rank, [])[since:]
    return [record for at, record in calls if at == gid and record.p2p]


def _is_whole(calls: Sequence[OpRecord]) -> bool:
    """Return True if no call has dropped out of the ring: they are numbered from 1."""
    return not calls or min(call.seq for call in calls) <= 1


def _are_counted(calls: Sequence[OpRecord], wire: str) -> bool:
    """Return True if it is known of all calls of a kind to which peer they were."""
    return _is_whole(calls) and not any(
        call.peer == ANYONE and call.wire.startswith(wire) for call in calls
    )
