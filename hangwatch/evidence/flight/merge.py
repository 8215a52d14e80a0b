"""Merges what the page and the Flight Recorder know of one rank's calls.

The page knows what Python issued, with its call site; the recorder knows also
what C++ issued, and what has completed. They are matched by place: the group's
name leads to its key, and the collective's number is the same in both. How far a
device has come, beacons tell on the page (native/beacon.hpp).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from hangwatch.evidence.flight.backends import with_devices
from hangwatch.evidence.flight.calls import Call, calls, channels
from hangwatch.model.calls import Site
from hangwatch.model.flight import FlightDump
from hangwatch.model.frames import is_user_file
from hangwatch.model.kinds import OpState
from hangwatch.model.operations import NCCL
from hangwatch.model.page import PageEvent, PageGroup, RankPage
from hangwatch.model.snapshot import GroupProgress, OpRecord

Place = tuple[int, int]
"""(slot of the page, number of the collective in its group)."""


_NCCL_ALONE = frozenset(NCCL) | {f"cuda:{name}" for name in NCCL}
"""Backends of groups in which everything runs on a device, in its order."""
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
    the recorder knows have the source ``flight``; ``older`` if they are from before what is left
    on the page of their group.
    """
    groups = {group.slot: group for group in page.groups}
    made = calls(with_devices(flight, page.groups), of_all_groups=True) if flight else None
    slots = _slots(made or (), page.groups)
    known = _by_place(made or (), slots)
    told = channels(page.events, groups, made or (), slots)
    offset = _clock_offset_ns(page, known, clock_offset_ns)
    waiting = _first_not_reached(page.events, groups)
    timed: list[tuple[int, OpRecord]] = []
    seen: set[Place] = set()
    for event in page.events:
        group = groups.get(event.slot)
        if group is None or (event.p2p and event.slot in told):
            continue
        call = None
        if not event.p2p:
            seen.add((event.slot, event.seq))
            call = known.get((event.slot, event.seq))
        record = _from_page(event, group, call, now_ns)
        if record.begun and "nccl" in group.backend and waiting:
            # What has not begun may wait behind it.
            record = replace(record, device=True)
        timed.append((event.issued_ns, record))
    for issued_ns, slot, record in _unseen(known, seen, page, groups, offset, now_ns):
        # A group's calls run in their order, and an earlier one may not have begun.
        before = waiting.get(slot, record.seq) < record.seq
        timed.append((issued_ns, replace(record, begun=False) if before else record))
    for sent in told.values():
        timed += sent.records(offset, now_ns)
        timed += [
            (event.issued_ns, _from_page(event, sent.group, None, now_ns)) for event in sent.others
        ]
    timed.sort(key=lambda pair: pair[0])
    if _may_be_elsewhere(page, made):
        # What has not begun may wait behind it: then nothing is wrong with the device.
        return tuple(
            record if record.begun is not False else replace(record, begun=None)
            for _, record in timed
        )
    return tuple(record for _, record in timed)


def _unseen(  # noqa: PLR0913 (what both know)
    known: Mapping[Place, Call],
    seen: Collection[Place],
    page: RankPage,
    groups: Mapping[int, PageGroup],
    offset_ns: int,
    now_ns: int,
) -> Iterator[tuple[int, int, OpRecord]]:
    """The collectives that the recorder has and the page has not: when issued, slot, record."""
    kept: dict[int, list[PageEvent]] = defaultdict(list)
    for event in page.events if known else ():
        if not event.p2p:
            kept[event.slot].append(event)
    lost = {slot: _Lost(groups[slot], kept[slot]) for slot in {slot for slot, _ in known}}
    for (slot, seq), call in known.items():
        if (slot, seq) not in seen:
            issued_ns = call.first.created_unix_ns - offset_ns
            record = _from_flight(call, groups[slot], issued_ns, now_ns, page.identity.program)
            yield issued_ns, slot, lost[slot].restored(record)


