"""Finds the thread or process of its own that a rank waits for.

Evidence are the stacks of its other threads and of its children, the kernel functions that they
sleep in, and the threads and processes that its peers have.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import TypeVar

from hangwatch.diagnosis.facts.history import THREAD_DIED
from hangwatch.diagnosis.facts.job import is_majority
from hangwatch.model.calls import Site
from hangwatch.model.frames import (
    innermost_user_site,
    main_thread,
    program_thread,
    user_frames,
    with_source,
)
from hangwatch.model.snapshot import Child, RankSnapshot, ThreadStack

_T = TypeVar("_T")


class On(StrEnum):
    """The kinds of things that a program waits for outside collectives."""

    LOCK = "lock"
    """A lock of threading."""
    THREAD = "thread"
    """Another thread, or an object that it should put into a queue, a future or an event."""
    CHILD = "child"
    """A process that this one started, or data that it should send."""
    ANSWER = "answer"
    """Over the network, but not of a peer in a collective."""
    FILE_LOCK = "file_lock"
    PIPE = "pipe"
    FILE = "file"
    SLEEP = "sleep"
    LOOP = "loop"
    """Nothing: it is in a loop."""
    RETRY = "retry"
    """A statement that raises, and is tried again and again."""
    KEY = "key"
    """A key of one of torch's stores."""
    INPUT = "input"
    """Input from a terminal."""


@dataclass(frozen=True, slots=True)
class Link:
    """The thread or process of the same rank that would end a wait.

    name: ``thread prefetch``, ``process 4711``. waits_for: what it waits for, empty if unknown.
    """

    name: str
    site: Site | None = None
    waits_for: str = ""
    command: str = ""
    holds: Site | None = None
    """The line at which it took the lock."""
    crossed: Site | None = None
    """The line at which the waiting thread took a lock that this one waits for."""
    ended_by: str = ""
    """The exception that ended it, at ``site``."""
    had_by: tuple[int, ...] = ()
    """The ranks that have it, unlike this one; ``site`` is its line on them."""
    idle: bool = False
    """This rank has it too, but idle: the job of a pool has ended."""


INPUT = "input from a terminal"
FULL_PIPE = "a reader of a pipe, which is full"
_BY_KERNEL = (
    (
        re.compile(r"^(?:locks_lock_inode|flock|posix_lock|fcntl_setlk)"),
        On.FILE_LOCK,
        "a file lock",
    ),
    (re.compile(r"pipe_read"), On.PIPE, "data from a pipe"),
    (re.compile(r"pipe_write"), On.PIPE, FULL_PIPE),
    (re.compile(r"^wait_for_partner"), On.PIPE, "another process to open its end of a named pipe"),
    (re.compile(r"^(?:n_tty_read|tty_)"), On.INPUT, INPUT),
    (re.compile(r"^(?:do_wait|kernel_wait)"), On.CHILD, "a child process"),
    (re.compile(r"^(?:rpc_|nfs\d?_)"), On.FILE, "a network file system (NFS)"),
    (re.compile(r"^(?:request_wait_answer|fuse_)"), On.FILE, "a FUSE file system"),
    (re.compile(r"^(?:ptlrpc_|ll_|cl_|osc_)"), On.FILE, "a Lustre file system"),
    (re.compile(r"^(?:io_schedule|folio_wait|wait_on_page|blk|jbd2|xfs_)"), On.FILE, "a disk"),
    (
        re.compile(r"^(?:sk_wait|wait_woken|tcp_|inet_csk|unix_stream|__skb_wait)"),
        On.ANSWER,
        "data from a socket",
    ),
)
"""Kernel functions, as in /proc/PID/wchan, with the kind of the wait and its object."""
_ENDS: dict[str, str | tuple[str, ...]] = {
    "_shutdown": "/threading.py",
    "_python_exit": ("/concurrent/futures/thread.py", "/concurrent/futures/process.py"),
    "_exit_function": "/multiprocessing/util.py",
}
"""Functions of Python that run after the main program."""
_OF_PYTHON = re.compile(r"multiprocessing[./](?:resource_tracker|semaphore_tracker|forkserver)")
_PROCESS = "/multiprocessing/process.py"
_NUMBERED = re.compile(r"(?<=Thread)-\d+|(?<=ThreadPoolExecutor)-\d+_\d+|_\d+$")
_MAIN = "MainThread"


def only(items: Iterable[_T]) -> _T | None:
    """The one item; None of several, or of none."""
    found = [*items]
    return found[0] if len(found) == 1 else None


def by_kernel(wchan: str) -> tuple[On | None, str]:
    """The kind of thing that a process waits for in a function of the kernel, and that in words."""
    return next(((on, what) for kind, on, what in _BY_KERNEL if kind.search(wchan)), (None, ""))


# --- Threads and processes ------------------------------------------------------------


def has_returned(rank: RankSnapshot) -> bool:
    """Return True if the program has ended, and Python waits for its threads or processes."""
    main = main_thread(rank.threads, rank.pid)
    frames = main.frames if main else ()
    for number, frame in enumerate(frames):
        file = _ENDS.get(frame.function)
        if file is not None and frame.file.endswith(file):
            # A process that multiprocessing has started ends within its own.
            outside = frames[number + 1 :]
            over = not outside or outside[0].file.endswith(_PROCESS)
            return over and not user_frames(frames[:number]) and program_thread(rank) is main
    return False


def others(rank: RankSnapshot) -> Iterator[ThreadStack]:
    """The threads of a rank that are in the user's code, but for the one that trains."""
    program = program_thread(rank)
    return (t for t in rank.threads or () if t is not program and user_frames(t.frames))


