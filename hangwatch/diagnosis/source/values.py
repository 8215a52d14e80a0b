"""What a name, an attribute or a call of a program stands for, followed step by step."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hangwatch.diagnosis.source.program import SCOPES, Line, Program
from hangwatch.diagnosis.source.syntax import Function, called, own

DEPTH = 8
"""Steps that are followed."""
MOST_CALLERS = 8
"""Lines that call a function, of which all may have given it an argument."""
KEEP_ORDER = frozenset(
    {"list", "tuple", "enumerate", "iter", "reversed", "zip"} | {"tqdm", "fromkeys", "islice"}
)
"""Functions that go over what they are given."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of a function, in a file."""

    program: Program
    file: str
    scope: Function
    node: ast.expr
    depth: int = DEPTH
    above: tuple[Line, ...] = ()
    """The lines by which its function was called, outermost first, where a stack shows them."""

    def at(self, node: ast.expr) -> Value:
        """Another expression of the same function."""
        return replace(self, node=node)

    def steps(self) -> list[Value]:
        """What it stands for: the values that are given to a name, what a function returns.

        Empty for what is neither, or not known.
        """
        if self.depth < 0:
            return []
        match self.node:
            case ast.Name(name):
                return self._of_name(name)
            case ast.Attribute(_, name):
                made = self.program.given_in(self.program.trees[self.file], everywhere=True)
                kept = (v for to, v in made if isinstance(to, ast.Attribute) and to.attr == name)
                at = ((v, self.program.scope_at(Line(self.file, v.lineno))) for v in kept)
                return [one for v, scope in at for one in self._further([v], scope)]
            case ast.Call():
                function = self.function()
                if function is not None and not is_generator(function):
                    returned = (n.value for n in own(function) if isinstance(n, ast.Return))
                    return self._further(filter(None, returned), function)
        return []

    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function of the program's that a call calls, if it is one; a class's ``__iter__``."""
        name = called(self.node) if isinstance(self.node, ast.Call) else ""
        iterates = self.program.method(name, "__iter__")
        functions = [iterates] if iterates is not None else self.program.named.get(name, [])
        found = functions[0] if len(functions) == 1 else None
        return found if isinstance(found, SCOPES) else None

    def _of_name(self, name: str) -> list[Value]:
        tree = self.program.trees[self.file]
        made = self._made(self.scope, name)
        given_as = None if made else self.arguments()
        if given_as is not None:
            return given_as
        if made:
            return self._further(made, above=self.above)
        return self._further(self._made(tree, name), tree)

    def _made(self, scope: Function, name: str) -> list[ast.expr]:
        """What a name is given in a function."""
        made = self.program.given_in(scope)
        return [v for to, v in made if isinstance(to, ast.Name) and to.id == name]

    def arguments(self) -> list[Value] | None:
        """What its function is called with for it, None where it is no argument's name."""
        if not isinstance(self.node, ast.Name) or not isinstance(self.scope, SCOPES):
            return None
        names, name = [one.arg for one in self.scope.args.args], self.node.id
        return self._of_argument(self.scope, names.index(name), name) if name in names else None

    def _of_argument(self, scope: Function, place: int, name: str) -> list[Value]:
        """What a function is called with, where a few lines call it."""
        names = self.program.callers_names(scope)
        lines = [line for one in names for line in self.program.calls_to(one)]
        found, above = [], self.above[:-1]
        if self.above and self.above[-1] in lines:
            lines = [self.above[-1]]
        else:
            above = ()
        for line in lines if len(lines) <= MOST_CALLERS else ():
            caller = self.program.scope_at(line)
            for node in own(caller) if caller is not None else ():
                if not isinstance(node, ast.Call) or called(node) not in names:
                    continue
                made = isinstance(scope, SCOPES) and scope.name == "__init__"
                of_object = made or called(node) != self.program.names[scope]
                first = int(of_object or isinstance(node.func, ast.Attribute))  # after self
                values = {one.arg: one.value for one in node.keywords}
                value = values.get(name) or dict(enumerate(node.args, first)).get(place)
                if value is not None and node.lineno == line.number:
                    found += self._further([value], caller, above)
        return found

    def _further(
        self,
        nodes: Iterable[ast.expr],
        scope: Function | None = None,
        above: tuple[Line, ...] = (),
    ) -> list[Value]:
        inside = scope or self.scope
        file = self.program.files.get(inside, self.file)
        return [Value(self.program, file, inside, node, self.depth - 1, above) for node in nodes]


def is_generator(scope: Function) -> bool:
    """Whether a function yields."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own(scope))
