"""The sends and recvs that a rank handed to NCCL.

The page knows when the program made them, from which line, and no more: they run on a
device, and no program waits for them on the host. The recorder knows which of them are
complete, and which were issued as one (``batch_isend_irecv``). gloo's are not in it, and of
those that a hook recorded it is not known (``model/operations.py``): the page alone tells of them.

An entry is not always a call. The parts of a coalesced group share one number, and
only the entry that ends the group (``nccl:coalesced``) has events of the device: the
parts stay ``scheduled`` for ever (ProcessGroupNCCL.cpp, pointToPoint and endCoalescing;
pytorch/pytorch#137969). A dump of active entries only leaves that end out once the
group is complete, and keeps the parts, as if they were still under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.evidence.flight.backends import is_hooked, is_silent
from hangwatch.model.calls import GroupKey
from hangwatch.model.flight import FlightDump, FlightEntry
from hangwatch.model.kinds import OpState
from hangwatch.model.page import PageEvent, PageGroup
from hangwatch.model.snapshot import OpRecord

Part = tuple["Call", "FlightEntry"]


@dataclass(frozen=True, slots=True)
class Channels:
    """The sends and recvs of one group that both know, and those that one of them does."""

    group: PageGroup
    parts: Sequence[Part]
    """The recorder's, oldest first."""
    made: Mapping[int, PageEvent]
    """Index of a part to the program's call."""
    others: Sequence[PageEvent]
    """That the recorder does not have: they may not have come to NCCL."""

    def records(self, offset_ns: int, now_ns: int) -> Iterator[tuple[int, OpRecord]]:
        """When each was issued (CLOCK_MONOTONIC, ns), and what is known of it.

        offset_ns: what the recorder's clock is ahead of the page's.
        """
        for index, (call, part) in enumerate(self.parts):
            event = self.made.get(index)
            issued_ns = event.issued_ns if event else part.created_unix_ns - offset_ns
            yield issued_ns, self._record(call, part, event, max(0, now_ns - issued_ns) / 1e9)

    def _record(
        self, call: Call, part: FlightEntry, event: PageEvent | None, age_s: float
    ) -> OpRecord:
        return OpRecord(
            group=self.group.key,
            op=event.op if event else part.wire,
            wire=part.wire,
            seq=call.first.seq,  # that of a batch, if it is of one
            p2p=True,
            state=OpState.DONE if call.finished else OpState.ISSUED,
            dtype=part.dtype,
            shape=part.shape,
            peer=peer_of(part, self.group.key),
            tag=event.tag if event else 0,
            is_async=True,
            site=event.site if event else None,
            issued_age_s=age_s,
            source="page" if event else "flight",
            thread=event.thread if event else 0,
            device=True,
            begun=call.begun,
        )


def channels(
    events: Iterable[PageEvent],
    groups: Mapping[int, PageGroup],
    made: Iterable[Call],
    slots: Mapping[tuple[str, int], int],
) -> dict[int, Channels]:
    """The groups, by slot, whose sends and recvs the recorder tells.

    slots: name and pg_id in the recorder to slot.
    """
    told: dict[int, list[Part]] = defaultdict(list)
    for call in made:
        slot = slots.get((call.first.group_name, call.first.pg_id))
        complete_known = call.first.device and not is_hooked(call.first)
        if slot is not None and call.first.p2p and complete_known:
            told[slot] += [(call, part) for part in call.parts if part.src >= 0]
    own: dict[int, list[PageEvent]] = defaultdict(list)
    for event in events:
        if event.p2p:
            own[event.slot].append(event)
    return {
        slot: Channels(groups[slot], parts, *_paired(own[slot], parts, groups[slot]))
        for slot, parts in told.items()
        if parts
    }


def _paired(
    events: Sequence[PageEvent], parts: Sequence[Part], group: PageGroup
) -> tuple[dict[int, PageEvent], list[PageEvent]]:
    """Index of a part to its event; and the events that only the program knows of.

    These are later ones, and those that it is inside of, such as one of gloo's in a group of
    both backends.

    Both are in the order in which the program made its calls, and both may have lost the
    oldest: so the newest are paired first.
    """
    pairs: dict[int, PageEvent] = {}
    newest, at = -1, len(events) - 1
    for index in reversed(range(len(parts))):
        part = parts[index][1]
        while at >= 0 and not _alike(events[at], part, group):
            at -= 1
        if at < 0:
            break
        if not pairs:
            newest = at
        pairs[index] = events[at]
        at -= 1
    later = [
        event
        for place, event in enumerate(events)
        if place > newest or (event.state is OpState.BLOCKED and event not in pairs.values())
    ]
    return pairs, later


