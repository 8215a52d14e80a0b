"""Which ranks of a cycle left the common program: what they did before tells.

That ranks wait for each other says nothing of who is wrong. One that does what it never did at
this point is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.history import is_usual, step
from hangwatch.diagnosis.facts.shares import is_minority

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangwatch.diagnosis.facts.wait_points import Wait
    from hangwatch.diagnosis.rules.case import Case
    from hangwatch.diagnosis.text.phrases import Ranks


@dataclass(frozen=True, slots=True)
class Divergence:
    """Who left the common program, and what shows it."""

    culprits: Ranks
    others: Ranks
    parted: bool = False
    """``culprits`` parted from each other, and which of them left nothing tells."""


def divergence(
    case: Case, waits: Sequence[Wait], beside: Sequence[Wait] = (), outside: Sequence[Wait] = ()
) -> Divergence | None:
    """Judge the ranks of a cycle, each with the one wait that it stands in.

    ``beside`` are waits of ranks outside it at the same wait points: each is on the side of
    those whom it is with. ``outside``: those of such ranks for messages of its ranks.
    """
    found = _judged(case, [*waits, *beside], {wait.rank for wait in waits}, outside)
    if found is None or not beside:
        return found
    inside = {wait.rank for wait in waits}
    culprits = tuple(rank for rank in found.culprits if rank in inside)
    return replace(found, culprits=culprits) if culprits else None


def _judged(
    case: Case, waits: Sequence[Wait], inside: set[int], outside: Sequence[Wait]
) -> Divergence | None:
    everyone = tuple(sorted({wait.rank for wait in waits}))
    found = case.departures
    alone = (found.ranks or found.tied) & inside
    if is_minority(alone, everyone):
        culprits = tuple(sorted(alone))
        return Divergence(culprits, _rest(culprits, everyone), parted=not found.ranks)
    left = _by_habit(case, waits, everyone)
    if left is not None and any(_went_along(case, wait, left) for wait in outside):
        return Divergence(left.others, left.culprits)
    return left


def _by_habit(case: Case, waits: Sequence[Wait], everyone: Ranks) -> Divergence | None:
    """A minority does what it never did after what it did before; all others do as ever."""
    usual = {
        wait.rank: is_usual(case.job, wait.rank, wait.record) if wait.record else None
        for wait in waits
    }
    strange = tuple(rank for rank in everyone if usual.get(rank) is False)
    rest = _rest(strange, everyone)
    if not is_minority(strange, everyone) or not all(usual.get(rank) for rank in rest):
        return None
    if any(_may_just_go_on(case, wait) for wait in waits if wait.rank in strange):
        return None
    return Divergence(strange, rest)


def _went_along(case: Case, wait: Wait, left: Divergence) -> bool:
    """Whether a rank does what it never did, like the culprits, and waits for the others alone."""
    missing = case.graph.missing.get(wait.wait_point, ())
    usual = wait.record is None or is_usual(case.job, wait.rank, wait.record) is not False
    return not usual and {*missing} <= {*left.others}


def _may_just_go_on(case: Case, wait: Wait) -> bool:
    """Whether nobody made that call before, and no source tells that no loop was left."""
    record = wait.record
    if record is None or (record.site and case.source.tree(record.site.file) is not None):
        return False
    own = [made for _, made in case.job.ops.get(wait.rank, ())]
    return sum(step(made) == step(record) for made in own) <= 1


def _rest(ranks: Ranks, everyone: Ranks) -> Ranks:
    return tuple(rank for rank in everyone if rank not in ranks)
