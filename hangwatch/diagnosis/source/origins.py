"""Finds the origins of a line: the data or the rank in an argument, conditions around it."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from hangwatch.diagnosis.source.flow import Branch, Choice
from hangwatch.diagnosis.source.names import names_the_rank
from hangwatch.diagnosis.source.program import CALLED_AS_OBJECT, SCOPES, Line, Program
from hangwatch.diagnosis.source.syntax import (
    Function,
    Loop,
    called,
    calls_in,
    covers,
    is_collective,
    name_of,
    other_branch,
    own,
    spans,
)
from hangwatch.diagnosis.source.values import Value

MOST = 200
"""Expressions that are looked at."""
NEAREST = 10
"""The same for conditions: one that lies further back decides nothing by itself."""
MOST_OF_ONE_NAME = 3
"""Functions or classes by one name that are followed."""
_SELECT = frozenset(
    {"argwhere", "bincount", "compress", "drop_duplicates", "dropna", "filter", "masked_select"}
    | {"nms", "nonzero", "unique", "unique_consecutive"}
)
"""Calls that keep as much as the data have."""
_MASKS = frozenset(
    {"bool", "eq", "ge", "gt", "isfinite", "isin", "isnan", "le", "logical_and", "logical_not"}
    | {"logical_or", "lt", "ne", "notna", "notnull"}
)
_MAKE = frozenset(
    {"arange", "empty", "full", "new_empty", "new_full", "new_ones", "new_zeros", "ones", "rand"}
    | {"randn", "repeat", "expand", "zeros"}
)
"""Calls that are given a size."""
_OF_DATA = frozenset({"argmax", "count_nonzero", "item", "len", "max", "min", "sum"})
"""Calls that make a number of data."""
_ROOTS = frozenset({"src", "dst", "group_src", "group_dst"})
_GIVES = ("__next__", "__iter__", "__getitem__")
"""Methods by which objects give their elements to a loop."""


def size_of_data(program: Program, line: Line, above: tuple[Line, ...] = ()) -> Line | None:
    """The line that gives a tensor of a collective a size that depends on the data of a rank.

    The nearest one from the call at ``line``, back through names, arguments, loops and functions;
    None where there is none. above: the lines by which its function was called, outermost first.
    """
    arguments = [arg for call in _calls(program, line) for arg in call.args]
    return _back_to(program, (*above, line), arguments, _chosen)


def root_of_rank(program: Program, line: Line, above: tuple[Line, ...] = ()) -> Line | None:
    """The line that puts a value of the rank's own into the data that give the root of a call.

    ``scores[rank] = exact``, where all have the others' from a collective. Arguments as above.
    """
    arguments = []
    for call in _calls(program, line):
        named = [word.value for word in call.keywords if word.arg in _ROOTS]
        arguments += named or call.args[1:]  # after the tensor
    return _back_to(program, (*above, line), arguments, _put_by_rank)


def set_for_few(
    program: Program, line: Line, expression: ast.expr, asks: Callable[[Choice], bool]
) -> Line | None:
    """The condition on the rank below which something is set that an expression depends on.

    Found back from the expression at ``line``: through names, attributes, and the results of
    functions. None where there is none, or where a collective is given it then. asks: True if a
    condition asks for the rank.
    """

    def decided_at(origin: Value, node: ast.AST) -> Line | None:
        choices = (choice for way in _around_setters(origin, node) for choice in way)
        found = next(filter(asks, choices), None)
        return Line(found.file, getattr(found.node, "lineno", 0)) if found is not None else None

    return _back_to(program, (line,), [expression], decided_at, NEAREST)


def _calls(program: Program, line: Line) -> list[ast.Call]:
    """The calls of a line: the calls that look like collectives, or else the outermost."""
    scope = program.scope_at(line)
    every = calls_in(scope) if scope is not None else ()
    calls = [call for call in every if covers(call, line.number)]
    return [call for call in calls if is_collective(call)] or calls[:1]


def _back_to(
    program: Program,
    lines: Sequence[Line],
    expressions: Iterable[ast.expr],
    decided_at: Callable[[Value, ast.AST], Line | None],
    most: int = MOST,
) -> Line | None:
    """The nearest line that decides something of expressions at a line.

    lines: those by which their function was called, outermost first, then their own one.
    decided_at: gives it for a node of an expression. most: expressions that are looked at.
    """
    *above, line = lines
    scope = program.scope_at(line)
    if scope is None:
        return None
    todo = deque(Value(program, scope, expression) for expression in expressions)
    seen: set[ast.AST] = set()
    while todo and len(seen) < most:
        origin = todo.popleft()
        if origin.node in seen:
            continue
        seen.add(origin.node)
        lines_of = (decided_at(origin, node) for node in ast.walk(origin.node))
        found = next(filter(None, lines_of), None)
        if found is not None:
            return found
        todo.extend(_back(origin, (*above,) if origin.scope is scope else ()))
    return None


def _put_by_rank(origin: Value, node: ast.AST) -> Line | None:
    """The line that gives the rank's own element of a list a value: of a name or an attribute."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return None
    everywhere = isinstance(node, ast.Attribute)
    scope = origin.program.trees[origin.file] if everywhere else origin.scope
    for to, _ in origin.program.given_in(scope, everywhere=everywhere):
        if isinstance(to, ast.Subscript) and _names(to.value, name_of(node)):
            inside = [*ast.walk(to.slice)]
            calls = (one for one in inside if isinstance(one, ast.Call))
            if any(map(names_the_rank, inside)) or "get_rank" in map(called, calls):
                return Line(origin.file, to.lineno)
    return None


