"""Matches point-to-point calls: the k-th send to the k-th recv of a peer and a tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.types import OpState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangwatch.diagnosis.job import Job
    from hangwatch.types import OpRecord

UNDER_WAY = (OpState.ISSUED, OpState.BLOCKED)


def turn(job: Job, rank: int, position: int) -> tuple[int, int]:
    """(calls like it under way before it, calls like it ever made before it or -1)."""
    ops = job.ops[rank]
    gid, record = ops[position]
    alike = [
        earlier
        for at, earlier in ops[:position]
        if at == gid
        and earlier.p2p
        and (earlier.wire, earlier.peer, earlier.tag) == (record.wire, record.peer, record.tag)
    ]
    under_way = sum(1 for earlier in alike if earlier.state in UNDER_WAY)
    whole = record.peer >= 0 and _is_whole(_in_group(job, rank, gid))
    return under_way, len(alike) if whole else -1


def posted(job: Job, gid: int, waiter: int, peer: int, want: tuple[str, int]) -> tuple[int, int]:
    """What ``peer`` has posted to match calls of ``waiter``: (under way, ever or -1).

    ``want`` is (``send`` or ``recv``, tag), what the peer has to call.
    """
    wire, tag = want
    calls = _in_group(job, peer, gid)
    alike = [
        call
        for call in calls
        if call.wire.startswith(wire) and call.peer in (waiter, -1) and call.tag == tag
    ]
    under_way = sum(1 for call in alike if call.state in UNDER_WAY)
    from_anyone = any(call.peer < 0 for call in calls if call.wire.startswith(wire))
    whole = _is_whole(calls) and not from_anyone
    return under_way, len(alike) if whole else -1


def _in_group(job: Job, rank: int, gid: int) -> list[OpRecord]:
    return [record for at, record in job.ops.get(rank, []) if at == gid and record.p2p]


def _is_whole(calls: Sequence[OpRecord]) -> bool:
    """Whether no call has dropped out of the ring: they are numbered from 1."""
    return not calls or min(call.seq for call in calls) <= 1
