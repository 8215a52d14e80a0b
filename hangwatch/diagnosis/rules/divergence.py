"""Which ranks of a cycle left the common program: what they did before tells.

That ranks wait for each other says nothing of who is wrong. One that does what it never did at
this point is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hangwatch.diagnosis.facts.history import is_usual_wait, step
from hangwatch.diagnosis.facts.job import is_minority
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
    inside = {wait.rank for wait in waits}
    there = [*waits, *beside]
    everyone = tuple(sorted({wait.rank for wait in there}))
    found = case.departures
    alone = (found.ranks or found.tied) & inside
    if is_minority(alone, everyone):
        return Divergence(*_sides(alone, everyone), parted=not found.ranks)
    if len(everyone) == 2 and _is_one_call(waits):  # noqa: PLR2004 (a pair)
        return None  # both send first: the one is at fault as well as the other
    strange = _strange(case, there, everyone, outside)
    culprits, others = _sides(strange, everyone)
    culprits = tuple(rank for rank in culprits if rank in inside)
    return Divergence(culprits, others) if culprits else None


def _strange(
    case: Case, waits: Sequence[Wait], everyone: Ranks, outside: Sequence[Wait]
) -> set[int]:
    """Those few that do what they never did after what they did before, while all others do."""
    usual = {wait.rank: is_usual_wait(case.job, wait) for wait in waits}
    strange = {rank for rank, is_so in usual.items() if is_so is False}
    rest = {rank for rank, is_so in usual.items() if is_so}
    if strange | rest != {*everyone} or not is_minority(strange, everyone):
        return set()
    # Who did what it never did as well, and waits for the rest, shows that the program went on.
    along = any(
        is_usual_wait(case.job, wait) is False
        and {*case.graph.missing.get(wait.wait_point, ())} <= rest
        for wait in outside
    )
    return rest if along else strange


def _is_one_call(waits: Sequence[Wait]) -> bool:
    """Whether all send from one line of the program."""
    calls = {step(wait.record) for wait in waits if wait.record is not None and wait.record.p2p}
    return len(calls) == 1 and all(w.record and "send" in w.record.wire for w in waits)


def _sides(ranks: Collection[int], everyone: Ranks) -> tuple[Ranks, Ranks]:
    return tuple(sorted(ranks)), tuple(rank for rank in everyone if rank not in ranks)
