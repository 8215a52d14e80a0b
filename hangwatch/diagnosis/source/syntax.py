"""Questions to the syntax tree of a user's file."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

MAX_SOURCE_CHARS = 1_000_000
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_OF_A_MATRIX = "adapter|approx|full|lora|low|lr|matrix|max|min|svd|target"
"""What the rank is one of a matrix after, or a bound."""
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
    {"get", "get_group_rank", "get_local_rank", "get_rank", "getenv", "int", "rank", "bool", "str"}
)
"""Functions by which the rank stays what it is."""
_COMMUNICATES = re.compile(
    r"^(?:i?send|i?recv|barrier|monitored_barrier|broadcast\w*|all_\w+|reduce|reduce_scatter\w*"
    r"|gather\w*|scatter\w*|backward|batch_isend_irecv|reduce_tensor|synchronize)$"
)

_ENDLESS = frozenset({"count", "cycle"})
"""Of itertools."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While


def parse(text: str | None) -> ast.Module | None:
    """The tree of a source, None where it does not parse."""
    if text is None or len(text) > MAX_SOURCE_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's own escapes and comparisons
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def own(scope: Function) -> Iterator[ast.AST]:
    """The nodes of a function, outermost first, without those of functions in it."""
    todo: deque[ast.AST] = deque([scope])
    while todo:
        node = todo.popleft()
        if node is not scope:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            yield node
        todo.extend(ast.iter_child_nodes(node))


def scope_at(tree: ast.Module, line: int) -> Function:
    """The innermost function that holds a line, or the module."""
    found: Function = tree
    todo: deque[ast.AST] = deque([tree])
    while todo:
        node = todo.popleft()
        # From the outside in, so the last one that fits is the innermost.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and holds(node, line):
            found = node
        # No expression holds a statement.
        todo.extend(n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr))
    return found


def call_line(scope: Function, callee: Function) -> int | None:
    """The line of ``scope`` that calls ``callee`` by its name, if it is one line."""
    if not isinstance(callee, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    lines = {
        node.lineno
        for node in own(scope)
        if isinstance(node, ast.Call) and called(node) == callee.name
    }
    return lines.pop() if len(lines) == 1 else None


def called(node: ast.Call) -> str:
    """The bare name that a call calls."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def holds(node: ast.stmt, line: int) -> bool:
    """Whether a statement covers a line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def spans(body: Sequence[ast.stmt], line: int) -> bool:
    """Whether statements cover a line."""
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def body_end(loop: Loop) -> int:
    """The last line of a loop's body."""
    return loop.body[-1].end_lineno or loop.body[-1].lineno


def in_body(loop: Loop, line: int) -> bool:
    """In a loop's header or body; its ``else`` runs when it is over."""
    return loop.lineno <= line <= body_end(loop)


def runs_out(loop: Loop, constants: Collection[str] = ()) -> bool:
    """Whether it depends on more than the text how often a loop is run.

    constants: names that stand for literals.
    """
    if isinstance(loop, ast.While):
        return not _is_fixed(loop.test, constants)
    if not isinstance(loop.iter, ast.Call):
        return True
    if called(loop.iter) == "range":
        return not all(_is_fixed(argument, constants) for argument in loop.iter.args)
    return called(loop.iter) not in _ENDLESS


def _is_fixed(expression: ast.expr, constants: Collection[str]) -> bool:
    """Whether an expression is the same on all ranks, whatever they do."""
    return not any(
        isinstance(node, ast.Attribute | ast.Call | ast.Await)
        or (isinstance(node, ast.Name) and node.id not in constants)
        for node in ast.walk(expression)
    )


def jumps_out(loop: Loop) -> tuple[int, ...]:
    """The lines of the statements that leave a loop: break, return."""
    lines: list[int] = []
    todo: deque[tuple[ast.AST, bool]] = deque((node, True) for node in loop.body)
    while todo:
        node, is_direct = todo.popleft()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and is_direct):
            lines.append(node.lineno)
        # A break in the `else` of a loop leaves the one around it.
        after = node.orelse if isinstance(node, Loop) else []
        todo.extend(
            (child, is_direct and (not isinstance(node, Loop) or child in after))
            for child in ast.iter_child_nodes(node)
        )
    return tuple(sorted(lines))


def cleanup_of(scope: Function, loop: Loop, line: int) -> str:
    """``finally`` or ``except``, if a line is in that of a try that holds a loop; else empty.

    Nor if it is in a handler there, of something else.
    """
    tries = [node for node in own(scope) if isinstance(node, ast.Try | ast.TryStar)]
    handlers = [handler for node in tries for handler in node.handlers]
    around = [handler for handler in handlers if spans(handler.body, line)]
    for node in tries:
        if spans(node.body, loop.lineno):
            if spans(node.finalbody, line):
                inner = [one for one in around if spans(node.finalbody, one.lineno)]
                return "" if inner else "finally"
            if any(handler in node.handlers for handler in around):
                return "except" if around[-1] in node.handlers else ""
    return ""


