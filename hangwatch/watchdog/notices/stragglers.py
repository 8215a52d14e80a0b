"""Compares the ranks of one node: ranks that issue different calls, and how far each has come.

A checkpoint is a hash of all calls that Python issued in a group up to a place. Those of the
ranks are compared at each look, at almost no cost. If two differ, the ranks came by different
lines, which may be intended: only a look at the calls themselves shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hangwatch.errors import PageError
from hangwatch.evidence.pages.arrivals import (
    Arrivals,
    GroupArrivals,
    Issued,
    Members,
    issued,
    loop_period_s,
)
from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import Look
from hangwatch.metrics.labels import GroupLabels
from hangwatch.metrics.snapshot import RankState
from hangwatch.model.calls import GroupKey

FIRST_S, MOST_S = 1.0, 60.0
"""Until the next closer look at ranks that differ; twice as long after each."""


@dataclass(slots=True)
class Agreement:
    """Schedule of closer looks at ranks that differ."""

    _due_s: float = 0.0
    _rest_s: float = FIRST_S

    def look_due(self, look: Look) -> bool:
        """Return True if ranks differ and a closer look is due, and note it."""
        now_s = look.now_ns / 1e9
        if now_s < self._due_s or not differ(look.seen):
            return False
        self._due_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, MOST_S)
        return True


def differ(seen: Mapping[int, Seen]) -> bool:
    """Return True if two ranks have different hashes for one place of one group."""
    # Comparing members is cheaper than hashing them, which a tuple does each time.
    known: dict[tuple[str, int, int], list[tuple[GroupKey, dict[int, int]]]] = {}
    for rank in seen.values():
        for group in rank.light.groups:
            if not group.alive or not group.checkpoints:
                continue
            key = group.key
            alike = known.setdefault((key.desc, key.index, len(key.ranks)), [])
            hashes = next((hashes for other, hashes in alike if other.ranks == key.ranks), None)
            if hashes is None:
                alike.append((key, hashes := {}))
            for place, value in group.checkpoints:
                if hashes.setdefault(place, value) != value:
                    return True
    return False


RINGS_S = 5.0
"""Between two readings of all rings, or more where they take long:"""
RINGS_SHARE = 0.003
"""of the time, at most so much is spent on it."""
LAG_S = 1.0
"""Lag is measured against the places of others so long ago."""


class Furthest:
    """The furthest place of a member of each group LAG_S ago.

    Calls that C++ issues are counted by each rank for itself, a few times a second: the present
    counts of ranks in step would differ all the time.
    """

    def __init__(self) -> None:
        self._past: deque[tuple[int, dict[str, tuple[Members, int]]]] = deque()

    def of(
        self, now_ns: int, ranks: Iterable[RankState], members: Mapping[str, Members]
    ) -> dict[str, int]:
        """Note the present places; return those of LAG_S ago, of groups that still exist."""
        now: dict[str, tuple[Members, int]] = {}
        for rank in ranks:
            for label, group in rank.groups:
                _, place = now.get(label, (None, 0))
                now[label] = members[label], max(place, group.enqueued)
        self._past.append((now_ns, now))
        while len(self._past) > 1 and self._past[1][0] <= now_ns - LAG_S * 1e9:
            self._past.popleft()
        at_ns, then = self._past[0]
        if at_ns > now_ns - LAG_S * 1e9:
            return {}
        return {
            label: place for label, (local, place) in then.items() if members.get(label) == local
        }


class Rings:
    """The calls in the rings of the ranks so far; read at a modest pace."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._counted = Arrivals()
        self._due_ns = 0
        self._moved = False
        self.arrivals: tuple[GroupArrivals, ...] = ()
        self.periods_s: dict[int, float] = {}

    def read(self, look: Look, labels: GroupLabels) -> None:
        """Read them if that is due and some rank has moved."""
        self._moved = self._moved or look.moved
        began_ns = self._now_ns()
        if not self._moved or began_ns < self._due_ns:
            return
        self._moved = False
        periods: dict[int, float] = {}
        rings: dict[int, dict[str, list[Issued]]] = {}
        for rank, seen in look.seen.items():
            try:
                ring = issued(seen.page.ring())
            except PageError:
                continue
            if rank in look.waiting and (period_s := loop_period_s(ring)) is not None:
                periods[rank] = period_s
            page = seen.light
            names = {group.slot: labels.of(page, group) for group in page.groups if group.alive}
            groups = rings.setdefault(rank, {})
            for call in ring:
                if name := names.get(call.slot, ""):
                    groups.setdefault(name, []).append(call)
        self._counted.add(rings, labels.members)
        self.arrivals, self.periods_s = self._counted.groups(), periods
        now_ns = self._now_ns()
        self._due_ns = now_ns + int(max(RINGS_S * 1e9, (now_ns - began_ns) / RINGS_SHARE))
