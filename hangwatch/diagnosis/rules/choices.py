"""Finds the choices in the source by which culprits reached a different call than the others.

Choices that cannot have led there are excluded: a condition on the rank that the culprits do not
meet, a loop whose length is in the text.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from hangwatch.diagnosis.facts.wait_points import Channel, Wait
from hangwatch.diagnosis.rules.case import DIVERGED, Case, Finding
from hangwatch.diagnosis.rules.splits import Split, lines_before, lines_of, sides_of, splits
from hangwatch.diagnosis.source.flow import Branch, Choice, asks_whether_run, exits
from hangwatch.diagnosis.source.origins import conditions_of
from hangwatch.diagnosis.source.paths import Ways, ways
from hangwatch.diagnosis.source.program import Line, Position, Program
from hangwatch.diagnosis.source.syntax import (
    exhausted_loop,
    in_body,
    other_branch,
    own,
    spans,
)
from hangwatch.diagnosis.text.phrases import Ranks
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Kind, Reason, What

_Node = TypeVar("_Node", bound=ast.AST)
MOST_EVEN = 3
"""Most searches for another path, if a loop with equal iterations on all ranks explains it."""
MOST_SIDES = 2
"""Most sides that may be at fault whose choices are searched."""
OF_THE_PROGRAM = frozenset({Reason.USER_CODE, Reason.EXITED, Reason.EXCEPTION_HANDLING})
"""Reasons for which a rank that is neither busy nor stopped is elsewhere."""
CONDITIONS = (What.RANK_CONDITION, What.DATA_CONDITION)
_ORDER = {
    What.RANK_CONDITION: 0,
    What.SWALLOWED_EXCEPTION: 0,
    What.SKIPPED_ITERATION: 1,
    What.EARLY_EXIT: 1,
}
"""The order of choices where several may be: first those for a rank, or for an odd case."""


@dataclass(frozen=True, slots=True)
class Read:
    """A choice of the culprits, as the source reads."""

    what: What
    node: ast.AST
    """The statement to change."""
    site: Site
    choice: Choice
    culprits: Ranks
    split: Split
    taken: Sequence[ast.stmt] = ()
    """The branch that they took, for an `if`."""
    other: Sequence[ast.stmt] = ()
    """The branch that they did not take, for an `if`."""
    around: bool = False
    """It contains the line of the culprits, and no path of the others past it is known."""


def are_busy(case: Case, finding: Finding) -> bool:
    """Return True if no culprit waits or has ended."""
    return not any(rank in case.ended or case.graph.by_rank.get(rank) for rank in finding.culprits)


def is_about_groups(finding: Finding) -> bool:
    """Return True if ranks that are neither busy nor stopped did not create a group alike."""
    return finding.makes_a_group and finding.reason in OF_THE_PROGRAM


def has_diverged(case: Case, finding: Finding) -> bool:
    """Return True if culprits and others are at different lines for a reason in the program."""
    if not finding.culprits or finding.reason not in OF_THE_PROGRAM:
        return False
    if finding.kind in (Kind.MISSING_PEER, Kind.INIT_INCOMPLETE) and are_busy(case, finding):
        return False
    if finding.kind is Kind.SIGNATURE_MISMATCH:
        sites = {record.site for record in case.records_at(finding.wait_point).values()}
        return finding.different_calls or len(sites) > 1
    return finding.what is None and (finding.kind in DIVERGED or is_about_groups(finding))


def choices_of(case: Case, finding: Finding) -> list[Read]:
    """The choices by which culprits reached their call instead of that of the others.

    If any of several sides may be at fault, the choices of each side.
    """
    if not has_diverged(case, finding):
        return []
    sides = sides_of(case, finding.culprits)
    if len(sides) == 1 or (finding.makes_a_group and not finding.undecided):
        reads = _choices(case, finding, lambda rank: rank not in finding.against)
        caught = [read for read in reads if read.choice.kind is Branch.EXCEPTION]
        return caught if caught and case.handled_by(finding.culprits) else reads
    found: dict[Site, Read] = {}
    for side in sides[:MOST_SIDES]:
        alone = replace(finding, culprits=side)
        for read in _choices(case, alone, finding.culprits.__contains__):
            found.setdefault(read.site, read)
    return list(found.values())


def _choices(case: Case, finding: Finding, weight: Callable[[int], int]) -> list[Read]:
    known = list(splits(case, finding, weight))
    found = _on_ways(case, finding, known)
    around = (read for split in known if (read := _around(case, finding, split)) is not None)
    return found or list(islice(around, 1))


def _around(case: Case, finding: Finding, split: Split) -> Read | None:
    """The innermost condition that a culprit's stack is below, and that of the other is not."""
    for line in split.own_lines:
        for node in nodes_around(case.source.program, line, ast.If)[::-1]:
            taken = spans(node.body, line.number)
            if taken or spans(node.orelse, line.number):
                choice = Choice(Branch.CONDITION, line.file, node, taken, node.test)
                read = _read(case, finding, choice, split, Ways())
                alike = asks_whether_run(node.test) or case.source.is_alike(line.file, node.test)
                if read is not None and not alike:
                    return replace(read, around=True)
    return None


