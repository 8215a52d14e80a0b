"""The status of each rank of this node, by its own page and at one moment.

Ranks are ended by it: nothing here has come from another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hangwatch.errors import PageError
from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import OVER, UNFINISHED, Position, moved_ns, position
from hangwatch.evidence.pages.worlds import start_ns
from hangwatch.evidence.processes import LaunchedRank
from hangwatch.model.kinds import OpState
from hangwatch.model.page import RankPage


class CallId(NamedTuple):
    """A call that a rank is inside of: no two calls of its life are equal."""

    op: str
    slot: int = -1
    """Of the group on the rank's page, -1 where there is none."""
    seq: int = 0
    number: int = 0
    """Of the event on the page, or when it began."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank. Times are CLOCK_MONOTONIC in ns."""

    pid: int
    start_ticks: int
    waits: Mapping[CallId, int] = field(default_factory=dict)
    """Calls that it waits in, and since when."""
    at: Position = ()
    """All that changes when it makes progress by any means that is counted."""
    moved_ns: int = 0
    """Time when it last entered or left a call, as far as that is known."""
    beat_ns: int = 0
    """Last beat of its sampler, which writes what is not written at once; 0 if never."""
    has_page: bool = True

    @property
    def process(self) -> tuple[int, int]:
        """Its pid and start."""
        return self.pid, self.start_ticks

    @property
    def since_ns(self) -> int:
        """Start of its longest wait, 0 if it does not wait."""
        return min(self.waits.values(), default=0)

    def is_where(self, before: RankStatus) -> bool:
        """True if it has made no progress since, and is in the same call if in any."""
        unmoved = (self.process, self.at, self.moved_ns) == (
            before.process,
            before.at,
            before.moved_ns,
        )
        if not before.waits:
            return unmoved and not self.waits
        return unmoved and min(before.waits, key=lambda call: before.waits[call]) in self.waits


def rank_statuses(
    seen: Mapping[int, Seen], launched: Iterable[LaunchedRank]
) -> dict[int, RankStatus]:
    """Read the status of the ranks of this node from their pages, as those are now.

    A rank whose page cannot be read, or is not written any more, is left out: nothing is
    known of it. launched: ranks that have no page.
    """
    statuses = {
        process.rank: RankStatus(
            process.pid,
            process.start_ticks,
            moved_ns=start_ns(process.start_ticks),
            has_page=False,
        )
        for process in launched
    }
    for rank, rank_seen in seen.items():
        try:
            page = rank_seen.page.read(events=True)
        except PageError:
            continue
        if not page.disarmed:
            statuses[rank] = _status(page)
    return statuses


def _status(page: RankPage) -> RankStatus:
    waits: dict[CallId, int] = {}
    moved = [moved_ns(page)]
    for event in page.events:
        moved += [event.issued_ns, event.blocked_ns, event.done_ns]
        if event.state is OpState.BLOCKED:
            call = CallId(event.op, event.slot, event.seq, event.index)
            waits[call] = event.blocked_ns or event.issued_ns
    if page.in_call:
        waits[CallId(page.in_call, number=page.in_call_ns)] = page.in_call_ns
    if page.pending_since_ns:
        waits[CallId(UNFINISHED, number=page.pending_since_ns)] = page.pending_since_ns
    progress = tuple((group.completed, group.reached, group.passed) for group in page.groups)
    return RankStatus(
        page.identity.pid,
        page.identity.start_ticks,
        {} if page.phase in OVER else waits,
        (position(page), progress),
        max(moved),
        page.gil_ns,
    )
