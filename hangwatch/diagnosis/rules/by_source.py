"""Decides findings by the source: a loop that was left, a call that few ranks reach."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from hangwatch.diagnosis.facts.alignment import odd_side
from hangwatch.diagnosis.facts.history import made_before
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Channel, Slot, WaitPoint
from hangwatch.diagnosis.rules.case import DIVERGED, Case, Finding, name_of
from hangwatch.diagnosis.rules.choices import CONDITIONS, Read, choices_of, is_within
from hangwatch.diagnosis.rules.splits import position, sides_of
from hangwatch.diagnosis.source.flow import Branch
from hangwatch.diagnosis.source.names import asks_for_most
from hangwatch.diagnosis.source.program import Position, fork
from hangwatch.diagnosis.source.syntax import Loop, body_end, in_body, leaves
from hangwatch.diagnosis.text import disagreement, wording
from hangwatch.diagnosis.text.phrases import Ranks, group_text, wait_point_text
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.verdict import Collective

MOST_SIDES = 16
"""Lines at which ranks wait of which one side is at fault; more are not compared."""
_OF_TWO_SIDES = DIVERGED | {Kind.SIGNATURE_MISMATCH}
_IN_DIFFERENT_CALLS = _OF_TWO_SIDES - {Kind.FINISHED_EARLY, Kind.MISSING_PEER}
"""Kinds of which two sides wait in different calls."""
_LEAVING = (What.SKIPPED_ITERATION, What.EARLY_EXIT)


# --- The side that is at fault ----------------------------------------------------------


def decided_by_source(case: Case, finding: Finding) -> Finding:
    """A finding of several sides, with the one as culprit that the source shows to go elsewhere."""
    sides = sides_of(case, finding.culprits)
    if finding.kind not in _OF_TWO_SIDES or finding.certainty is not Certainty.POSSIBLE:
        return finding
    if 1 < len(sides) <= MOST_SIDES:
        for decides in (
            *(is_by_rank, _leaves_out_a_call_of_its_group),
            *(_makes_another_call_by_rank, _made_an_odd_call),
        ):
            found = [one for side in sides if decides(case, one := _of_side(case, finding, side))]
            if len(found) == 1:
                return _of_one_side(case, finding, found[0])
    if finding.undecided:
        return replace(finding, text=disagreement.either(finding.text, finding.culprits))
    return finding


def is_by_rank(case: Case, finding: Finding) -> bool:
    """Return True if the source shows that only the culprits should take another path."""
    if len(sides_of(case, finding.culprits)) > 1:
        return False
    return any(
        _is_for_few(case, read)
        and not (case.source.program.communicates(read.other) and _is_inside(read, read.split.mine))
        and not _is_of_its_group(case, read)
        for read in choices_of(case, finding)[:1]
    )


def _is_of_its_group(case: Case, read: Read) -> bool:
    """Return True if the culprits wait in a branch that may be for all members of their group."""
    others = {*_awaited(case, read.split.culprit)} - {*read.culprits}
    return _is_inside(read, read.split.mine) and any(_may_take(case, read, rank) for rank in others)


def _may_take(case: Case, read: Read, rank: int) -> bool:
    """Return True if a rank may go the way of the culprits, as far as the source shows."""
    choice, test = read.choice, read.choice.test
    return test is None or case.source.holds_for(choice.file, test, rank) is not (not choice.taken)


def _leaves_out_a_call_of_its_group(case: Case, finding: Finding) -> bool:
    """Return True if a condition on the rank leads the culprits past a call of a group of theirs.

    A group of a few ranks was made for them: below a condition on the rank all its members have to
    come to its calls.
    """
    return any(
        read.what is What.RANK_CONDITION
        and is_within(read.split.theirs.frames, read.choice.file, read.other)
        and any({*finding.culprits} <= {*_awaited(case, rank)} for rank in finding.against)
        and not any(_must_leave(case, read, rank) for rank in finding.culprits)
        for read in choices_of(case, finding)[:1]
    )


def _must_leave(case: Case, read: Read, rank: int) -> bool:
    """Return True if the source shows that a rank goes the way that it went."""
    choice, test = read.choice, read.choice.test
    return test is not None and case.source.holds_for(choice.file, test, rank) is choice.taken


def _awaited(case: Case, rank: int) -> Ranks:
    """The members of the group of fewer ranks than the job in whose collective a rank waits."""
    points = (wait.wait_point for wait in case.graph.by_rank.get(rank, ()))
    members = next((case.job.members(p.gid) for p in points if isinstance(p, Slot)), ())
    return members if len(members) < len(case.job.world()) else ()


def _makes_another_call_by_rank(case: Case, finding: Finding) -> bool:
    """Return True if the culprits' path makes a different call than all others do."""
    calls_in = case.source.program.communicating
    return any(
        len(calls_in(read.taken)) == len(calls_in(read.other)) == 1
        and _is_inside(read, read.split.mine)
        and is_within(read.split.theirs.frames, read.choice.file, read.other)
        and _is_for_few(case, read)
        for read in choices_of(case, finding)[:1]
    )