def _on_ways(case: Case, finding: Finding, known: Sequence[Split]) -> list[Read]:
    """The choices at which the paths of two ranks diverge, of the first two with known paths."""
    for split in known:
        if split.mine.line == split.theirs.line:
            continue
        made = _made_by_rank(case, finding, split)
        if made is not None:
            return [made]
        even: set[Choice] = set()
        unlikely: dict[Site, Read] = {}
        for _ in range(MOST_EVEN):
            found = _ways(case, split, even)
            reads = _reads(case, finding, split, found) if found else []
            evened = [read for read in reads if case.source.is_evened(read.choice.file, read.node)]
            unlikely |= {read.site: read for read in evened}
            if len(reads) > len(evened):
                return [*(read for read in reads if read not in evened), *unlikely.values()]
            # Not by an extra iteration of a loop of equal length on all ranks, but by another path.
            loops = [one for one in (found.decisive if found else ()) if one.kind is Branch.LOOP]
            if not {*loops} - even:
                break
            even |= {*loops}
        if unlikely:
            return [*unlikely.values()]
    return []


def _reads(case: Case, finding: Finding, split: Split, found: Ways) -> list[Read]:
    """The choices at which the paths of two ranks diverge."""
    # A call that no other rank reaches is not reached by the choice that keeps it from them.
    shut = [choice for choice in found.before if _is_shut(case, choice, split)]
    not_made = [replace(choice, taken=not choice.taken) for choice in found.others]
    for choices in (shut, (*found.decisive, *found.around, *not_made)):
        reads: dict[Site, Read] = {}
        for choice in choices:
            read = _read(case, finding, choice, split, found)
            if read is not None:
                reads.setdefault(read.site, read)
        if reads:
            return sorted(
                reads.values(),
                key=lambda one: (_ORDER.get(one.what, len(_ORDER)), _is_periodic(one.choice.test)),
            )
    return []


def _is_periodic(test: ast.expr | None) -> bool:
    """Return True if a condition holds every n iterations, mostly the same on all ranks."""
    return isinstance(test, ast.Compare | ast.UnaryOp) and any(
        isinstance(node, ast.Mod) for node in ast.walk(test)
    )


def _made_by_rank(case: Case, finding: Finding, split: Split) -> Read | None:
    """The condition on the rank below which alone the culprit's function is made, or registered."""
    for line in split.own_lines:
        mentions = conditions_of(case.source.program, line)
        shut = [[one for one in around if _is_shut(case, one, split)] for around in mentions]
        if shut and all(shut):
            choice = shut[0][0]
            site = case.site_of_line(choice.file, case.source.line_of(choice.file, choice.node))
            branches = _branches(case, choice)
            what, culprits = What.RANK_CONDITION, finding.culprits
            return Read(what, choice.node, site, choice, culprits, split, *branches)
    return None


