"""What the user's source says of two lines: loops left, conditions taken.

Two ranks stand at different lines. Where their stacks part is a *fork*: one
function, two of its lines. The tree of that function tells whether one line comes
after the loop that holds the other, and under which condition it stands. Without
the source, or where it does not parse, there is no answer, never a guess.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from hangwatch.diagnosis.source.names import (
    GIVE_RANK,
    asks_for_most,
    counters,
    for_one_rank,
    holds_for,
    names_the_rank,
    variables,
)
from hangwatch.diagnosis.source.program import Program
from hangwatch.diagnosis.source.syntax import (
    Loop,
    body_end,
    call_line,
    called,
    cleanup_of,
    communicates,
    following,
    in_body,
    jumps_out,
    jumps_to,
    leaves,
    own,
    parse,
    runs_out,
    scope_at,
    spans,
    swallows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangwatch.diagnosis.source.names import Variables
    from hangwatch.diagnosis.source.syntax import Function
    from hangwatch.types.snapshot import Frame


@dataclass(frozen=True, slots=True)
class Fork:
    """Two lines of one function of one file."""

    file: str
    here: int
    there: int
    scope: Function


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that one line stands under and the other does not."""

    file: str
    line: int
    text: str
    on_rank: bool
    """Whether it reads like a question for the rank."""
    other_branch_communicates: bool
    for_few: bool = True
    """Not so where it asks for all ranks but some (``rank != 0``)."""
    jumps: bool = False
    """It leads past the other line, if it was taken: that nothing tells for sure."""


@dataclass(frozen=True, slots=True)
class LeftLoop:
    """The loop that one rank is past and the other is in."""

    file: str
    line: int
    text: str
    returns: bool
    """Whether an outer loop may lead back into it."""
    runs_out: bool = True
    """Whether it may come to its end on one rank before it does on others: no ``while True``,
    and none over a range of literals."""
    jumps: tuple[int, ...] = ()
    """The lines of the statements in it that leave it: break, return."""
    swallows: int = 0
    """The line of the handler, or ``with suppress``, by which an exception may lead past it."""
    on_rank: bool = False
    """Whether what it runs over depends on the rank."""
    amid: str = ""
    """The ``finally`` or ``except`` around it that the rank is in: what an exception leads to."""


