"""Conditions below which a program makes an object, or hands a function over, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangwatch.diagnosis.source.flow import Choice, Turn
from hangwatch.diagnosis.source.program import SCOPES, Line, Program
from hangwatch.diagnosis.source.syntax import Function, other_branch, own, spans


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
