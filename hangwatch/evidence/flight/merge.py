"""Merges what the page and the Flight Recorder know of one rank's calls.

The page knows what Python issued, with its call site; the recorder knows also
what C++ issued, and what has completed. They are matched by place: the group's
name leads to its key, and the collective's number is the same in both. Beacons
record on the page how far a device has come (native/beacon.hpp).

Of sends and recvs that were handed to NCCL the page knows when the program made them, from
which line, and no more: they run on a device, and no program waits for them on the host. The
recorder knows which of them are complete, and which were issued as one
(``batch_isend_irecv``). It has none of gloo's, and does not know when calls that a hook
recorded are complete (entries.py): these are known from the page alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from hangwatch.evidence import timing
from hangwatch.evidence.flight.entries import Call, FlightDump, FlightEntry, calls, runs_on_device
from hangwatch.model.calls import Site
from hangwatch.model.kinds import OpState
from hangwatch.model.page import PageEvent, PageGroup, RankPage
from hangwatch.model.snapshot import OpRecord


def rank_ops(
    page: RankPage,
    flight: FlightDump | None,
    now_ns: int,
    clock_offset_ns: int | None = None,
) -> tuple[OpRecord, ...]:
    """Return the calls of one rank, oldest first, with their ages at ``now_ns``.

    ``now_ns`` is CLOCK_MONOTONIC of the rank's node, and ``clock_offset_ns`` what
    CLOCK_REALTIME is ahead of it there, where that is known. Where both know a call,
    the page's record is kept, ``DONE`` if the recorder has it as complete. Calls that only
    the recorder knows have the source ``flight``; ``older`` if they are from before what is left
    on the page of their group.
    """
    groups = {group.slot: group for group in page.groups}
    made = calls(_with_devices(flight, page.groups), of_all_groups=True) if flight else None
    collectives, parts = _by_slot(made or (), page.groups)
    offset_ns = _clock_offset_ns(page, collectives, clock_offset_ns)
    waiting = _first_not_reached(page.events, groups)
    timed: list[tuple[int, OpRecord]] = []
    kept: dict[int, list[PageEvent]] = defaultdict(list)
    for event in page.events:
        group = groups.get(event.slot)
        if group is None or (event.p2p and event.slot in parts):
            continue
        call = None
        if not event.p2p:
            kept[event.slot].append(event)
            call = collectives.get(event.slot, {}).get(event.seq)
        record = _from_page(event, group, call, now_ns)
        if record.begun and "nccl" in group.backend and waiting:
            # What has not begun may wait behind it.
            record = replace(record, device=True)
        timed.append((event.issued_ns, record))
    for slot, recorded in collectives.items():
        restored = _restored(groups[slot], kept[slot], recorded, page.identity.program)
        for issued_unix_ns, record in restored:
            issued_ns = issued_unix_ns - offset_ns
            # A group's calls run in their order, and an earlier one may not have begun.
            begun = False if waiting.get(slot, record.seq) < record.seq else record.begun
            age_s = _age_s(issued_ns, now_ns)
            timed.append((issued_ns, replace(record, issued_age_s=age_s, begun=begun)))
    for slot, sent in parts.items():
        events = [event for event in page.events if event.p2p and event.slot == slot]
        timed += _point_to_point(events, sent, groups[slot], offset_ns, now_ns)
    timed.sort(key=lambda pair: pair[0])
    if _may_be_elsewhere(page, made):
        # What has not begun may wait behind it: then nothing is wrong with the device.
        return tuple(
            record if record.begun is not False else replace(record, begun=None)
            for _, record in timed
        )
    return tuple(record for _, record in timed)


def _with_devices(dump: FlightDump, groups: Iterable[PageGroup]) -> FlightDump:
    """Return a dump whose entries run where the groups of its rank have it."""
    devices: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        for part in group.backend.split(","):
            device, _, name = part.rpartition(":")
            devices[name].add(device)
    hosts = {name for name, used in devices.items() if used == {"cpu"} and runs_on_device(name)}
    if not hosts:
        return dump
    return replace(
        dump,
        entries=tuple(
            replace(entry, device=False) if entry.backend in hosts else entry
            for entry in dump.entries
        ),
    )


def _by_slot(
    made: Iterable[Call], groups: Sequence[PageGroup]
) -> tuple[dict[int, dict[int, Call]], dict[int, list[tuple[Call, FlightEntry]]]]:
    """Return the collectives by slot and number, and the sends and recvs by slot, oldest first.

    Sends and recvs only where the recorder knows which are complete.
    """
    slots = _slots(made, groups)
    collectives: dict[int, dict[int, Call]] = defaultdict(dict)
    parts: dict[int, list[tuple[Call, FlightEntry]]] = defaultdict(list)
    for call in made:
        slot = slots.get((call.first.group_name, call.first.pg_id))
        if slot is None:
            continue
        if not call.first.p2p:
            collectives[slot].setdefault(call.first.seq, call)
        elif call.first.device and not call.first.is_hooked:
            for part in call.parts:
                if part.src >= 0:
                    parts[slot].append((call, part))
    return dict(collectives), dict(parts)


def _slots(made: Iterable[Call], groups: Sequence[PageGroup]) -> dict[tuple[str, int], int]:
    """Return (name, pg_id) in the recorder to slot on the page.

    Names start again when a job destroys its groups and initialises once more, but
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


