"""Short labels of ranks, calls and lines of code, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hangwatch.report import schema
from hangwatch.text import call_name, code_location, ranges, ranks_text, shortened

SHOWN_RANGES = 5
BRIEF = 28
LABEL = 60
"""Characters of a label."""


@dataclass(frozen=True, slots=True)
class RankSet:
    """Some ranks. ``spec`` lists all of them as ``0-7,9``, for the script that finds one."""

    text: str
    spec: str
    count: int

    @classmethod
    def of(cls, ranks: Iterable[int]) -> RankSet:
        """The set of these ranks."""
        members = set(ranks)
        spec = ",".join(f"{a}-{b}" if b > a else str(a) for a, b in ranges(members))
        return cls(ranks_text(members, SHOWN_RANGES), spec, len(members))

    @property
    def brief(self) -> str:
        """A text that fits into a box of a picture."""
        return self.text if len(self.text) <= BRIEF else f"{self.count:,} ranks"


def site_label(site: schema.Site | schema.StackFrame | None, parts: int = 2) -> str:
    """``ada/train.py:9``; empty for no site."""
    return shortened(code_location(site["file"], site["line"], parts), LABEL) if site else ""


def call_label(op: str, seq: int) -> str:
    """``all_reduce #41``."""
    return shortened(call_name(op, seq), LABEL)
