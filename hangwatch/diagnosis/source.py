"""What the user's source says of two lines: loops left, conditions taken.

Two ranks stand at different lines. Where their stacks part is a *fork*: one
function, two of its lines. The tree of that function tells whether one line comes
after the loop that holds the other, and under which condition it stands. Without
the source, or where it does not parse, there is no answer, never a guess.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangwatch.types import Frame

MAX_SOURCE_CHARS = 1_000_000
_RANK = re.compile(r"rank|main_process|is_main|is_master|is_leader|is_first|is_last", re.IGNORECASE)
_COMMUNICATES = re.compile(
    r"^(?:i?send|i?recv|barrier|monitored_barrier|broadcast\w*|all_\w+|reduce|reduce_scatter\w*"
    r"|gather\w*|scatter\w*|backward|batch_isend_irecv|reduce_tensor|synchronize)$"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While


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


@dataclass(frozen=True, slots=True)
class LeftLoop:
    """The loop that one rank is past and the other is in."""

    file: str
    line: int
    text: str
    returns: bool
    """Whether an outer loop may lead back into it."""


class Source:
    """Parsed user files, each parsed once."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, file: str) -> ast.Module | None:
        """The parsed file, None where there is none."""
        if file not in self._trees:
            self._trees[file] = _parse(self._texts.get(file))
        return self._trees[file]

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
        mine, other = _scope(tree, here.line), _scope(tree, there.line)
        call = _call_line(mine, other)
        if call is not None and call != here.line:
            return Fork(here.file, here.line, call, mine)
        call = _call_line(other, mine)
        if call is not None and call != there.line:
            return Fork(here.file, call, there.line, other)
        return None

    def _in_one_scope(self, here: Frame, there: Frame) -> Fork | None:
        tree = self.tree(here.file)
        if tree is None or here.line == there.line:
            return None
        scope = _scope(tree, here.line)
        if scope is not _scope(tree, there.line):
            return None
        return Fork(here.file, here.line, there.line, scope)

    def text(self, file: str, node: ast.stmt) -> str:
        """The first line of a statement, as written."""
        lines = (self._texts.get(file) or "").splitlines()
        return lines[node.lineno - 1].strip() if node.lineno <= len(lines) else ""

    def left_loop(self, fork: Fork) -> LeftLoop | None:
        """The innermost loop that holds ``there``, if ``here`` comes after it."""
        loops = [node for node in _own(fork.scope) if isinstance(node, Loop)]
        around = [loop for loop in loops if _in_body(loop, fork.there)]
        if not around:
            return None
        inner = max(around, key=lambda loop: loop.lineno)
        if _in_body(inner, fork.here) or fork.here <= _body_end(inner):
            return None
        outer = any(loop is not inner and _in_body(loop, fork.here) for loop in around)
        return LeftLoop(fork.file, inner.lineno, self.text(fork.file, inner), outer)

    def guard(self, fork: Fork) -> Guard | None:
        """The condition that ``here`` stands under and ``there`` does not.

        One that asks for the rank is preferred; else the outermost.
        """
        guards = [g for node in _own(fork.scope) if (g := self._guard(fork, node)) is not None]
        return next((guard for guard in guards if guard.on_rank), guards[0] if guards else None)

    def _guard(self, fork: Fork, node: ast.AST) -> Guard | None:
        if isinstance(node, ast.If):
            for branch, other in ((node.body, node.orelse), (node.orelse, node.body)):
                if _spans(branch, fork.here) and not _spans(branch, fork.there):
                    return Guard(
                        fork.file,
                        node.lineno,
                        self.text(fork.file, node),
                        _asks_for_rank(node.test),
                        _communicates(other),
                    )
        if isinstance(node, ast.ExceptHandler) and _spans(node.body, fork.here):
            if _spans(node.body, fork.there):
                return None
            lines = (self._texts.get(fork.file) or "").splitlines()
            text = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else "except"
            return Guard(
                fork.file, node.lineno, text, on_rank=False, other_branch_communicates=False
            )
        return None

    def jump(self, fork: Fork) -> Guard | None:
        """A condition before ``there`` that jumps over it (continue, break, return)."""
        for node in _own(fork.scope):
            if not isinstance(node, ast.If) or node.lineno >= fork.there:
                continue
            leaves = any(
                isinstance(inner, ast.Continue | ast.Break | ast.Return) for inner in node.body
            )
            if leaves and not _spans(node.body, fork.there) and _asks_for_rank(node.test):
                return Guard(
                    fork.file,
                    node.lineno,
                    self.text(fork.file, node),
                    on_rank=True,
                    other_branch_communicates=False,
                )
        return None

    def rank_guard(self, frame: Frame) -> Guard | None:
        """The innermost condition on the rank that a line stands under."""
        tree = self.tree(frame.file)
        if tree is None:
            return None
        scope = _scope(tree, frame.line)
        found = None
        for node in _own(scope):
            if not isinstance(node, ast.If) or not _asks_for_rank(node.test):
                continue
            for branch, other in ((node.body, node.orelse), (node.orelse, node.body)):
                if _spans(branch, frame.line):
                    found = Guard(
                        frame.file,
                        node.lineno,
                        self.text(frame.file, node),
                        on_rank=True,
                        other_branch_communicates=_communicates(other),
                    )
        return found


def _parse(text: str | None) -> ast.Module | None:
    if text is None or len(text) > MAX_SOURCE_CHARS:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _own(scope: Function) -> Iterator[ast.AST]:
    """The nodes of a function, outermost first, without those of functions in it."""
    todo: list[ast.AST] = [scope]
    while todo:
        node = todo.pop(0)
        if node is not scope:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            yield node
        todo.extend(ast.iter_child_nodes(node))


def _scope(tree: ast.Module, line: int) -> Function:
    """The innermost function that holds a line, or the module."""
    found: Function = tree
    for node in ast.walk(tree):
        # ast.walk goes from the outside in, so the last one that fits is the innermost.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _holds(node, line):
            found = node
    return found


def _call_line(scope: Function, callee: Function) -> int | None:
    """The line of ``scope`` that calls ``callee`` by its name, if it is one line."""
    if not isinstance(callee, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    lines = {
        node.lineno
        for node in _own(scope)
        if isinstance(node, ast.Call) and _called(node) == callee.name
    }
    return lines.pop() if len(lines) == 1 else None


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _spans(body: Sequence[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _body_end(loop: Loop) -> int:
    return loop.body[-1].end_lineno or loop.body[-1].lineno


def _in_body(loop: Loop, line: int) -> bool:
    """In a loop's header or body; its ``else`` runs when it is over."""
    return loop.lineno <= line <= _body_end(loop)


def _asks_for_rank(test: ast.expr) -> bool:
    for node in ast.walk(test):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(name, str) and _RANK.search(name):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "RANK" in node.value:
            return True
    return False


def _communicates(body: Sequence[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Call) and bool(_COMMUNICATES.match(_called(node)))
        for statement in body
        for node in ast.walk(statement)
    )
