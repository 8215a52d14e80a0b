"""The functions of a program's files by their names, and positions in them."""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hangwatch.diagnosis.source.names import Given, given
from hangwatch.diagnosis.source.syntax import (
    Function,
    Loop,
    body_end,
    called,
    calls_in,
    covers,
    decorated_by,
    in_body,
    is_collective,
    loops_in,
    name_of,
    own,
    parts,
)

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef)
CACHES = frozenset({"cache", "cached", "cached_property", "lru_cache"})
"""Decorators that keep the result of a function, so that it is not run again."""
CALLED_AS_OBJECT = frozenset({"forward", "__call__"})
"""Methods that are called by the name of an object."""


class Line(NamedTuple):
    """A line of a file."""

    file: str
    number: int


class Cached(NamedTuple):
    """A function with a cache around it: ``self.weights = lru_cache(maxsize=4)(self._weights)``."""

    function: str
    file: str
    made: ast.expr


@dataclass(frozen=True, slots=True)
class Position:
    """The user frames that a program is in, outermost first; without any it is at its end."""

    frames: tuple[Line, ...] = ()

    @property
    def line(self) -> Line | None:
        """The innermost one."""
        return self.frames[-1] if self.frames else None


@dataclass(frozen=True, slots=True)
class Fork:
    """Two lines of one function, at which two positions part."""

    file: str
    scope: Function
    here: int
    there: int

    @property
    def left(self) -> list[Loop]:
        """The loops that ``there`` is in and ``here`` has come past, from the inside out."""
        loops = loops_in(self.scope)
        left = [one for one in loops if in_body(one, self.there) and self.here > body_end(one)]
        return sorted(left, key=lambda loop: -loop.lineno)

    @property
    def in_one_loop(self) -> bool:
        """Return True if a loop is around both."""
        loops = loops_in(self.scope)
        return any(in_body(one, self.here) and in_body(one, self.there) for one in loops)

    @property
    def back(self) -> Fork:
        """The fork seen from the other side."""
        return Fork(self.file, self.scope, self.there, self.here)


def fork(program: Program, here: Position, there: Position) -> Fork | None:
    """The lines at which two positions diverge; None if no function of the source has both.

    If the callers of a position are not known, the only call of its function by name counts.
    """
    pairs = zip(here.frames, there.frames, strict=False)
    first = next((pair for pair in pairs if pair[0] != pair[1]), None)
    found = _in_one_scope(program, *first) if first is not None else None
    mine, theirs = here.line, there.line
    if found is not None or mine is None or theirs is None or mine == theirs:
        return found
    return _in_one_scope(program, mine, theirs) or _by_call(program, mine, theirs)


def _in_one_scope(program: Program, mine: Line, theirs: Line) -> Fork | None:
    scope = program.scope_at(mine)
    if scope is None or mine.file != theirs.file or scope is not program.scope_at(theirs):
        return None
    return Fork(mine.file, scope, mine.number, theirs.number)


def _by_call(program: Program, mine: Line, theirs: Line) -> Fork | None:
    scope, other = program.scope_at(mine), program.scope_at(theirs)
    if scope is None or other is None or mine.file != theirs.file:
        return None
    call = _call_line(scope, other)
    if call is not None and call != mine.number:
        return Fork(mine.file, scope, mine.number, call)
    call = _call_line(other, scope)
    if call is not None and call != theirs.number:
        return Fork(mine.file, other, call, theirs.number)
    return None


def _call_line(scope: Function, callee: Function) -> int | None:
    """The line of ``scope`` that calls ``callee`` by its name, if it is one line."""
    name = getattr(callee, "name", None)
    lines = {call.lineno for call in calls_in(scope) if called(call) == name}
    return lines.pop() if len(lines) == 1 else None


