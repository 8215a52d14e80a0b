"""The meaning of names in a source: the rank, an iteration's number, a value of all ranks."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hangwatch.diagnosis.source.syntax import (
    Function,
    Loop,
    called,
    decorated_by,
    is_fixed,
    name_of,
    own,
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_OF_A_MATRIX = "adapter|approx|full|lora|low|lr|matrix|max|min|svd|target"
"""Words before the rank of a matrix, or before a bound."""
_PROCESS = "host|node|proc|process|rank|worker"
_RANK = re.compile(
    rf"(?:^|\b(?!(?:{_OF_A_MATRIX})\b)\w+ )rank(?=$| (?:first|id|idx|index|last|main|only|zero|\d))"
    r"|\bprocess (?:id|index|zero)\b|\bglobal zero$"
    r"|\b(?:chief|leader|main|master) process\b"
    rf"|\bis (?:chief|leader|main|master)(?=$| (?:{_PROCESS})\b)"
    rf"|\b(?:is|pipeline) (?:first|last) (?:{_PROCESS}|stage)\b|\bstage is (?:first|last)$"
)
"""Names for the rank, and for being one of a few, as words: of programs, accelerate
(``is_main_process``), transformers (``is_world_process_zero``), lightning (``is_global_zero``),
pipelines (``is_last_stage``, ``stage.is_last``).
Not ``use_low_rank``, nor ``is_last_batch``."""
_FOR_ONE_RANK = re.compile(
    r"rank_?(?:zero|0)|(?:rank|process|master|main|leader|chief)\w*_only$"
    r"|^on_(?:\w+_)?(?:process|rank)$|^only_on_",
    re.IGNORECASE,
)
"""Names of decorators: lightning's ``rank_zero_only``, accelerate's ``on_main_process``, ..."""
GIVE_RANK = frozenset(
    {"get", "get_group_rank", "get_local_rank", "get_rank", "getenv", "rank"}
    | {"bool", "divmod", "int", "str"}
)
"""Functions that keep the rank as it is."""


def names_the_rank(node: ast.AST) -> bool:
    """Return True if a node reads like the rank, or like being one of a few ranks."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # An environment variable's name.
        return node.value.isupper() and bool(_RANK.search(words(node.value)))
    if isinstance(node, ast.Attribute):
        return bool(_RANK.search(words(f"{name_of(node.value)}_{node.attr}")))
    return isinstance(node, ast.Name) and bool(_RANK.search(words(node.id)))


def words(name: str) -> str:
    """An identifier as words in lower case: ``use low rank`` of ``use_lowRank``."""
    return " ".join(_WORDS.findall(name)).lower()


def for_one_rank(scope: Function) -> ast.expr | None:
    """The decorator by which only one or a few ranks run a function, if it has one."""
    decorators = [] if isinstance(scope, ast.Module | ast.Lambda) else scope.decorator_list
    return next((one for one in decorators if _FOR_ONE_RANK.search(decorated_by(one))), None)


