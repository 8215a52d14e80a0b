"""Conditions by which functions that a library calls back tell it what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangwatch.diagnosis.source.program import SCOPES, Line, Program
from hangwatch.diagnosis.source.syntax import Function, own


def conditions_in_callbacks(program: Program) -> Iterator[tuple[Line, ast.expr]]:
    """(line, test) of each ``if`` below which a function gives an attribute of an argument a value.

    As in ``trainer.should_stop = True``. Of functions that nothing in the program calls by their
    names.
    """
    named = frozenset().union(*program.calls.values())
    for scope, file in program.files.items():
        if isinstance(scope, SCOPES) and program.names[scope] not in named:
            for node in own(scope):
                if isinstance(node, ast.If) and _tells(scope, node):
                    yield Line(file, node.lineno), node.test


def _tells(scope: Function, branch: ast.If) -> bool:
    """Whether a branch gives an attribute of an argument of the function a value, not of self."""
    arguments = {one.arg for one in scope.args.args[1:]} if isinstance(scope, SCOPES) else set()
    targets = (
        target
        for node in ast.walk(branch)
        if isinstance(node, ast.Assign)
        for target in node.targets
    )
    return any(
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id in arguments
        for target in targets
    )