def _made_an_odd_call(case: Case, finding: Finding) -> bool:
    """Return True if the culprits made a new call in the loop that the others are in."""
    culprits = {*finding.culprits}
    for divergence in case.departures.divergences:
        side = odd_side(divergence)
        if side is not None and culprits & {*divergence.ranks} == {divergence.ranks[side]}:
            here, there = (position(case, rank) for rank in divergence.ranks)
            forked = fork(case.source.program, here, there) if here and there else None
            return forked is not None and not forked.left and not forked.back.left
    return False


def _of_side(case: Case, finding: Finding, side: Ranks) -> Finding:
    """The finding, if one side is at fault."""
    others = tuple(rank for rank in finding.culprits if rank not in side)
    return replace(
        finding,
        culprits=side,
        victims=tuple(sorted({*finding.victims, *others})),
        certainty=Certainty.LIKELY,
        hang=finding.hang or finding.certainty,
        site=_site(case, side),
        victim_site=_site(case, others),
        undecided=(),
        against=others,
    )


def _of_one_side(case: Case, finding: Finding, alone: Finding) -> Finding:
    """The finding of one side, with a text that accuses it."""
    if finding.kind is Kind.ORDER_INVERSION or finding.undecided == alone.culprits:
        return alone  # its text is right of them as it is
    ops = _entered(case, alone, alone.culprits)[1], _entered(case, alone, alone.against)[1]
    scene = Scene(alone.culprits, alone.against, "", alone.site, alone.victim_site)
    text = disagreement.other_way(scene, ops, "")
    return replace(alone, kind=Kind.OP_MISMATCH, text=text)


def _is_for_few(case: Case, read: Read) -> bool:
    """Return True if few ranks make a choice, by their number."""
    choice = read.choice
    if read.what is What.UNEVEN_LOOP:
        ended = isinstance(choice.node, ast.For) and not choice.taken
        over = choice.test if ended else None
        return over is not None and case.source.counts_by_rank(choice.file, over)
    if read.what is not What.RANK_CONDITION:
        return False
    if not _is_new(case, read) and not _is_elsewhere_for_others(case, read):
        return False
    if choice.test is None:  # a decorator
        return choice.taken
    return asks_for_most(choice.test) is not choice.taken


def _is_elsewhere_for_others(case: Case, read: Read) -> bool:
    """Return True if the others reach the call of the culprits, but never by this condition.

    It is in a function that others call too.
    """
    choice, test, mine = read.choice, read.choice.test, read.split.mine
    return (
        test is not None
        and _is_inside(read, mine)
        and not _is_inside(read, Position(mine.frames[-1:]))
        and not case.source.program.communicates(read.other)
        and all(
            case.source.holds_for(choice.file, test, rank) is (not choice.taken)
            for rank in read.split.ranks[1:]
        )
    )


def _is_new(case: Case, read: Read) -> bool:
    """Return True if the others have never made the call that the culprits are in."""
    waits = case.graph.by_rank.get(read.split.culprit, ())
    records = [wait.record for wait in waits if wait.record is not None]
    return not any(
        made_before(case.job, rank, record) for rank in read.split.ranks[1:] for record in records
    )


