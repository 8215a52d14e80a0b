"""For how long ranks are waited for without a break, although they are not slow. Pure.

In many jobs a rank has more to do than others for several turns: those that follow a rollout, an
epoch of one bucket of lengths. Such turns show it only once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

Ranks = frozenset[int]

_KEPT = 10_000
"""Moments for which a lead is remembered: a quarter of an hour."""
_LONGER = 2.0
"""Times that leads have to take longer than those of ranks that lead by chance at each moment."""


@dataclass(slots=True)
class Leads:
    """The leads of each rank: it is among the few that others wait for, whenever they do."""

    _moments: int = 0
    _waits: deque[int] = field(default_factory=deque)
    """The moments at which some ranks were waited for."""
    _current: dict[int, int] = field(default_factory=dict)
    """By rank the length of a lead that goes on: in such moments, as all lengths here."""
    _over: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Leads as (moment at which it was over, rank, length)."""

    def add(self, active: Ranks, size: int) -> None:
        """Take the next moment. active: the ranks that all others wait for, of so many."""
        self._moments += 1
        if not 0 < len(active) <= size // 2:
            return
        self._waits.append(self._moments)
        for rank in self._current.keys() - active:
            self._over.append((self._moments, rank, self._current.pop(rank)))
        for rank in active:
            self._current[rank] = self._current.get(rank, 0) + 1
        oldest = self._moments - _KEPT
        while self._waits[0] < oldest:
            self._waits.popleft()
        while self._over and self._over[0][0] < oldest:
            self._over.popleft()

    def usual(self, ranks: Ranks) -> int:
        """Return for how many moments what makes other ranks than these lead stays the same.

        0 where it does not. The longest lead is left out: a rank that was slow for a while has one.
        """
        by_rank: defaultdict[int, list[int]] = defaultdict(list)
        for _, rank, length in (*self._over, *((0, *one) for one in self._current.items())):
            if rank not in ranks:
                by_rank[rank].append(length)
        if not by_rank:
            return 0
        longest = max(by_rank.values(), key=max)
        longest.remove(max(longest))
        total = sum(map(sum, by_rank.values()))
        if not total:
            return 0
        # A lead as most of its moments see it; and that of ranks that lead by chance at each.
        seen = sum(length * length for one in by_rank.values() for length in one) / total
        share = sum(sum(one) ** 2 for one in by_rank.values()) / total / len(self._waits)
        longer = seen * max(1 - share, 0.0) / (1 + share)
        every = min(self._moments, _KEPT) / len(self._waits)
        return round(longer * every) if longer >= _LONGER else 0

    def forget(self) -> None:
        """Begin anew: the ranks were replaced."""
        self._waits.clear()
        self._current.clear()
        self._over.clear()