# --- A size that depends on the data -------------------------------------------------------------


def _chosen(origin: Value, node: ast.AST) -> Line | None:
    """The line of a node that chooses among the data, or is as large as these have it."""
    match node:
        case ast.Subscript(slice=part):
            indices = part.elts if isinstance(part, ast.Tuple) else [part]
            chosen = any(_is_mask(origin, one) or _is_cut(origin, one) for one in indices)
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
            chosen = any(part.ifs for part in node.generators)
        case ast.Call():
            chosen = _is_of_data(origin, node)
        case ast.Name(name):
            filled = _filled(origin.program.loops_in(origin.scope), name)
            return Line(origin.file, filled) if filled is not None else None
        case _:
            return None
    return Line(origin.file, node.lineno) if chosen else None


def _is_of_data(origin: Value, node: ast.Call) -> bool:
    name, inside = called(node), [*node.args, *(word.value for word in node.keywords)]
    if name in _SELECT and not any(word.arg == "minlength" for word in node.keywords):
        return True
    if name == "max":
        # As long as the longest of a batch.
        names = (n for arg in node.args for n in ast.walk(arg) if isinstance(n, ast.Name))
        return any(one.id == "len" for one in names)
    made = name in _MAKE and any(_has_number_of_data(origin, one) for one in inside)
    return made or name == "pad_sequence"


def _is_mask(origin: Value, node: ast.expr) -> bool:
    for one in _with_given(origin, node):
        match one:
            case ast.Compare() | ast.UnaryOp(op=ast.Invert()):
                return True
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                return True
            case ast.Call() if called(one) in _MASKS | _SELECT:
                return True
    return False


def _is_cut(origin: Value, node: ast.expr) -> bool:
    bounds = (node.lower, node.upper) if isinstance(node, ast.Slice) else ()
    return any(bound is not None and _has_number_of_data(origin, bound) for bound in bounds)


def _has_number_of_data(origin: Value, node: ast.expr) -> bool:
    inside = (one for given_ in _with_given(origin, node) for one in ast.walk(given_))
    return any(isinstance(one, ast.Call) and called(one) in _OF_DATA for one in inside)


def _with_given(origin: Value, node: ast.expr) -> Iterator[ast.expr]:
    """An expression, and the values that its function gives it where it is a name."""
    yield node
    if isinstance(node, ast.Name):
        yield from (value for _, value in origin.program.given_to(node.id, origin.scope))


