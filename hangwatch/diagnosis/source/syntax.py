"""Questions to the syntax tree of a user's file."""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Sequence

MAX_SOURCE_CHARS = 1_000_000
_COMMUNICATES = re.compile(
    r"^(?:i?send|i?recv|barrier|monitored_barrier|broadcast\w*|all_\w+|reduce|reduce_scatter\w*"
    r"|gather\w*|scatter\w*|backward|batch_isend_irecv|reduce_tensor|synchronize)$"
)

_WORLD = re.compile(
    r"(?:get_)?world(?:_?size)?$|(?:n|num|number_of)_?(?:ranks|procs|processes)$", re.IGNORECASE
)
"""Names for the number of ranks."""
ENDLESS = frozenset({"count", "cycle"})
"""Endless iterators of itertools."""

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
    """The nodes of a function, outermost first, without the functions in it."""
    todo: deque[ast.AST] = deque([scope])
    while todo:
        node = todo.popleft()
        if node is not scope:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            yield node
        todo.extend(ast.iter_child_nodes(node))


def calls_in(scope: Function) -> Iterator[ast.Call]:
    """The calls of a function, outermost first, without the functions in it."""
    return (node for node in own(scope) if isinstance(node, ast.Call))


def loops_in(scope: Function) -> list[Loop]:
    """The loops of a function, outermost first, without the functions in it."""
    return [node for node in own(scope) if isinstance(node, Loop)]


def name_of(node: ast.AST | None) -> str:
    """The bare name of a name or an attribute, empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def called(node: ast.Call) -> str:
    """The bare name that a call calls."""
    return name_of(node.func)


def decorated_by(decorator: ast.expr) -> str:
    """The bare name of a decorator, with arguments or without."""
    return name_of(decorator.func if isinstance(decorator, ast.Call) else decorator)


def parts(target: ast.expr) -> Sequence[ast.expr]:
    """The elements of a tuple or list, anything else by itself."""
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def covers(node: ast.expr | ast.stmt | ast.excepthandler, line: int) -> bool:
    """Return True if a node is at a line, be it with a part of it."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def spans(body: Sequence[ast.stmt], line: int) -> bool:
    """Return True if statements cover a line."""
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def body_end(loop: Loop) -> int:
    """The last line of a loop's body."""
    return loop.body[-1].end_lineno or loop.body[-1].lineno


def in_body(loop: Loop, line: int) -> bool:
    """Return True if a line is in the header or body of a loop: its ``else`` runs after it."""
    return loop.lineno <= line <= body_end(loop)


def is_fixed(expression: ast.expr, constants: Collection[str] = ()) -> bool:
    """Return True if an expression is the same on all ranks, whatever they do."""
    match expression:
        case ast.Name(name):
            return name in constants or bool(_WORLD.match(name))
        case ast.Attribute(_, name):
            return bool(_WORLD.match(name))
        case ast.Call(func, [], []):
            return is_fixed(func)
        case ast.Call() | ast.Await():
            return False
    inside = [node for node in ast.iter_child_nodes(expression) if isinstance(node, ast.expr)]
    return all(is_fixed(node, constants) for node in inside)


def is_collective(node: ast.Call) -> bool:
    """Return True if a call reads like a collective or point-to-point one."""
    return bool(_COMMUNICATES.match(called(node)))


def exhausted_loop(scope: Function | None, handler: ast.AST) -> Loop | None:
    """The loop of a function that a handler of StopIteration ends, if it is one."""
    if scope is None or not isinstance(handler, ast.ExceptHandler) or handler.type is None:
        return None
    if not any(name_of(node) == "StopIteration" for node in ast.walk(handler.type)):
        return None
    blocks = (node for node in own(scope) if isinstance(node, ast.Try))
    body = next((block.body for block in blocks if handler in block.handlers), [])
    loops = loops_in(scope)
    inside = [loop for loop in loops if spans(body, loop.lineno)]
    around = [loop for loop in loops if in_body(loop, handler.lineno)]
    return next(iter([*inside, *around[::-1]]), None)


def retried_by(scope: Function | None, line: int) -> ast.ExceptHandler | None:
    """The handler that catches an exception of a line in a loop that then retries the line.

    Not in a loop over data, which continues with the next element.
    """
    for block in _tried_in_loops(scope, line, counting=True)[::-1]:
        for handler in block.handlers:
            if spans(block.body, line) and not _ends(handler):
                return handler
    return None


def has_time_limit(scope: Function | None, line: int) -> bool:
    """Return True if a call of a line is given a time after which it returns or raises."""
    return any(
        covers(call, line)
        and (any(word.arg == "timeout" for word in call.keywords) or _waits_for(call))
        for call in (calls_in(scope) if scope is not None else ())
    )


def _waits_for(call: ast.Call) -> bool:
    """Return True if a call is ``work.wait(limit)``; a store's first argument is the keys."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    of_store = owner is not None and "store" in ast.unparse(owner).lower()
    return called(call) == "wait" and len(call.args) > int(of_store)


def tried_again(scope: Function | None, line: int) -> ast.stmt | None:
    """The statement that a loop tries once more when a handler is done that a line is in."""
    for block in _tried_in_loops(scope, line):
        if any(spans(one.body, line) and not _ends(one) for one in block.handlers):
            return block.body[0]
    return None


def _tried_in_loops(scope: Function | None, line: int, *, counting: bool = False) -> list[ast.Try]:
    """The ``try`` blocks in loops that a line is in. counting: in loops not over data."""
    if scope is None:
        return []
    loops = [
        one for one in loops_in(scope) if in_body(one, line) and (_counts(one) or not counting)
    ]
    return [
        node
        for node in own(scope)
        if isinstance(node, ast.Try) and any(in_body(loop, node.lineno) for loop in loops)
    ]


def _ends(handler: ast.ExceptHandler) -> bool:
    """Return True if no iteration of a loop follows a handler."""
    return isinstance(handler.body[-1], ast.Raise | ast.Return | ast.Break)


def _counts(loop: Loop) -> bool:
    """Return True if a loop is not over data."""
    if isinstance(loop, ast.While):
        return True
    return isinstance(loop.iter, ast.Call) and called(loop.iter) in ENDLESS | {"range"}


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Return True if the code after a branch does not run after the branch."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def other_branch(scope: Function, node: ast.If) -> Sequence[ast.stmt]:
    """The statements for a condition that does not hold: those after a branch that leaves."""
    if node.orelse or not leaves(node.body):
        return node.orelse
    for parent in (scope, *own(scope)):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(parent, name, None)
            if isinstance(body, list) and node in body:
                return body[body.index(node) + 1 :]
    return []
