"""Where an argument of a call comes to depend on the rank: found back from the call."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hangwatch.diagnosis.source.names import names_the_rank
from hangwatch.diagnosis.source.program import CALLED_AS_OBJECT, SCOPES, Line, Program
from hangwatch.diagnosis.source.syntax import Function, Loop, called, is_collective, own
from hangwatch.diagnosis.source.values import Value

MOST = 200
"""Expressions that are looked at."""
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
"""Calls that are told a size."""
_OF_DATA = frozenset({"argmax", "count_nonzero", "item", "len", "max", "min", "sum"})
"""What makes a number of data."""
_ROOTS = frozenset({"src", "dst", "group_src", "group_dst"})
_GIVES = ("__next__", "__iter__", "__getitem__")
"""Methods by which objects give what they have, where they are gone over."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An expression that goes into a tensor, in a function of a file."""

    program: Program
    file: str
    scope: Function
    node: ast.expr


def size_of_data(program: Program, line: Line, above: tuple[Line, ...] = ()) -> Line | None:
    """The line that gives a tensor of a collective a size that depends on what a rank has.

    The nearest one from the call at ``line``, back through names, arguments, loops and functions;
    None where there is none. above: the lines by which its function was called, outermost first.
    """
    arguments = [arg for call in _calls(program, line) for arg in call.args]
    return back_to(program, (*above, line), arguments, _chosen)


def root_of_rank(program: Program, line: Line, above: tuple[Line, ...] = ()) -> Line | None:
    """The line that puts a value of the rank's own into what the root of a call is computed from.

    ``scores[rank] = exact``, where all have the others' from a collective. Arguments as above.
    """
    arguments = []
    for call in _calls(program, line):
        named = [word.value for word in call.keywords if word.arg in _ROOTS]
        arguments += named or call.args[1:]  # after the tensor
    return back_to(program, (*above, line), arguments, _put_by_rank)


def _calls(program: Program, line: Line) -> list[ast.Call]:
    """The calls of a line: those that read like collectives, else the outermost."""
    scope = program.scope_at(line)
    calls = [
        node
        for node in (own(scope) if scope is not None else ())
        if isinstance(node, ast.Call) and node.lineno <= line.number <= (node.end_lineno or 0)
    ]
    return [call for call in calls if is_collective(call)] or calls[:1]


def back_to(
    program: Program,
    lines: Sequence[Line],
    arguments: Iterable[ast.expr],
    tells: Callable[[Origin, ast.AST], Line | None],
    most: int = MOST,
) -> Line | None:
    """The nearest line that something tells of, back from expressions at a line.

    lines: those by which their function was called, outermost first, then their own one.
    tells: gives it for a part of what these are made of.
    most: expressions that are looked at.
    """
    *above, line = lines
    scope = program.scope_at(line)
    if scope is None:
        return None
    todo = deque(Origin(program, line.file, scope, arg) for arg in arguments)
    seen: set[ast.AST] = set()
    while todo and len(seen) < most:
        origin = todo.popleft()
        if origin.node in seen:
            continue
        seen.add(origin.node)
        found = next(filter(None, (tells(origin, node) for node in ast.walk(origin.node))), None)
        if found is not None:
            return found
        todo.extend(_back(origin, (*above,) if origin.scope is scope else ()))
    return None


def _put_by_rank(origin: Origin, node: ast.AST) -> Line | None:
    """The line that gives the rank's own element of a list, or of such an attribute, a value."""
    name = getattr(node, "id", None) or getattr(node, "attr", None)
    tree = origin.program.trees[origin.file]
    scope = origin.scope if isinstance(node, ast.Name) else tree
    if not isinstance(node, ast.Name | ast.Attribute) or name is None:
        return None
    for to, _ in origin.program.given_in(scope, everywhere=isinstance(node, ast.Attribute)):
        if isinstance(to, ast.Subscript) and _names(to.value, name):
            inside = [*ast.walk(to.slice)]
            calls = (one for one in inside if isinstance(one, ast.Call))
            if any(map(names_the_rank, inside)) or "get_rank" in map(called, calls):
                return Line(origin.file, to.lineno)
    return None


# --- What depends on the data --------------------------------------------------------------------


def _chosen(origin: Origin, node: ast.AST) -> Line | None:
    """The line of what chooses among the data, or is as large as these have it; None for others."""
    match node:
        case ast.Subscript(slice=part):
            parts = part.elts if isinstance(part, ast.Tuple) else [part]
            chosen = any(_is_mask(origin, one) or _is_cut(origin, one) for one in parts)
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