def _filled(loops: Iterable[Loop], name: str) -> int | None:
    """The condition below which a loop adds to a list, None where it always does, or is none."""
    for loop in loops:
        skips = None
        for statement in loop.body:
            if isinstance(statement, ast.If):
                if any(_adds(node, name) for node in ast.walk(statement)):
                    return statement.lineno
                last = statement.body[-1]
                skips = statement.lineno if isinstance(last, ast.Continue) else skips
            elif skips is not None and any(_adds(node, name) for node in ast.walk(statement)):
                return skips
    return None


def _adds(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and called(node) in ("append", "extend", "add")
        and isinstance(node.func, ast.Attribute)
        and _names(node.func.value, name)
    )


# --- Back to the expressions that one is made of -------------------------------------------------


def _back(origin: Value, above: tuple[Line, ...]) -> Iterator[Value]:
    """The values of the names, attributes and calls of an expression."""
    program = origin.program
    for node in ast.walk(origin.node):
        match node:
            case ast.Name(name):
                yield from _of_name(origin, node, above)
                yield from _results(program, name)
            case ast.Attribute(_, name):
                tree = program.trees[origin.file]
                for _, value in program.given_to(name, tree, everywhere=True):
                    scope = program.scope_at(Line(origin.file, value.lineno))
                    yield Value(program, scope or tree, value)
            case ast.Call():
                yield from _results(program, called(node))
                ways = product(program.objects.get(called(node), {}), sorted(CALLED_AS_OBJECT))
                yield from _returned(program, [program.method(*way) for way in ways])


def _of_name(origin: Value, node: ast.Name, above: tuple[Line, ...]) -> Iterator[Value]:
    program, scope = origin.program, origin.scope
    made = [value for _, value in program.given_to(node.id, scope)]
    loops = (one for one in program.loops_in(scope) if not isinstance(one, ast.While))
    made += [loop.iter for loop in loops if _names(loop.target, node.id)]
    yield from (Value(program, scope, value) for value in made)
    name = Value(program, scope, node, above=above)
    steps = name.arguments()
    if steps is None and not made:
        steps = name.steps()
    yield from steps or ()


def _results(program: Program, name: str) -> Iterator[Value]:
    """The results of functions of a name, and the elements of objects of a class of that name."""
    methods = [program.method(name, method) for method in _GIVES]
    return _returned(program, [*program.named.get(name, ()), *methods])


def _returned(program: Program, functions: Iterable[Function | None]) -> Iterator[Value]:
    """The values that a few functions return or yield."""
    known = [one for one in functions if isinstance(one, SCOPES) and one.name != "__init__"]
    for function in known[:MOST_OF_ONE_NAME]:
        for node in own(function):
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
                yield Value(program, function, node.value)


