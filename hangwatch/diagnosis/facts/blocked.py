"""Finds what a rank outside all collectives waits for: by its stack, its line, and the kernel."""

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
    return any(isinstance(value, ast.Call) and called(value) in _LOCKS for _, value in made)


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


@dataclass(frozen=True, slots=True)
class Blocked:
    """A wait. what: of what, ``the lock `self.lock```; call: of Python's own, ``queue.get``."""

    on: On
    what: str = ""
    call: str = ""
    link: Link | None = None
    until: Site | None = None
    """The loop that goes on until something has come about, or what is tried again and again."""
    instead: Setter | None = None
    """Where a key of nearly that name was set."""


_PYTHON = re.compile(
    r"/python3(?:\.\d+)?t?/(threading|queue|selectors|subprocess|multiprocessing/\w+"
    r"|concurrent/futures/\w+|asyncio/\w+)\.py$"
)
"""Modules by which threads and processes of a program wait for each other."""
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
"""Files of libraries, and what is waited for within them."""
_SLEEPS = re.compile(r"\bsleep\(")
_ASKS = re.compile(r"(?<![\w.])input\(")


def blocked(
    rank: RankSnapshot,
    peers: Sequence[RankSnapshot],
    sources: Mapping[str, str],
    program: Program,
) -> Blocked | None:
    """What the program of a rank waits for; None where nothing tells of it."""
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
    """A look at the thread of a rank that trains.

    inside: the frames of libraries within the user's line, which is ``site``.
    wchan: where it sleeps in the kernel, empty where that is not known.
    """

    rank: RankSnapshot
    peers: Sequence[RankSnapshot]
    sources: Mapping[str, str]
    program: Program
    inside: Sequence[Frame]
    site: Site | None
    wchan: str

    def for_lock(self) -> Blocked | None:
        """Where its line takes a lock."""
        lock = lock_taken(self.site, self.wchan, _call(self.inside), self.program)
        if not lock or len(self.inside) > 1:
            return None
        link = holder(self.rank, lock, self.sources, self.program)
        return Blocked(On.LOCK, f"the lock `{lock}`", link=link)

    def by_library(self) -> Blocked | None:
        """By what it has called."""
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
            link = (
                missing_thread(self.rank, peers, self.sources)
                or waits_for_it(self.rank, self.sources, self.program)
                or other_thread(self.rank, peers, self.sources)
            )
            return Blocked(On.THREAD, call=call, link=link)
        return None

    def by_line(self) -> Blocked | None:
        """By the text of its line."""
        if self.inside or self.site is None:
            return None
        if _SLEEPS.search(self._text):
            return self._again() or Blocked(On.SLEEP, "time to pass", until=self._loop())
        return Blocked(On.INPUT, INPUT) if _ASKS.search(self._text) else None

    def by_loop(self) -> Blocked | None:
        """By a loop of its function in which nothing is for other ranks.

        What a package does within is not known.
        """
        node = self._while()
        of_packages = any(_PACKAGES.search(frame.file) for frame in self.inside)
        if node is None or of_packages or self.program.communicates(node.body):
            return None
        return Blocked(On.LOOP, until=self._at(node))

    def _again(self) -> Blocked | None:
        """What a handler goes back to once it has slept."""
        tried = tried_again(self._scope, self.site.line) if self.site is not None else None
        if tried is None or not self.rank.handling:
            return None
        return Blocked(On.RETRY, self.rank.handling, until=self._at(tried))

    def _loop(self) -> Site | None:
        """The innermost ``while`` around its line that asks for something but the time."""
        node = self._while()
        calls = [n for n in ast.walk(node.test) if isinstance(n, ast.Call)] if node else []
        asks = node is not None and not isinstance(node.test, ast.Constant)
        return self._at(node) if node and asks and not any(map(_gives_time, calls)) else None

    def _while(self) -> ast.While | None:
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

    def by_kernel(self) -> Blocked | None:
        """By where it sleeps."""
        on, what = by_kernel(self.wchan)
        link = only_child(self.rank, self.sources) if on is On.CHILD else None
        return Blocked(on, what, link=link) if on is not None else None

    @property
    def _text(self) -> str:
        return (self.site.source if self.site else None) or ""


def _call(inside: Sequence[Frame]) -> str:
    """What the user's line has called that waits for others of the program: ``queue.get``."""
    outermost = inside[-1] if inside else None
    found = _PYTHON.search(outermost.file) if outermost else None
    if found is None or outermost is None:
        return ""
    return f"{found[1].replace('/', '.')}.{outermost.function.rpartition('.')[2]}"


def _gives_time(call: ast.Call) -> bool:
    return called(call) in ("monotonic", "now", "perf_counter", "time")
