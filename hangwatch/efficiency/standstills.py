"""Finds ranks that all others wait for seldom, but for long, such as for a checkpoint. Pure.

A window of minutes has too few of these standstills to know if they come by chance: then each rank
would cause as many as the others. Times are seconds since the run began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import comb

from hangwatch.efficiency.leads import Ranks
from hangwatch.efficiency.stragglers import MOST_RANKS, chance

LEAST_S = 1.0
"""A shorter time in which all wait is none."""
KEPT = 100
"""The longest ones, by which it is decided."""
KEPT_S = 12 * 3600.0
"""For how long they are kept."""
GONE = 3
"""Times the longest time between two, after which they are over."""
MOST_BY_CHANCE = 1e-4
"""Chance of so many by the same ranks, whichever these are."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time in which all others waited for these, and issued no call."""

    ranks: tuple[int, ...]
    since_s: float
    until_s: float

    @property
    def length_s(self) -> float:
        """Seconds that it took."""
        return self.until_s - self.since_s


@dataclass(slots=True)
class Standstills:
    """Keeps the standstills of a job."""

    over: list[Standstill] = field(default_factory=list)
    """In their order."""
    _everyone: Ranks = frozenset()
    _ranks: Ranks = frozenset()
    """That were active at all moments since the last call."""
    _since_s: float = 0.0
    """Since when these alone were."""
    _until_s: float = 0.0
    _place: int = -1

    def add(self, at_s: float, active: Ranks, place: int) -> None:
        """Take the next moment.

        active: as in Waiting (stragglers.py). place: calls that all ranks
        together had issued.
        """
        self._everyone |= active
        if place != self._place:
            if 0 < len(self._ranks) <= min(len(self._everyone) // 2, MOST_RANKS):
                ranks = tuple(sorted(self._ranks))
                self._end(Standstill(ranks, self._since_s, self._until_s))
            self._place, self._ranks, self._since_s = place, active, at_s
        elif active:
            left = self._ranks & active
            if left != self._ranks:
                self._ranks, self._since_s = left, at_s
        self._until_s = at_s

    def _end(self, one: Standstill) -> None:
        if one.length_s < LEAST_S:
            return
        self.over.append(one)
        if len(self.over) > KEPT:
            self.over.remove(min(self.over, key=lambda other: other.length_s))
        while self.over[0].until_s < one.until_s - KEPT_S:
            del self.over[0]

    def forget(self) -> None:
        """Begin anew."""
        self.over.clear()
        self._ranks = frozenset()

    def worst(
        self, now_s: float, size: int, turn_s: float = 0.0
    ) -> tuple[tuple[int, ...], float, float] | None:
        """Return the ranks that have cost the most, the share of the time, and since when.

        size: ranks of the job. turn_s: a turn of its loop, in which what delays a rank may delay it
        again and again. None where they may have been it by chance.
        """
        if not self.over:
            return None
        lengths: dict[tuple[int, ...], float] = {}
        turns: dict[float, Standstill] = {}
        for one in self.over:
            lengths[one.ranks] = lengths.get(one.ranks, 0.0) + one.length_s
            turn = one.since_s // turn_s if turn_s else one.since_s
            turns[turn] = max(one, turns.get(turn, one), key=lambda one: one.length_s)
        ranks = max(lengths, key=lambda one: lengths[one])
        count = sum(one.ranks == ranks for one in turns.values())
        sets = comb(size, len(ranks))
        if chance(count, len(turns), len(ranks) / size, sets) > MOST_BY_CHANCE:
            return None
        since_s = next(one.since_s for one in self.over if one.ranks == ranks)
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
