"""For how long ranks are waited for without a break, although they are not slow. Pure.

In many jobs a rank has more to do than others for several turns: those that follow a rollout, an
epoch of one bucket of lengths. Such turns show it only once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

Ranks = frozenset[int]

_KEPT = 10_000
"""Moments for which a lead is remembered: a quarter of an hour."""


@dataclass(slots=True)
class Leads:
    """The leads of each rank: it is among the few that others wait for, whenever they do."""

    _moments: int = 0
    _current: dict[int, int] = field(default_factory=dict)
    """By rank the first moment of a lead that goes on."""
    _last: int = 0
    """The last moment at which some ranks were waited for."""
    _over: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Leads as (last moment, rank, moments)."""

    def add(self, active: Ranks, size: int) -> None:
        """Take the next moment. active: the ranks that all others wait for, of so many."""
        self._moments += 1
        if not 0 < len(active) <= size // 2:
            return
        for rank in self._current.keys() - active:
            self._over.append((self._last, rank, self._last + 1 - self._current.pop(rank)))
        self._last = self._moments
        for rank in active - self._current.keys():
            self._current[rank] = self._moments
        while self._over and self._over[0][0] < self._moments - _KEPT:
            self._over.popleft()

    def usual(self, ranks: Ranks) -> int:
        """Return the moments of a lead of other ranks than these, as seen by most moments of them.

        The longest one is left out: a rank that was slow for a while has one.
        """
        lengths = sorted(self._of_others(ranks))[:-1]
        total = sum(lengths)
        return round(sum(length * length for length in lengths) / total) if total else 0

    def _of_others(self, ranks: Ranks) -> Iterator[int]:
        yield from (length for _, rank, length in self._over if rank not in ranks)
        for rank, first in self._current.items():
            if rank not in ranks:
                yield self._last + 1 - first

    def forget(self) -> None:
        """Begin anew: the ranks were replaced."""
        self._current.clear()
        self._over.clear()
