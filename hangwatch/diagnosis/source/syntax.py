"""Questions to the syntax tree of a user's file."""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def runs_out(loop: Loop) -> bool:
    """Whether it depends on more than the text how often a loop is run."""
    if isinstance(loop, ast.While):
        return not _is_fixed(loop.test)
    if not isinstance(loop.iter, ast.Call):
        return True
    if called(loop.iter) == "range":
        return not all(map(_is_fixed, loop.iter.args))
    return called(loop.iter) not in _ENDLESS


def _is_fixed(expression: ast.expr) -> bool:
    """Whether an expression is the same on all ranks, whatever they do."""
    return not any(
        isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Await)
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


@dataclass(frozen=True, slots=True)
class Variables:
    """Names by what they are given in a file."""

    ranks: frozenset[str]
    """The rank, somewhere: ``r = dist.get_rank()``."""
    others: frozenset[str]
    """Always something else: ``rank = config.lora_rank``."""


def variables(tree: ast.Module) -> Variables:
    """What the names of a file are given, as far as it says so."""
    ranks, others, open_ = set(), set(), set()
    for name, value in _assigned(tree):
        nodes = list(ast.walk(value))
        if any(map(names_the_rank, nodes)):
            ranks.add(name)
        elif any(isinstance(node, ast.Call | ast.Await) for node in nodes):
            open_.add(name)
        else:
            others.add(name)
    return Variables(frozenset(ranks), frozenset(others - ranks - open_))


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
        isinstance(node, ast.Call) and bool(_COMMUNICATES.match(called(node)))
        for statement in body
        for node in ast.walk(statement)
    )


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
