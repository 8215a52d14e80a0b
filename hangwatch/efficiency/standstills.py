"""Finds ranks that all others wait for seldom, but for long, such as for a checkpoint. Pure.

A window of minutes has too few of these standstills to know if they come by chance: then each rank
would cause as many as the others. Times are seconds since the run began.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import comb

from hangwatch.efficiency.stragglers import Ranks

LEAST_S = 1.0
"""A shorter time in which all wait is none."""
KEPT = 100
"""The last ones, by which it is decided."""
GONE = 3
"""Times the longest time between two, after which they are over."""
MOST_BY_CHANCE = 1e-4
"""Chance of so many by the same ranks, whichever these are."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time in which no rank has issued a call, and all others waited for these."""

    ranks: tuple[int, ...]
    since_s: float
    until_s: float

    @property
    def length_s(self) -> float:
        """Seconds that it took."""
        return self.until_s - self.since_s


@dataclass(slots=True)
class Standstills:
    """Keeps the last standstills of a job."""

    over: deque[Standstill] = field(default_factory=lambda: deque(maxlen=KEPT))
    _ranks: Ranks = frozenset()
    """That were active at all moments since the last call."""
    _since_s: float = 0.0
    """Since when these alone were."""
    _until_s: float = 0.0
    _place: int = -1

    def add(self, at_s: float, active: Ranks, place: int) -> None:
        """Take the next moment.

        active: as active_ranks() of stragglers.py returns them. place: calls that all ranks
        together had issued.
        """
        if place != self._place:
            if self._ranks and self._until_s - self._since_s >= LEAST_S:
                ranks = tuple(sorted(self._ranks))
                self.over.append(Standstill(ranks, self._since_s, self._until_s))
            self._place, self._ranks, self._since_s = place, active, at_s
        elif active:
            left = self._ranks & active
            if left != self._ranks:
                self._ranks, self._since_s = left, at_s
        self._until_s = at_s

    def forget(self) -> None:
        """Begin anew."""
        self.over.clear()
        self._ranks = frozenset()

    def worst(self, now_s: float, size: int) -> tuple[tuple[int, ...], float, float] | None:
        """Return the ranks that have cost the most, the share of the time, and since when.

        size: ranks of the job. None where they may have been it by chance.
        """
        over = [one for one in self.over if len(one.ranks) <= size // 2]
        lengths: dict[tuple[int, ...], list[float]] = {}
        for one in over:
            lengths.setdefault(one.ranks, []).append(one.length_s)
        if not lengths:
            return None
        ranks = max(lengths, key=lambda one: sum(lengths[one]))
        count, share = len(lengths[ranks]), len(ranks) / size
        if size * _chance(count, len(over), share) > MOST_BY_CHANCE:
            return None
        since_s = next(one.since_s for one in over if one.ranks == ranks)
        return ranks, self.cost(ranks, now_s, size), since_s

    def is_over(self, ranks: tuple[int, ...], now_s: float) -> bool:
        """True if there was none for these ranks for far longer than there was between two."""
        own = [one for one in self.over if one.ranks == ranks]
        gaps = [later.since_s - one.until_s for one, later in pairwise(own)]
        return not gaps or now_s - own[-1].until_s > GONE * max(gaps)

    def cost(self, ranks: tuple[int, ...], now_s: float, size: int) -> float:
        """Return the share of the time that standstills for ranks cost, more than for others."""
        own = sorted(one.length_s for one in self.over if one.ranks == ranks)
        others = [one.length_s for one in self.over if one.ranks != ranks]
        if not own:
            return 0.0
        # The longest may have another reason, and be the only one of its kind.
        lost_s = sum(own[:-1]) + own[-2 if len(own) > 1 else -1]
        usual_s = sum(others) / (size - len(ranks))
        passed_s = now_s - self.over[0].since_s
        return max(lost_s - usual_s, 0.0) / passed_s if passed_s > 0 else 0.0


def _chance(count: int, of: int, share: float) -> float:
    """Chance that at least so many of all hit what each of them hits by a chance of its own."""
    return sum(
        comb(of, hits) * share**hits * (1 - share) ** (of - hits) for hits in range(count, of + 1)
    )
