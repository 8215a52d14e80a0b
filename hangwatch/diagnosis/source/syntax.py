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


def called(node: ast.Call) -> str:
    """The bare name that a call calls."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


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

    constants: names that stand for the same on all ranks.
    """
    if isinstance(loop, ast.While):
        return not is_fixed(loop.test, constants)
    if not isinstance(loop.iter, ast.Call):
        return True
    if called(loop.iter) == "range":
        return not all(is_fixed(argument, constants) for argument in loop.iter.args)
    return called(loop.iter) not in _ENDLESS | _OF_A_MODEL


def is_fixed(expression: ast.expr, constants: Collection[str] = ()) -> bool:
    """Whether an expression is the same on all ranks, whatever they do."""
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
    """Whether a call reads like a collective or point-to-point one."""
    return bool(_COMMUNICATES.match(called(node)))


def exhausted_loop(scope: Function | None, handler: ast.AST) -> Loop | None:
    """The loop of a function that a handler of StopIteration ends, if it is one."""
    if scope is None or not isinstance(handler, ast.ExceptHandler) or handler.type is None:
        return None
    if not any(getattr(node, "id", "") == "StopIteration" for node in ast.walk(handler.type)):
        return None
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


def retried_by(scope: Function | None, line: int) -> ast.ExceptHandler | None:
    """What catches an exception of a line, and lets a loop around both make it again.

    Not a loop over data, which goes on with the next.
    """
    nodes = [*own(scope)] if scope is not None else []
    around = [n for n in nodes if isinstance(n, Loop) and in_body(n, line) and _counts(n)]
    blocks = [node for node in nodes if isinstance(node, ast.Try) and spans(node.body, line)]
    for block in blocks[::-1]:
        if any(in_body(loop, block.lineno) and loop.lineno < block.lineno for loop in around):
            for handler in block.handlers:
                if not isinstance(handler.body[-1], ast.Raise | ast.Return | ast.Break):
                    return handler
    return None


def has_time_limit(scope: Function | None, line: int) -> bool:
    """Whether a call of a line is given a time after which it returns or raises."""
    return any(
        isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and (any(word.arg == "timeout" for word in node.keywords) or _waits_for(node))
        for node in (own(scope) if scope is not None else ())
    )


def _waits_for(call: ast.Call) -> bool:
    """Whether a call is ``work.wait(limit)``; a store's first argument is the keys."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    of_store = owner is not None and "store" in ast.unparse(owner).lower()
    return called(call) == "wait" and len(call.args) > int(of_store)


def tried_again(scope: Function | None, line: int) -> ast.stmt | None:
    """What a loop tries once more when a handler is done that a line is in."""
    nodes = [*own(scope)] if scope is not None else []
    loops = [node for node in nodes if isinstance(node, Loop) and in_body(node, line)]
    for block in (node for node in nodes if isinstance(node, ast.Try)):
        for handler in block.handlers:
            within = any(in_body(loop, block.lineno) for loop in loops)
            ends = isinstance(handler.body[-1], ast.Raise | ast.Return | ast.Break)
            if within and spans(handler.body, line) and not ends:
                return block.body[0]
    return None


def _counts(loop: Loop) -> bool:
    """Whether a loop goes over no data."""
    if isinstance(loop, ast.While):
        return True
    return isinstance(loop.iter, ast.Call) and called(loop.iter) in _ENDLESS | {"range"}


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


def other_branch(scope: Function, node: ast.If) -> Sequence[ast.stmt]:
    """What is run where a condition does not hold: what comes after a branch that leaves."""
    if node.orelse or not leaves(node.body):
        return node.orelse
    for parent in (scope, *own(scope)):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(parent, name, None)
            if isinstance(body, list) and node in body:
                return body[body.index(node) + 1 :]
    return []