def asks_for_most(test: ast.expr) -> bool:
    """Return True if a condition reads as one for all ranks but a few: ``!=``, ``not``, ``>``.

    By the part of it that names the rank, where one does.
    """
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    named = [part for part in parts if any(map(names_the_rank, ast.walk(part)))]
    if named and named != [test]:
        return any(map(asks_for_most, named))
    most = (ast.NotEq, ast.NotIn, ast.IsNot, ast.Gt, ast.GtE)
    return any(
        (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
        or (isinstance(node, ast.Compare) and isinstance(node.ops[0], most))
        for node in ast.walk(test)
    )


_COMPARED: Mapping[type[ast.cmpop], Callable[[int, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, some: value in some,
    ast.NotIn: lambda value, some: value not in some,
}


def holds_for(test: ast.expr, rank: int, is_rank: Callable[[ast.expr], bool]) -> bool | None:
    """Return True if a condition on the rank holds for one; None where the text does not say.

    is_rank: True if an expression is the rank.
    """
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            found = holds_for(operand, rank, is_rank)
            return None if found is None else not found
        case ast.BoolOp(op, values):
            each = [holds_for(value, rank, is_rank) for value in values]
            decides = isinstance(op, ast.Or)
            return decides if decides in each else None if None in each else not decides
        case ast.Compare(left, [op], [right]):
            number, known = _value(left, rank, is_rank), _literal(right)
            if number is None:
                number, known = _value(right, rank, is_rank), _literal(left)
            compared = _COMPARED.get(type(op))
            if number is None or known is None or compared is None:
                return None
            try:
                return bool(compared(number, known))
            except TypeError:
                return None
    number = _value(test, rank, is_rank)
    return None if number is None else bool(number)


def _value(node: ast.expr, rank: int, is_rank: Callable[[ast.expr], bool]) -> int | None:
    """The rank, or its remainder by a number."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        number, by = _value(node.left, rank, is_rank), _literal(node.right)
        return number % by if number is not None and isinstance(by, int) and by > 0 else None
    if isinstance(node, ast.Call):
        return rank if called(node) == "get_rank" and not (node.args or node.keywords) else None
    plain = words(name_of(node)) in ("rank", "global rank", "my rank", "self rank")
    return rank if plain and is_rank(node) else None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Variables:
    """The names of a file by their values."""

    ranks: frozenset[str]
    """Names of the rank, somewhere: ``r = dist.get_rank()``."""
    others: frozenset[str]
    """Names that are always something else: ``rank = config.lora_rank``."""
    computed: frozenset[str]
    """``ranks`` without values that a function has made of the rank: ``batch = load(rank)``."""
    constants: frozenset[str]
    """Names of one value on all ranks: ``STEPS = 100``, ``ranks = dist.get_world_size()``."""
    varying: frozenset[str]
    """Names that get a value at several lines, in a loop, or from a caller."""
    kept: frozenset[str]
    """Attributes that an ``__init__`` gives a value, and nothing else does."""
    rank_attributes: frozenset[str]
    """``kept`` attributes that are computed from the rank: ``self.first = rank == 0``."""


def variables(tree: ast.Module) -> Variables:
    """The variables of a file, as far as it says so."""
    ranks, others, open_, made, constants = set(), set(), set(), set(), Counter[str]()
    attributes = _attributes(tree)
    for name, value in _assigned(tree):
        constants[name] += is_fixed(value)
        if any(map(names_the_rank, ast.walk(value))):
            ranks.add(name)
            if not is_of_rank(value):
                made.add(name)
        elif any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(value)):
            open_.add(name)
        else:
            others.add(name)
    nodes = list(ast.walk(tree))
    bound = Counter(node.arg for node in nodes if isinstance(node, ast.arg))
    bound.update(stored(nodes))
    by_rank = set_by_rank(nodes)
    loops = (node for node in nodes if isinstance(node, Loop))
    in_loops = {name for loop in loops for name in stored(ast.walk(loop))}
    return Variables(
        frozenset(ranks),
        frozenset(others - ranks - open_),
        frozenset(ranks - made),
        frozenset(one for one, n in constants.items() if n == bound[one] and one not in by_rank),
        frozenset(name for name in bound if bound[name] > 1 or name not in constants) | in_loops,
        frozenset(attributes),
        frozenset(name for name, value in attributes.items() if is_of_rank(value)),
    )


def is_of_rank(value: ast.expr, attributes: Collection[str] = ()) -> bool:
    """Return True if a value is the rank, or computed from it: no function has made it of the rank.

    attributes: attributes that are known to be so.
    """
    nodes = list(ast.walk(value))
    named = any(names_the_rank(node) or getattr(node, "attr", "") in attributes for node in nodes)
    return named and not any(_gives_anything(node) or _is_another_value(node) for node in nodes)


def _is_another_value(node: ast.AST) -> bool:
    """Return True if a value with the rank in it is not the rank: an element of a list."""
    picked = isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant)
    return picked or isinstance(node, ast.IfExp | ast.List | ast.Dict | ast.Set)


def _gives_anything(node: ast.AST) -> bool:
    """Return True if it is a call that may return another value than the rank."""
    is_call = isinstance(node, ast.Call) and called(node) not in GIVE_RANK
    return is_call or isinstance(node, ast.Await)


def _attributes(tree: ast.Module) -> dict[str, ast.expr]:
    """The value of each attribute that one ``__init__`` alone gives a value."""
    stored = Counter(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return {
        target.attr: value
        for init in ast.walk(tree)
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
        for target, value in given(own(init))
        if isinstance(target, ast.Attribute) and stored[target.attr] == 1
    }


def counters(scope: Function) -> frozenset[str]:
    """The names of a function that count iterations: ``for step in range(100)``."""
    found, bound = Counter[str](), Counter(stored(own(scope)))
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        bound.update(node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg))
    for node in own(scope):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            target, name = node.target, called(node.iter)
            if name == "enumerate" and isinstance(target, ast.Tuple):
                target, name = target.elts[0], "range"
            if name in ("range", "trange") and isinstance(target, ast.Name):
                found[target.id] += 1
    return frozenset(name for name, count in found.items() if count == bound[name])


def computed(scope: Function) -> frozenset[str]:
    """The names of a function that are given the result of a call, which is not the rank."""
    return frozenset(
        target.id
        for target, value in given(own(scope))
        if isinstance(target, ast.Name) and any(map(_gives_anything, ast.walk(value)))
    )


def set_by_rank(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The names that are given a value below a condition on the rank."""
    return frozenset(
        name
        for branch in nodes
        if isinstance(branch, ast.If) and any(map(names_the_rank, ast.walk(branch.test)))
        for name, _ in _assigned(branch)
    )


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Each name that is given a value, and the value."""
    for target, value in given(ast.walk(tree)):
        if isinstance(target, ast.Name):
            yield target.id, value


def stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names to which some nodes give a value."""
    names = (node for node in nodes if isinstance(node, ast.Name))
    return (name.id for name in names if isinstance(name.ctx, ast.Store))


class Given(NamedTuple):
    """A target of an assignment, and its value."""

    to: ast.expr
    value: ast.expr


def given(nodes: Iterable[ast.AST]) -> Iterator[Given]:
    """Each target of some statements with its value; tuples part by part."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield Given(node.target, node.value)
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from map(Given, target.elts, node.value.elts)
            else:
                yield Given(target, node.value)