def _is_inside(read: Read, position: Position) -> bool:
    """Return True if a rank is in the branch that culprits took, as far as callers are known."""
    return is_within(position.frames, read.choice.file, read.taken)


# --- Loops that were left, and calls that few ranks reach ---------------------------------


def refined_by_source(case: Case, finding: Finding, reads: Sequence[Read]) -> Finding:
    """The finding, as a loop that was left or a call of few ranks if the source shows it."""
    first = next(iter(reads), None)
    if first is None or finding.kind not in _IN_DIFFERENT_CALLS:
        return finding
    if len(sides_of(case, finding.culprits)) > 1:
        return _of_uneven_turns(case, finding, reads)
    line, site = first.split.mine.line, finding.site
    if line is not None and site is not None and (site.file, site.line) != line:
        return finding  # the choice led culprits to a call of long before
    # A shortened iteration ends a loop just as one iteration fewer does.
    for read in reads if first.what in _LEAVING else reads[:1]:
        left, still_in = _loops(case, read)
        if left is not None:
            return _left_loop(case, finding, read, left)
        if still_in is not None:
            # A call that the others never reached is not an extra iteration of their calls.
            known = all(len(case.job.ops.get(rank, ())) > 1 for rank in read.split.ranks)
            return (_of_few if known and _is_new(case, read) else _goes_on)(case, finding)
    communicates = case.source.program.communicates(first.other)
    alone = first.what in CONDITIONS and _leads_in(first) and not communicates
    return _of_few(case, finding) if alone and _is_new(case, first) else finding


def _leads_in(read: Read) -> bool:
    """Return True if a condition leads culprits to their call, not only past that of the others."""
    if _is_inside(read, read.split.mine):
        return True
    return not leaves(read.taken) and (bool(read.taken) or not isinstance(read.choice.node, ast.If))


def _loops(case: Case, read: Read) -> tuple[Loop | None, Loop | None]:
    """The loop that culprits have left by a choice, and the one that they are still in."""
    node = read.choice.node
    if read.what is What.UNEVEN_LOOP and isinstance(node, Loop):
        return (None, node) if read.choice.taken else (node, None)
    forked = fork(case.source.program, read.split.mine, read.split.theirs)
    if forked is None or forked.file != read.choice.file:
        return None, None
    at = getattr(node, "lineno", 0)
    left = next((loop for loop in forked.left if _leaves(case, read, loop)), None)
    return left, next((loop for loop in forked.back.left if in_body(loop, at)), None)


def _leaves(case: Case, read: Read, loop: Loop) -> bool:
    """Return True if a choice, or an exception that the choice handles, may leave a loop."""
    node = read.choice.node
    jumps = leaves(read.taken) or read.what not in CONDITIONS
    if not jumps and case.source.has_same_turns(read.choice.file, loop):
        return False  # it only leaves calls out
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
    caught = read.choice.kind is Branch.EXCEPTION and last >= body_end(loop)
    return in_body(loop, first) or caught


def _left_loop(case: Case, finding: Finding, read: Read, loop: Loop) -> Finding:
    scene = _scene(case, finding)
    awaited = _entered(case, finding, scene.others)
    at = case.site_of_line(read.choice.file, loop.lineno)
    over = all(wait.ended for wait in finding.waits if wait.rank in scene.others)
    _, mine = _entered(case, finding, finding.culprits)
    return replace(
        finding,
        kind=Kind.FINISHED_EARLY,
        wait_point=awaited[0],
        collective=_collective(case, finding, scene.others),
        text=wording.left_loop(replace(scene, where=_where(case, awaited)), mine, at, failed=over),
    )


