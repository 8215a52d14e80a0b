"""Sets of ranks and other names as the page shows them: short, but never silently cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hangwatch.report import schema
from hangwatch.text import fold_ranks, ranges

SHOWN_RANGES = 6
BRIEF = 28
SHOWN_CHARACTERS = 160
"""Of a name from outside; all of it is in report.json."""


@dataclass(frozen=True, slots=True)
class RankSet:
    """Some ranks. ``spec`` is all of them as ``0-7,9``, for the script that finds one."""

    text: str
    spec: str
    count: int

    @classmethod
    def of(cls, ranks: Iterable[int]) -> RankSet:
        """The set of these ranks."""
        members = sorted(set(ranks))
        runs = ranges(members)
        spec = ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)
        if len(runs) > SHOWN_RANGES:
            first = [rank for a, b in runs[: SHOWN_RANGES - 1] for rank in range(a, b + 1)]
            text = f"{fold_ranks(first)} and {len(members) - len(first):,} more"
        else:
            text = fold_ranks(members)
        word = "rank" if len(members) == 1 else "ranks"
        return cls(f"{word} {text}" if members else "no rank", spec, len(members))

    @property
    def brief(self) -> str:
        """What fits into a box of a picture."""
        return self.text if len(self.text) <= BRIEF else f"{self.count:,} ranks"


def shortened(text: str, length: int = SHOWN_CHARACTERS) -> str:
    """The text, its middle left out where it is long."""
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return f"{text[: length - 1 - half]}…{text[len(text) - half :]}"


def place(site: schema.Site | schema.StackFrame | None, parts: int = 2) -> str:
    """File and line; the last parts of a path are enough to know it by."""
    if not site:
        return ""
    file = "/".join(site["file"].rsplit("/", parts)[-parts:])
    return shortened(f"{file}:{site['line']}" if site["line"] else file, 60)


def words(name: str | None) -> str:
    """``never_entered`` as it is read."""
    return (name or "").replace("_", " ")


def seconds(value: float) -> str:
    """A time as people say it: ``1.4 ms``, ``9.3 s``, ``12 min``, ``3.2 h``."""
    for most, unit, divisor in ((1e-3, "µs", 1e-6), (1.0, "ms", 1e-3), (100.0, "s", 1.0)):
        if abs(value) < most:
            return f"{value / divisor:.3g} {unit}"
    return f"{value / 60:.3g} min" if value < 6_000 else f"{value / 3_600:.3g} h"  # noqa: PLR2004


def call_name(op: str, seq: int) -> str:
    """``all_reduce #41``."""
    return shortened(f"{op} #{seq}" if seq else op, 60)