def _alike(event: PageEvent, part: FlightEntry, group: PageGroup) -> bool:
    return event.wire == part.wire and event.peer in (peer_of(part, group.key), -1)


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, a point-to-point call, or a group of them that runs as one."""

    entries: tuple[FlightEntry, ...]
    """In the order in which they were recorded."""
    finished: bool
    started: bool
    """It was seen to run; only known where the recorder takes the times."""
    timed: bool = False
    """The recorder takes them (TORCH_NCCL_ENABLE_TIMING)."""

    @property
    def first(self) -> FlightEntry:
        """What stands for all of it."""
        return self.entries[0]

    @property
    def begun(self) -> bool | None:
        """Whether its device has come to it; None where that is not known."""
        return self.started or (False if self.timed and self.first.device else None)

    @property
    def parts(self) -> tuple[FlightEntry, ...]:
        """Its entries but the one that only ends a group."""
        named = tuple(entry for entry in self.entries if entry.wire != "coalesced")
        return named or self.entries

    @property
    def wire(self) -> str:
        """What it is; a group of collectives is named by how it ends."""
        return self.entries[-1].wire if len(self.entries) > 1 else self.first.wire


def peer_of(entry: FlightEntry, key: GroupKey) -> int:
    """The other rank of a point-to-point call, which names ranks within the group; else -1."""
    local = entry.dst if entry.wire == "send" else entry.src
    return key.ranks[local] if entry.p2p and 0 <= local < len(key.ranks) else -1


def calls(dump: FlightDump, *, of_all_groups: bool = False) -> list[Call]:
    """The calls of a dump, oldest first. Of a name that was used again the newest group's.

    Where it will never be known which calls are complete, the last of a group is all that is
    told: one that the rank may be at.
    """
    newest: dict[str, int] = {}
    last: dict[int, int] = {}
    for entry in dump.entries:
        newest[entry.group_name] = max(newest.get(entry.group_name, -1), entry.pg_id)
        last[entry.pg_id] = max(last.get(entry.pg_id, 0), 0 if entry.p2p else entry.seq)
    groups: dict[tuple[int, bool, int, int], list[FlightEntry]] = {}
    for entry in dump.entries:
        newer = entry.pg_id == newest[entry.group_name]
        told = not is_silent(entry) or (not entry.p2p and entry.seq == last[entry.pg_id])
        if told and (entry.seq >= 1 or entry.p2p) and (newer or of_all_groups):
            key = entry.pg_id, entry.p2p, entry.seq, entry.coalescing if entry.p2p else 0
            groups.setdefault(key, []).append(entry)
    context = _Context(
        dump.status,
        whole=any(_complete(entry) for entry in dump.entries),
        records={entry.record for entry in dump.entries},
        mixed=_mixed(dump),
        batching={key[0] for key, entries in groups.items() if _is_group(entries)},
        reached=_reached(dump),
    )
    return [
        Call(
            tuple(entries),
            _finished(context, entries),
            started=any(entry.state in ("started", "completed") for entry in entries),
            timed=dump.status.get(entries[0].pg_id, (-1, -1, -1))[1] >= 0,
        )
        for entries in groups.values()
    ]


@dataclass(frozen=True, slots=True)
class _Context:
    """What else a dump tells of an entry."""

    status: Mapping[int, tuple[int, int, int]]
    whole: bool
    """It has complete entries too."""
    records: set[int]
    mixed: set[int]
    """Groups (pg_id) with collectives and point-to-point calls: their status counts both."""
    batching: set[int]
    """Groups with coalesced calls."""
    reached: Mapping[int, int]
    """pg_id to the last collective that a hook knows to be complete."""


def _reached(dump: FlightDump) -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in dump.entries:
        if is_hooked(entry) and not entry.p2p and entry.state == "completed":
            found[entry.pg_id] = max(found.get(entry.pg_id, 0), entry.seq)
    return found


def is_open_barrier(call: Call) -> bool:
    """Whether it is a barrier of which it may never be told that it is complete.

    In a group of two backends the host may have run it, which a hook does not hear of.
    """
    return call.wire == "barrier" and is_hooked(call.first) and not call.finished


def _mixed(dump: FlightDump) -> set[int]:
    kinds: dict[int, set[bool]] = defaultdict(set)
    for entry in dump.entries:
        kinds[entry.pg_id].add(entry.p2p)
    return {pg_id for pg_id, seen in kinds.items() if len(seen) > 1}


def _is_group(entries: Sequence[FlightEntry]) -> bool:
    return len(entries) > 1 or "coalesced" in entries[-1].wire


def _complete(entry: FlightEntry) -> bool:
    """Whether an entry says itself that it is complete.

    gloo retires entries and knows no states. On a device an entry that is retired and
    not complete was aborted.
    """
    quiet = entry.device or is_hooked(entry)
    return entry.state == "completed" or (entry.retired and not quiet)


def _finished(context: _Context, entries: Sequence[FlightEntry]) -> bool:
    """Whether a call is complete."""
    last = entries[-1]
    if any(_complete(entry) for entry in entries):
        return True
    if is_hooked(last) and last.wire == "barrier":
        # The host may have run it; who has gone on has left it.
        return last.seq < context.reached.get(last.pg_id, 0)
    if is_hooked(last) or not last.device or "coalesced" in last.wire:
        return False
    # The entry that ends a group directly follows its parts: this one is no part.
    if len(entries) == 1 and (context.whole or last.record + 1 in context.records):
        return False
    completed = context.status.get(last.pg_id, (-1, -1, -1))[2]
    if completed >= 0 and last.pg_id not in context.mixed:
        return completed >= last.seq
    return _is_group(entries) or (last.p2p and last.pg_id in context.batching)