def _ways(case: Case, split: Split, even: Collection[Choice]) -> Ways | None:
    """The paths by which a culprit reached its line, and not the line of the other one.

    even: choices that it has not made, as all ranks make them the same way.
    """
    source, program = case.source, case.source.program
    before, ever = lines_before(case, split.culprit), lines_of(case, split.culprit)

    def barred(choice: Choice) -> bool:
        """Return True for a choice with a constant outcome that the culprit did not have."""
        node, test = choice.node, choice.test
        if choice in even or not isinstance(node, ast.If) or test is None:
            return choice in even
        if asks_whether_run(test):
            return not choice.taken
        other = node.orelse if choice.taken else node.body
        # By its rank it may be there for the first time, and as no other rank.
        been = before if source.asks_for_rank(choice.file, test) else ever
        return is_within(been, choice.file, other) and source.is_settled(choice.file, test)

    mine, theirs = split.mine, split.theirs
    calls = {line for rank in split.ranks for line in lines_of(case, rank)}
    calls |= program.collectives_of_all
    found = ways(program, split.start, (mine, theirs), calls, barred)
    inside = mine.frames[len(theirs.frames) :]
    if found is None and inside and mine.frames[: len(theirs.frames)] == theirs.frames:
        # Both are in one call of a library, which has called back: there it might have returned.
        return ways(program, None, (Position(inside), Position()), (), barred)
    return found


def is_within(lines: Sequence[Line], file: str, body: Sequence[ast.stmt]) -> bool:
    """Return True if any of some lines of a file is in a body."""
    return any(line.file == file and spans(body, line.number) for line in lines)


# --- What a choice is -----------------------------------------------------------------


def _read(case: Case, finding: Finding, choice: Choice, split: Split, found: Ways) -> Read | None:
    """A choice of the culprits as it reads; None where it cannot have been it."""
    what, node = _named_by_source(case, finding, choice, split)
    taken, other = _branches(case, choice)
    if what in CONDITIONS and finding.kind is Kind.ORDER_INVERSION:
        program = case.source.program
        both = program.communicates(taken) and program.communicates(other)
        what = What.DIFFERENT_ORDER if both or _turns_round(case, split, found) else what
    if what is None:
        return None
    site = case.site_of_line(choice.file, case.source.line_of(choice.file, node))
    return Read(what, node, site, choice, finding.culprits, split, taken, other)


def _named_by_source(
    case: Case, finding: Finding, choice: Choice, split: Split
) -> tuple[What | None, ast.AST]:
    """The name of a choice, None where it cannot have been it, and the statement to change."""
    node = choice.node
    if choice.kind is Branch.EXCEPTION:
        line = Line(choice.file, getattr(node, "lineno", 0))
        blocks = nodes_around(case.source.program, line, ast.Try)
        frames = split.mine.frames
        caught = [block.body for block in blocks if node in block.handlers]
        if frames and any(is_within(frames, frames[0].file, body) for body in caught):
            return None, node  # a culprit is in the block, and has not reached the code after it
        loop = exhausted_loop(case.source.program.scope_at(line), node)
        return (What.UNEVEN_LOOP, loop) if loop is not None else (What.SWALLOWED_EXCEPTION, node)
    if choice.kind is Branch.LOOP:
        thrown_out = bool(case.handled_by(finding.culprits))
        same = not thrown_out and case.source.has_same_turns(choice.file, node)
        return (None if same else What.UNEVEN_LOOP), node
    test = choice.test
    if choice.kind is Branch.CALL or test is None:
        of_rank = choice.kind is Branch.CONDITION  # a decorator for one rank
        return (What.RANK_CONDITION if of_rank else What.DATA_CONDITION), node
    return _of_condition(case, finding, choice, test, split)


def _of_condition(
    case: Case, finding: Finding, choice: Choice, test: ast.expr, split: Split
) -> tuple[What | None, ast.AST]:
    """The name of a condition, None where it cannot have been it, and the statement to change."""
    node = choice.node
    if isinstance(finding.wait_point, Channel) and _asks_for_itself(case, choice, test):
        return None, node  # in a loop over all peers each leaves out the message to itself
    if case.source.asks_for_rank(choice.file, test, strictly=True):
        culprits = {case.source.holds_for(choice.file, test, rank) for rank in finding.culprits}
        others = {case.source.holds_for(choice.file, test, rank) for rank in split.ranks[1:]}
        # Culprits took this path, and another rank did not; nor did they take the other one before.
        settled = split.known and case.source.is_settled(choice.file, test)
        if settled or not culprits <= {None, choice.taken} or choice.taken in others:
            return None, node
        return What.RANK_CONDITION, node
    if case.source.is_of_turns(choice.file, test):
        return None, node
    what, left_by = _jump(choice, split.mine) or (What.DATA_CONDITION, node)
    of_block = what is not None and case.source.asks_for_exception(choice.file, test)
    return (What.SWALLOWED_EXCEPTION if of_block else what), left_by


