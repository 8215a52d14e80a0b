"""Merges what the page and the Flight Recorder know of one rank's calls.

The page knows what Python issued, with its call site; the recorder knows also
what C++ issued, and what has completed. They are matched by place: the group's
name leads to its key, and the collective's number is the same in both.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median_low
from typing import TYPE_CHECKING

from hangwatch.frames import is_user_file
from hangwatch.types import OpRecord, OpState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangwatch.types import FlightDump, FlightEntry, PageEvent, PageGroup, RankPage, Site

Place = tuple[int, int]
"""(slot of the page, number of the collective in its group)."""


SET_NS = 30 * 10**9
"""Clocks that differ by more than that were set in the meantime."""


def rank_ops(
    page: RankPage,
    flight: FlightDump | None,
    now_ns: int,
    clock_offset_ns: int | None = None,
) -> tuple[OpRecord, ...]:
    """The calls of one rank, oldest first, with their ages at ``now_ns``.

    ``now_ns`` is CLOCK_MONOTONIC of the rank's node, and ``clock_offset_ns`` what
    CLOCK_REALTIME is ahead of it there, where that is known. Where both know a call,
    the page's record is kept, ``DONE`` if the recorder says so. Calls that only
    the recorder knows have the source ``flight``.
    """
    groups = {group.slot: group for group in page.groups}
    entries = _by_place(flight.entries, page.groups) if flight else {}
    offset = _clock_offset_ns(page, entries, clock_offset_ns)
    timed: list[tuple[int, OpRecord]] = []
    seen: set[Place] = set()
    for event in page.events:
        group = groups.get(event.slot)
        if group is None:
            continue
        entry = None
        if not event.p2p:
            seen.add((event.slot, event.seq))
            entry = entries.get((event.slot, event.seq))
        timed.append((event.issued_ns, _from_page(event, group, entry, now_ns)))
    for place, entry in entries.items():
        if place not in seen:
            issued_ns = entry.created_unix_ns - offset
            timed.append((issued_ns, _from_flight(entry, groups[place[0]], issued_ns, now_ns)))
    timed.sort(key=lambda pair: pair[0])
    return tuple(record for _, record in timed)


def _by_place(
    entries: Sequence[FlightEntry], groups: Sequence[PageGroup]
) -> dict[Place, FlightEntry]:
    """The recorder's collectives by place. Point-to-point calls are the page's alone.

    Names start anew when a job destroys its groups and initialises again, but
    ``pg_id`` grows: for one name the highest pg_id belongs to the newest group.
    """
    pg_ids: dict[str, set[int]] = defaultdict(set)
    for entry in entries:
        pg_ids[entry.group_name].add(entry.pg_id)
    slots: dict[tuple[str, int], int] = {}
    for name, ids in pg_ids.items():
        used = [g.slot for g in groups if g.name == name and (g.enqueued or g.entered)]
        newest_first = sorted(used, reverse=True)
        for pg_id, slot in zip(sorted(ids, reverse=True), newest_first, strict=False):
            slots[name, pg_id] = slot
    placed: dict[Place, FlightEntry] = {}
    for entry in entries:
        slot_of_entry = slots.get((entry.group_name, entry.pg_id))
        if slot_of_entry is None or entry.p2p or entry.seq < 1:
            continue
        # The parts of a coalesced group share one number: the first stands for it.
        placed.setdefault((slot_of_entry, entry.seq), entry)
    return placed


def _clock_offset_ns(
    page: RankPage, entries: dict[Place, FlightEntry], of_node_ns: int | None
) -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC of the rank, from calls that both recorded."""
    both = [
        entry.created_unix_ns - event.issued_ns
        for event in page.events
        if not event.p2p and (entry := entries.get((event.slot, event.seq))) is not None
    ]
    if both:
        return median_low(both)
    newest = max((entry.created_unix_ns for entry in entries.values()), default=0)
    # Nothing in common: the counters changed last when the newest call was made.
    changed = max((group.changed_ns for group in page.groups), default=0)
    sampled = newest - changed
    # The sampler sees it up to half a second later. More is a clock that was set since.
    if of_node_ns is not None and abs(of_node_ns - sampled) < SET_NS:
        return of_node_ns
    return sampled


def _finished(entry: FlightEntry | None) -> bool:
    return entry is not None and (entry.retired or entry.state == "completed")


def _from_page(
    event: PageEvent, group: PageGroup, entry: FlightEntry | None, now_ns: int
) -> OpRecord:
    state = event.state
    if state is OpState.DONE and entry is not None and "nccl" in group.backend:
        # The call has returned, which on a device says only that it was enqueued.
        state = OpState.DONE if _finished(entry) else OpState.ISSUED
    elif state in (OpState.ISSUED, OpState.BLOCKED) and entry is not None:
        state = OpState.DONE if _finished(entry) else state
    elif state is OpState.ISSUED and not event.p2p and 0 < event.seq <= group.completed:
        # Only where nothing better is known: gloo's threads complete out of order,
        # so a call can be stuck although a later one of its group is complete.
        state = OpState.DONE
    blocked_age_s = None
    if state is OpState.BLOCKED:
        blocked_age_s = _age_s(event.blocked_ns or event.issued_ns, now_ns)
    return OpRecord(
        group=group.key,
        op=event.op,
        wire=event.wire,
        seq=event.seq,
        p2p=event.p2p,
        state=state,
        dtype=event.dtype,
        shape=event.shape,
        root=event.root,
        peer=event.peer,
        tag=event.tag,
        is_async=event.is_async,
        site=event.site,
        issued_age_s=_age_s(event.issued_ns, now_ns),
        blocked_age_s=blocked_age_s,
        thread=event.thread,
    )


def _from_flight(entry: FlightEntry, group: PageGroup, issued_ns: int, now_ns: int) -> OpRecord:
    return OpRecord(
        group=group.key,
        op=entry.wire,
        wire=entry.wire,
        seq=entry.seq,
        p2p=False,
        state=OpState.DONE if _finished(entry) else OpState.ISSUED,
        dtype=entry.dtype,
        shape=entry.shape,
        is_async=True,
        site=_innermost_user(entry.frames),
        issued_age_s=_age_s(issued_ns, now_ns),
        source="flight",
    )


def _innermost_user(frames: Iterable[Site]) -> Site | None:
    return next((site for site in frames if site.line > 0 and is_user_file(site.file)), None)


def _age_s(then_ns: int, now_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9