def swallows(scope: Function, loop: Loop, line: int) -> int:
    """The line of what may have swallowed an exception of a loop, on the way to a line; or 0."""
    for node in own(scope):
        if not isinstance(node, ast.stmt):
            continue
        last = node.finalbody if isinstance(node, ast.Try | ast.TryStar) else []
        if (node.end_lineno or 0) >= line and not spans(last, line):
            continue
        if isinstance(node, ast.Try | ast.TryStar) and spans(node.body, loop.lineno):
            for handler in node.handlers:
                if not isinstance(handler.body[-1], ast.Raise | ast.Return):
                    return handler.lineno
        if isinstance(node, ast.With | ast.AsyncWith) and spans(node.body, loop.lineno):
            managers = [item.context_expr for item in node.items]
            if any(isinstance(one, ast.Call) and called(one) == "suppress" for one in managers):
                return node.lineno
    return 0


def names_the_rank(node: ast.AST) -> bool:
    """Whether a node reads like the rank, or like being one of a few ranks."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # An environment variable's name.
        return node.value.isupper() and bool(_RANK.search(words(node.value)))
    if isinstance(node, ast.Attribute):
        owner = getattr(node.value, "attr", None) or getattr(node.value, "id", None) or ""
        return bool(_RANK.search(words(f"{owner}_{node.attr}")))
    return isinstance(node, ast.Name) and bool(_RANK.search(words(node.id)))


def words(name: str) -> str:
    """An identifier as words in lower case: ``use low rank`` of ``use_lowRank``."""
    return " ".join(_WORDS.findall(name)).lower()


def for_one_rank(scope: Function) -> ast.expr | None:
    """The decorator by which only one or a few ranks run a function, if it has one."""
    decorators = [] if isinstance(scope, ast.Module | ast.Lambda) else scope.decorator_list
    for decorator in decorators:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = getattr(called, "id", None) or getattr(called, "attr", None)
        if isinstance(name, str) and _FOR_ONE_RANK.search(name):
            return decorator
    return None


def asks_for_most(test: ast.expr) -> bool:
    """Whether a condition reads as one for all ranks but a few: ``!=``, ``not``, ``>``."""
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
    """Whether a condition on the rank holds for one; None where the text does not tell.

    is_rank: whether an expression is the rank.
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
    """The rank, or what is left of it by a number."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        number, by = _value(node.left, rank, is_rank), _literal(node.right)
        return number % by if number is not None and isinstance(by, int) and by > 0 else None
    if isinstance(node, ast.Call):
        return rank if called(node) == "get_rank" and not (node.args or node.keywords) else None
    name = getattr(node, "id", None) or getattr(node, "attr", None) or ""
    plain = words(name) in ("rank", "global rank", "my rank", "self rank")
    return rank if plain and is_rank(node) else None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Variables:
    """Names by what they are given in a file."""

    ranks: frozenset[str]
    """The rank, somewhere: ``r = dist.get_rank()``."""
    others: frozenset[str]
    """Always something else: ``rank = config.lora_rank``."""
    computed: frozenset[str]
    """Of ranks those that no function has made of the rank: not ``batch = load(rank)``."""
    constants: frozenset[str]
    """Literals alone: ``STEPS = 100``."""
    varying: frozenset[str]
    """Given a value at several places, in a loop, or by a caller."""
    kept: frozenset[str]
    """Attributes that an ``__init__`` gives a value, and nothing else does."""
    rank_attributes: frozenset[str]
    """Of these those that are computed from the rank: ``self.first = rank == 0``."""


def variables(tree: ast.Module) -> Variables:
    """What the names of a file are given, as far as it says so."""
    ranks, others, open_, made, constants = set(), set(), set(), set(), Counter[str]()
    attributes = _attributes(tree)
    for name, value in _assigned(tree):
        constants[name] += isinstance(value, ast.Constant)
        if any(map(names_the_rank, ast.walk(value))):
            ranks.add(name)
            if not _is_of_rank(value):
                made.add(name)
        elif any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(value)):
            open_.add(name)
        else:
            others.add(name)
    nodes = list(ast.walk(tree))
    bound = Counter(
        node.arg if isinstance(node, ast.arg) else node.id
        for node in nodes
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    in_loops = {
        node.id
        for loop in nodes
        if isinstance(loop, Loop)
        for node in ast.walk(loop)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return Variables(
        frozenset(ranks),
        frozenset(others - ranks - open_),
        frozenset(ranks - made),
        frozenset(name for name, count in constants.items() if count == bound[name]),
        frozenset(name for name in bound if bound[name] > 1 or name not in constants) | in_loops,
        frozenset(attributes),
        frozenset(name for name, value in attributes.items() if _is_of_rank(value)),
    )


def _is_of_rank(value: ast.expr) -> bool:
    """Whether a value is the rank, or computed from it: no function has made it of the rank."""
    nodes = list(ast.walk(value))
    calls = [node for node in nodes if isinstance(node, ast.Call | ast.Await)]
    return (
        any(map(names_the_rank, nodes))
        and all(isinstance(call, ast.Call) and called(call) in GIVE_RANK for call in calls)
        and not any(isinstance(node, ast.IfExp | ast.List | ast.Dict | ast.Set) for node in nodes)
    )


def _attributes(tree: ast.Module) -> dict[str, ast.expr]:
    """What each attribute is given that one ``__init__`` alone gives a value."""
    stored = Counter(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return {
        target.attr: node.value
        for init in ast.walk(tree)
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
        for node in own(init)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and stored[target.attr] == 1
    }


def counters(scope: Function) -> frozenset[str]:
    """The names of a function that are the number of a turn: ``for step in range(100)``."""
    found, bound = Counter[str](), Counter[str]()
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        bound.update(node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg))
    for node in own(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] += 1
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            target, name = node.target, called(node.iter)
            if name == "enumerate" and isinstance(target, ast.Tuple):
                target, name = target.elts[0], "range"
            if name in ("range", "trange") and isinstance(target, ast.Name):
                found[target.id] += 1
    return frozenset(name for name, count in found.items() if count == bound[name])


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Each name that is given a value, and the value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def communicates(body: Sequence[ast.stmt]) -> bool:
    """Whether statements make a collective or point-to-point call."""
    return any(
        isinstance(node, ast.Call) and is_collective(node)
        for statement in body
        for node in ast.walk(statement)
    )


def is_collective(node: ast.Call) -> bool:
    """Whether a call reads like a collective or point-to-point one."""
    return bool(_COMMUNICATES.match(called(node)))


def exhausted_loop(tree: ast.Module | None, handler: ast.AST) -> Loop | None:
    """The loop that a handler of StopIteration ends, if it is one."""
    if tree is None or not isinstance(handler, ast.ExceptHandler) or handler.type is None:
        return None
    if not any(getattr(node, "id", "") == "StopIteration" for node in ast.walk(handler.type)):
        return None
    scope = scope_at(tree, handler.lineno)
    body = next(
        (
            node.body
            for node in own(scope)
            if isinstance(node, ast.Try) and handler in node.handlers
        ),
        [],
    )
    loops = [node for node in own(scope) if isinstance(node, Loop)]
    inside = [loop for loop in loops if spans(body, loop.lineno)]
    around = [loop for loop in loops if in_body(loop, handler.lineno)]
    return next(iter([*inside, *around[::-1]]), None)


def calls_of(tree: ast.Module, name: str) -> list[int]:
    """The lines of all calls of a function by its name."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) == name
    ]