class Source:
    """Parsed user files, each parsed once."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._trees: dict[str, ast.Module | None] = {}
        self._variables: dict[str, Variables] = {}

    def tree(self, file: str) -> ast.Module | None:
        """The parsed file, None where there is none."""
        if file not in self._trees:
            self._trees[file] = parse(self._texts.get(file))
        return self._trees[file]

    @cached_property
    def program(self) -> Program:
        """All of them that parse."""
        trees = {file: self.tree(file) for file in self._texts}
        return Program({file: tree for file, tree in trees.items() if tree is not None})

    def fork(self, here: Sequence[Frame], there: Sequence[Frame]) -> Fork | None:
        """Where two stacks of user frames, outermost first, part."""
        for mine, other in zip(here, there, strict=False):
            if mine.file != other.file:
                return None
            if mine.line != other.line:
                return self._in_one_scope(mine, other)
        return None

    def fork_of_lines(self, here: Frame, there: Frame) -> Fork | None:
        """The same from innermost frames alone.

        Where they are in two functions and one calls the other by its name, the
        line of that call stands for the callee.
        """
        if here.file != there.file:
            return None
        found = self._in_one_scope(here, there)
        if found is not None or here.line == there.line:
            return found
        tree = self.tree(here.file)
        if tree is None:
            return None
        mine, other = scope_at(tree, here.line), scope_at(tree, there.line)
        call = call_line(mine, other)
        if call is not None and call != here.line:
            return Fork(here.file, here.line, call, mine)
        call = call_line(other, mine)
        if call is not None and call != there.line:
            return Fork(here.file, call, there.line, other)
        return None

    def _in_one_scope(self, here: Frame, there: Frame) -> Fork | None:
        tree = self.tree(here.file)
        if tree is None or here.line == there.line:
            return None
        scope = scope_at(tree, here.line)
        if scope is not scope_at(tree, there.line):
            return None
        return Fork(here.file, here.line, there.line, scope)

    def text(self, file: str, node: ast.stmt) -> str:
        """The first line of a statement, as written."""
        lines = (self._texts.get(file) or "").splitlines()
        return lines[node.lineno - 1].strip() if node.lineno <= len(lines) else ""

    def line_of(self, file: str, node: ast.AST) -> int:
        """The line of a statement; of a ``try`` that of its ``finally``."""
        first = int(getattr(node, "lineno", 0))
        if not isinstance(node, ast.Try | ast.TryStar) or not node.finalbody:
            return first
        lines = (self._texts.get(file) or "").splitlines()[: node.finalbody[0].lineno]
        above = (at for at in range(len(lines), first, -1) if lines[at - 1].strip() == "finally:")
        return next(above, first)

    def left_loop(self, fork: Fork) -> LeftLoop | None:
        """The innermost loop that holds ``there``, if ``here`` comes after it."""
        loops = [node for node in own(fork.scope) if isinstance(node, Loop)]
        around = [loop for loop in loops if in_body(loop, fork.there)]
        if not around:
            return None
        inner = max(around, key=lambda loop: loop.lineno)
        if in_body(inner, fork.here) or fork.here <= body_end(inner):
            return None
        outer = any(loop is not inner and in_body(loop, fork.here) for loop in around)

        amid = cleanup_of(fork.scope, inner, fork.here)
        return LeftLoop(
            fork.file,
            inner.lineno,
            self.text(fork.file, inner),
            outer,
            runs_out(inner),
            jumps_out(inner),
            swallows(fork.scope, inner, fork.here),
            self.asks_for_rank(
                fork.file, inner.test if isinstance(inner, ast.While) else inner.iter
            ),
            amid,
        )

    def guard(self, fork: Fork) -> Guard | None:
        """The condition that ``here`` stands under and ``there`` does not.

        One that asks for the rank is preferred; else the outermost.
        """
        guards = [g for node in own(fork.scope) if (g := self._guard(fork, node)) is not None]
        return next((guard for guard in guards if guard.on_rank), guards[0] if guards else None)

    def _guard(self, fork: Fork, node: ast.AST) -> Guard | None:
        if isinstance(node, ast.If):
            for branch, other in _branches(fork.scope, node):
                if spans(branch, fork.here) and not spans(branch, fork.there):
                    return Guard(
                        fork.file,
                        node.lineno,
                        self.text(fork.file, node),
                        self.asks_for_rank(fork.file, node.test),
                        communicates(other),
                        asks_for_most(node.test) is (branch is node.orelse),
                    )
        if isinstance(node, ast.ExceptHandler) and spans(node.body, fork.here):
            if spans(node.body, fork.there):
                return None
            lines = (self._texts.get(fork.file) or "").splitlines()
            text = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else "except"
            return Guard(
                fork.file, node.lineno, text, on_rank=False, other_branch_communicates=False
            )
        return None

    def jump(self, fork: Fork) -> Guard | None:
        """The condition on the rank before ``there`` that jumps over it (continue, break, return).

        None where several do: nothing tells which of them it was.
        """
        found = [
            node
            for node in own(fork.scope)
            if isinstance(node, ast.If)
            and node.lineno < fork.there <= jumps_to(fork.scope, node, fork.here)
            and not spans(node.body, fork.there)
            and self.asks_for_rank(fork.file, node.test)
        ]
        if len(found) != 1:
            return None
        return Guard(
            fork.file,
            found[0].lineno,
            self.text(fork.file, found[0]),
            on_rank=True,
            other_branch_communicates=False,
            jumps=True,
        )

    def holds_for(self, file: str, test: ast.expr, rank: int) -> bool | None:
        """Whether a condition on the rank holds for one; None where the text does not tell."""
        return holds_for(test, rank, lambda node: self.asks_for_rank(file, node))

    def asks_for_rank(self, file: str, test: ast.expr, *, strictly: bool = False) -> bool:
        """Whether a condition reads like a question for the rank.

        strictly: not for what a function has made of the rank.
        """
        given = self.given(file)
        ranks = given.computed if strictly else given.ranks
        others = given.others | (given.ranks - ranks)

        def is_rank(node: ast.AST) -> bool:
            if isinstance(node, ast.Name):
                return node.id in ranks or (names_the_rank(node) and node.id not in others)
            kept = isinstance(node, ast.Attribute) and node.attr in given.rank_attributes
            return kept or names_the_rank(node)

        return any(map(is_rank, ast.walk(test)))

    def is_settled(self, file: str, test: ast.expr) -> bool:
        """Whether a condition is the same each time that a rank comes to it."""
        given = self.given(file)

        def settled(node: ast.AST) -> bool:
            match node:
                case ast.Name():
                    return node.id not in given.varying or names_the_rank(node)
                case ast.Attribute():
                    return node.attr in given.kept or names_the_rank(node)
                case ast.Call():
                    return called(node) in GIVE_RANK and all(map(settled, node.args))
            return all(map(settled, ast.iter_child_nodes(node)))

        return settled(test)

    def is_of_turns(self, file: str, test: ast.expr) -> bool:
        """Whether a condition asks only for the number of a turn: it is the same on all ranks."""
        tree = self.tree(file)
        turns = counters(scope_at(tree, test.lineno)) if tree is not None else frozenset()
        names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        others = any(isinstance(node, ast.Attribute | ast.Call) for node in ast.walk(test))
        return bool(names & turns) and not others and names <= turns | self.given(file).constants

    def given(self, file: str) -> Variables:
        """What the names of a file are given."""
        if file not in self._variables:
            self._variables[file] = variables(self.tree(file) or ast.Module([], []))
        return self._variables[file]

    def guard_beyond(self, here: Sequence[Frame], there: Sequence[Frame]) -> Guard | None:
        """The outermost condition on the rank that ``here`` took after parting from ``there``.

        It may stand in a function that only ``here`` is in (a callback), or that ``there``
        has come out of. One under which ``there`` is as well, or whose other branch
        communicates too, says nothing: both kinds of ranks have their part to do.
        """
        theirs = {(guard.file, guard.line) for frame in there for guard in self._rank_guards(frame)}
        for frame in here[_shared(here, there) :]:
            guard = self.rank_guard(frame)
            if guard is None or (guard.file, guard.line) in theirs:
                continue
            return None if guard.other_branch_communicates else guard
        return None

    def rank_guard(self, frame: Frame) -> Guard | None:
        """The innermost condition on the rank that a line stands under."""
        return next(reversed(list(self._rank_guards(frame))), None)

    def _rank_guards(self, frame: Frame) -> Iterator[Guard]:
        """The conditions on the rank that a line stands under, from the outside in."""
        tree = self.tree(frame.file)
        if tree is None:
            return
        scope = scope_at(tree, frame.line)
        decorator = for_one_rank(scope)
        if decorator is not None:
            text = f"@{ast.unparse(decorator)}"
            yield Guard(
                frame.file, decorator.lineno, text, on_rank=True, other_branch_communicates=False
            )
        for node in own(scope):
            if not isinstance(node, ast.If) or not self.asks_for_rank(frame.file, node.test):
                continue
            for branch, other in _branches(scope, node):
                if spans(branch, frame.line):
                    yield Guard(
                        frame.file,
                        node.lineno,
                        self.text(frame.file, node),
                        on_rank=True,
                        other_branch_communicates=communicates(other),
                        for_few=asks_for_most(node.test) is (branch is node.orelse),
                    )


def _shared(here: Sequence[Frame], there: Sequence[Frame]) -> int:
    """How many frames two stacks have in common, from the outside in."""
    pairs = zip(here, there, strict=False)
    return sum(1 for _ in takewhile(lambda pair: _line(pair[0]) == _line(pair[1]), pairs))


def _line(frame: Frame) -> tuple[str, int]:
    return frame.file, frame.line


def _branches(
    scope: Function, node: ast.If
) -> tuple[tuple[list[ast.stmt], list[ast.stmt]], tuple[list[ast.stmt], list[ast.stmt]]]:
    """Each branch of a condition with the other one.

    Where the first leaves the function or the loop, the other is what comes after it.
    """
    other = node.orelse or (following(scope, node) if leaves(node.body) else [])
    return (node.body, other), (node.orelse, node.body)
