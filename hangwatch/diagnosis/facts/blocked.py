"""Finds the wait of a rank outside all collectives, by its stack, its line and the kernel."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from hangwatch.diagnosis.facts.awaited import (
    INPUT,
    Link,
    On,
    by_kernel,
    has_returned,
    missing_child,
    missing_thread,
    of_thread,
    only,
    only_child,
    other_thread,
    others,
)
from hangwatch.diagnosis.facts.stores import Setter
from hangwatch.diagnosis.source.program import Line, Program
from hangwatch.diagnosis.source.syntax import Function, called, in_body, own, spans, tried_again
from hangwatch.model.calls import Site
from hangwatch.model.frames import (
    innermost_user_site,
    is_user_frame,
    program_thread,
    site_of,
    user_frames,
)
from hangwatch.model.snapshot import Frame, RankSnapshot, ThreadStack

_TAKEN = re.compile(
    r"^(?:async )?with (.+?)(?: as .*?)?:(?:\s.*)?$|^(?:if |while )?(?:not )?(.+)\.acquire\("
)
_NAMED_LOCK = re.compile(r"lock|mutex|sem(?:aphore)?|cond", re.IGNORECASE)
_LOCKS = frozenset({"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"})
_FUTEX = "futex"


@dataclass(frozen=True, slots=True)
class Blocked:
    """A wait. what: ``the lock `self.lock```; call: a call of Python's library, ``queue.get``."""

    on: On
    what: str = ""
    call: str = ""
    link: Link | None = None
    until: Site | None = None
    """The loop that runs until a condition holds, or the statement that is retried."""
    instead: Setter | None = None
    """The line at which a key with nearly that name was set."""


_PYTHON = re.compile(
    r"/python3(?:\.\d+)?t?/(threading|queue|selectors|subprocess|multiprocessing/\w+"
    r"|concurrent/futures/\w+|asyncio/\w+)\.py$"
)
"""Modules in which threads and processes of a program wait for each other."""
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_CHILDREN = re.compile(r"^(?:multiprocessing|concurrent\.futures\.process)\b")
_LIBRARIES = (
    (re.compile(r"/(?:filelock|fasteners|portalocker)/"), On.FILE_LOCK, "a file lock"),
    (
        re.compile(r"/(?:http/client|urllib/request)\.py$|/(?:urllib3|httpcore|aiohttp|requests)/"),
        On.ANSWER,
        "the answer to an HTTP request",
    ),
    (
        re.compile(r"/python3(?:\.\d+)?t?/(?:ssl|socket|socketserver|xmlrpc/\w+)\.py$"),
        On.ANSWER,
        "data from a socket",
    ),
)
"""Files of libraries, with the kind of a wait in them and its object."""
_SLEEPS = re.compile(r"\bsleep\(")
_ASKS = re.compile(r"(?<![\w.])input\(")


def blocked(
    rank: RankSnapshot,
    peers: Sequence[RankSnapshot],
    sources: Mapping[str, str],
    program: Program,
) -> Blocked | None:
    """The wait of the program of a rank; None if nothing shows one."""
    thread = program_thread(rank)
    if thread is None or not thread.frames:
        return None
    inside = list(takewhile(lambda frame: not is_user_frame(frame), thread.frames))
    site = innermost_user_site(thread.frames, sources)
    wchan = rank.process.wchan if thread.tid == rank.pid else ""
    look = _Look(rank, peers, sources, program, inside, site, wchan)
    if thread.active:
        return look.by_loop()
    return look.for_lock() or look.by_library() or look.by_line() or look.by_kernel()