def collectives_of_all(tree: ast.Module) -> Iterator[int]:
    """The lines of calls ``dist.all_reduce(...)`` and the like, without a group of their own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = getattr(owner, "id", None) or getattr(owner, "attr", None)
            alone = any(word.arg == "group" for word in node.keywords)
            if name in ("dist", "distributed") and is_collective(node) and not alone:
                yield node.lineno


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether what comes after a branch is not run once the branch was."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def jumps_to(scope: Function, branch: ast.If, here: int) -> int:
    """The last line that is not run once a branch was that can have led to ``here``, or 0."""
    jumps = [
        node
        for statement in branch.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Continue | ast.Break | ast.Return)
    ]
    loops = [node for node in own(scope) if isinstance(node, Loop) and in_body(node, branch.lineno)]
    inner = max(loops, key=lambda loop: loop.lineno, default=None)
    if not jumps or inner is None or isinstance(jumps[-1], ast.Return):
        ends = (node.end_lineno or 0 for node in own(scope) if isinstance(node, ast.stmt))
        return max(ends, default=0) if jumps else 0
    if isinstance(jumps[-1], ast.Break) and len(loops) == 1 and in_body(inner, here):
        return 0  # it would be past the loop
    return body_end(inner)


def following(scope: Function, statement: ast.stmt) -> list[ast.stmt]:
    """The statements after one, in the body that it is part of."""
    for node in (scope, *own(scope)):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and statement in body:
                return body[body.index(statement) + 1 :]
    return []
