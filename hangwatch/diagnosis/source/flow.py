"""The control-flow graph of a program: a node per statement, an edge to each possible next one.

Calls of relevant functions of the user's files (they hold a line in question, or lead to one) are
expanded in place, so that a path goes through helpers and handlers as the program does.
Any statement may raise; an exception that nothing catches leads nowhere.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from hangwatch.diagnosis.source.names import for_one_rank
from hangwatch.diagnosis.source.program import (
    CACHES,
    CALLED_AS_OBJECT,
    SCOPES,
    Line,
    Position,
    Program,
)
from hangwatch.diagnosis.source.syntax import (
    Function,
    called,
    decorated_by,
    is_collective,
    name_of,
    own,
)

MOST_NODES = 20_000
"""Nodes of all graphs of one expansion together."""
MOST_DEEP = 10
"""Calls within each other that are expanded."""
MOST_NAMESAKES = 4
"""Functions of one name; of more it is not known which is called."""
_EXITS = frozenset({"exit", "_exit", "quit", "abort"})
_RAISES_NOTHING = (ast.Pass, ast.Break, ast.Continue)
_PROPERTIES = frozenset({"cached_property", "property"})


class Branch(StrEnum):
    """A kind of point at which a program takes one of several paths."""

    CONDITION = "condition"
    LOOP = "loop"
    EXCEPTION = "exception"
    CALL = "call"
    """The called function, or a call in its body, is known only when the program runs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One path out of a point at which the program may take several."""

    kind: Branch
    file: str
    node: ast.AST
    """The `if`, the loop, the handler, the call."""
    taken: bool
    """The condition holds; the loop runs on; the exception is caught; the function is called."""
    test: ast.expr | None = None
    """The expression of the condition, or the iterable."""
    first: bool = False
    """The choice that a loop has an iteration at all."""


@dataclass(eq=False, slots=True)
class Node:
    """A statement in one call of its function; without lines where it only leads on."""

    file: str = ""
    first: int = 0
    last: int = 0
    chain: tuple[tuple[str, int, int], ...] = ()
    """The statements by whose calls the program has come here, outermost first."""
    part: bool = False
    """A part of a statement that is not always evaluated."""
    own: Node | None = None
    """The node of the statement itself, after the functions that it calls have returned."""
    calls_back: bool = False
    """A library may call these: its own work may also come before them."""
    edges: list[tuple[Node, Choice | None]] = field(default_factory=list)

    def holds(self, line: Line) -> bool:
        """Return True if it is at a line."""
        return self.file == line.file and self.first <= line.number <= self.last


@dataclass(frozen=True, slots=True)
class _Context:
    """The nodes that the statements of a block lead to, other than the next one."""

    file: str
    chain: tuple[tuple[str, int, int], ...]
    scopes: tuple[Function, ...]
    returns: Node
    exits: Node
    raises: tuple[tuple[Node, Choice | None], ...] = ()
    given: tuple[tuple[str, Function], ...] = ()
    """Functions by the names of the arguments that they are: a decorator wraps them."""
    breaks: Node | None = None
    continues: Node | None = None


class TooLargeError(Exception):
    """The graph has more nodes than are worth the time."""


class Expansion:
    """Builds the graph of a program, from the last statement of each block to the first."""

    def __init__(self, program: Program, lines: Iterable[Line], stacks: Iterable[Position]) -> None:
        self._program = program
        self._compound: Mapping[type[ast.stmt], Callable[[Any, Node, _Context], Node]] = {
            ast.If: self._if,
            ast.While: self._loop,
            ast.For: self._loop,
            ast.AsyncFor: self._loop,
            ast.Try: self._try,
            ast.TryStar: self._try,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.Match: self._match,
        }
        self._count = 0
        self._again = False
        self._with_calls: dict[tuple[ast.AST, object], bool] = {}
        self._seen_called: dict[Line, list[Function]] = defaultdict(list)
        trees, named = program.trees, program.named
        matter = {scope for line in lines if (scope := program.scope_at(line)) is not None}
        roots = []
        for stack in stacks:
            known = [frame for frame in stack.frames if frame.file in trees]
            scopes = [scope for frame in known if (scope := program.scope_at(frame)) is not None]
            matter |= {*scopes}
            roots += scopes
            for frame, scope in zip(known, scopes[1:], strict=False):
                self._seen_called[frame].append(scope)
        if not all(stack.frames for stack in stacks):  # one of them is the end of the program
            matter |= {scope for scope in program.files if any(map(exits, own(scope)))}
        self._matter = program.leading_to(matter)
        self._names = {name for name, scopes in named.items() if self._matter & {*scopes}}
        self._properties = {
            name: [scope for scope in named[name] if scope in self._matter]
            for name in self._names
            if any(map(_is_property, named[name]))
        }
        self._of_objects = [
            scope for one in CALLED_AS_OBJECT for scope in named[one] if scope in self._matter
        ]
        self._wrappers = {
            wrapper[1]
            for scope in self._matter
            for decorator in (scope.decorator_list if isinstance(scope, SCOPES) else ())
            if (wrapper := self._wrapper(decorator)) is not None
        }
        modules = [tree for tree in trees.values() if tree in self._matter]
        started = [tree for tree in modules if _starts(tree)]
        outermost = [root for root in roots if isinstance(root, ast.Module)]
        self.roots = list(dict.fromkeys([*outermost, *started, *roots, *modules]))
        """The functions by which the program may begin, the best known first."""

    def graph(self, root: Function, *, again: bool) -> tuple[Node, Node]:
        """(the first node, the end) of the program, if it begins with a function or file.

        again: functions that a library calls may be called several times. Raises TooLargeError.
        """
        self._again = again
        end = Node()
        context = _Context(self._program.files[root], (), (root,), end, end)
        body = [] if isinstance(root, ast.Lambda) else root.body
        return self._block(body, end, context), end

    def _node(self, context: _Context, node: ast.AST, last: int = 0) -> Node:
        self._count += 1
        if self._count > MOST_NODES:
            raise TooLargeError
        first = int(getattr(node, "lineno", 0))
        return Node(
            context.file, first, last or int(getattr(node, "end_lineno", first)), context.chain
        )

    def _block(self, body: Sequence[ast.stmt], then: Node, context: _Context) -> Node:
        for statement in reversed(body):
            then = self._statement(statement, then, context)
        return then

    def _statement(self, node: ast.stmt, then: Node, context: _Context) -> Node:
        if isinstance(node, (*SCOPES, ast.ClassDef)):
            return then
        compound = self._compound.get(type(node))
        if compound is not None:
            return compound(node, then, context)
        target: Node | None = then
        match node:
            case ast.Break():
                target = context.breaks or then
            case ast.Continue():
                target = context.continues or then
            case ast.Return():
                target = context.returns
            case ast.Raise():
                target = None
            case _ if exits(node):
                target = context.exits
        parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return self._at(context, node, parts, target)

    def _at(
        self, context: _Context, node: ast.stmt, parts: Sequence[ast.expr], then: Node | None
    ) -> Node:
        """A statement's own lines, its calls, and the node that follows (None: an exception)."""
        header = (parts[-1].end_lineno or 0) if type(node) in self._compound else 0
        here = self._node(context, node, header)
        if then is not None:
            inner = replace(context, chain=(*context.chain, (here.file, here.first, here.last)))
            begin = rest = replace(here, edges=[(then, None)])
            for part in reversed(parts):
                begin = self._expression(part, begin, inner)
            named, begin = begin, self._seen(begin, inner, here, node)
            if begin is not rest:
                here.own = rest.own = rest
                here.calls_back = begin is not named or self._calls_objects(node)
            here.edges.append((then if begin is rest else begin, None))
        return self._or_raises(here, context, node)

    def _or_raises(self, here: Node, context: _Context, node: ast.AST) -> Node:
        """The node before a statement, which may raise before it has called anything."""
        if not context.raises or isinstance(node, _RAISES_NOTHING):
            return here
        return Node(edges=[*context.raises, (here, None)])

    def _if(self, node: ast.If, then: Node, context: _Context) -> Node:
        bodies = (self._block(body, then, context) for body in (node.body, node.orelse))
        choice = Choice(Branch.CONDITION, context.file, node, taken=True, test=node.test)
        branch = Node(edges=_either(choice, *bodies))
        return self._at(context, node, [node.test], branch)

    def _loop(
        self, node: ast.While | ast.For | ast.AsyncFor, then: Node, context: _Context
    ) -> Node:
        test = node.test if isinstance(node, ast.While) else node.iter
        endless = isinstance(node, ast.While) and isinstance(test, ast.Constant) and test.value
        after = self._block(node.orelse, then, context)
        again = Node()
        head = self._at(context, node, [test], again)
        choice = Choice(Branch.LOOP, context.file, node, taken=True, test=test)
        body = self._block(node.body, head, replace(context, breaks=then, continues=head))
        first = Node()
        for branch, is_first in ((again, False), (first, True)):
            branch.edges.append((body, replace(choice, first=is_first)))
            if not endless:
                branch.edges.append((after, replace(choice, taken=False, first=is_first)))
        return self._at(context, node, [test], first)

    def _try(self, node: ast.Try | ast.TryStar, then: Node, context: _Context) -> Node:
        outer = context
        if node.finalbody:
            through: dict[int, Node] = {}

            def passing(target: Node) -> Node:
                if id(target) not in through:
                    through[id(target)] = self._block(node.finalbody, target, outer)
                return through[id(target)]

            caught = Choice(Branch.EXCEPTION, context.file, node, taken=True)
            context = replace(
                context,
                returns=passing(context.returns),
                breaks=context.breaks and passing(context.breaks),
                continues=context.continues and passing(context.continues),
                raises=tuple((passing(to), why) for to, why in context.raises)
                or ((passing(Node()), caught),),
            )
            then = passing(then)
        entries: list[tuple[Node, Choice | None]] = []
        for handler in node.handlers:
            entry = self._node(context, handler, handler.lineno)
            entry.edges.append((self._block(handler.body, then, context), None))
            why = Choice(Branch.EXCEPTION, context.file, handler, taken=True, test=handler.type)
            entries.append((entry, why))
        beyond = () if any(map(_catches_all, node.handlers)) else context.raises
        inner = replace(context, raises=(*entries, *beyond))
        return self._block(node.body, self._block(node.orelse, then, context), inner)

    def _with(self, node: ast.With | ast.AsyncWith, then: Node, context: _Context) -> Node:
        managers = [item.context_expr for item in node.items]
        inner = context
        choice = Choice(Branch.EXCEPTION, context.file, node, taken=True)
        leave = self._exit_of(managers)
        leads_on = leave in self._matter and leave not in context.scopes
        if not leads_on and any(map(self._suppresses, managers)):
            inner = replace(context, raises=((then, choice), *context.raises))
        if leave is not None and leads_on:
            beyond = [(self._call(leave, to, context), why) for to, why in context.raises]
            then = self._call(leave, then, context)
            caught = then if _swallows(leave) else self._call(leave, Node(), context)
            inner = replace(inner, raises=((caught, choice), *beyond))
        body = self._block(node.body, then, inner)
        return self._at(context, node, managers, body)

    def _suppresses(self, manager: ast.expr) -> bool:
        """Return True if a block ends well where something is raised in it, by its manager."""
        if not isinstance(manager, ast.Call):
            return False
        leave = self._exit_of([manager])
        return called(manager) == "suppress" or (
            leave is not None
            and any(
                not self._is_off(part, manager)
                for value in _returned(leave)
                for part in [value.values[0] if isinstance(value, ast.BoolOp) else value]
            )
        )

    def _is_off(self, value: ast.expr, made: ast.Call) -> bool:
        """Return True if a value is false: a setting of an object that is turned off there."""
        if isinstance(value, ast.Constant):
            return not value.value
        start = self._program.method(called(made), "__init__")
        if not isinstance(value, ast.Attribute) or not isinstance(start, SCOPES):
            return False
        names = [one.arg for one in start.args.args]
        given = {one.arg for one in made.keywords} | {*names[: len(made.args) + 1]}
        defaults = dict(zip(reversed(names), reversed(start.args.defaults), strict=False))
        return any(
            isinstance(kept, ast.Name)
            and kept.id not in given
            and isinstance(default := defaults.get(kept.id), ast.Constant)
            and not default.value
            for _, kept in self._program.given_to(value.attr, start)
        )

    def _exit_of(self, managers: Sequence[ast.expr]) -> Function | None:
        """The ``__exit__`` of a class of the program's, by which a block is left."""
        made = (called(one) for one in managers if isinstance(one, ast.Call))
        methods = (self._program.method(name, "__exit__") for name in made)
        return next((scope for scope in methods if scope is not None), None)

    def _match(self, node: ast.Match, then: Node, context: _Context) -> Node:
        branch = Node()
        for case in node.cases:
            why = Choice(
                Branch.CONDITION, context.file, case.pattern, taken=True, test=node.subject
            )
            branch.edges.append((self._block(case.body, then, context), why))
        if not any(map(_is_anything, node.cases)):
            none = Choice(Branch.CONDITION, context.file, node, taken=False, test=node.subject)
            branch.edges.append((then, none))
        return self._at(context, node, [node.subject], branch)

    # The calls of an expression, in their order.

    def _seen(self, then: Node, context: _Context, at: Node, node: ast.AST) -> Node:
        """Functions that a stack shows below a line that does not name them."""
        calls = _calls(node)
        named = {called(call) for call in calls}
        scopes = dict.fromkeys(
            scope
            for line, below in self._seen_called.items()
            for scope in below
            if at.holds(line) and self._program.names[scope] not in named
        )
        # The decorated function leads to the wrapper of a decorator.
        some = [scope for scope in scopes if scope not in {*context.scopes, *self._wrappers}]
        if not some:
            return then
        here = Node()
        after = here if self._again else then
        taken = {
            name.id
            for part in _parts(node)
            for one in ast.walk(part)
            if isinstance(one, ast.comprehension)
            for name in ast.walk(one.target)
            if isinstance(name, ast.Name)
        }
        dispatched = any(
            isinstance(call.func, ast.Subscript | ast.Call)
            or (isinstance(call.func, ast.Name) and call.func.id in taken)
            for call in calls
        )
        choice = Choice(Branch.CALL, context.file, node, taken=True) if dispatched else None
        here.edges += [(self._call(scope, after, context), choice) for scope in some]
        if dispatched or self._again or len(some) > 1:
            here.edges.append((then, choice and replace(choice, taken=False)))
        return here

    def _expression(self, node: ast.AST, then: Node, context: _Context) -> Node:
        if isinstance(node, ast.Lambda) or not self._has_calls(node, context):
            return then
        match node:
            case ast.BoolOp():
                return self._in_turn(node, then, context)
            case ast.IfExp():
                yes = self._part(node.body, then, context)
                no = self._part(node.orelse, then, context)
                choice = Choice(Branch.CONDITION, context.file, node, taken=True, test=node.test)
                branch = Node(edges=_either(choice, yes, no))
                return self._expression(node.test, then if yes is no else branch, context)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                source = node.generators[0].iter
                values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                head = body = Node()
                for value in reversed(values):
                    body = self._part(value, body, context)
                choice = Choice(Branch.LOOP, context.file, node, taken=True, test=source)
                head.edges += _either(choice, body, then)
                return self._expression(source, then if body is head else head, context)
            case ast.Call() | ast.Attribute():
                then = self._called(node, then, context)
        for child in reversed(list(ast.iter_child_nodes(node))):
            then = self._expression(child, then, context)
        return then

    def _in_turn(self, node: ast.BoolOp, then: Node, context: _Context) -> Node:
        """`a and b`: the second is evaluated where the first holds."""
        rest = then
        for test, value in reversed(list(pairwise(node.values))):
            inner = self._part(value, rest, context)
            if inner is not rest:
                holds = isinstance(node.op, ast.And)
                choice = Choice(Branch.CONDITION, context.file, test, holds, test)
                rest = Node(edges=_either(choice, inner, then))
        return self._expression(node.values[0], rest, context)

    def _part(self, node: ast.expr, then: Node, context: _Context) -> Node:
        """A part of an expression that is not always evaluated, as a node of its own."""
        if not self._has_calls(node, context):
            return then
        here = self._node(context, node)
        here.part = True
        here.edges.append((self._expression(node, then, context), None))
        return self._or_raises(here, context, node)

    def _has_calls(self, node: ast.AST, context: _Context) -> bool:
        """Return True if an expression calls a function that matters, or communicates."""
        key = node, context.given
        found = self._with_calls.get(key)
        if found is None:
            found = self._with_calls[key] = (
                bool(self._of_call(node, context))
                or (isinstance(node, ast.Call) and is_collective(node))
                or any(self._has_calls(child, context) for child in ast.iter_child_nodes(node))
            )
        return found

    def _of_call(self, node: ast.AST, context: _Context) -> list[Function]:
        """The functions that a call may call; for an attribute the property that it is."""
        if isinstance(node, ast.Attribute):
            return self._properties.get(node.attr, [])
        if not isinstance(node, ast.Call):
            return []
        name = called(node)
        cached = self._program.cached.get(name)
        name = cached.function if cached is not None else name
        given = [scope for argument, scope in context.given if argument == name]
        if given or name in self._names:
            return given or self._program.named[name]
        return self._of_objects if name not in self._program.named else []

    def _calls_objects(self, node: ast.AST) -> bool:
        """Return True if a statement calls an object, as a module is called for its ``forward``."""
        named = self._program.named
        return bool(self._of_objects) and any(
            called(call) not in named and not is_collective(call) for call in _calls(node)
        )

    def _called(self, node: ast.AST, then: Node, context: _Context) -> Node:
        found = self._of_call(node, context)
        some = [s for s in found if s in self._matter and s not in context.scopes]
        if not 0 < len(some) <= MOST_NAMESAKES or len(context.scopes) > MOST_DEEP:
            return then
        entries = [self._decorated(scope, then, context) for scope in some]
        cached = self._program.cached.get(called(node)) if isinstance(node, ast.Call) else None
        if cached is not None:
            run = Choice(Branch.CALL, cached.file, cached.made, taken=True)
            entries = [Node(edges=_either(run, entry, then)) for entry in entries]
        # Others of that name lead to none of the lines.
        certain = isinstance(node, ast.Call) and len(some) == len(found) == 1
        if certain and self._program.names[some[0]] not in CALLED_AS_OBJECT:
            return entries[0]
        others = [then] if len(some) < len(found) or not certain else []
        edges = [(entry, None) for entry in (*entries, *others)]
        return Node(edges=[*edges, *self._overridden(some, found, then)])

    def _overridden(
        self, some: Sequence[Function], found: Sequence[Function], then: Node
    ) -> list[tuple[Node, Choice | None]]:
        """The methods that override one that leads to a line, and do not lead there themselves."""
        rest = {scope for scope in found if scope not in self._matter}
        several = some if rest else ()
        instead = dict.fromkeys(one for scope in several for one in self._program.overrides(scope))
        return [
            (then, Choice(Branch.CALL, self._program.files[one], one, taken=True))
            for one in instead
            if one in rest
        ]

    def _decorated(self, scope: Function, then: Node, context: _Context) -> Node:
        """A call of a function through its decorators."""
        decorators = scope.decorator_list if isinstance(scope, SCOPES) else []
        entry: Node | None = None
        for decorator in decorators:
            wrapper = self._wrapper(decorator)
            if wrapper is not None and wrapper[1] not in context.scopes:
                given = (*context.given, (wrapper[0], scope))
                return self._call(wrapper[1], then, replace(context, given=given))
            skipped = self._skipped(scope, decorator)
            if skipped is not None:
                entry = entry or self._call(scope, then, context)
                entry = Node(edges=_either(skipped, entry, then))
        return entry or self._call(scope, then, context)

    def _wrapper(self, decorator: ast.expr) -> tuple[str, Function] | None:
        """(the name of the function that is wrapped, the function called for it) of a decorator."""
        made = decorator.func if isinstance(decorator, ast.Call) else decorator
        for scope in self._program.named.get(made.id, ()) if isinstance(made, ast.Name) else ():
            # One with arguments returns the decorator.
            wraps = _last_function(scope) if made is not decorator else scope
            wrapper = _last_function(wraps) if wraps is not None else None
            if isinstance(wraps, SCOPES) and wraps.args.args and wrapper is not None:
                return wraps.args.args[0].arg, wrapper
        return None

    def _skipped(self, scope: Function, decorator: ast.expr) -> Choice | None:
        """The choice to run the body of a function at all."""
        file = self._program.files[scope]
        if for_one_rank(scope) is decorator:
            return Choice(Branch.CONDITION, file, decorator, taken=True)
        cached = decorated_by(decorator) in CACHES
        return Choice(Branch.CALL, file, decorator, taken=True) if cached else None

    def _call(self, scope: Function, then: Node, context: _Context) -> Node:
        inner = replace(
            context,
            file=self._program.files[scope],
            scopes=(*context.scopes, scope),
            returns=then,
            breaks=None,
            continues=None,
        )
        return self._block([] if isinstance(scope, ast.Lambda) else scope.body, then, inner)


