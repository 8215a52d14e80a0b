"""Reads the user's source files that a verdict may quote, or follow a program through.

Only the program, files that a site or a stack names, and files that they import: if they are
the user's own, and have not changed since the rank started (else line 42 is another line by now),
and up to a total size.
"""

from __future__ import annotations

import ast
import os
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from hangwatch.evidence import timing
from hangwatch.evidence.background import in_thread
from hangwatch.model.frames import is_user_file
from hangwatch.model.snapshot import RankSnapshot
from hangwatch.safety import redaction, untrusted

MAX_FILE_BYTES = 256 << 10
MAX_TOTAL_BYTES = 1 << 20
MAX_FILES = 64


def files_of(ranks: Iterable[RankSnapshot]) -> dict[str, int]:
    """Return the user's files that these ranks name, and their programs, with the pid of one."""
    files: dict[str, int] = {}
    programs: dict[str, int] = {}
    for rank in ranks:
        for file in _named(rank):
            if is_user_file(file, rank.program):
                files.setdefault(file, rank.pid)
        if rank.program.endswith(".py"):
            programs.setdefault(rank.program, rank.pid)
    # A program may have been started by a relative name.
    relative = [f"/{Path(file)}" for file in files if not file.startswith("/")]
    for file, pid in programs.items():
        if not file.endswith(tuple(relative)):
            files.setdefault(file, pid)
    return files


def read(
    files: dict[str, int],
    started_at: float,
    proc: str = "/proc",
    into: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return the text of files, and of the user's files that they import, without secrets.

    Only of files older than started_at (seconds of the epoch). A relative name is looked up where
    the process with that pid works. Files that cannot be read are left out. into: filled as the
    files are read, for a caller that cannot wait for all.
    """
    texts = {} if into is None else into
    until, room, imports = time.monotonic() + timing.IMPORTS_S, MAX_TOTAL_BYTES, _Imports()
    unread, seen = deque[tuple[Path, str]](), set[Path]()

    def take(file: str, path: Path) -> None:
        nonlocal room
        seen.add(path)
        data = _bytes(path, started_at) if len(texts) < MAX_FILES else None
        if data is not None and len(data) <= room:
            room -= len(data)
            text = data.decode("utf-8", "replace")
            texts[file] = redaction.source(text)
            imports.lies_at(path)
            unread.append((path, text))

    for file, pid in list(files.items())[:MAX_FILES]:
        with suppress(OSError):
            take(file, _located(file, pid, proc))
    while unread and time.monotonic() < until:
        for path in imports.of(*unread.popleft()):
            if path not in seen and is_user_file(str(path)):
                with suppress(OSError):
                    take(str(path), path)
    return texts


async def read_in_time(
    files: dict[str, int], started_at: float, within_s: float, proc: str = "/proc"
) -> tuple[dict[str, str], bool]:
    """Return the text of the files that could be read in time, and True if all could."""
    texts: dict[str, str] = {}
    work = partial(read, files, started_at, proc, into=texts)
    try:
        await in_thread(work, within_s)
    except TimeoutError:
        return dict(texts), False
    return texts, True


class _Imports:
    """The modules that files import, looked for next to these files and above their packages."""

    def __init__(self) -> None:
        self._roots: dict[Path, None] = {}
        self._entries: dict[Path, frozenset[str]] = {}

    def lies_at(self, path: Path) -> None:
        """Note the directory of a file: others may be imported from there."""
        root = path.parent
        self._roots[root] = None
        while "__init__.py" in self._listed(root) and root != root.parent:
            root = root.parent
        self._roots[root] = None

    def of(self, path: Path, text: str) -> list[Path]:
        """Return the files of the modules that a file imports, as far as they are found."""
        return [
            file
            for level, parts in dict.fromkeys(_imported(text))
            for root in (path.parents[level - 1 : level] if level else list(self._roots))
            if (file := self._module(root, parts)) is not None
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
    """Yield (number of packages up, the names that lead to it) of each module that is imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's own escapes and comparisons
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = tuple((node.module or "").split(".")) if node.module else ()
            yield node.level, parts
            yield from ((node.level, (*parts, alias.name)) for alias in node.names)


def _named(rank: RankSnapshot) -> Iterator[str]:
    sites = [op.site for op in reversed(rank.ops)]
    sites += [call.site for call in rank.new_groups]
    sites += [mark.site for mark in rank.marks]
    sites += [rank.in_call_site, rank.exception.site if rank.exception else None]
    yield from (site.file for site in sites if site is not None)
    threads = [*(rank.threads or ()), *(t for child in rank.children for t in child.threads)]
    yield from (frame.file for thread in threads for frame in thread.frames)


def _located(file: str, pid: int, proc: str) -> Path:
    path = Path(file)
    return path if path.is_absolute() else Path(proc, str(pid), "cwd").readlink() / path


def _bytes(path: Path, started_at: float) -> bytes | None:
    """Return the content of a file that is small and unchanged, else None. Raises OSError."""
    fd = untrusted.open_file(path, follow=True)  # people link their code
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        usable = status.st_size <= MAX_FILE_BYTES and status.st_mtime <= started_at
        return file.read(MAX_FILE_BYTES) if usable else None
