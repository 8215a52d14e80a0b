"""Questions to the syntax tree of a user's file."""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

MAX_SOURCE_CHARS = 1_000_000
_COMMUNICATES = re.compile(
    r"^(?:i?send|i?recv|barrier|monitored_barrier|broadcast\w*|all_\w+|reduce|reduce_scatter\w*"
    r"|gather\w*|scatter\w*|backward|batch_isend_irecv|reduce_tensor|synchronize)$"
)

_ENDLESS = frozenset({"count", "cycle"})
"""Of itertools."""
_OF_A_MODEL = frozenset(
    {"buffers", "children", "modules", "named_buffers", "named_children", "named_modules"}
    | {"named_parameters", "parameters"}
)
"""A model has as many on all ranks, or on all of its stage."""

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
    return called(loop.iter) not in _ENDLESS | _OF_A_MODEL


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