def _asks_for_itself(case: Case, choice: Choice, test: ast.expr) -> bool:
    """Return True if a condition compares the rank with the target of a loop around it."""
    if not isinstance(test, ast.Compare) or len(test.comparators) != 1:
        return False
    line = Line(choice.file, test.lineno)
    targets = {
        target.id
        for loop in nodes_around(case.source.program, line, ast.For)
        if in_body(loop, line.number)
        for target in ast.walk(loop.target)
        if isinstance(target, ast.Name)
    }
    sides = (test.left, test.comparators[0])
    named = [side for side in sides if isinstance(side, ast.Name) and side.id in targets]
    rest = [side for side in sides if side not in named]
    return len(named) == 1 and case.source.asks_for_rank(choice.file, rest[0], strictly=True)


def _branches(case: Case, choice: Choice) -> tuple[Sequence[ast.stmt], Sequence[ast.stmt]]:
    """The branch that is taken at an `if`, and the other one; empty for another statement."""
    node = choice.node
    if not isinstance(node, ast.If):
        return (), ()
    body, other = ways_at(case.source.program, Line(choice.file, node.lineno), node)
    return (body, other) if choice.taken else (other, body)


def ways_at(
    program: Program, line: Line, node: ast.If
) -> tuple[Sequence[ast.stmt], Sequence[ast.stmt]]:
    """The statements that are run where the condition of a line holds, and where it does not."""
    scope = program.scope_at(line)
    return node.body, node.orelse if scope is None else other_branch(scope, node)


def nodes_around(program: Program, line: Line, kind: type[_Node]) -> list[_Node]:
    """The nodes of a kind in the function of a line, outermost first."""
    scope = program.scope_at(line)
    return [node for node in own(scope) if isinstance(node, kind)] if scope is not None else []


def _turns_round(case: Case, split: Split, found: Ways) -> bool:
    """Return True if the program makes both calls in an iteration on either branch."""
    waits = case.graph.by_rank.get(split.culprit, ())
    return found.turned_round and all(
        _made_alike(case, rank, wait) for rank in split.ranks[1:] for wait in waits
    )


def _made_alike(case: Case, rank: int, wait: Wait) -> bool:
    """Return True if a rank made the call that another waits in, in a group of its kind."""
    record = wait.record
    return record is not None and any(
        made.wire == record.wire
        and made.group.desc == record.group.desc
        and len(made.group.ranks) == len(record.group.ranks)
        for _, made in case.job.ops.get(rank, ())
    )


def _is_shut(case: Case, choice: Choice, split: Split) -> bool:
    """Return True if a culprit makes a choice by its rank, and the other rank does not."""
    test = choice.test
    if test is None or not case.source.asks_for_rank(choice.file, test, strictly=True):
        return False
    if split.known and case.source.is_settled(choice.file, test):
        return False
    holds = [case.source.holds_for(choice.file, test, rank) for rank in split.ranks]
    return holds == [choice.taken, not choice.taken]


def _jump(choice: Choice, mine: Position) -> tuple[What | None, ast.AST] | None:
    """The statement by which a branch leaves an iteration, loop or function, and its name."""
    node = choice.node
    body = (node.body if choice.taken else node.orelse) if isinstance(node, ast.If) else []
    if not body or is_within(mine.frames, choice.file, body):
        return None  # it has not reached it
    match body[-1]:
        case ast.Continue():
            return What.SKIPPED_ITERATION, body[-1]
        case ast.Break() | ast.Return():
            return What.EARLY_EXIT, body[-1]
        case last if exits(last):
            return What.EARLY_EXIT, last
        case ast.Raise():  # its handler is another choice
            return None, node
    return None
