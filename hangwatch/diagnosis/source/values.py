"""Follows the values of a program step by step: names, attributes, calls, iterables of loops."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hangwatch.diagnosis.source.program import SCOPES, Line, Program
from hangwatch.diagnosis.source.syntax import Function, Loop, called, calls_in, own

DEPTH = 8
"""Steps that are followed."""
MOST_CALLERS = 8
"""Lines that call a function, of which all may have given it an argument."""
KEEP_ORDER = frozenset(
    {"list", "tuple", "enumerate", "iter", "reversed", "zip"} | {"tqdm", "fromkeys", "islice"}
)
"""Functions that iterate over their argument."""
_ITERATORS = frozenset({"chain", "enumerate", "filter", "islice", "iter", "map", "zip"})


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of a function of the program."""

    program: Program
    scope: Function
    node: ast.expr
    depth: int = DEPTH
    above: tuple[Line, ...] = ()
    """The lines by which its function was called, outermost first, where a stack shows them."""

    @property
    def file(self) -> str:
        """The file of its function."""
        return self.program.files[self.scope]

    def at(self, node: ast.expr) -> Value:
        """Another expression of the same function."""
        return replace(self, node=node)

    def further(
        self, node: ast.expr, scope: Function | None = None, above: tuple[Line, ...] = ()
    ) -> Value:
        """The expression one step further, in another function where one is given."""
        return Value(self.program, scope or self.scope, node, self.depth - 1, above)

    def steps(self) -> list[Value]:
        """The values of a name or an attribute, or that a function returns.

        Empty for anything else, or where they are not known.
        """
        if self.depth < 0:
            return []
        match self.node:
            case ast.Name():
                return self._of_name(self.node)
            case ast.Attribute():
                tree = self.program.trees[self.file]
                made = self.program.given_whole(self.node, tree, everywhere=True)
                at = (self.program.scope_at(Line(self.file, value.lineno)) for value in made)
                return list(map(self.further, made, at))
            case ast.Call():
                function = self.function()
                if function is not None and not is_generator(function):
                    returned = (n.value for n in own(function) if isinstance(n, ast.Return))
                    return [self.further(value, function) for value in returned if value]
        return []

    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function of the program that a call calls, if it is one; a class's ``__iter__``."""
        name = called(self.node) if isinstance(self.node, ast.Call) else ""
        iterates = self.program.method(name, "__iter__")
        functions = [iterates] if iterates is not None else self.program.named.get(name, [])
        found = functions[0] if len(functions) == 1 else None
        return found if isinstance(found, SCOPES) else None

    def arguments(self) -> list[Value] | None:
        """The values that callers give to it, None where it is no argument of its function."""
        if not isinstance(self.node, ast.Name) or not isinstance(self.scope, SCOPES):
            return None
        names = [argument.arg for argument in self.scope.args.args]
        if self.node.id not in names:
            return None
        return [*self._of_argument(self.scope, self.node.id, names.index(self.node.id))]

    def _of_name(self, node: ast.Name) -> list[Value]:
        if made := self.program.given_whole(node, self.scope):
            return [self.further(value, above=self.above) for value in made]
        given = self.arguments()
        if given is not None:
            return given
        tree = self.program.trees[self.file]
        return [self.further(value, tree) for value in self.program.given_whole(node, tree)]

    def _of_argument(
        self, scope: ast.FunctionDef | ast.AsyncFunctionDef, name: str, place: int
    ) -> Iterator[Value]:
        """The values of an argument where its function is called, by a few lines."""
        names = self.program.callers_names(scope)
        lines = [line for one in names for line in self.program.calls_to(one)]
        above: tuple[Line, ...] = ()
        if self.above and self.above[-1] in lines:
            lines, above = [self.above[-1]], self.above[:-1]
        for line in lines if len(lines) <= MOST_CALLERS else ():
            caller = self.program.scope_at(line)
            for call in calls_in(caller) if caller is not None else ():
                if called(call) not in names or call.lineno != line.number:
                    continue
                of_object = scope.name == "__init__" or called(call) != self.program.names[scope]
                first = int(of_object or isinstance(call.func, ast.Attribute))  # after self
                values = {one.arg: one.value for one in call.keywords}
                value = values.get(name) or dict(enumerate(call.args, first)).get(place)
                if value is not None:
                    yield self.further(value, caller, above)


def is_generator(scope: Function) -> bool:
    """Return True if a function yields."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own(scope))


def early_ends(program: Program, file: str, loop: ast.For) -> list[Line]:
    """The ``return`` and ``break`` by which the iterable of a loop may end before its time.

    In the generators of the program that feed it, be it by others: below a condition, in a loop.
    """
    scope = program.scope_at(Line(file, loop.lineno))
    if scope is None:
        return []
    found = dict.fromkeys(_generators(Value(program, scope, loop.iter)))
    return [Line(program.files[one], node.lineno) for one in found for node in _leaving(one)]


def taken_before(program: Program, file: str, loop: ast.For) -> Line | None:
    """The line at which the iterator of a loop is used before the loop.

    It gives each element once. None where nothing uses it, and where it is no iterator.
    """
    scope = program.scope_at(Line(file, loop.lineno))
    if scope is None or not isinstance(loop.iter, ast.Name):
        return None
    made = program.given_whole(loop.iter, scope)
    if len(made) != 1 or not _is_iterator(Value(program, scope, made[0])):
        return None
    used = (
        node.lineno
        for node in own(scope)
        if isinstance(node, ast.Name) and node.id == loop.iter.id and isinstance(node.ctx, ast.Load)
    )
    begin = made[0].end_lineno or made[0].lineno
    first = min((at for at in used if begin < at < loop.lineno), default=None)
    return None if first is None else Line(file, first)


def _is_iterator(value: Value) -> bool:
    """Return True if it is a call of a generator, or of a function that makes an iterator."""
    if not isinstance(value.node, ast.Call):
        return isinstance(value.node, ast.GeneratorExp)
    function = value.function()
    return called(value.node) in _ITERATORS or (function is not None and is_generator(function))


def _generators(value: Value) -> Iterator[Function]:
    """The generators that an expression iterates over, and the generators that feed these."""
    if value.depth < 0:
        return
    inner: Iterable[Value] = ()
    if isinstance(value.node, ast.Call):
        function = value.function()
        if function is not None and is_generator(function):
            yield function
            loops = (node for node in own(function) if isinstance(node, ast.For))
            inner = (value.further(loop.iter, function) for loop in loops)
        elif called(value.node) in KEEP_ORDER:
            inner = map(value.at, value.node.args)
    for one in (*inner, *value.steps()):
        yield from _generators(one)


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
                ends = (way[-1] for way in ways if way)
                yield from (end for end in ends if isinstance(end, ast.Return | ast.Break))
