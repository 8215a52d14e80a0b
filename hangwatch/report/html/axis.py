"""A time axis from which long pauses are cut out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from hangwatch.report.html.ranksets import seconds

LONG = 3.0
"""A pause is cut to so many usual steps."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a pause was cut out, and how long it was."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """Ages in seconds to places from left (oldest) to right."""

    ages: tuple[float, ...]
    """Falling."""
    at: tuple[float, ...]
    cuts: tuple[Cut, ...]

    @classmethod
    def of(cls, ages: Iterable[float], step_s: float, left: float, right: float) -> Axis:
        """An axis on which these ages fill the room, no pause wider than LONG steps."""
        falling = sorted(set(ages), reverse=True)
        gaps = [before - after for before, after in pairwise(falling)]
        most = LONG * step_s or max(gaps, default=0.0)
        lengths = [min(gap, most) for gap in gaps]
        scale = (right - left) / (sum(lengths) or 1.0)
        at = [left]
        for length in lengths:
            at.append(at[-1] + length * scale)
        cuts = tuple(
            Cut((before + after) / 2, seconds(gap))
            for gap, (before, after) in zip(gaps, pairwise(at), strict=True)
            if gap > most
        )
        return cls(tuple(falling), tuple(at), cuts)

    @property
    def oldest_s(self) -> float:
        """The age of the left end."""
        return self.ages[0]

    def x(self, age_s: float) -> float:
        """Where an age is; one between two known ones in proportion."""
        after = bisect_right(self.ages, -age_s, key=lambda age: -age)
        if after == 0:
            return self.at[0]
        if after == len(self.ages):
            return self.at[-1]
        older, newer = self.ages[after - 1], self.ages[after]
        share = (older - age_s) / (older - newer)
        return self.at[after - 1] + share * (self.at[after] - self.at[after - 1])
