"""The cheap look at all ranks, many times a minute: who waits, and since when.

Pages are read without their events; only of a rank that has issued nothing for
a moment, or that may wait, are the events read too, less often the longer that
lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hangwatch.errors import PageError
from hangwatch.evidence.pages.finder import Pages, Seen
from hangwatch.evidence.pages.waits import (
    Position,
    Waiting,
    longest_wait,
    may_wait,
    moved_ns,
    position,
)

QUIET_S = 1.0
"""A wait shorter than this is nothing to look at."""
LEAST_S, MOST_S = 0.4, 5.0
"""Between two readings of the events of a rank that stays where it is."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw. Ranks that have ended have no entry in ``waiting``."""

    now_ns: int
    seen: dict[int, Seen]
    waiting: dict[int, Waiting | None]
    """Rank to what it waits in, None if it does not."""
    moved: bool
    """Some rank issued something since the last look."""

    @property
    def waits(self) -> dict[int, int | None]:
        """Rank to since when it waits (CLOCK_MONOTONIC, ns), None if it does not."""
        return {
            rank: None if wait is None else wait.since_ns for rank, wait in self.waiting.items()
        }

    @property
    def longest_wait_s(self) -> float:
        """How long the longest wait has lasted, 0 if nobody waits."""
        since = [one for one in self.waits.values() if one is not None]
        return (self.now_ns - min(since)) / 1e9 if since else 0.0

    def all_wait(self) -> bool:
        """Whether every rank that lives waits for longer than a moment."""
        return bool(self.waits) and all(
            since is not None and self.now_ns - since >= QUIET_S * 1e9
            for since in self.waits.values()
        )

    def needs_flight(self) -> bool:
        """Whether the Flight Recorder may tell what no page does.

        Where all wait: what C++ has issued and has not completed. Where a rank waits in
        work of which its page tells nothing: what it has issued in a group that found no
        room there.
        """
        return self.all_wait() or any(
            wait is not None and wait.slot < 0 and self.seen[rank].light.groups_left_out > 0
            for rank, wait in self.waiting.items()
        )


def without_servers(waiting: dict[int, Waiting | None]) -> dict[int, Waiting | None]:
    """Who waits for a key of a store waits since all ranks do, and not as long as one works.

    It may serve the others, and then waits for orders all day long.
    """
    if not any(wait is not None and wait.of_store for wait in waiting.values()):
        return waiting
    known = [wait.since_ns for wait in waiting.values() if wait is not None]
    if len(known) < len(waiting):
        return {
            rank: None if wait is not None and wait.of_store else wait
            for rank, wait in waiting.items()
        }
    return {
        rank: replace(wait, since_ns=max(known)) if wait is not None and wait.of_store else wait
        for rank, wait in waiting.items()
    }


@dataclass(slots=True)
class _Watched:
    """What is remembered of one rank between looks."""

    pid: int
    at: Position
    changed_ns: int
    read_ns: int = 0
    waiting: Waiting | None = None


@dataclass(slots=True)
class Looker:
    """Remembers where each rank was at the last look.

    alive(pid, start_ticks) says whether a rank still runs.
    """

    pages: Pages
    alive: Callable[[int, int], bool]
    now_ns: Callable[[], int]
    _ranks: dict[int, _Watched] = field(default_factory=dict)

    def look(self) -> Look:
        """Read what has changed."""
        seen = self.pages.look()
        now_ns = self.now_ns()
        moved = False
        waiting: dict[int, Waiting | None] = {}
        for rank, one in seen.items():
            identity, at = one.light.identity, position(one.light)
            watched = self._ranks.get(rank)
            if watched is None or watched.pid != identity.pid:
                watched = _Watched(identity.pid, at, min(moved_ns(one.light), now_ns))
                self._ranks[rank] = watched
                moved = True
            elif watched.at != at:
                watched.at, watched.changed_ns = at, min(moved_ns(one.light), now_ns)
                watched.read_ns, watched.waiting = 0, None
                moved = True
            if self.alive(identity.pid, identity.start_ticks):
                waiting[rank] = self._waits_in(watched, one, now_ns)
        for rank in self._ranks.keys() - seen.keys():
            del self._ranks[rank]
        return Look(now_ns, seen, without_servers(waiting), moved)

    def _waits_in(self, watched: _Watched, seen: Seen, now_ns: int) -> Waiting | None:
        quiet_s = (now_ns - watched.changed_ns) / 1e9
        if quiet_s < QUIET_S and not may_wait(seen.light, now_ns, QUIET_S):
            return None
        patience_s = min(max(quiet_s / 4, LEAST_S), MOST_S)
        if now_ns - watched.read_ns >= patience_s * 1e9:
            watched.read_ns = now_ns
            try:
                watched.waiting = longest_wait(seen.light, seen.page.blocked_in())
            except PageError:
                watched.waiting = None
        return watched.waiting
