"""Reads the user's source files that a verdict may quote.

Only files that a site or a stack names, that are the user's own, that have not
changed since the rank started (else line 42 is another line by now), and only so
much of them.
"""

from __future__ import annotations

import os
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
_OPS = 16
"""So many of a rank's last calls are looked at."""


def files_of(ranks: Iterable[RankSnapshot]) -> dict[str, int]:
    """The user's files that these ranks name, each with the pid of one that does."""
    found: dict[str, int] = {}
    for rank in ranks:
        for file in _named(rank):
            if is_user_file(file, rank.program):
                found.setdefault(file, rank.pid)
    return found


def read(files: dict[str, int], started_at: float, proc: str = "/proc") -> dict[str, str]:
    """The text of files that are older than started_at (seconds of the epoch), without secrets.

    A relative name is looked up where the process with that pid works. What
    cannot be read is left out.
    """
    texts: dict[str, str] = {}
    room = MAX_TOTAL_BYTES
    for file, pid in list(files.items())[:MAX_FILES]:
        with suppress(OSError):
            data = _bytes(_located(file, pid, proc), started_at)
            if data is not None and len(data) <= room:
                room -= len(data)
                texts[file] = redaction.source(data.decode("utf-8", "replace"))
    return texts


def _named(rank: RankSnapshot) -> Iterator[str]:
    sites = [op.site for op in rank.ops[-_OPS:]]
    sites += [op.site for op in rank.ops if op.blocked_age_s is not None]
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
    """The file if it is one, small and unchanged. Raises OSError."""
    fd = untrusted.open_file(path, follow=True)  # people link their code
    with os.fdopen(fd, "rb") as opened:
        status = os.fstat(fd)
        if status.st_size > MAX_FILE_BYTES:
            return None
        if status.st_mtime > started_at:
            return None
        return opened.read(MAX_FILE_BYTES)