class _Lost:
    """The calls of a group that Python issued and the page has no room for any more."""

    def __init__(self, group: PageGroup, kept: Sequence[PageEvent]) -> None:
        self._all_python = group.entered == group.enqueued
        self._before = min((event.seq for event in kept), default=group.enqueued + 1)
        if group.entered <= len(kept):
            self._before = 0
        self._alike: dict[tuple[object, ...], set[tuple[str, Site | None, int, bool, int]]]
        self._alike = defaultdict(set)
        for event in kept if self._all_python else ():
            made = event.op, event.site, event.root, event.is_async, event.thread
            self._alike[event.wire, event.dtype, event.shape].add(made)

    def restored(self, record: OpRecord) -> OpRecord:
        """The recorder's record of a call, as what is left of the page lets one take it.

        Where all that is left of its kind was made at one line, it was made there too.
        """
        if record.seq >= self._before:
            return record
        record = replace(record, source="page" if self._all_python else "older")
        alike = self._alike.get((record.wire, record.dtype, record.shape), ())
        if len(alike) != 1:
            return record
        op, site, root, is_async, thread = next(iter(alike))
        return replace(record, op=op, site=site, root=root, is_async=is_async, thread=thread)


def group_progress(group: PageGroup, now_ns: int) -> GroupProgress:
    """How far a rank has come in a group, as far as its page tells at ``now_ns``."""
    completed, started = group.completed, -1
    in_order = group.backend in _NCCL_ALONE
    if group.reached >= 0:
        if in_order:
            completed = max(completed, group.passed)
        started = max(completed, group.reached)
    return GroupProgress(
        group.key,
        group.name,
        group.enqueued,
        completed,
        group.p2p,
        group.alive,
        started,
        by_python=group.entered,
        in_order=in_order,
        made_age_s=_age_s(group.made_ns, now_ns) if group.made_ns else None,
        ended_age_s=_age_s(group.ended_ns, now_ns) if group.ended_ns else None,
        changed_age_s=_age_s(group.changed_ns, now_ns) if group.changed_ns else None,
    )


def _may_be_elsewhere(page: RankPage, made: Sequence[Call] | None) -> bool:
    """Whether a device may be in a call of NCCL's of which no record tells.

    made: what the recorder knows, None where it was not asked. Sends and recvs are no
    records of a device's.
    """
    if made is not None:
        return any(c.first.p2p and c.first.device and not c.finished for c in made)
    on_device = {g.slot: g for g in page.groups if g.alive and "nccl" in g.backend}
    if any(group.p2p or group.enqueued > group.entered for group in on_device.values()):
        return True
    return any(
        event.device < 0
        and event.state in (OpState.ISSUED, OpState.BLOCKED)
        and event.seq > on_device[event.slot].completed
        for event in page.events
        if event.slot in on_device
    )


def _first_not_reached(
    events: Iterable[PageEvent], groups: Mapping[int, PageGroup]
) -> dict[int, int]:
    """By slot the first place that a stream of the rank is known not to have come to."""
    found: dict[int, int] = {}
    for event in events:
        group = groups.get(event.slot)
        if group is not None and _reached(event, group) is False:
            found[event.slot] = min(event.seq, found.get(event.slot, event.seq))
    return found


def _reached(event: PageEvent, group: PageGroup) -> bool | None:
    """Whether the stream that a call was made on has come to it, None where none tells."""
    if event.p2p or event.device < 0 or group.reached < 0:
        return None
    return event.seq <= group.reached


def _slots(made: Iterable[Call], groups: Sequence[PageGroup]) -> dict[tuple[str, int], int]:
    """(Name, pg_id) in the recorder to slot on the page.

    Names start anew when a job destroys its groups and initialises again, but
    ``pg_id`` grows: for one name the highest pg_id belongs to the newest group.
    """
    pg_ids: dict[str, set[int]] = defaultdict(set)
    for call in made:
        pg_ids[call.first.group_name].add(call.first.pg_id)
    slots: dict[tuple[str, int], int] = {}
    for name, ids in pg_ids.items():
        used = [g.slot for g in groups if g.name == name and (g.enqueued or g.entered or g.p2p)]
        newest_first = sorted(used, reverse=True)
        for pg_id, slot in zip(sorted(ids, reverse=True), newest_first, strict=False):
            slots[name, pg_id] = slot
    return slots


