"""The functions of a program's files by their names, and places in them."""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hangwatch.diagnosis.source.syntax import called, own, scope_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangwatch.diagnosis.source.syntax import Function

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef)


class Line(NamedTuple):
    """A line of a file."""

    file: str
    number: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where a program is: user frames, outermost first, as far as they are known.

    Without any it is at its end.
    """

    frames: tuple[Line, ...] = ()

    @property
    def line(self) -> Line | None:
        """The innermost one."""
        return self.frames[-1] if self.frames else None


def in_body(trees: Mapping[str, ast.Module], line: Line) -> Line:
    """The first statement of a function for the line of its ``def``: compiled code is there."""
    tree = trees.get(line.file)
    scope = scope_at(tree, line.number) if tree is not None else None
    if isinstance(scope, SCOPES) and line.number < scope.body[0].lineno:
        return Line(line.file, scope.body[0].lineno)
    return line


class Program:
    """The functions of a program's files, by the names by which they are called."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self.files: dict[Function, str] = {}
        self.names: dict[Function, str] = {}
        self.named: dict[str, list[Function]] = defaultdict(list)
        self.calls: dict[Function, frozenset[str]] = {}
        """The names that each function calls, or asks for."""
        for file, tree in trees.items():
            for scope, name in _functions(tree):
                self.files[scope] = file
                self.names[scope] = name
                self.calls[scope] = _called_in(scope)
                if name:
                    self.named[name].append(scope)

    def leading_to(self, scopes: set[Function]) -> set[Function]:
        """These functions and all that may call one of them."""
        found, names = set(scopes), {self.names[scope] for scope in scopes}
        while names:
            more = {s for s, made in self.calls.items() if s not in found and made & (names - {""})}
            found |= more
            names = {self.names[scope] for scope in more}
        return found


def _functions(tree: ast.Module) -> list[tuple[Function, str]]:
    """(function, the name by which it is called), the file itself first.

    A class is called for its ``__init__``.
    """
    found: list[tuple[Function, str]] = [(tree, "")]
    todo: deque[tuple[ast.AST, str]] = deque([(tree, "")])
    while todo:
        node, owner = todo.popleft()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, SCOPES):
                name = owner if child.name == "__init__" and owner else child.name
                found.append((child, name))
            if not isinstance(child, ast.expr):
                todo.append((child, child.name if isinstance(child, ast.ClassDef) else ""))
    return found


def _called_in(scope: Function) -> frozenset[str]:
    nodes = list(own(scope))
    calls = {called(node) for node in nodes if isinstance(node, ast.Call)}
    # A property is called by its name alone.
    return frozenset(calls | {node.attr for node in nodes if isinstance(node, ast.Attribute)})
