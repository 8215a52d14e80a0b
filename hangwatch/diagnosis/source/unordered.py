"""Loops over what has no order of its own: sets, and the files of a directory."""

from __future__ import annotations

import ast
from enum import StrEnum
from typing import TYPE_CHECKING

from hangwatch.diagnosis.source.names import given
from hangwatch.diagnosis.source.program import SCOPES
from hangwatch.diagnosis.source.syntax import called, own

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangwatch.diagnosis.source.program import Line, Program
    from hangwatch.diagnosis.source.syntax import Function

DEPTH = 8
"""Names that are followed to what they stand for."""
_FILES = frozenset({"listdir", "scandir", "iterdir", "glob", "iglob", "rglob", "walk"})
_SETS = frozenset({"set", "frozenset"})
_KEEP_ORDER = frozenset(
    {"list", "tuple", "enumerate", "iter", "reversed", "zip", "tqdm", "fromkeys"}
)
_OF_OWNER = frozenset(
    {"union", "difference", "intersection", "symmetric_difference"}
    | {"items", "keys", "values", "copy"}
)
"""Methods of what goes over a set that do so, too."""


class Unordered(StrEnum):
    """What a loop goes over."""

    SET = "set"
    FILES = "files"


def loop_without_order(program: Program, line: Line) -> tuple[ast.For, Unordered] | None:
    """The innermost loop around a line that goes over what has no order of its own."""
    scope = program.scope_at(line)
    if scope is None:
        return None
    around = [
        node
        for node in own(scope)
        if isinstance(node, ast.For) and node.lineno <= line.number <= (node.end_lineno or 0)
    ]
    for loop in around[::-1]:
        found = _Reader(program, line.file).of(loop.iter, scope)
        if found is not None:
            return loop, found
    return None


class _Reader:
    """Follows expressions of a file to what they go over; depth: how many names further."""

    def __init__(self, program: Program, file: str, depth: int = DEPTH) -> None:
        self._program = program
        self._file = file
        self._depth = depth

    def of(self, node: ast.expr, scope: Function) -> Unordered | None:
        """What an expression of a function is; None for what has an order, or is not known."""
        found: Unordered | None = None
        match node:
            case ast.Set(elts):
                numbers = (isinstance(one, ast.Constant) and type(one.value) is int for one in elts)
                found = None if all(numbers) else Unordered.SET  # numbers are their own hashes
            case ast.SetComp():
                found = Unordered.SET
            case ast.BinOp(left, ast.Sub() | ast.BitOr() | ast.BitAnd() | ast.BitXor(), right):
                found = self.first_of((left, right), scope)
            case ast.IfExp(_, body, orelse):
                found = self.first_of((body, orelse), scope)
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp():
                found = self.of(node.generators[0].iter, scope)
            case ast.Call():
                found = self._of_call(node, scope)
            case ast.Name(name):
                found = self._of_name(name, scope)
            case ast.Attribute(_, name):
                made = given(ast.walk(self._program.trees[self._file]))
                kept = (v for to, v in made if isinstance(to, ast.Attribute) and to.attr == name)
                kinds = {self._further().first_of((value,), scope) for value in kept}
                found = kinds.pop() if len(kinds) == 1 else None
        return found

    def first_of(self, nodes: Iterable[ast.expr], scope: Function) -> Unordered | None:
        """What the first of some expressions is that has no order."""
        if self._depth < 0:
            return None
        return next((found for node in nodes if (found := self.of(node, scope))), None)

    def _of_call(self, node: ast.Call, scope: Function) -> Unordered | None:
        name = called(node)
        if name in _SETS:
            return Unordered.SET
        if name in _FILES:
            return Unordered.FILES
        if name in _KEEP_ORDER:
            return self.first_of(node.args, scope)
        if isinstance(node.func, ast.Attribute) and name in _OF_OWNER:
            return self.of(node.func.value, scope)
        functions = self._program.named.get(name, [])
        if len(functions) != 1:
            return None
        returned = (one.value for one in own(functions[0]) if isinstance(one, ast.Return))
        inside = self._further(self._program.files[functions[0]])
        return inside.first_of((value for value in returned if value is not None), functions[0])

    def _of_name(self, name: str, scope: Function) -> Unordered | None:
        made = (v for to, v in given(own(scope)) if isinstance(to, ast.Name) and to.id == name)
        values = [*made]
        if values:
            return self._further().first_of(values, scope)
        if isinstance(scope, SCOPES) and name in (names := [one.arg for one in scope.args.args]):
            return self._of_argument(scope, names.index(name), name)
        tree = self._program.trees[self._file]
        return self._of_name(name, tree) if scope is not tree else None

    def _of_argument(self, scope: Function, place: int, name: str) -> Unordered | None:
        """What a function is called with, where one line calls it."""
        function = self._program.names[scope]
        line = self._program.only_call(function)
        caller = self._program.scope_at(line) if line is not None else None
        if line is None or caller is None:
            return None
        for node in own(caller):
            if isinstance(node, ast.Call) and (node.lineno, called(node)) == (
                line.number,
                function,
            ):
                first = int(isinstance(node.func, ast.Attribute))  # after self
                values = {one.arg: one.value for one in node.keywords}
                value = values.get(name) or dict(enumerate(node.args, first)).get(place)
                return self._further(line.file).first_of([value] if value else [], caller)
        return None

    def _further(self, file: str = "") -> _Reader:
        return _Reader(self._program, file or self._file, self._depth - 1)
