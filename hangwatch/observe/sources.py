"""Reads the user's source files that a verdict may quote, or follow a program through.

Only the program, files that a site or a stack names, and those that they import: those that are
the user's own, and have not changed since the rank started (else line 42 is another line by now),
and only so much of them.
"""

from __future__ import annotations

import ast
import os
import time
import warnings
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hangwatch.frames import is_user_file
from hangwatch.safety import redaction, untrusted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangwatch.types.snapshot import RankSnapshot

MAX_FILE_BYTES = 256 << 10
MAX_TOTAL_BYTES = 1 << 20
MAX_FILES = 64
IMPORTS_S = 0.4
"""For so long imports are followed."""


def files_of(ranks: Iterable[RankSnapshot]) -> dict[str, int]:
    """The user's files that these ranks name, each with the pid of one that does."""
    found: dict[str, int] = {}
    for rank in ranks:
        for file in _named(rank):
            if is_user_file(file, rank.program):
                found.setdefault(file, rank.pid)
    return found


def read(
    files: dict[str, int],
    started_at: float,
    proc: str = "/proc",
    into: dict[str, str] | None = None,
) -> dict[str, str]:
    """The text of files, and of those of the user's that they import, without secrets.

    Only of those older than started_at (seconds of the epoch). A relative name is looked up where
    the process with that pid works. What cannot be read is left out. into: filled as the files
    are read, for who cannot wait for all.
    """
    texts = {} if into is None else into
    room, until = MAX_TOTAL_BYTES, time.monotonic() + IMPORTS_S
    todo, seen = deque[tuple[str, int]](list(files.items())[:MAX_FILES]), set[Path]()
    imports = _Imports()
    left = len(todo)
    while todo and len(texts) < MAX_FILES:
        file, pid = todo.popleft()
        left -= 1
        with suppress(OSError):
            path = _located(file, pid, proc)
            data = _bytes(path, started_at) if path not in seen else None
            seen.add(path)
            if data is None or len(data) > room:
                continue
            room -= len(data)
            text = data.decode("utf-8", "replace")
            texts[file] = redaction.source(text)
            imports.read(path, text)
        if left <= 0 and time.monotonic() < until:
            named = (str(path) for path in imports.found() if path not in seen)
            todo.extend((name, pid) for name in named if is_user_file(name))
    return texts


class _Imports:
    """The modules that files import, looked for beside these files and above their packages."""

    def __init__(self) -> None:
        self._roots: dict[Path, None] = {}
        self._entries: dict[Path, frozenset[str]] = {}
        self._wanted: dict[tuple[Path | None, tuple[str, ...]], None] = {}

    def read(self, path: Path, text: str) -> None:
        """Note where a file lies, and what it imports."""
        root = path.parent
        self._roots[root] = None
        while "__init__.py" in self._listed(root) and root != root.parent:
            root = root.parent
        self._roots[root] = None
        for level, parts in _imported(text):
            self._wanted[path.parents[level - 1] if level else None, parts] = None

    def found(self) -> list[Path]:
        """The files of what was imported since it was asked for last."""
        wanted, self._wanted = self._wanted, {}
        return [
            path
            for beside, parts in wanted
            for root in ((beside,) if beside is not None else self._roots)
            if (path := self._module(root, parts)) is not None
        ]

    def _module(self, root: Path, parts: tuple[str, ...]) -> Path | None:
        folder = root.joinpath(*parts[:-1])
        if parts and f"{parts[-1]}.py" in self._listed(folder):
            return folder / f"{parts[-1]}.py"
        inside = root.joinpath(*parts)
        return inside / "__init__.py" if "__init__.py" in self._listed(inside) else None

    def _listed(self, folder: Path) -> frozenset[str]:
        if folder not in self._entries:
            names: frozenset[str] = frozenset()
            with suppress(OSError):
                names = frozenset(path.name for path in folder.iterdir())
            self._entries[folder] = names
        return self._entries[folder]


def _imported(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(how many packages up, the names that lead to it) of each module that a text may import."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's own escapes and comparisons
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, tuple(one.name.split("."))) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = tuple((node.module or "").split(".")) if node.module else ()
            yield node.level, parts
            yield from ((node.level, (*parts, one.name)) for one in node.names)


def _named(rank: RankSnapshot) -> Iterator[str]:
    sites = [op.site for op in reversed(rank.ops)]
    sites += [call.site for call in rank.new_groups]
    sites += [mark.site for mark in rank.marks]
    sites += [rank.in_call_site, rank.exception.site if rank.exception else None]
    yield from (site.file for site in sites if site is not None)
    threads = [*(rank.threads or ()), *(t for child in rank.children for t in child.threads)]
    yield from (frame.file for thread in threads for frame in thread.frames)
    if rank.program.endswith(".py"):
        yield rank.program


def _located(file: str, pid: int, proc: str) -> Path:
    path = Path(file)
    return path if path.is_absolute() else Path(proc, str(pid), "cwd").readlink() / path


def _bytes(path: Path, started_at: float) -> bytes | None:
    """The file if it is one, small and unchanged. Raises OSError."""
    fd = untrusted.open_file(path, follow=True)  # people link their code
    with os.fdopen(fd, "rb") as opened:
        status = os.fstat(fd)
        if status.st_size > MAX_FILE_BYTES:
            return None
        if status.st_mtime > started_at:
            return None
        return opened.read(MAX_FILE_BYTES)
