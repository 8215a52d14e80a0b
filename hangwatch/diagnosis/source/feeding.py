"""The generators that a loop goes over, and the statements by which they come to an early end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangwatch.diagnosis.source.names import given
from hangwatch.diagnosis.source.program import Line, Program
from hangwatch.diagnosis.source.syntax import Function, Loop, called, own
from hangwatch.diagnosis.source.values import KEEP_ORDER, Value, is_generator

_ITERATORS = frozenset({"chain", "enumerate", "filter", "islice", "iter", "map", "zip"})


def early_ends(program: Program, file: str, loop: ast.For) -> list[Line]:
    """The ``return`` and ``break`` by which what a loop goes over may end before its time.

    In the generators of the program that feed it, be it by others: below a condition, in a loop.
    """
    scope = program.scope_at(Line(file, loop.lineno))
    if scope is None:
        return []
    found = dict.fromkeys(_generators(Value(program, file, scope, loop.iter)))
    return [Line(program.files[one], node.lineno) for one in found for node in _leaving(one)]


def taken_before(program: Program, file: str, loop: ast.For) -> Line | None:
    """The line at which an iterator that a loop goes over is used before the loop.

    It gives each element once. None where nothing uses it, and where it is no iterator.
    """
    scope = program.scope_at(Line(file, loop.lineno))
    if scope is None or not isinstance(loop.iter, ast.Name):
        return None
    name = loop.iter.id
    made = [value for to, value in given(own(scope)) if isinstance(to, ast.Name) and to.id == name]
    if len(made) != 1 or not _is_iterator(Value(program, file, scope, made[0])):
        return None
    used = sorted(
        node.lineno
        for node in own(scope)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    )
    between = [at for at in used if (made[0].end_lineno or made[0].lineno) < at < loop.lineno]
    return Line(file, between[0]) if between else None


def _is_iterator(value: Value) -> bool:
    """Whether it is a call of a generator, or of what makes an iterator."""
    if isinstance(value.node, ast.GeneratorExp):
        return True
    if not isinstance(value.node, ast.Call):
        return False
    function = value.function()
    return called(value.node) in _ITERATORS or (function is not None and is_generator(function))


def _generators(value: Value) -> Iterator[Function]:
    """The generators that an expression goes over, and those that feed these."""
    if value.depth < 0:
        return
    if isinstance(value.node, ast.Call):
        function = value.function()
        if function is not None and is_generator(function):
            yield function
            yield from _feeding(value, function)
        elif called(value.node) in KEEP_ORDER:
            for node in value.node.args:
                yield from _generators(value.at(node))
    for step in value.steps():
        yield from _generators(step)


def _feeding(value: Value, function: Function) -> Iterator[Function]:
    """Those that the loops of a generator go over."""
    file = value.program.files[function]
    for node in own(function):
        if isinstance(node, ast.For):
            inner = Value(value.program, file, function, node.iter, value.depth - 1)
            yield from _generators(inner)


def _leaving(function: Function) -> Iterator[ast.stmt]:
    """The statements below a condition that end the loops of a generator.

    Not of one that has no other end.
    """
    for loop in own(function):
        endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
        if not isinstance(loop, Loop) or endless:
            continue
        for statement in loop.body:
            for node in ast.walk(statement):
                ways = (node.body, node.orelse) if isinstance(node, ast.If) else ()
                yield from (
                    way[-1] for way in ways if way and isinstance(way[-1], ast.Return | ast.Break)
                )