def _either(choice: Choice, taken: Node, other: Node) -> list[tuple[Node, Choice | None]]:
    """The two edges out of a choice: the first as it was taken, the second as it was not."""
    return [(taken, choice), (other, replace(choice, taken=not choice.taken))]


def _is_property(scope: Function) -> bool:
    decorators = scope.decorator_list if isinstance(scope, SCOPES) else []
    return any(name_of(one) in _PROPERTIES for one in decorators)


def _parts(node: ast.AST) -> list[ast.AST]:
    """The parts that a statement evaluates itself, without the statements in it."""
    inner = (ast.stmt, ast.match_case)
    return [child for child in ast.iter_child_nodes(node) if not isinstance(child, inner)]


def _calls(node: ast.AST) -> list[ast.Call]:
    """The calls that a statement makes itself."""
    return [call for p in _parts(node) for call in ast.walk(p) if isinstance(call, ast.Call)]


def _starts(tree: ast.Module) -> bool:
    """Return True if a file is one that is run: it asks for ``__main__``."""
    return any(isinstance(node, ast.If) and asks_whether_run(node.test) for node in tree.body)


def asks_whether_run(test: ast.expr) -> bool:
    """Return True if a condition asks if its file is the program: it is so on all ranks."""
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def exits(node: ast.AST) -> bool:
    """Return True if a statement ends the program."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Call) and called(value) in _EXITS


def _catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or name_of(handler.type) in ("Exception", "BaseException")


def _is_anything(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and not case.pattern.pattern and not case.guard


def _swallows(leave: Function) -> bool:
    """Return True if an ``__exit__`` may swallow an exception, by its return value."""
    return any(not isinstance(value, ast.Constant) or value.value for value in _returned(leave))


def _returned(function: Function) -> list[ast.expr]:
    """The values that a function returns."""
    nodes = (node.value for node in own(function) if isinstance(node, ast.Return))
    return [value for value in nodes if value is not None]


def _last_function(scope: Function) -> Function | None:
    """The last function that is defined in another one, which returns it."""
    body = scope.body if isinstance(scope, SCOPES) else []
    return next((one for one in reversed(body) if isinstance(one, SCOPES)), None)