def _names(target: ast.expr, name: str) -> bool:
    """Return True if a target is, or has in it, a name or an attribute of a name."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(_names(one, name) for one in target.elts)
    return name_of(target) == name


# --- Conditions around a mention -----------------------------------------------------------------


def conditions_of(program: Program, line: Line) -> list[list[Choice]]:
    """The conditions around each mention of the class, or the function, that holds a line.

    Of a class where objects are made of it, of a function where it is called, or handed to
    something that calls it back.
    """
    scope = program.scope_at(line)
    if not isinstance(scope, SCOPES):
        return []
    tree = program.trees[line.file]
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    owner = next((one for one in classes if scope in one.body), scope)
    return [_around(program, *mention) for mention in _mentions(program, owner)]


def _mentions(
    program: Program, owner: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[Function, ast.expr]]:
    """Each call of a class, or each use of the name of a function, outside of itself."""
    inside = set(map(id, ast.walk(owner)))
    for function in program.files:
        nodes = [node for node in own(function) if id(node) not in inside]
        calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            match node:
                case ast.Name(found, ast.Load()) | ast.Attribute(_, found, ast.Load()):
                    call = calls.get(id(node), node)
                    made = call is not node or not isinstance(owner, ast.ClassDef)
                    if found == owner.name and made:
                        yield function, call


def _around(program: Program, function: Function, node: ast.expr) -> list[Choice]:
    """The conditions of a function that lead to an expression of it."""
    file, found = program.files[function], []
    for one in own(function):
        if isinstance(one, ast.If):
            within = (spans(b, node.lineno) for b in (one.body, other_branch(function, one)))
        elif isinstance(one, ast.IfExp):
            within = (any(n is node for n in ast.walk(part)) for part in (one.body, one.orelse))
        else:
            continue
        ways = zip(within, (True, False), strict=True)
        found += [
            Choice(Branch.CONDITION, file, one, way, one.test) for there, way in ways if there
        ]
    return found


def _around_setters(origin: Value, node: ast.AST) -> Iterator[Sequence[Choice]]:
    """The conditions around each statement that gives a name, or an attribute, a value.

    Also around the calls of a function that gives an attribute one.
    """
    program = origin.program
    if isinstance(node, ast.Name):
        if not _is_shared(origin.scope, node.id):
            everywhere = isinstance(origin.scope, ast.Module)
            for to, _ in program.given_to(node.id, origin.scope, everywhere=everywhere):
                yield _around(program, origin.scope, to)
    elif isinstance(node, ast.Attribute):
        for file, tree in program.trees.items():
            for to, _ in program.given_to(node.attr, tree, everywhere=True):
                scope = program.scope_at(Line(file, to.lineno)) or tree
                if scope is origin.scope or _is_shared(scope, node.attr):
                    continue
                yield _around(program, scope, to)
                if isinstance(scope, SCOPES) and scope.name != "__init__":
                    yield from _around_calls(program, scope)


def _around_calls(
    program: Program, scope: ast.FunctionDef | ast.AsyncFunctionDef
) -> Sequence[Sequence[Choice]]:
    """The conditions around each call of a function; none if a call is known to have none.

    A method of that name of a known other object is ignored.
    """
    owner, found = program.owner(scope), []
    for function, call in _mentions(program, scope):
        method = call.func if isinstance(call, ast.Call) else call
        receiver = name_of(method.value) if isinstance(method, ast.Attribute) else ""
        classes = program.objects.get(receiver, {})
        if owner and owner not in classes and (classes or _is_foreign(program, receiver)):
            continue
        ways = _around(program, function, call)
        if not ways and (not owner or owner in classes):
            return []
        found.append(ways)
    return found


def _is_foreign(program: Program, name: str) -> bool:
    """Return True if all values of a name are made by functions that are not of the program."""
    values = [
        value
        for tree in program.trees.values()
        for _, value in program.given_to(name, tree, everywhere=True)
    ]
    made = [called(value) for value in values if isinstance(value, ast.Call)]
    return bool(values) and len(made) == len(values) and not any(map(program.named.get, made))


def _is_shared(scope: Function, name: str) -> bool:
    """Return True if a function gives the value of a name to a collective: then all may have it."""
    return any(
        name_of(node) == name
        for call in calls_in(scope)
        if is_collective(call)
        for node in ast.walk(call)
    )


def conditions_in_callbacks(program: Program) -> Iterator[tuple[Line, ast.expr]]:
    """(line, test) of each ``if`` below which a function gives an attribute of an argument a value.

    As in ``trainer.should_stop = True``. Of functions that nothing in the program calls by their
    names.
    """
    named = frozenset().union(*program.calls.values())
    for scope, file in program.files.items():
        if not isinstance(scope, SCOPES) or program.names[scope] in named:
            continue
        arguments = {one.arg for one in scope.args.args[1:]}  # without self
        for node in own(scope):
            if isinstance(node, ast.If) and _sets_any_of(arguments, node):
                yield Line(file, node.lineno), node.test


def _sets_any_of(names: Iterable[str], branch: ast.If) -> bool:
    """Return True if a branch gives an attribute of one of some names a value."""
    return any(
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id in names
        for node in ast.walk(branch)
        if isinstance(node, ast.Assign)
        for target in node.targets
    )
