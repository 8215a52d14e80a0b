"""How often ranks have done what is no call of a group, held against each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from hangwatch.model.calls import Site
from hangwatch.model.snapshot import RankSnapshot

NO_SYNC = "no_sync"
THREAD_DIED = "thread_died"
AWAITS_KEY = "awaits_key"
SETS_KEY = "sets_key"
HANDLES = "handles"
"""Kinds of marks (agent/record/marks.py)."""


class Uneven(NamedTuple):
    """A line at which some ranks did something ``mine`` times, and others ``theirs`` times."""

    site: Site
    mine: int
    theirs: int


def uneven(
    ranks: Mapping[int, RankSnapshot], kind: str, some: Collection[int], others: Collection[int]
) -> list[Uneven]:
    """The lines at which all of some ranks did it equally often, and all others not as often."""
    found = []
    for site in lines_of(ranks, kind, (*some, *others)):
        mine, theirs = (_counts(ranks, kind, site, part) for part in (some, others))
        if len(mine) == len(theirs) == 1 and mine != theirs:
            found.append(Uneven(site, mine.pop(), theirs.pop()))
    return found


def lines_of(ranks: Mapping[int, RankSnapshot], kind: str, some: Collection[int]) -> list[Site]:
    """The lines at which some of the ranks did it."""
    known = (mark for rank in some if rank in ranks for mark in ranks[rank].marks)
    return list(dict.fromkeys(m.site for m in known if m.kind == kind and m.site is not None))


def _counts(
    ranks: Mapping[int, RankSnapshot], kind: str, site: Site, some: Collection[int]
) -> set[int]:
    """How often ranks did it at a line."""
    return {
        next((m.count for m in ranks[rank].marks if m.kind == kind and m.site == site), 0)
        for rank in some
        if rank in ranks
    }