def _of_uneven_turns(case: Case, finding: Finding, reads: Sequence[Read]) -> Finding:
    """The finding of sides of which any may be wrong: one is in a loop that the other has left.

    Unchanged where that is not all that the source shows.
    """
    sides, read = sides_of(case, finding.culprits), reads[0]
    split = read.split
    forked = fork(case.source.program, split.mine, split.theirs)
    if read.what is not What.UNEVEN_LOOP or len(reads) > 1 or len(sides) != 2:  # noqa: PLR2004 (a pair)
        return finding
    if forked is not None and read.choice.node in forked.back.left:
        here = split.mine
    elif forked is not None and read.choice.node in forked.left:
        here = split.theirs
    else:
        return finding
    inside, after = sorted(sides, key=lambda side: position(case, side[0]) != here)
    scene = Scene(inside, after, "", _site(case, inside), _site(case, after))
    calls = [_where(case, _entered(case, finding, ranks)) for ranks in (inside, after)]
    loop = case.site_of_line(read.choice.file, read.site.line)
    text = disagreement.uneven_turns(scene, (calls[0], calls[1]), loop, finding.text)
    return replace(finding, kind=Kind.FINISHED_EARLY, text=text)


def _goes_on(case: Case, finding: Finding) -> Finding:
    scene = _scene(case, finding)
    _, theirs = _entered(case, finding, scene.others)
    text = wording.outlasted(scene, f"they are in {theirs} after the loop")
    return replace(finding, text=text)


def _of_few(case: Case, finding: Finding) -> Finding:
    """The finding, of a call that few ranks reach."""
    scene = _scene(case, finding)
    (point, mine), (_, theirs) = (
        _entered(case, finding, ranks) for ranks in (finding.culprits, scene.others)
    )
    if isinstance(point, Channel):
        scene = replace(scene, where=group_text(case.job, point.gid))
        text = wording.unmatched(scene, mine, theirs, new=False)
        return replace(finding, kind=Kind.MISSING_PEER, text=text)
    where = disagreement.elsewhere(scene, theirs)
    if not scene.others and isinstance(point, Slot):
        members = case.job.members(point.gid)
        scene = replace(scene, others=tuple(r for r in members if r not in finding.culprits))
        where = "made other calls and ended"
    return replace(
        finding,
        kind=Kind.SUBSET_ENTERED,
        wait_point=point if isinstance(point, Slot) else finding.wait_point,
        collective=_collective(case, finding, finding.culprits),
        text=disagreement.subset(scene, where),
    )


# --- The parts of its text ----------------------------------------------------------------


def _entered(case: Case, finding: Finding, ranks: Ranks) -> tuple[WaitPoint | None, str]:
    """The wait point of ranks, and their operation there."""
    slot = finding.wait_point
    if isinstance(slot, Slot) and ranks:
        record = case.job.record(ranks[0], slot)
        if record is not None:
            return slot, name_of(record)
    own = (wait for rank in ranks for wait in case.graph.by_rank.get(rank, ()))
    for wait in (*finding.waits, *own):
        if wait.rank in ranks:
            return wait.wait_point, wait.op or UNNAMED
    return slot, UNNAMED


def _where(case: Case, entered: tuple[WaitPoint | None, str]) -> str:
    point, op = entered
    return op if point is None else wait_point_text(case.job, point, op)


def _scene(case: Case, finding: Finding) -> Scene:
    """Culprits where they are, and the ranks on the other side that wait."""
    waiting = {wait.rank for wait in finding.waits} - {*finding.culprits}
    others = tuple(sorted(waiting)) or finding.victims
    where = _where(case, _entered(case, finding, finding.culprits))
    return Scene(finding.culprits, others, where, finding.site, finding.victim_site)


def _site(case: Case, ranks: Ranks) -> Site | None:
    """The line of the first rank whose position is known."""
    lines = ((rank, at.line) for rank in ranks if (at := position(case, rank)) is not None)
    rank, line = next(((rank, line) for rank, line in lines if line is not None), (-1, None))
    if line is None:
        return None
    stack = case.waiting_site(rank)
    known = stack is not None and (stack.file, stack.line) == line
    return stack if known else case.site_of_line(*line)


def _collective(case: Case, finding: Finding, ranks: Ranks) -> Collective | None:
    """The call that ranks are in."""
    point, op = _entered(case, finding, ranks)
    record = case.job.record(ranks[0], point) if isinstance(point, Slot) and ranks else None
    if record is None:
        return case.collective(point, case.waits_at(point))
    return Collective(op, record.seq, record.dtype, record.shape)
