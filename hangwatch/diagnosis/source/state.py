"""Conditions on the rank below which a program sets what decides something later."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hangwatch.diagnosis.source.arguments import back_to
from hangwatch.diagnosis.source.made import around, mentions
from hangwatch.diagnosis.source.program import SCOPES, Line
from hangwatch.diagnosis.source.syntax import is_collective, own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangwatch.diagnosis.source.arguments import Origin
    from hangwatch.diagnosis.source.flow import Choice
    from hangwatch.diagnosis.source.program import Program
    from hangwatch.diagnosis.source.syntax import Function

NEAREST = 10
"""Expressions that are looked at: what lies further back decides nothing by itself."""


def set_for_few(
    program: Program, line: Line, expression: ast.expr, asks: Callable[[Choice], bool]
) -> Line | None:
    """The condition on the rank below which something is set that an expression depends on.

    Found back from the expression at ``line``: through names, attributes, and what functions
    return. None where there is none, or where a collective is given it then. asks: whether a
    condition asks for the rank.
    """

    def tells(origin: Origin, node: ast.AST) -> Line | None:
        for choice in _around_what_sets(program, origin, node):
            if asks(choice):
                return Line(choice.file, getattr(choice.node, "lineno", 0))
        return None

    return back_to(program, [line], [expression], tells, NEAREST)


def _around_what_sets(program: Program, origin: Origin, node: ast.AST) -> Iterator[Choice]:
    """The conditions around the statements that give a name, or an attribute, a value.

    Also around the calls of a function that gives an attribute one.
    """
    if isinstance(node, ast.Name):
        if not _is_shared(origin.scope, node.id):
            for to in _targets(program, origin.scope, node.id):
                yield from around(program, origin.scope, to)
    elif isinstance(node, ast.Attribute):
        for file, tree in program.trees.items():
            for to in _targets(program, tree, node.attr):
                scope = program.scope_at(Line(file, to.lineno)) or tree
                if scope is origin.scope or _is_shared(scope, node.attr):
                    continue
                yield from around(program, scope, to)
                if isinstance(scope, SCOPES) and scope.name != "__init__":
                    for function, call in mentions(program, scope):
                        yield from around(program, function, call)


def _targets(program: Program, scope: Function, name: str) -> Iterator[ast.expr]:
    """What of that name is given a value in a function; of a file also in its functions."""
    for to, _ in program.given_in(scope, everywhere=isinstance(scope, ast.Module)):
        for one in to.elts if isinstance(to, ast.Tuple) else [to]:
            if name in (getattr(one, "id", None), getattr(one, "attr", None)):
                yield one


def _is_shared(scope: Function, name: str) -> bool:
    """Whether a function gives what has a name to a collective: then all may have it."""
    return any(
        name in (getattr(part, "id", None), getattr(part, "attr", None))
        for node in own(scope)
        if isinstance(node, ast.Call) and is_collective(node)
        for part in ast.walk(node)
    )
