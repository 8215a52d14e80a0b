"""Distinguishes the user's own code from libraries, and finds the thread of a rank that trains.

Decided by the parts of the path alone: the process that was looked at may have
another prefix, or run on another node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile

from hangwatch.model.calls import PackageCall, Site
from hangwatch.model.snapshot import Frame, RankSnapshot, ThreadStack

_INTERNAL = re.compile(
    r"/(?:site|dist)-packages/"
    r"|/lib(?:64)?/python3(?:\.\d+)?t?/"
    r"|/hangwatch/(?:agent|sitecustomize)/"
    r"|/torchinductor_[^/]+/"
    r"|\.(?:so|c|cc|cpp|h|pyx|S)(?:[.\d]*)$"
)
_TYPED = ("<stdin>", "<string>", "<ipython-input", "<python-input")
"""Code that is typed into Python, or passed by -c, has no file."""
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+?)(?:\.py)?(?:/|$)")
_RESTS = re.compile(
    r"/python3(?:\.\d+)?t?/(?:threading\.py|queue\.py|selectors\.py|concurrent/futures/|asyncio/)"
    r"|/(?:site|dist)-packages/ray/"
)
"""In these files a thread waits for others of its process, or for orders."""
_TORCH = re.compile(r"/(?:site|dist)-packages/torch/")
_LOCAL = "<locals>"
_NO_PACKAGES = frozenset({"torch", "functorch", "hangwatch", "typing_extensions"})
"""Their calls are shown as operations; torch also is between a line and what it calls
(no_grad, Module.__call__), as is typing_extensions (deprecated())."""


def is_user_file(file: str, program: str = "") -> bool:
    """True if a file is the user's own code. program: as in Identity (model/page.py).

    Not so: other installed packages, the standard library, hangwatch's agent, what
    inductor generated, native code, and names such as ``<frozen runpy>``.
    """
    if program and file.startswith(program):
        return True
    if not file or (file.startswith("<") and not file.startswith(_TYPED)):
        return False
    return not _INTERNAL.search(file)


def is_user_frame(frame: Frame) -> bool:
    """True if a frame is of the user's own code, as all of the program is, wherever it is."""
    return frame.program or is_user_file(frame.file)


def marked(frames: Iterable[Frame], program: str) -> tuple[Frame, ...]:
    """Return the frames of a process with its program marked (model/page.py: Identity)."""
    if not program:
        return tuple(frames)
    return tuple(
        replace(frame, program=True) if frame.file.startswith(program) else frame
        for frame in frames
    )


def user_frames(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames of user code that have a line, in the order given."""
    return [frame for frame in frames if frame.line > 0 and is_user_frame(frame)]


def site_of(frame: Frame, sources: Mapping[str, str]) -> Site:
    """Return a frame as a site, with its line where the source is at hand."""
    return Site(frame.file, frame.line, frame.function, line_of(sources, frame.file, frame.line))


def with_source(site: Site | None, sources: Mapping[str, str]) -> Site | None:
    """Return a site with its line, where it has none yet and the source is at hand."""
    if site is None or site.source is not None:
        return site
    text = line_of(sources, site.file, site.line)
    return Site(site.file, site.line, site.function, text, site.call)


def line_of(sources: Mapping[str, str], file: str, line: int) -> str | None:
    """Return the stripped line of a file, None where it cannot be had."""
    text = sources.get(file)
    if text is None or line < 1:
        return None
    lines = _lines(text)
    return (lines[line - 1].strip() or None) if line <= len(lines) else None


@lru_cache(maxsize=64)
def _lines(text: str) -> list[str]:
    """Return the lines of a file that many ranks are in."""
    return text.splitlines()


def innermost_user_site(frames: Sequence[Frame], sources: Mapping[str, str]) -> Site | None:
    """Return the innermost line of the user's code in a stack given innermost first, or None."""
    for depth, frame in enumerate(frames):
        if frame.line > 0 and is_user_frame(frame):
            return replace(site_of(frame, sources), call=package_call(frames[:depth]))
    return None


def package_call(inside: Sequence[Frame]) -> PackageCall | None:
    """Return the call of a line into an installed package, by the frames inside, innermost first.

    Wrappers that a decorator has made (``<locals>``) have no name that users know, so
    the wrapped function is named; where there is nothing else, the decorator is.
    """
    of_packages = [
        (found[1], frame.function)
        for frame in reversed(inside)
        if frame.line > 0
        and (found := _PACKAGE.search(frame.file))
        and found[1] not in _NO_PACKAGES
    ]
    if not of_packages:
        return None
    named = [(package, name) for package, name in of_packages if _LOCAL not in name]
    package, function = (named or of_packages)[0]
    inner = next((name for _, name in reversed(named) if _is_public_method(name)), "")
    inner = "" if inner == function else inner
    return PackageCall(package, function.partition(f".{_LOCAL}")[0], inner)


def _is_public_method(name: str) -> bool:
    """True if a name is clear without its module: that of a class's method, and not private."""
    owner, _, last = name.rpartition(".")
    return bool(owner) and (not last.startswith(("_", "<")) or last.endswith("__"))


def main_thread(threads: Sequence[ThreadStack] | None, pid: int = 0) -> ThreadStack | None:
    """Return the main thread of a process, None where there is no stack."""
    if not threads:
        return None
    for thread in threads:
        if thread.name == "MainThread" or (pid > 0 and thread.tid == pid):
            return thread
    return threads[0]


def program_thread(rank: RankSnapshot) -> ThreadStack | None:
    """Return the thread of a rank that trains, None where there is no stack.

    It is the main one, unless that rests while another one alone makes the calls, as where a
    launcher runs the training function in a thread. Which thread makes C++'s calls is not known:
    then it is the main one if that of another rank is in torch, whichever thread else makes calls,
    and else the one that is in the user's code, and at work or in torch.
    """
    main = main_thread(rank.threads, rank.pid)
    if main is None or not rests(main.frames):
        return main
    made = [record.thread for record in reversed(rank.ops) if record.thread]
    callers = set(takewhile(lambda tid: tid not in (rank.pid, main.tid), made))
    by_cpp = any(record.source == "flight" for record in rank.ops)
    if (rank.main_trains and (by_cpp or not callers)) or (made and not callers):
        return main
    others = [
        thread
        for thread in rank.threads or ()
        if thread is not main and user_frames(thread.frames) and not rests(thread.frames)
    ]
    trains = [thread for thread in others if not callers or {thread.tid} == callers]
    return trains[0] if len(trains) == 1 else main


def know_trainers(ranks: Iterable[RankSnapshot]) -> tuple[RankSnapshot, ...]:
    """Return a job's ranks, with ``main_trains`` if the main thread of one of them is in torch."""
    known = tuple(ranks)
    if any(_is_in_torch(main_thread(rank.threads, rank.pid)) for rank in known):
        return tuple(replace(rank, main_trains=True) for rank in known)
    return known


def _is_in_torch(thread: ThreadStack | None) -> bool:
    """True if it has called torch from a line of the user's."""
    frames = thread.frames if thread else ()
    inside = [frame.file for frame in takewhile(lambda frame: not is_user_frame(frame), frames)]
    return len(inside) < len(frames) and any(map(_TORCH.search, inside))


def rests(frames: Iterable[Frame]) -> bool:
    """True if a thread waits by nothing but Python's own means; a data loader does so, too."""
    python = (frame for frame in frames if frame.file.endswith(".py"))
    inside = [frame.file for frame in takewhile(lambda frame: not is_user_frame(frame), python)]
    return bool(inside) and all(map(_RESTS.search, inside))
