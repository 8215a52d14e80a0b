"""Loops over what has no order of its own: sets, and the files of a directory."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from enum import StrEnum

from hangwatch.diagnosis.source.program import Line, Program
from hangwatch.diagnosis.source.syntax import called, own
from hangwatch.diagnosis.source.values import KEEP_ORDER, Value

_FILES = frozenset({"listdir", "scandir", "iterdir", "glob", "iglob", "rglob", "walk"})
_SETS = frozenset({"set", "frozenset"})
_OF_OWNER = frozenset(
    {"union", "difference", "intersection", "symmetric_difference"}
    | {"items", "keys", "values", "copy"}
)
"""Methods of what goes over a set that do so, too."""


class Unordered(StrEnum):
    """What a loop goes over."""

    SET = "set"
    FILES = "files"


def loop_without_order(
    program: Program, line: Line, above: tuple[Line, ...] = ()
) -> tuple[ast.For, Unordered] | None:
    """The innermost loop around a line that goes over what has no order of its own.

    above: the lines by which its function was called, outermost first.
    """
    scope = program.scope_at(line)
    if scope is None:
        return None
    around = [
        node
        for node in own(scope)
        if isinstance(node, ast.For) and node.lineno <= line.number <= (node.end_lineno or 0)
    ]
    for loop in around[::-1]:
        found = _over(Value(program, line.file, scope, loop.iter, above=above))
        if found is not None:
            return loop, found
    return None


def _over(value: Value) -> Unordered | None:
    """What an expression is; None for what has an order, or is not known."""
    found: Unordered | None = None
    match value.node:
        case ast.Set(elts):
            numbers = (isinstance(one, ast.Constant) and type(one.value) is int for one in elts)
            found = None if all(numbers) else Unordered.SET  # numbers are their own hashes
        case ast.SetComp():
            found = Unordered.SET
        case ast.BinOp(left, ast.Sub() | ast.BitOr() | ast.BitAnd() | ast.BitXor(), right):
            found = _first(value, (left, right))
        case ast.IfExp(_, body, orelse):
            found = _first(value, (body, orelse))
        case ast.ListComp(_, [first, *_]) | ast.DictComp(_, _, [first, *_]):
            found = _over(value.at(first.iter))
        case ast.GeneratorExp(_, [first, *_]):
            found = _over(value.at(first.iter))
        case ast.Call(func, args):
            found = _of_call(value, called(value.node), func, args)
        case ast.Attribute():
            # Classes may have attributes of one name.
            kinds = {_over(step) for step in value.steps()}
            found = kinds.pop() if len(kinds) == 1 else None
        case ast.Name():
            kinds = {_over(step) for step in value.steps() if step.scope is not value.scope}
            here = (_over(step) for step in value.steps() if step.scope is value.scope)
            # Of an argument all that call the function have to give it such.
            found = kinds.pop() if len(kinds) == 1 else next(filter(None, here), None)
    return found


def _first(value: Value, nodes: Iterable[ast.expr]) -> Unordered | None:
    return next(filter(None, (_over(value.at(node)) for node in nodes)), None)


def _of_call(value: Value, name: str, func: ast.expr, args: Iterable[ast.expr]) -> Unordered | None:
    if name in _SETS:
        return Unordered.SET
    if name in _FILES:
        return Unordered.FILES
    if name in KEEP_ORDER:
        return _first(value, args)
    if isinstance(func, ast.Attribute) and name in _OF_OWNER:
        return _over(value.at(func.value))
    return next(filter(None, map(_over, value.steps())), None)
