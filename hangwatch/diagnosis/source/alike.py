"""Decides from the source if a value, or an order, is the same on all ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum

from hangwatch.diagnosis.source.names import given, names_the_rank, set_by_rank
from hangwatch.diagnosis.source.program import Line, Program
from hangwatch.diagnosis.source.syntax import (
    ENDLESS,
    Function,
    called,
    covers,
    is_fixed,
    name_of,
    own,
)
from hangwatch.diagnosis.source.values import KEEP_ORDER, Value, is_generator

_FILES = frozenset({"listdir", "scandir", "iterdir", "glob", "iglob", "rglob", "walk"})
_SETS = frozenset({"set", "frozenset"})
SAME_TURNS = ENDLESS | frozenset(
    {"buffers", "children", "modules", "named_buffers", "named_children", "named_modules"}
    | {"named_parameters", "parameters"}
)
"""Iterators without an end, and those of a model: it has as many on all ranks, or on all of its
stage."""
_OF_OWNER = frozenset(
    {"union", "difference", "intersection", "symmetric_difference"}
    | {"items", "keys", "values", "copy"}
)
"""Methods of an iterable over a set that iterate over it too."""


class Unordered(StrEnum):
    """A kind of iterable without an order of its own."""

    SET = "set"
    FILES = "files"


def loop_without_order(
    program: Program, line: Line, above: tuple[Line, ...] = ()
) -> tuple[ast.For, Unordered] | None:
    """The innermost loop around a line over an iterable without a fixed order.

    above: the lines by which its function was called, outermost first.
    """
    scope = program.scope_at(line)
    if scope is None:
        return None
    for loop in program.loops_in(scope)[::-1]:
        if isinstance(loop, ast.For) and covers(loop, line.number):
            found = _over(Value(program, scope, loop.iter, above=above))
            if found is not None:
                return loop, found
    return None


def _over(value: Value) -> Unordered | None:
    """The kind of an iterable; None where it has an order, or is not known."""
    found: Unordered | None = None
    match value.node:
        case ast.Set(elts):
            numbers = (isinstance(one, ast.Constant) and type(one.value) is int for one in elts)
            found = None if all(numbers) else Unordered.SET  # numbers are their own hashes
        case ast.SetComp():
            found = Unordered.SET
        case ast.BinOp(left, ast.Sub() | ast.BitOr() | ast.BitAnd() | ast.BitXor(), right):
            found = _first(value, (left, right))
        case ast.IfExp(_, body, orelse):
            found = _first(value, (body, orelse))
        case ast.ListComp() | ast.DictComp() | ast.GeneratorExp():
            found = _over(value.at(value.node.generators[0].iter))
        case ast.Call(func, args):
            found = _of_call(value, called(value.node), func, args)
        case ast.Attribute():
            # Classes may have attributes of one name.
            kinds = {_over(step) for step in value.steps()}
            found = kinds.pop() if len(kinds) == 1 else None
        case ast.Name():
            kinds = {_over(step) for step in value.steps() if step.scope is not value.scope}
            here = (_over(step) for step in value.steps() if step.scope is value.scope)
            # All callers of the function have to give it one for an argument.
            found = kinds.pop() if len(kinds) == 1 else next(filter(None, here), None)
    return found


def _first(value: Value, nodes: Iterable[ast.expr]) -> Unordered | None:
    return next(filter(None, (_over(value.at(node)) for node in nodes)), None)


def _of_call(value: Value, name: str, func: ast.expr, args: Iterable[ast.expr]) -> Unordered | None:
    if name in _SETS:
        return Unordered.SET
    if name in _FILES:
        return Unordered.FILES
    if name in KEEP_ORDER:
        return _first(value, args)
    if isinstance(func, ast.Attribute) and name in _OF_OWNER:
        return _over(value.at(func.value))
    return next(filter(None, map(_over, value.steps())), None)


_CONFIGURED = re.compile(
    r"(?:args?|arguments|cfg|conf|configs?|configuration|flags|hparams|hps|opts?|options|params"
    r"|settings)$",
    re.IGNORECASE,
)
"""Names of settings that the command line or a file gives to all ranks."""
_OF_NUMBERS = frozenset({"abs", "float", "int", "len", "max", "min", "range", "round", "trange"})
"""Functions that give the same for the same."""


def is_alike(value: Value, known: Collection[str] = ()) -> bool:
    """Return True if it is made of constants, of settings, and of values that are alike themselves.

    known: names in its function of values that are alike.
    """
    node = value.node
    if value.depth < 0 or names_the_rank(node) or _is_filled_later(node):
        return False
    if isinstance(node, ast.Constant) or is_fixed(node, known):
        return True
    alike = False
    match node:
        case ast.Name(name):
            alike = _is_name_alike(value, name)
        case ast.Attribute():
            alike = _is_attribute_alike(value, node)
        case ast.Subscript(owner, ast.Constant()):
            alike = _is_of_settings(owner)
        case ast.List([_, *_]) | ast.Tuple([_, *_]):
            alike = _are_alike(value, node.elts, known)
        case ast.Call() if called(node) in _OF_NUMBERS and not node.keywords:
            alike = _are_alike(value, node.args, known)
        case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare() | ast.IfExp():
            inside = (one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
            alike = _are_alike(value, inside, known)
    return alike


def has_as_many(value: Value, known: Collection[str] = ()) -> bool:
    """Return True if a loop over it has equal lengths on all ranks. known: as above."""
    if value.depth < 0:
        return False
    match value.node:
        case ast.Call(args=args):
            if called(value.node) in KEEP_ORDER and args:
                return all(has_as_many(value.at(node)) for node in args)
            generator = value.function()
            if generator is not None and is_generator(generator):
                return _gives_as_many(value, generator)
        case ast.Name() | ast.Attribute():
            made = value.steps()
            if made and all(isinstance(step.node, ast.Call) for step in made):
                return all(map(has_as_many, made))
    return is_alike(value, known)


def is_evened(value: Value) -> bool:
    """Return True if it is a loader whose sampler gives all ranks equally many samples."""
    samplers = [
        one.at(word.value)
        for one in (value, *value.steps())
        if isinstance(one.node, ast.Call) and called(one.node) == "DataLoader"
        for word in one.node.keywords
        if word.arg == "sampler"
    ]
    made = [one.node for sampler in samplers for one in (sampler, *sampler.steps())]
    calls = [called(node) for node in made if isinstance(node, ast.Call)]
    return bool(calls) and {*calls} == {"DistributedSampler"}


def _gives_as_many(value: Value, generator: Function) -> bool:
    """Return True if a generator yields equally often on all ranks: not below any choice."""
    nodes = [*own(generator)]
    decides = ast.If | ast.While | ast.Try | ast.YieldFrom | ast.Match
    return not any(isinstance(node, decides) for node in nodes) and all(
        has_as_many(value.further(node.iter, generator))
        for node in nodes
        if isinstance(node, ast.For)
    )


def _is_filled_later(node: ast.expr) -> bool:
    """Return True if it is an empty list, or the like."""
    match node:
        case ast.List([]) | ast.Set([]) | ast.Dict([]):
            return True
    return False


def _are_alike(value: Value, nodes: Iterable[ast.expr], known: Collection[str]) -> bool:
    return all(is_alike(value.at(node), known) for node in nodes)


def _is_name_alike(value: Value, name: str) -> bool:
    steps = value.steps()
    here = [step for step in steps if step.scope is value.scope]
    # Values that a loop or a sum stores there are none of the steps.
    known = here if _stores(value.scope, name) else steps
    scopes = {step.scope for step in known if isinstance(step.scope, ast.Module)} | {value.scope}
    hidden = sum(_stores(scope, name) for scope in scopes) > len(known)
    if not known or hidden or any(name in set_by_rank(own(scope)) for scope in scopes):
        return False
    return all(map(is_alike, known))


def _stores(scope: Function, name: str) -> int:
    """The number of times that a function gives a name a value."""
    found = (node for node in own(scope) if isinstance(node, ast.Name) and node.id == name)
    return sum(isinstance(node.ctx, ast.Store | ast.Del) for node in found)


def _is_attribute_alike(value: Value, node: ast.Attribute) -> bool:
    """Return True if all values of attributes of that name are alike, or if it is a setting."""
    program = value.program
    assigned = [
        value.further(made, scope)
        for scope in program.files
        for made in program.given_whole(node, scope)
    ]
    nodes = (one for tree in program.trees.values() for one in ast.walk(tree))
    attributes = (one for one in nodes if isinstance(one, ast.Attribute))
    stores = sum(one.attr == node.attr and isinstance(one.ctx, ast.Store) for one in attributes)
    if stores > len(assigned):
        return False
    made = [*assigned, *_made_with(value, node.attr)]
    return all(map(is_alike, made)) if made else _is_of_settings(node.value)


def _made_with(value: Value, name: str) -> Iterator[Value]:
    """The values of that name in the bodies of classes, and as arguments of constructors."""
    for scope in value.program.files:
        for node in own(scope):
            if isinstance(node, ast.Call) and called(node)[:1].isupper():
                words = (word.value for word in node.keywords if word.arg == name)
                yield from (value.further(word, scope) for word in words)
            for to, made in given(node.body) if isinstance(node, ast.ClassDef) else ():
                if isinstance(to, ast.Name) and to.id == name:
                    yield value.further(made, scope)


def _is_of_settings(owner: ast.expr) -> bool:
    """Return True if an object is one of settings: ``args``, ``self.cfg``, ``CONFIG``."""
    while isinstance(owner, ast.Attribute | ast.Subscript):
        if _CONFIGURED.match(name_of(owner)):
            return True
        owner = owner.value
    return bool(_CONFIGURED.match(name_of(owner)))
