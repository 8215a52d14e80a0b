"""Which ranks of a cycle left the common program: the source and their habits tell.

That ranks wait for each other says nothing of who is wrong. One that has left the
loop which the others are in, that stands under a condition on the rank, or that does
what it never did at this point, is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.history import is_usual, made_before, step
from hangwatch.diagnosis.facts.shares import is_minority
from hangwatch.diagnosis.facts.wait_points import Channel, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangwatch.diagnosis.facts.wait_points import Wait
    from hangwatch.diagnosis.rules.case import Case
    from hangwatch.diagnosis.source.control_flow import Guard, LeftLoop
    from hangwatch.diagnosis.text.phrases import Ranks
    from hangwatch.types.snapshot import Frame

MAX_CAMPS = 16
"""Lines at which the ranks of one cycle wait; more are not compared."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Who left the common program, and what shows it."""

    culprits: Ranks
    others: Ranks
    loop: LeftLoop | None = None
    """The loop that ``culprits`` have left and ``others`` are in."""
    guard: Guard | None = None
    """The condition that ``culprits`` alone took, to call what the others never do."""
    parted: bool = False
    """``culprits`` parted from each other, and which of them left nothing tells."""


@dataclass(frozen=True, slots=True)
class _Camp:
    """Ranks that wait at one line."""

    ranks: Ranks
    frames: list[Frame]


def divergence(case: Case, waits: Sequence[Wait], beside: Sequence[Wait] = ()) -> Divergence | None:
    """Judge the ranks of a cycle, each with the one wait that it stands in.

    ``beside`` are waits of ranks outside it at the same wait points: each is on the side of
    those whom it is with.
    """
    found = _judged(case, [*waits, *beside], {wait.rank for wait in waits})
    if found is None or not beside:
        return found
    inside = {wait.rank for wait in waits}
    culprits = tuple(rank for rank in found.culprits if rank in inside)
    return replace(found, culprits=culprits) if culprits else None


def _judged(case: Case, waits: Sequence[Wait], inside: set[int]) -> Divergence | None:
    everyone = tuple(sorted({wait.rank for wait in waits}))
    found = case.departures
    alone = (found.ranks or found.tied) & inside
    if is_minority(alone, everyone):
        # What all did until then knows best; the source may tell what they did instead.
        among = [wait for wait in waits if wait.rank in inside]
        by_source = _by_source(case, among)
        if by_source is not None and set(by_source.culprits) <= alone:
            return by_source
        culprits = tuple(sorted(alone))
        return Divergence(culprits, _rest(culprits, everyone), parted=not found.ranks)
    return _by_source(case, waits) or _by_habit(case, waits, everyone)


def _by_source(case: Case, waits: Sequence[Wait]) -> Divergence | None:
    sides = _sides(case, waits)
    everyone = tuple(sorted({wait.rank for wait in waits}))
    if not 1 < len(sides) <= MAX_CAMPS:
        return None
    return _by_loop(case, sides, everyone) or _by_guard(case, sides, everyone, waits)


def _sides(case: Case, waits: Iterable[Wait]) -> list[_Camp]:
    at: dict[tuple[str, int], list[int]] = defaultdict(list)
    frames: dict[tuple[str, int], list[Frame]] = {}
    for wait in waits:
        wait_point = wait.wait_point
        stack = case.frames_at(wait.rank, wait_point) if isinstance(wait_point, Place) else []
        stack = stack or case.stack(wait.rank)
        line = (stack[-1].file, stack[-1].line) if stack else ("", 0)
        at[line].append(wait.rank)
        frames.setdefault(line, stack)
    return [_Camp(tuple(sorted(ranks)), frames[line]) for line, ranks in at.items()]


def _by_loop(case: Case, sides: list[_Camp], everyone: Ranks) -> Divergence | None:
    """A minority is past the loop in which all others are."""
    for side in sides:
        others = [other for other in sides if other is not side]
        if not is_minority(side.ranks, everyone):
            continue
        loops = [_left_loop(case, side.frames, other.frames) for other in others]
        if loops and all(loop is not None and not loop.returns for loop in loops):
            return Divergence(side.ranks, _rest(side.ranks, everyone), loop=loops[0])
    return None


def _left_loop(case: Case, here: list[Frame], there: list[Frame]) -> LeftLoop | None:
    fork = case.source.fork(here, there)
    if fork is None and here and there:
        fork = case.source.fork_of_lines(here[-1], there[-1])
    return case.source.left_loop(fork) if fork else None


def _by_guard(
    case: Case, sides: list[_Camp], everyone: Ranks, waits: Sequence[Wait]
) -> Divergence | None:
    """A minority took a condition on the rank, and calls there what the others never do."""
    for side in sides:
        rest = _rest(side.ranks, everyone)
        if not is_minority(side.ranks, everyone) or not side.frames:
            continue
        wait = next(wait for wait in waits if wait.rank == side.ranks[0])
        if isinstance(wait.wait_point, Channel):
            continue  # to send and receive below such a condition is what it is for
        if isinstance(wait.wait_point, Place) and _most_are_there(case, wait.wait_point):
            continue
        if wait.record and any(made_before(case.job, rank, wait.record) for rank in rest):
            continue
        for frame in side.frames:
            guard = case.source.rank_guard(frame)
            if guard is not None and guard.for_few and not guard.other_branch_communicates:
                return Divergence(side.ranks, rest, guard=guard)
    return None


def _most_are_there(case: Case, place: Place) -> bool:
    """Whether most members of its group have entered a place."""
    members = case.job.members(place.gid)
    return 2 * sum(case.job.arrived(rank, place) for rank in members) > len(members)


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


def _may_just_go_on(case: Case, wait: Wait) -> bool:
    """Whether nobody made that call before, and no source tells that no loop was left."""
    record = wait.record
    if record is None or (record.site and case.source.tree(record.site.file) is not None):
        return False
    own = [made for _, made in case.job.ops.get(wait.rank, ())]
    return sum(step(made) == step(record) for made in own) <= 1


def _rest(ranks: Ranks, everyone: Ranks) -> Ranks:
    return tuple(rank for rank in everyone if rank not in ranks)
