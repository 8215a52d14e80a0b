"""Which thread of a rank has the lock that another one waits for."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace

from hangwatch.diagnosis.facts.awaited import Link, of_thread, others
from hangwatch.diagnosis.source.program import Line, Program
from hangwatch.diagnosis.source.syntax import Function, called, own, spans
from hangwatch.model.calls import Site
from hangwatch.model.frames import is_user_frame, program_thread, site_of, user_frames
from hangwatch.model.snapshot import RankSnapshot, ThreadStack

_TAKEN = re.compile(
    r"^(?:async )?with (.+?)(?: as .*?)?:(?:\s.*)?$|^(?:if |while )?(?:not )?(.+)\.acquire\("
)
_NAMED_LOCK = re.compile(r"lock|mutex|sem(?:aphore)?|cond", re.IGNORECASE)
_LOCKS = frozenset({"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"})
_FUTEX = "futex"


def lock_taken(site: Site | None, wchan: str, call: str, program: Program) -> str:
    """The lock that a line waits to take, as it is written there; empty where it does not.

    It is one by its name, or by what the name is given in the file.
    """
    found = _TAKEN.match((site.source if site else None) or "")
    if (
        found is None
        or site is None
        or call not in ("", "threading.acquire", "threading.__enter__")
    ):
        return ""
    name = found[1] or found[2]
    last = name.rpartition(".")[2]
    is_lock = _NAMED_LOCK.search(last) is not None or _is_given_lock(program, site.file, last)
    return name if is_lock and (not wchan or wchan.startswith(_FUTEX)) else ""


def _is_given_lock(program: Program, file: str, name: str) -> bool:
    """Whether a name, or an attribute of that name, is given a lock of threading's in a file."""
    tree = program.trees.get(file)
    made = program.given_to(name, tree, everywhere=True) if tree is not None else ()
    return any(isinstance(value, ast.Call) and called(value) in _LOCKS for value in made)


def holder(
    rank: RankSnapshot, lock: str, sources: Mapping[str, str], program: Program
) -> Link | None:
    """The only other thread that is in a block of such a lock; None where it is not known."""
    found = []
    for thread in others(rank):
        holds = _has_taken(thread, lock, sources, program)
        if holds is not None:
            found.append((thread, holds))
    if len(found) != 1:
        return None
    thread, holds = found[0]
    return replace(_crossed(rank, thread, sources, program), holds=holds)


def waits_for_it(rank: RankSnapshot, sources: Mapping[str, str], program: Program) -> Link | None:
    """The only other thread that waits for a lock which the one that trains has taken."""
    links = (_crossed(rank, thread, sources, program) for thread in others(rank))
    found = [link for link in links if link.crossed is not None]
    return found[0] if len(found) == 1 else None


def _crossed(
    rank: RankSnapshot, thread: ThreadStack, sources: Mapping[str, str], program: Program
) -> Link:
    """A thread, and where the one that trains has taken the lock that it waits for."""
    link = of_thread(thread, sources)
    inside = not is_user_frame(thread.frames[0])
    lock = "" if inside else lock_taken(link.site, "", "", program)
    trains = program_thread(rank)
    taken = _has_taken(trains, lock, sources, program) if trains and lock else None
    return replace(link, crossed=taken)


def _has_taken(
    thread: ThreadStack, lock: str, sources: Mapping[str, str], program: Program
) -> Site | None:
    """The line at which a thread has taken a lock of that name that it has not given back."""
    for frame in user_frames(thread.frames):
        scope = program.scope_at(Line(frame.file, frame.line))
        taken = _taken_at(scope, lock.rpartition(".")[2], frame.line)
        if taken is not None:
            return site_of(replace(frame, line=taken), sources)
    return None


def _taken_at(scope: Function | None, name: str, line: int) -> int | None:
    """The line of a function by which it has a lock of that name at ``line``; None for none."""
    taken, given = [], [0]
    for node in own(scope) if scope is not None else ():
        match node:
            case ast.With() | ast.AsyncWith() if spans(node.body, line):
                taken += [node.lineno for item in node.items if _is(item.context_expr, name)]
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if _is(owner, name):
                if attr == "acquire" and node.lineno < line:
                    taken.append(node.lineno)
                elif attr == "release" and node.lineno < line:
                    given.append(node.lineno)
    return max((at for at in taken if at > max(given)), default=None)


def _is(node: ast.expr, name: str) -> bool:
    return ast.unparse(node).rpartition(".")[2] == name