def of_thread(thread: ThreadStack, sources: Mapping[str, str]) -> Link:
    """A thread, and where it is."""
    name = "the main thread" if thread.name == _MAIN else f"thread {thread.name}"
    return Link(name, innermost_user_site(thread.frames, sources))


def same_thread(waiting: RankSnapshot, tid: int, rank: RankSnapshot) -> ThreadStack | None:
    """The thread of a rank that runs the same function as a helper thread of another rank.

    None if that is the thread that trains, or if the rank has no thread of that kind or several.
    """
    threads = [thread for thread in others(waiting) if thread.tid == tid][:1]
    return only(o for o in others(rank) for thread in threads if _runs(o) == _runs(thread))


def _runs(thread: ThreadStack) -> tuple[str, str]:
    """The user's file and function that a thread was started for."""
    outermost = user_frames(thread.frames)[-1]
    return outermost.file, outermost.function


def missing_thread(
    rank: RankSnapshot, peers: Sequence[RankSnapshot], sources: Mapping[str, str]
) -> Link | None:
    """The thread that most peers have and this rank lacks, and the exception that ended it.

    Or a thread that an exception ended, in a file that the wait is in too.
    """
    program = program_thread(rank)
    here = {frame.file for frame in user_frames(program.frames)} if program else set()
    missing = _of_peers(rank, peers, here, sources)
    alive = {_name(thread.name) for thread in rank.threads or ()}
    died = [mark for mark in rank.marks if mark.kind == THREAD_DIED and mark.site is not None]
    for mark in sorted(died, key=lambda mark: mark.age_s):
        name, _, error = mark.text.partition(": ")
        awaited = missing is not None and _name(missing.name) == _name(f"thread {name}")
        if _name(name) not in alive and (awaited or (mark.site and mark.site.file in here)):
            return Link(f"thread {name}", with_source(mark.site, sources), ended_by=error)
    return missing


def _of_peers(
    rank: RankSnapshot,
    peers: Sequence[RankSnapshot],
    here: Collection[str],
    sources: Mapping[str, str],
) -> Link | None:
    """The thread that most peers have and a rank has not; here: the files that the rank is in."""
    mine = {_runs(thread) for thread in others(rank)}
    had: dict[tuple[str, str], list[tuple[int, ThreadStack]]] = defaultdict(list)
    for peer in peers:
        for runs, thread in {_runs(thread): thread for thread in others(peer)}.items():
            if runs not in mine and (not mine or runs[0] in here):
                had[runs].append((peer.rank, thread))
    missing = only(found for found in had.values() if is_majority(found, peers))
    if missing is None:
        return None
    thread = missing[0][1]
    # A thread of a pool of concurrent.futures that has no job is in its own file.
    idle = any(
        _name(one.name) == _name(thread.name)
        and bool(one.frames)
        and one.frames[0].file.endswith("/concurrent/futures/thread.py")
        for one in rank.threads or ()
    )
    had_by = tuple(peer for peer, _ in missing)
    return replace(of_thread(thread, sources), had_by=had_by, idle=idle)


def _name(name: str) -> str:
    """The name of a thread without the number that Python gives it: they differ by rank."""
    return _NUMBERED.sub("", name)


def other_thread(
    rank: RankSnapshot, peers: Sequence[RankSnapshot], sources: Mapping[str, str]
) -> Link | None:
    """The one other thread of a rank that is in the user's code, and where no peer's thread is."""
    usual = {_at(thread) for peer in peers for thread in others(peer)}
    unusual = only(thread for thread in others(rank) if _at(thread) not in usual)
    return of_thread(unusual, sources) if unusual is not None else None


def _at(thread: ThreadStack) -> tuple[str, int]:
    """The user's line that a thread is at."""
    innermost = user_frames(thread.frames)[0]
    return innermost.file, innermost.line


def missing_child(rank: RankSnapshot, peers: Sequence[RankSnapshot]) -> Link | None:
    """The process that all peers have and this rank lacks, by its command."""
    mine = Counter(child.command for child in _children(rank))
    theirs = [Counter(child.command for child in _children(peer)) for peer in peers]
    common = set.intersection(*map(set, theirs)) if theirs else set()
    missing = only(one for one in common if min(counts[one] for counts in theirs) > mine[one])
    had_by = tuple(peer.rank for peer in peers)
    return Link("process", command=missing, had_by=had_by) if missing is not None else None


def only_child(rank: RankSnapshot, sources: Mapping[str, str]) -> Link | None:
    """The only process that a rank started, or the only one of several in the user's code."""
    children = {child.pid: (child, _site_of_child(child, sources)) for child in _children(rank)}
    known = [*children.values()]
    found = only(known if len(known) == 1 else (pair for pair in known if pair[1] is not None))
    if found is None:
        return None
    child, site = found
    waits_for = by_kernel(child.process.wchan)[1]
    if child.process.state[:1] in ("T", "t"):
        waits_for = "a SIGCONT: it is stopped"
    return Link(f"process {child.pid}", site, waits_for, child.command)


def _site_of_child(child: Child, sources: Mapping[str, str]) -> Site | None:
    """The user's line that a process is at, without the frames of its parent at the fork."""
    thread = main_thread(child.threads, child.pid)
    frames = thread.frames if thread else ()
    own = takewhile(lambda frame: not frame.file.endswith(_PROCESS), frames)
    return innermost_user_site([*own], sources)


def _children(rank: RankSnapshot) -> Iterator[Child]:
    """The processes that a rank started, without Python's own helpers."""
    return (child for child in rank.children if not _OF_PYTHON.search(child.command))