def first_statement(program: Program, line: Line) -> Line:
    """The first statement of a function for the line of its ``def``: compiled code is there."""
    scope = program.scope_at(line)
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
        self._loops: dict[Function, list[Loop]] = {}
        self._given: dict[tuple[Function, bool], list[Given]] = {}
        self._given_by_name: dict[tuple[Function, bool], dict[str, list[Given]]] = {}
        for file, tree in trees.items():
            for scope, name in _functions(tree):
                self.files[scope] = file
                self.names[scope] = name
                if name:
                    self.named[name].append(scope)

    def scope_at(self, line: Line) -> Function | None:
        """The innermost function that holds a line, or the file; None where it is not known."""
        found: Function | None = self.trees.get(line.file)
        for scope in self._scopes.get(line.file, ()):
            # From the outside in, so the last one that fits is the innermost.
            if covers(scope, line.number):
                found = scope
        return found

    @cached_property
    def _scopes(self) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = defaultdict(list)
        for scope, file in self.files.items():
            if isinstance(scope, SCOPES):
                found[file].append(scope)
        return found

    @cached_property
    def collectives_of_all(self) -> frozenset[Line]:
        """The lines of ``dist.all_reduce(...)`` and the like, without a group of their own."""
        return frozenset(
            Line(file, node.lineno)
            for file, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and name_of(node.func.value) in ("dist", "distributed")
            and is_collective(node)
            and not any(word.arg == "group" for word in node.keywords)
        )

    def only_call(self, name: str) -> Line | None:
        """The line that calls a function by this name, if it is one in all files."""
        calls = self.calls_to(name)
        return calls[0] if len(calls) == 1 else None

    def calls_to(self, name: str) -> Sequence[Line]:
        """The lines of all files that call a function by this name."""
        return self._calls_to.get(name, ())

    @cached_property
    def _calls_to(self) -> dict[str, list[Line]]:
        found: dict[str, set[Line]] = defaultdict(set)
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    found[called(node)].add(Line(file, node.lineno))
        return {name: sorted(lines) for name, lines in found.items()}

    def communicates(self, body: Sequence[ast.stmt]) -> bool:
        """Return True if statements make a collective or point-to-point call, directly or not."""
        return bool(self.communicating(body))

    def communicating(self, body: Sequence[ast.stmt]) -> list[ast.Call]:
        """The calls of statements that communicate, or lead to a call that does."""
        return [
            node
            for statement in body
            for node in ast.walk(statement)
            if isinstance(node, ast.Call)
            and (is_collective(node) or called(node) in self._communicating)
        ]

    @cached_property
    def _communicating(self) -> frozenset[str]:
        """The names of functions that communicate, directly or not."""
        scopes = {scope for scope in self.files if any(map(is_collective, calls_in(scope)))}
        return frozenset(self.names[scope] for scope in self.leading_to(scopes)) - {""}

    def given_in(self, scope: Function, *, everywhere: bool = False) -> Sequence[Given]:
        """Each target of a function with its value; everywhere: also in functions within it."""
        key = scope, everywhere
        if key not in self._given:
            self._given[key] = [*given(ast.walk(scope) if everywhere else own(scope))]
        return self._given[key]

    def given_whole(
        self, to: ast.Name | ast.Attribute, scope: Function, *, everywhere: bool = False
    ) -> list[ast.expr]:
        """The values of a name, or of an attribute of that name, that are not parts of others."""
        made, name = self.given_in(scope, everywhere=everywhere), name_of(to)
        return [value for one, value in made if type(one) is type(to) and name_of(one) == name]

    def loops_in(self, scope: Function) -> Sequence[Loop]:
        """The loops of a function."""
        if scope not in self._loops:
            self._loops[scope] = loops_in(scope)
        return self._loops[scope]

    def given_to(self, name: str, scope: Function, *, everywhere: bool = False) -> Sequence[Given]:
        """Each name, or attribute, of that name with its value; or with that of a whole tuple."""
        key = scope, everywhere
        by_name = self._given_by_name.get(key)
        if by_name is None:
            by_name = self._given_by_name[key] = defaultdict(list)
            for to, value in self.given_in(scope, everywhere=everywhere):
                for one in parts(to):
                    by_name[name_of(one)].append(Given(one, value))
        return by_name.get(name, ())

    def method(self, owner: str, name: str) -> Function | None:
        """The method of a class, by both names."""
        body = self._classes[owner].body if owner in self._classes else []
        return next((one for one in body if isinstance(one, SCOPES) and one.name == name), None)

    def owner(self, method: Function) -> str:
        """The name of the class that has a method; empty where none has."""
        owners = (name for name, node in self._classes.items() if method in node.body)
        return next(owners, "")

    @cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        nodes = (node for tree in self.trees.values() for node in ast.walk(tree))
        return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def called_in_loops(self) -> frozenset[Function]:
        """The functions that a loop calls, be it by others; methods by which objects are called."""
        loops = (n for tree in self.trees.values() for n in ast.walk(tree) if isinstance(n, Loop))
        bodies = (node for loop in loops for part in loop.body for node in ast.walk(part))
        todo = {called(node) for node in bodies if isinstance(node, ast.Call)} | CALLED_AS_OBJECT
        found: set[Function] = set()
        while todo:
            more = {one for name in todo for one in self.named.get(name, ())} - found
            found |= more
            todo = {name for scope in more for name in self.calls[scope]}
        return frozenset(found)

    @cached_property
    def cached(self) -> dict[str, Cached]:
        """The names that functions are given with a cache around them."""
        found = {}
        for file, tree in self.trees.items():
            for to, value in self.given_in(tree, everywhere=True):
                inside = _function_in_cache(value)
                if inside and name_of(to):
                    found[name_of(to)] = Cached(inside, file, value)
        return found

    @cached_property
    def objects(self) -> dict[str, dict[str, None]]:
        """The names that objects of classes are given, each with its classes in their order."""
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for tree in self.trees.values():
            for to, value in self.given_in(tree, everywhere=True):
                calls = (node for node in ast.walk(value) if isinstance(node, ast.Call))
                for made in map(called, calls):
                    if made in self._classes:
                        for name in filter(None, map(name_of, parts(to))):
                            found[name][made] = None
        return found

    def callers_names(self, scope: Function) -> list[str]:
        """The names by which a function is called: for ``forward`` also those of its objects."""
        name = self.names[scope]
        owner = self.owner(scope) if name in CALLED_AS_OBJECT else ""
        return [name, *(one for one, classes in self.objects.items() if owner and owner in classes)]

    def overrides(self, method: Function) -> list[Function]:
        """The methods of that name in classes that are made from the one that has it."""
        owners, name = [self.owner(method)], getattr(method, "name", "")
        found: list[Function] = []
        for owner in owners if owners[0] else ():
            for made, node in self._classes.items():
                if owner in map(name_of, node.bases) and made not in owners:
                    owners.append(made)
                    found += filter(None, [self.method(made, name)])
        return found

    @cached_property
    def calls(self) -> dict[Function, frozenset[str]]:
        """The names that each function calls, or asks for."""
        made = {scope: _called_in(scope) for scope in self.files}
        cached = {name: one.function for name, one in self.cached.items()}
        return {
            scope: names | {cached[name] for name in names & cached.keys()}
            for scope, names in made.items()
        }

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


def _function_in_cache(value: ast.expr) -> str:
    """The function that an expression puts a cache around, empty for others."""
    match value:
        case ast.Call(func=made, args=[ast.Name() | ast.Attribute() as inside]):
            return name_of(inside) if decorated_by(made) in CACHES else ""
    return ""


def _called_in(scope: Function) -> frozenset[str]:
    nodes = list(own(scope))
    calls = {called(node) for node in nodes if isinstance(node, ast.Call)}
    # A property is called by its name alone.
    return frozenset(calls | {node.attr for node in nodes if isinstance(node, ast.Attribute)})
