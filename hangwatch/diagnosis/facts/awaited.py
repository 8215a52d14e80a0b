"""By what a wait of a rank would end: the lock, thread or process of its own that it waits for.

By the stacks of its other threads and of its children, the kernel functions that they sleep in,
and those that its peers have.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.marks import THREAD_DIED
from hangwatch.diagnosis.source.program import Line
from hangwatch.diagnosis.source.syntax import own, spans
from hangwatch.frames import (
    innermost_user_site,
    main_thread,
    program_thread,
    site_of,
    user_frames,
    with_source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangwatch.diagnosis.source.program import Program
    from hangwatch.diagnosis.source.syntax import Function
    from hangwatch.types.calls import Site
    from hangwatch.types.snapshot import Child, RankSnapshot, ThreadStack


class On(StrEnum):
    """What is waited for."""

    LOCK = "lock"
    """Of threading."""
    THREAD = "thread"
    """Another thread, or what it should put into a queue, a future or an event."""
    CHILD = "child"
    """Another process that this one has started, or what it should send."""
    ANSWER = "answer"
    """Over the network, but not of a peer in a collective."""
    FILE_LOCK = "file_lock"
    PIPE = "pipe"
    FILE = "file"
    SLEEP = "sleep"
    INPUT = "input"
    """Of a terminal."""


@dataclass(frozen=True, slots=True)
class Link:
    """The thread or process of the same rank by which a wait would end.

    name: ``thread prefetch``, ``process 4711``. waits_for: what it waits for, empty if unknown.
    """

    name: str
    site: Site | None = None
    waits_for: str = ""
    command: str = ""
    holds: Site | None = None
    """Where it has taken the lock."""
    crossed: Site | None = None
    """Where the waiting thread has taken a lock that this one waits for in turn."""
    ended_by: str = ""
    """The exception that has ended it, at ``site``."""
    had_by: tuple[int, ...] = ()
    """This rank does not have it, and these do; ``site`` is where it is there."""


INPUT = "input from a terminal"
_BY_KERNEL = (
    (
        re.compile(r"^(?:locks_lock_inode|flock|posix_lock|fcntl_setlk)"),
        On.FILE_LOCK,
        "a file lock",
    ),
    (re.compile(r"pipe_read"), On.PIPE, "data from a pipe"),
    (re.compile(r"pipe_write"), On.PIPE, "somebody to read a pipe, which is full"),
    (re.compile(r"^wait_for_partner"), On.PIPE, "the other end of a named pipe, to open it"),
    (re.compile(r"^(?:n_tty_read|tty_)"), On.INPUT, INPUT),
    (re.compile(r"^(?:do_wait|kernel_wait)"), On.CHILD, "a child process"),
    (re.compile(r"^(?:rpc_|nfs\d?_)"), On.FILE, "a network file system (NFS)"),
    (re.compile(r"^(?:request_wait_answer|fuse_)"), On.FILE, "a file system in user space (FUSE)"),
    (re.compile(r"^(?:ptlrpc_|ll_|cl_|osc_)"), On.FILE, "a Lustre file system"),
    (re.compile(r"^(?:io_schedule|folio_wait|wait_on_page|blk|jbd2|xfs_)"), On.FILE, "a disk"),
    (
        re.compile(r"^(?:sk_wait|wait_woken|tcp_|inet_csk|unix_stream|__skb_wait)"),
        On.ANSWER,
        "data from a socket",
    ),
)
"""Kernel functions, as in /proc/PID/wchan, and what a process waits for there."""
_TAKEN = re.compile(
    r"^(?:async )?with (.+?)(?: as .*)?:(?:\s*#.*)?$|^(?:if |while )?(?:not )?(.+)\.acquire\("
)
_NAMED_LOCK = re.compile(r"lock|mutex|sem(?:aphore)?|cond", re.IGNORECASE)
_FUTEX = "futex"
_ENDS: dict[str, str | tuple[str, ...]] = {
    "_shutdown": "/threading.py",
    "_python_exit": ("/concurrent/futures/thread.py", "/concurrent/futures/process.py"),
    "_exit_function": "/multiprocessing/util.py",
}
"""Functions of Python's that run when the main program is over."""
_OF_PYTHON = re.compile(r"multiprocessing[./](?:resource_tracker|semaphore_tracker|forkserver)")
_MAIN = "MainThread"


def by_kernel(wchan: str) -> tuple[On | None, str]:
    """What a process waits for in a function of the kernel, and that in words."""
    return next(((on, what) for kind, on, what in _BY_KERNEL if kind.search(wchan)), (None, ""))


# --- Locks ----------------------------------------------------------------------------


def lock_taken(text: str, wchan: str, call: str) -> str:
    """The lock that a line waits to take, as it is written there; empty where it does not."""
    found = _TAKEN.match(text)
    if found is None or call not in ("", "threading.acquire", "threading.__enter__"):
        return ""
    name = found[1] or found[2]
    named = _NAMED_LOCK.search(name.rpartition(".")[2]) is not None
    return name if named and (not wchan or wchan.startswith(_FUTEX)) else ""


