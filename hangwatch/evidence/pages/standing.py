"""Where each rank of this node stands, by its own page and at one moment.

It is what ranks are ended by: nothing here has come from another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hangwatch.errors import PageError
from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.waits import OVER, UNFINISHED, Position, moved_ns, position
from hangwatch.evidence.pages.worlds import start_ns
from hangwatch.evidence.processes import LaunchedRank
from hangwatch.model.kinds import OpState
from hangwatch.model.page import RankPage


@dataclass(frozen=True, slots=True)
class Call:
    """What a rank is inside of: no two calls of its life are equal."""

    op: str
    slot: int = -1
    """Of the group on the rank's page, -1 where there is none."""
    seq: int = 0
    number: int = 0
    """Of the event on the page, or when it began."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One rank. Times are CLOCK_MONOTONIC in ns."""

    pid: int
    start_ticks: int
    waits: Mapping[Call, int] = field(default_factory=dict)
    """Calls that it waits in, and since when."""
    at: Position = ()
    """All that changes when it goes on by any means that is counted."""
    moved_ns: int = 0
    """When it last entered or left a call, as far as that is known."""
    beat_ns: int = 0
    """When its sampler last wrote what is not written at once; 0 if never."""
    has_page: bool = True

    @property
    def process(self) -> tuple[int, int]:
        """Its pid and start."""
        return self.pid, self.start_ticks

    @property
    def since_ns(self) -> int:
        """Since when it waits for the longest, 0 if it does not."""
        return min(self.waits.values(), default=0)

    def is_where(self, before: Standing) -> bool:
        """Whether it has not gone on since by any means, and is in the same call if in any."""
        unmoved = (self.process, self.at, self.moved_ns) == (
            before.process,
            before.at,
            before.moved_ns,
        )
        if not before.waits:
            return unmoved and not self.waits
        return unmoved and min(before.waits, key=lambda call: before.waits[call]) in self.waits


def standings(seen: Mapping[int, Seen], launched: Iterable[LaunchedRank]) -> dict[int, Standing]:
    """The ranks of this node, from their pages as they are now.

    A rank whose page cannot be read, is not written any more or tells that it has ended
    is left out: nothing is known of it. launched: ranks that have no page.
    """
    found = {
        one.rank: Standing(
            one.pid, one.start_ticks, moved_ns=start_ns(one.start_ticks), has_page=False
        )
        for one in launched
    }
    for rank, one in seen.items():
        try:
            page = one.page.read(events=True)
        except PageError:
            continue
        if not page.disarmed:
            found[rank] = _standing(page)
    return found


def _standing(page: RankPage) -> Standing:
    waits: dict[Call, int] = {}
    moved = [moved_ns(page)]
    for event in page.events:
        moved += [event.issued_ns, event.blocked_ns, event.done_ns]
        if event.state is OpState.BLOCKED:
            call = Call(event.op, event.slot, event.seq, event.index)
            waits[call] = event.blocked_ns or event.issued_ns
    if page.in_call:
        waits[Call(page.in_call, number=page.in_call_ns)] = page.in_call_ns
    if page.pending_since_ns:
        waits[Call(UNFINISHED, number=page.pending_since_ns)] = page.pending_since_ns
    progress = tuple((group.completed, group.reached, group.passed) for group in page.groups)
    return Standing(
        page.identity.pid,
        page.identity.start_ticks,
        {} if page.phase in OVER else waits,
        (position(page), progress),
        max(moved),
        page.gil_ns,
    )