@dataclass(frozen=True, slots=True)
class _Look:
    """The training thread of a rank, and the ways to find its wait.

    inside: the frames of libraries below the user's line, which is ``site``.
    wchan: the kernel function in which it sleeps, empty if it is not known.
    """

    rank: RankSnapshot
    peers: Sequence[RankSnapshot]
    sources: Mapping[str, str]
    program: Program
    inside: Sequence[Frame]
    site: Site | None
    wchan: str

    def for_lock(self) -> Blocked | None:
        """The wait for a lock that its line takes, with the only other thread that holds it."""
        lock = self._lock_taken(self.site)
        may_take = _call(self.inside) in ("", "threading.acquire", "threading.__enter__")
        asleep = not self.wchan or self.wchan.startswith(_FUTEX)
        if not lock or not may_take or not asleep or len(self.inside) > 1:
            return None
        taken = ((thread, self._has_taken(thread, lock)) for thread in others(self.rank))
        holder = only((thread, at) for thread, at in taken if at is not None)
        link = replace(self._crossed(holder[0]), holds=holder[1]) if holder is not None else None
        return Blocked(On.LOCK, f"the lock `{lock}`", link=link)

    def by_library(self) -> Blocked | None:
        """The wait in a function of a library that it called."""
        for pattern, on, what in _LIBRARIES:
            if any(pattern.search(frame.file) for frame in self.inside):
                return Blocked(on, what)
        call = _call(self.inside)
        if call.startswith("subprocess"):
            return Blocked(On.CHILD, call=call, link=only_child(self.rank, self.sources))
        if _CHILDREN.search(call):
            link = missing_child(self.rank, self.peers) or only_child(self.rank, self.sources)
            return Blocked(On.CHILD, call=call, link=link)
        if call:
            peers = () if has_returned(self.rank) else self.peers
            crossed = (self._crossed(thread) for thread in others(self.rank))
            link = (
                missing_thread(self.rank, peers, self.sources)
                or only(link for link in crossed if link.crossed is not None)
                or other_thread(self.rank, peers, self.sources)
            )
            return Blocked(On.THREAD, call=call, link=link)
        return None

    def by_line(self) -> Blocked | None:
        """The wait that the text of its line shows."""
        if self.inside or self.site is None:
            return None
        text = self.site.source or ""
        if not _SLEEPS.search(text):
            return Blocked(On.INPUT, INPUT) if _ASKS.search(text) else None
        tried = tried_again(self._scope, self.site.line)
        if tried is not None and self.rank.handling:
            return Blocked(On.RETRY, self.rank.handling, until=self._at(tried))
        # A loop that asks for something but the time.
        node = self._while()
        if node is not None and (isinstance(node.test, ast.Constant) or _asks_for_time(node.test)):
            node = None
        return Blocked(On.SLEEP, "time to pass", until=self._at(node) if node else None)

    def by_loop(self) -> Blocked | None:
        """The wait in a loop of its function that does not communicate.

        The inside of a package is not known.
        """
        node = self._while()
        of_packages = any(_PACKAGES.search(frame.file) for frame in self.inside)
        if node is None or of_packages or self.program.communicates(node.body):
            return None
        return Blocked(On.LOOP, until=self._at(node))

    def by_kernel(self) -> Blocked | None:
        """The wait in the kernel function that it sleeps in."""
        on, what = by_kernel(self.wchan)
        link = only_child(self.rank, self.sources) if on is On.CHILD else None
        return Blocked(on, what, link=link) if on is not None else None

    def _lock_taken(self, site: Site | None) -> str:
        """The lock that a line waits to take, as it is written there; empty where it does not.

        Its name shows that it is a lock, or a value assigned to the name in the file.
        """
        match = _TAKEN.match((site.source if site else None) or "")
        if match is None or site is None:
            return ""
        name = match[1] or match[2]
        last = name.rpartition(".")[2]
        tree = self.program.trees.get(site.file)
        given = self.program.given_to(last, tree, everywhere=True) if tree is not None else ()
        is_lock = _NAMED_LOCK.search(last) is not None or any(
            isinstance(value, ast.Call) and called(value) in _LOCKS for _, value in given
        )
        return name if is_lock else ""

    def _crossed(self, thread: ThreadStack) -> Link:
        """A thread, and the line at which the one that trains has the lock that it waits for."""
        link = of_thread(thread, self.sources)
        lock = self._lock_taken(link.site) if is_user_frame(thread.frames[0]) else ""
        trains = program_thread(self.rank)
        taken = self._has_taken(trains, lock) if trains and lock else None
        return replace(link, crossed=taken)

    def _has_taken(self, thread: ThreadStack, lock: str) -> Site | None:
        """The line at which a thread has taken a lock of that name that it has not given back."""
        for frame in user_frames(thread.frames):
            scope = self.program.scope_at(Line(frame.file, frame.line))
            taken = _taken_at(scope, lock.rpartition(".")[2], frame.line)
            if taken is not None:
                return site_of(replace(frame, line=taken), self.sources)
        return None

    def _while(self) -> ast.While | None:
        """The innermost ``while`` around its line."""
        line = self.site.line if self.site is not None else 0
        nodes = own(self._scope) if self._scope is not None else ()
        loops = [node for node in nodes if isinstance(node, ast.While) and in_body(node, line)]
        return max(loops, key=lambda node: node.lineno, default=None)

    @property
    def _scope(self) -> Function | None:
        site = self.site
        return self.program.scope_at(Line(site.file, site.line)) if site is not None else None

    def _at(self, node: ast.stmt) -> Site | None:
        site = self.site
        frame = Frame(site.file, node.lineno, site.function) if site is not None else None
        return site_of(frame, self.sources) if frame is not None else None


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


def _call(inside: Sequence[Frame]) -> str:
    """The function of Python's that the user's line waits in for others: ``queue.get``."""
    outermost = inside[-1] if inside else None
    match = _PYTHON.search(outermost.file) if outermost else None
    if match is None or outermost is None:
        return ""
    return f"{match[1].replace('/', '.')}.{outermost.function.rpartition('.')[2]}"


def _asks_for_time(test: ast.expr) -> bool:
    clocks = ("monotonic", "now", "perf_counter", "time")
    return any(isinstance(node, ast.Call) and called(node) in clocks for node in ast.walk(test))
