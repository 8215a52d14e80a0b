"""The sends and recvs that a rank handed to NCCL.

The page knows when the program made them, from which line, and no more: they run on a
device, and no program waits for them on the host. The recorder knows which of them are
complete, and which were issued as one (``batch_isend_irecv``). gloo's are not in it, and of
those that a hook recorded it is not known (``model/backends.py``): the page alone tells of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.evidence.flight.backends import is_hooked
from hangwatch.evidence.flight.calls import Call, peer_of
from hangwatch.model.flight import FlightEntry
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