def holder(
    rank: RankSnapshot, lock: str, sources: Mapping[str, str], program: Program
) -> Link | None:
    """The only other thread that is in a block of such a lock; None where it is not known."""
    found = []
    for thread in _others(rank):
        holds = _has_taken(thread, lock, sources, program)
        if holds is not None:
            found.append((thread, holds))
    if len(found) != 1:
        return None
    thread, holds = found[0]
    link = replace(_of_thread(thread, sources), holds=holds)
    other = lock_taken((link.site.source if link.site else None) or "", "", "")
    waiting = program_thread(rank)
    crossed = _has_taken(waiting, other, sources, program) if waiting and other else None
    return replace(link, crossed=crossed)


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


# --- Threads and processes ------------------------------------------------------------


def has_returned(rank: RankSnapshot) -> bool:
    """Whether the program is over, and the interpreter waits for what it has started."""
    main = main_thread(rank.threads, rank.pid)
    for number, frame in enumerate(main.frames if main else ()):
        file = _ENDS.get(frame.function)
        if main is not None and file is not None and frame.file.endswith(file):
            # A process that multiprocessing has started ends within its own.
            outside = main.frames[number + 1 :]
            over = not outside or outside[0].file.endswith("/multiprocessing/process.py")
            return over and not user_frames(main.frames[:number]) and program_thread(rank) is main
    return False


def _others(rank: RankSnapshot) -> Iterator[ThreadStack]:
    """The threads of a rank that are in the user's code, but for the one that trains."""
    program = program_thread(rank)
    for thread in rank.threads or ():
        if thread is not program and user_frames(thread.frames):
            yield thread


def _of_thread(thread: ThreadStack, sources: Mapping[str, str]) -> Link:
    name = "the main thread" if thread.name == _MAIN else f"thread {thread.name}"
    return Link(name, innermost_user_site(thread.frames, sources))


def _runs(thread: ThreadStack) -> tuple[str, str]:
    """File and function of the user's that a thread was started for."""
    outermost = user_frames(thread.frames)[-1]
    return outermost.file, outermost.function


def missing_thread(
    rank: RankSnapshot, peers: Sequence[RankSnapshot], sources: Mapping[str, str]
) -> Link | None:
    """The thread that an exception has ended; else the one that most peers have and it has not."""
    died = next((mark for mark in rank.marks if mark.kind == THREAD_DIED), None)
    if died is not None:
        name, _, error = died.text.partition(": ")
        return Link(f"thread {name}", with_source(died.site, sources), ended_by=error)
    mine = {_runs(thread) for thread in _others(rank)}
    program = program_thread(rank)
    here = {frame.file for frame in user_frames(program.frames)} if program else set()
    had: dict[tuple[str, str], list[tuple[int, ThreadStack]]] = defaultdict(list)
    for peer in peers:
        for runs, thread in {_runs(thread): thread for thread in _others(peer)}.items():
            if runs not in mine and (not mine or runs[0] in here):
                had[runs].append((peer.rank, thread))
    missing = [found for found in had.values() if 2 * len(found) > len(peers)]
    if len(missing) != 1:
        return None
    thread = missing[0][0][1]
    return replace(_of_thread(thread, sources), had_by=tuple(rank for rank, _ in missing[0]))


def other_thread(
    rank: RankSnapshot, peers: Sequence[RankSnapshot], sources: Mapping[str, str]
) -> Link | None:
    """The one other thread of a rank that is in the user's code, and where no peer's thread is."""
    usual = {_at(thread) for peer in peers for thread in _others(peer)}
    others = [thread for thread in _others(rank) if _at(thread) not in usual]
    return _of_thread(others[0], sources) if len(others) == 1 else None


def _at(thread: ThreadStack) -> tuple[str, int]:
    """The line of the user's that a thread is at."""
    innermost = user_frames(thread.frames)[0]
    return innermost.file, innermost.line


def missing_child(rank: RankSnapshot, peers: Sequence[RankSnapshot]) -> Link | None:
    """The process that all peers have and this rank has not, by what was started."""
    mine = Counter(child.command for child in _children(rank))
    theirs = [Counter(child.command for child in _children(peer)) for peer in peers]
    common = set.intersection(*map(set, theirs)) if theirs else set()
    missing = [one for one in common if min(counts[one] for counts in theirs) > mine[one]]
    if len(missing) != 1:
        return None
    had_by = tuple(peer.rank for peer in peers)
    return Link("process", command=missing[0], had_by=had_by)


def only_child(rank: RankSnapshot, sources: Mapping[str, str]) -> Link | None:
    """The one process that a rank has started."""
    children = list(_children(rank))
    if len(children) != 1:
        return None
    child = children[0]
    thread = main_thread(child.threads, child.pid)
    site = innermost_user_site(thread.frames, sources) if thread else None
    if child.process.state[:1] in ("T", "t"):
        waits_for = "somebody to continue it: it is stopped"
    else:
        _, waits_for = by_kernel(child.process.wchan)
    return Link(f"process {child.pid}", site, waits_for, child.command)


def _children(rank: RankSnapshot) -> Iterator[Child]:
    """The processes that a rank has started, without those that Python keeps for itself."""
    return (child for child in rank.children if not _OF_PYTHON.search(child.command))