def _by_place(made: Iterable[Call], slots: Mapping[tuple[str, int], int]) -> dict[Place, Call]:
    """The recorder's collectives by place."""
    placed: dict[Place, Call] = {}
    for call in made:
        slot_of_call = slots.get((call.first.group_name, call.first.pg_id))
        if slot_of_call is not None and not call.first.p2p:
            placed.setdefault((slot_of_call, call.first.seq), call)
    return placed


def _clock_offset_ns(page: RankPage, known: Mapping[Place, Call], of_node_ns: int | None) -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC of the rank, from calls that both recorded."""
    both = [
        call.first.created_unix_ns - event.issued_ns
        for event in page.events
        if not event.p2p and (call := known.get((event.slot, event.seq))) is not None
    ]
    if both:
        return median_low(both)
    if not known:
        return of_node_ns or 0
    newest = max(call.first.created_unix_ns for call in known.values())
    # Nothing in common: the counters changed last when the newest call was made.
    changed = max((group.changed_ns for group in page.groups), default=0)
    sampled = newest - changed
    # The sampler sees it up to half a second later. More is a clock that was set since.
    if of_node_ns is not None and abs(of_node_ns - sampled) < SET_NS:
        return of_node_ns
    return sampled


def _state(event: PageEvent, group: PageGroup, call: Call | None) -> OpState:
    state = event.state
    if state is OpState.FAILED:
        return state
    if event.device >= 0 and "nccl" in group.backend and 0 < event.seq <= group.passed:
        return OpState.DONE
    if state is OpState.DONE and call is not None and "nccl" in group.backend:
        # The call has returned, which on a device says only that it was enqueued.
        state = OpState.DONE if call.finished else OpState.ISSUED
    elif state in (OpState.ISSUED, OpState.BLOCKED) and call is not None:
        state = OpState.DONE if call.finished else state
    elif state is OpState.ISSUED and not event.p2p and 0 < event.seq <= group.completed:
        # Only where nothing better is known: gloo's threads complete out of order,
        # so a call can be stuck although a later one of its group is complete.
        state = OpState.DONE
    return state


def _runs_on_device(
    event: PageEvent, group: PageGroup, call: Call | None, state: OpState, *, begun: bool | None
) -> bool:
    """Whether where the device is tells more of a call than where the host is."""
    if call is not None and call.first.device:
        return True
    if event.device < 0:
        return False
    if begun is False:
        return True  # also of gloo's, for which a thread of the host waits for the stream
    # Nobody may ever say that a call is complete which the program does not wait for; one that
    # it made synchronously was given a beacon behind it.
    return "nccl" in group.backend and (not event.is_async or state is OpState.BLOCKED)


def _from_page(event: PageEvent, group: PageGroup, call: Call | None, now_ns: int) -> OpRecord:
    state = _state(event, group, call)
    begun = _reached(event, group)
    if begun is None and call is not None:
        begun = call.begun
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
        device=_runs_on_device(event, group, call, state, begun=begun),
        begun=begun,
        sends=event.sends,
        receives=event.receives,
    )


def _from_flight(
    call: Call, group: PageGroup, issued_ns: int, now_ns: int, program: str
) -> OpRecord:
    entry = call.first
    return OpRecord(
        group=group.key,
        op=entry.wire,
        wire=entry.wire,
        seq=entry.seq,
        p2p=False,
        state=OpState.DONE if call.finished else OpState.ISSUED,
        dtype=entry.dtype,
        shape=entry.shape,
        is_async=True,
        site=_innermost_user(entry.frames, program),
        issued_age_s=_age_s(issued_ns, now_ns),
        source="flight",
        device=entry.device,
        begun=call.begun if entry.device else None,
        sends=entry.sends,
        receives=entry.receives,
    )


def _innermost_user(frames: Iterable[Site], program: str) -> Site | None:
    return next((one for one in frames if one.line > 0 and is_user_file(one.file, program)), None)


def _age_s(then_ns: int, now_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9
