"""Notes on inefficient habits of the ranks of this node, from their facts and from its GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hangwatch.efficiency.habits import (
    MAX_BYTES,
    Finding,
    RankFacts,
    find_costs,
    note_of,
    parse_facts,
)
from hangwatch.errors import PageError
from hangwatch.evidence.pages.finder import Pages
from hangwatch.model.codec import CodecError
from hangwatch.model.report import Note
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

SUFFIX = ".practice"
"""Suffix of the file that a rank leaves next to its page (agent/habits.py)."""


@dataclass(frozen=True, slots=True)
class Practice:
    """Reads the facts of this node."""

    pages: Pages
    on_gpus: Callable[[], tuple[Finding, ...]] = tuple
    """Returns the findings on the ranks' GPUs."""

    def notes(self) -> tuple[Note, ...]:
        """Return the notes on the ranks of the incarnation that is watched.

        None on their habits where one of them has left no facts.
        """
        ranks = []
        for rank, seen in self.pages.look().items():
            try:
                page = seen.page.read(events=False)
                ranks.append(RankFacts(rank, page, parse_facts(_left(seen.page.path))))
            except (OSError, PageError, CodecError):
                ranks = []
                break
        return tuple(note_of(finding) for finding in (*self.on_gpus(), *find_costs(ranks)))


def _left(page: Path) -> bytes:
    return untrusted.read(page.with_name(page.name + SUFFIX), MAX_BYTES, Owner.DIRECTORY)