def _restored(
    group: PageGroup, kept: Sequence[PageEvent], recorded: Mapping[int, Call], program: str
) -> Iterator[tuple[int, OpRecord]]:
    """Yield the collectives of a group that only the recorder has, with when they were issued.

    kept: the page's events of the group. Older calls may have been issued by Python and have left
    the page. If it issued all of the group's, and all kept events of one operation, dtype and
    shape come from one line, then an older call of that kind is taken to come from there too.
    """
    all_python = group.entered == group.enqueued
    before = min((event.seq for event in kept), default=group.enqueued + 1)
    if group.entered <= len(kept):
        before = 0
    alike: dict[tuple[object, ...], set[tuple[str, Site | None, int, bool, int]]]
    alike = defaultdict(set)
    for event in kept if all_python else ():
        how = event.op, event.site, event.root, event.is_async, event.thread
        alike[event.wire, event.dtype, event.shape].add(how)
    on_page = {event.seq for event in kept}
    for seq, call in recorded.items():
        if seq in on_page:
            continue
        record = call.record(call.first, group.key, 0.0, program)
        if seq < before:
            record = replace(record, source="page" if all_python else "older")
            hows = alike.get((record.wire, record.dtype, record.shape), ())
            if len(hows) == 1:
                ((op, site, root, is_async, thread),) = hows
                record = replace(
                    record, op=op, site=site, root=root, is_async=is_async, thread=thread
                )
        yield call.first.created_unix_ns, record


def _point_to_point(
    events: Sequence[PageEvent],
    parts: Sequence[tuple[Call, FlightEntry]],
    group: PageGroup,
    offset_ns: int,
    now_ns: int,
) -> Iterator[tuple[int, OpRecord]]:
    """Yield the sends and recvs of a group, with when each was issued (CLOCK_MONOTONIC, ns).

    events: the page's. parts: the recorder's, which may lack the last ones. offset_ns: the time
    by which the recorder's clock is ahead of the page's.
    """
    pairs, others = _paired(events, parts, group)
    for index, (call, part) in enumerate(parts):
        event = pairs.get(index)
        issued_ns = event.issued_ns if event else part.created_unix_ns - offset_ns
        record = call.record(part, group.key, _age_s(issued_ns, now_ns))
        if event:
            record = replace(
                record,
                op=event.op,
                tag=event.tag,
                site=event.site,
                source="page",
                thread=event.thread,
            )
        yield issued_ns, record
    for event in others:
        yield event.issued_ns, _from_page(event, group, None, now_ns)


def _paired(
    events: Sequence[PageEvent], parts: Sequence[tuple[Call, FlightEntry]], group: PageGroup
) -> tuple[dict[int, PageEvent], list[PageEvent]]:
    """Return the event of each part, by its index, and the events that only the page has.

    The latter are later ones, and calls that the program is inside of, as one of gloo's in a
    group of both backends. Events and parts are in the order in which the program made its
    calls, and of both the oldest may be lost: so the newest are paired first.
    """
    pairs: dict[int, PageEvent] = {}
    newest, at = -1, len(events) - 1
    for index, (_, part) in reversed(list(enumerate(parts))):
        peers = part.peer(group.key), -1
        while at >= 0 and not (events[at].wire == part.wire and events[at].peer in peers):
            at -= 1
        if at < 0:
            break
        if not pairs:
            newest = at
        pairs[index] = events[at]
        at -= 1
    others = [
        event
        for index, event in enumerate(events)
        if index > newest or (event.state is OpState.BLOCKED and event not in pairs.values())
    ]
    return pairs, others


def _may_be_elsewhere(page: RankPage, made: Sequence[Call] | None) -> bool:
    """True if a device may be in a call of NCCL's of which there is no record.

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
    """Return by slot the first collective that a stream is known not to have reached."""
    first: dict[int, int] = {}
    for event in events:
        group = groups.get(event.slot)
        if group is not None and _reached(event, group) is False:
            first[event.slot] = min(event.seq, first.get(event.slot, event.seq))
    return first


def _reached(event: PageEvent, group: PageGroup) -> bool | None:
    """True if the stream that a call was made on has reached it, None where that is not known."""
    if event.p2p or event.device < 0 or group.reached < 0:
        return None
    return event.seq <= group.reached


def _clock_offset_ns(
    page: RankPage, collectives: Mapping[int, Mapping[int, Call]], of_node_ns: int | None
) -> int:
    """Return CLOCK_REALTIME less CLOCK_MONOTONIC of the rank, from calls that both recorded."""
    both = [
        call.first.created_unix_ns - event.issued_ns
        for event in page.events
        if not event.p2p and (call := collectives.get(event.slot, {}).get(event.seq)) is not None
    ]
    if both:
        return median_low(both)
    created_ns = [c.first.created_unix_ns for made in collectives.values() for c in made.values()]
    if not created_ns:
        return of_node_ns or 0
    # Nothing in common: the counters changed last when the newest call was made.
    changed = max((group.changed_ns for group in page.groups), default=0)
    sampled = max(created_ns) - changed
    # The sampler sees it up to half a second later. More is a clock that was set since.
    if of_node_ns is not None and abs(of_node_ns - sampled) < timing.CLOCKS_SET_S * 1e9:
        return of_node_ns
    return sampled


def _state(event: PageEvent, group: PageGroup, call: Call | None) -> OpState:
    state = event.state
    if state is OpState.FAILED:
        return state
    if event.device >= 0 and "nccl" in group.backend and 0 < event.seq <= group.passed:
        return OpState.DONE
    if state is OpState.DONE and call is not None and "nccl" in group.backend:
        # The call has returned, which on a device means only that it was enqueued.
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
    """True if the position of the device shows more of a call than that of the host."""
    if call is not None and call.first.device:
        return True
    if event.device < 0:
        return False
    if begun is False:
        return True  # also of gloo's, for which a thread of the host waits for the stream
    # The completion of a call for which the program does not wait may never be recorded; one
    # that it made synchronously was given a beacon behind it.
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


def _age_s(then_ns: int, now_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9