def _is_of_data(origin: Origin, node: ast.Call) -> bool:
    name, inside = called(node), [*node.args, *(word.value for word in node.keywords)]
    if name in _SELECT and not any(word.arg == "minlength" for word in node.keywords):
        return True
    if name in ("max", "pad_sequence"):
        # As long as the longest of a batch.
        lens = (n for arg in node.args for n in ast.walk(arg) if isinstance(n, ast.Name))
        return name == "pad_sequence" or any(n.id == "len" for n in lens)
    return name in _MAKE and any(_has_number_of_data(origin, one) for one in inside)


def _is_mask(origin: Origin, node: ast.expr) -> bool:
    for one in _with_given(origin, node):
        match one:
            case ast.Compare() | ast.UnaryOp(op=ast.Invert()):
                return True
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                return True
            case ast.Call() if called(one) in _MASKS | _SELECT:
                return True
    return False


def _is_cut(origin: Origin, node: ast.expr) -> bool:
    bounds = (node.lower, node.upper) if isinstance(node, ast.Slice) else ()
    return any(bound is not None and _has_number_of_data(origin, bound) for bound in bounds)


def _has_number_of_data(origin: Origin, node: ast.expr) -> bool:
    inside = (one for given_ in _with_given(origin, node) for one in ast.walk(given_))
    return any(isinstance(one, ast.Call) and called(one) in _OF_DATA for one in inside)


def _with_given(origin: Origin, node: ast.expr) -> Iterator[ast.expr]:
    """An expression, and what its function gives to it where it is a name."""
    yield node
    if isinstance(node, ast.Name):
        yield from origin.program.given_to(node.id, origin.scope)


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


# --- Back to where it comes from -----------------------------------------------------------------


def _back(origin: Origin, above: tuple[Line, ...]) -> Iterator[Origin]:
    """What an expression is made of: of its names, of what it calls and asks for."""
    program = origin.program
    for node in ast.walk(origin.node):
        match node:
            case ast.Name(name):
                yield from _of_name(origin, node, above)
                yield from _results(program, name)
            case ast.Attribute(_, name):
                tree = program.trees[origin.file]
                made = program.given_to(name, tree, everywhere=True)
                scopes = [program.scope_at(Line(origin.file, value.lineno)) for value in made]
                for value, scope in zip(made, scopes, strict=True):
                    yield Origin(program, origin.file, scope or tree, value)
            case ast.Call():
                yield from _results(program, called(node))
                yield from _results_of_object(program, called(node))


def _of_name(origin: Origin, node: ast.Name, above: tuple[Line, ...]) -> Iterator[Origin]:
    program, scope, file = origin.program, origin.scope, origin.file
    made = [*program.given_to(node.id, scope)]
    loops = (one for one in program.loops_in(scope) if not isinstance(one, ast.While))
    made += [loop.iter for loop in loops if _names(loop.target, node.id)]
    yield from (Origin(program, file, scope, value) for value in made)
    value = Value(program, file, scope, node, above=above)
    steps = value.arguments()
    if steps is None and not made:
        steps = value.steps()
    yield from (Origin(program, step.file, step.scope, step.node) for step in steps or ())


def _results(program: Program, name: str) -> Iterator[Origin]:
    """What functions of a name return or yield, and objects of such a class give."""
    methods = [program.method(name, method) for method in _GIVES]
    return _returned(program, [*program.named.get(name, ()), *methods])


def _results_of_object(program: Program, name: str) -> Iterator[Origin]:
    """What an object of a name returns where it is called, by the class that it is made of."""
    owners = program.objects.get(name, {})
    methods = [program.method(owner, one) for owner in owners for one in sorted(CALLED_AS_OBJECT)]
    return _returned(program, methods)


def _returned(program: Program, functions: Iterable[Function | None]) -> Iterator[Origin]:
    """What a few functions return or yield."""
    known = [one for one in functions if isinstance(one, SCOPES) and one.name != "__init__"]
    for function in known[:MOST_OF_ONE_NAME]:
        for node in own(function):
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
                yield Origin(program, program.files[function], function, node.value)


def _names(target: ast.expr, name: str) -> bool:
    """Whether a target is, or has in it, a name or an attribute of a name."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(_names(one, name) for one in target.elts)
    return getattr(target, "id", None) == name or getattr(target, "attr", None) == name
