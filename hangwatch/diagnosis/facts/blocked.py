"""What a rank that is in no collective waits for: by its stack, its line, and the kernel."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.awaited import (
    INPUT,
    On,
    by_kernel,
    has_returned,
    missing_child,
    missing_thread,
    only_child,
    other_thread,
)
from hangwatch.diagnosis.facts.locks import holder, lock_taken
from hangwatch.diagnosis.source.program import Line
from hangwatch.diagnosis.source.syntax import in_body, own
from hangwatch.frames import innermost_user_site, is_user_frame, program_thread, site_of
from hangwatch.types.snapshot import Frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangwatch.diagnosis.facts.awaited import Link
    from hangwatch.diagnosis.facts.stores import Setter
    from hangwatch.diagnosis.source.program import Program
    from hangwatch.types.calls import Site
    from hangwatch.types.snapshot import RankSnapshot


@dataclass(frozen=True, slots=True)
class Blocked:
    """A wait. what: of what, ``the lock `self.lock```; call: of Python's own, ``queue.get``."""

    on: On
    what: str = ""
    call: str = ""
    link: Link | None = None
    until: Site | None = None
    """The loop that sleeps until something has come about."""
    instead: Setter | None = None
    """Where a key of nearly that name was set."""


_PYTHON = re.compile(
    r"/python3(?:\.\d+)?t?/(threading|queue|selectors|subprocess|multiprocessing/\w+"
    r"|concurrent/futures/\w+|asyncio/\w+)\.py$"
)
"""Modules by which threads and processes of a program wait for each other."""
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
    if thread is None or not thread.frames or thread.active:
        return None
    inside = list(takewhile(lambda frame: not is_user_frame(frame), thread.frames))
    site = innermost_user_site(thread.frames, sources)
    wchan = rank.process.wchan if thread.tid == rank.pid else ""
    look = _Look(rank, peers, sources, program, inside, site, wchan)
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
        lock = lock_taken(self._text, self.wchan, _call(self.inside))
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
            missing = missing_thread(self.rank, peers, self.sources)
            link = missing or other_thread(self.rank, peers, self.sources)
            return Blocked(On.THREAD, call=call, link=link)
        return None

    def by_line(self) -> Blocked | None:
        """By the text of its line."""
        if self.inside or self.site is None:
            return None
        if _SLEEPS.search(self._text):
            until = _loop(self.site, self.sources, self.program)
            return Blocked(On.SLEEP, "time to pass", until=until)
        return Blocked(On.INPUT, INPUT) if _ASKS.search(self._text) else None

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


def _loop(site: Site, sources: Mapping[str, str], program: Program) -> Site | None:
    """The innermost ``while`` around a line that asks for something."""
    scope = program.scope_at(Line(site.file, site.line))
    loops = [
        node.lineno
        for node in (own(scope) if scope is not None else ())
        if isinstance(node, ast.While)
        and not isinstance(node.test, ast.Constant)
        and in_body(node, site.line)
    ]
    line = max(loops, default=0)
    return site_of(Frame(site.file, line, site.function), sources) if line else None
