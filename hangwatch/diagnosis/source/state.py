"""Conditions that decide something later: on the rank, in callbacks, around making an object."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from hangwatch.diagnosis.source.arguments import Origin, back_to
from hangwatch.diagnosis.source.flow import Choice, Turn
from hangwatch.diagnosis.source.program import SCOPES, Line, Program
from hangwatch.diagnosis.source.syntax import (
    Function,
    called,
    is_collective,
    other_branch,
    own,
    spans,
)


def conditions_of(program: Program, line: Line) -> list[list[Choice]]:
    """The conditions around each mention of the class, or the function, that holds a line.

    Of a class where objects are made of it, of a function where it is called, or handed to
    something that calls it back.
    """
    scope = program.scope_at(line)
    if not isinstance(scope, SCOPES):
        return []
    owner = _owner(program, scope)
    return [around(program, *mention) for mention in mentions(program, owner)]


def _owner(program: Program, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """The class of a method, else the function."""
    tree = program.trees[program.files[scope]]
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return next((one for one in classes if scope in one.body), scope)


def mentions(program: Program, owner: ast.stmt) -> Iterator[tuple[Function, ast.expr]]:
    """Where a class is called, or a function named, outside of itself."""
    name = getattr(owner, "name", "")
    inside = set(map(id, ast.walk(owner)))
    for function in program.files:
        nodes = [node for node in own(function) if id(node) not in inside]
        called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            match node:
                case ast.Name(found, ast.Load()) | ast.Attribute(_, found, ast.Load()):
                    call = called.get(id(node), node)
                    if found == name and (call is not node or not isinstance(owner, ast.ClassDef)):
                        yield function, call


def around(program: Program, function: Function, node: ast.expr) -> list[Choice]:
    """The conditions of a function that lead to an expression of it."""
    file, found = program.files[function], []
    for one in own(function):
        if isinstance(one, ast.If):
            ways = ((one.body, True), (other_branch(function, one), False))
            found += [
                Choice(Turn.CONDITION, file, one, taken, one.test)
                for body, taken in ways
                if spans(body, node.lineno)
            ]
        elif isinstance(one, ast.IfExp):
            parts = ((one.body, True), (one.orelse, False))
            found += [
                Choice(Turn.CONDITION, file, one, taken, one.test)
                for part, taken in parts
                if any(inner is node for inner in ast.walk(part))
            ]
    return found


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
        for ways in _around_what_sets(program, origin, node):
            for choice in ways:
                if asks(choice):
                    return Line(choice.file, getattr(choice.node, "lineno", 0))
        return None

    return back_to(program, [line], [expression], tells, NEAREST)


def _around_what_sets(
    program: Program, origin: Origin, node: ast.AST
) -> Iterator[Sequence[Choice]]:
    """The conditions around each statement that gives a name, or an attribute, a value.

    Also around the calls of a function that gives an attribute one.
    """
    if isinstance(node, ast.Name):
        if not _is_shared(origin.scope, node.id):
            for to in _targets(program, origin.scope, node.id):
                yield around(program, origin.scope, to)
    elif isinstance(node, ast.Attribute):
        for file, tree in program.trees.items():
            for to in _targets(program, tree, node.attr):
                scope = program.scope_at(Line(file, to.lineno)) or tree
                if scope is origin.scope or _is_shared(scope, node.attr):
                    continue
                yield around(program, scope, to)
                if isinstance(scope, SCOPES) and scope.name != "__init__":
                    yield from _around_calls(program, scope)


def _around_calls(
    program: Program, scope: ast.FunctionDef | ast.AsyncFunctionDef
) -> Sequence[Sequence[Choice]]:
    """The conditions around each call of a function; none where a call is known to have none.

    A method of that name of an object that is known to be another one is left out.
    """
    owner, found = program.owner(scope), []
    for function, call in mentions(program, scope):
        receiver = _receiver(call)
        classes = program.objects.get(receiver, {})
        if owner and owner not in classes and (classes or _is_foreign(program, receiver)):
            continue
        ways = around(program, function, call)
        if not ways and (not owner or owner in classes):
            return []
        found.append(ways)
    return found


def _receiver(call: ast.expr) -> str:
    """The name of what a method is called on, empty where it has none."""
    method = call.func if isinstance(call, ast.Call) else call
    value = method.value if isinstance(method, ast.Attribute) else None
    return getattr(value, "id", None) or getattr(value, "attr", None) or ""


def _is_foreign(program: Program, name: str) -> bool:
    """Whether all that a name is given is made by what is not of the program."""
    values = [
        value
        for tree in program.trees.values()
        for value in program.given_to(name, tree, everywhere=True)
    ]
    made = [called(value) for value in values if isinstance(value, ast.Call)]
    return bool(values) and len(made) == len(values) and not any(map(program.named.get, made))


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
