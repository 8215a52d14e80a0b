"""Keeps the tracebacks of our own faults out of the job's output.

``watchdog.log`` lies in the directory of the run. Supervisors and the watchdog write to it; it
is copied next to the reports, which name it in what was lost.
"""

from __future__ import annotations

import fcntl
import os
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from hangwatch.safety import untrusted

if TYPE_CHECKING:
    from pathlib import Path

FILE = "watchdog.log"
MAX_BYTES = 256 << 10
"""Most bytes that are kept, of the last ones; at least half of it."""
MAX_ENTRY_BYTES = 16 << 10
_MAX_KINDS = 256
"""Faults that are counted each for itself; all others are counted as one."""
_FRAMES = 40

_counts: dict[tuple[str, ...], int] = {}
"""Fault to how often it happened in this process."""


def log_fault(run_dir: Path | None, what: str, error: BaseException) -> str:
    """Keep a traceback; return its place for people, empty if it could not be kept.

    what: the task that failed, in a few words. Of a fault that repeats the first, the second,
    the fourth, the eighth ... is kept. Raises nothing and waits for nothing.
    """
    if run_dir is None:
        return ""
    try:
        kind = (what, type(error).__name__, _site(error))
        if kind not in _counts and len(_counts) >= _MAX_KINDS:
            kind = ("", "", "")
        count = _counts[kind] = _counts.get(kind, 0) + 1
        if count & (count - 1) == 0:
            _append(run_dir, _entry(what, error, count))
    except Exception:  # noqa: BLE001 (the last resort has none)
        return ""
    return f"traceback in {FILE}"


def open_log(run_dir: Path) -> int:
    """Open the log, to be appended to. Raises OSError."""
    return untrusted.open_ours(run_dir / FILE, os.O_RDWR | os.O_APPEND, create=True)


def logged(run_dir: Path | None) -> bytes:
    """Return the content of the log, empty if there is none."""
    if run_dir is None:
        return b""
    with suppress(OSError):
        fd = untrusted.open_ours(run_dir / FILE, os.O_RDONLY)
        try:
            return os.pread(fd, MAX_BYTES, max(0, os.fstat(fd).st_size - MAX_BYTES))
        finally:
            os.close(fd)
    return b""


def _site(error: BaseException) -> str:
    """Return the line that raised ``error``."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""


def _entry(what: str, error: BaseException, count: int) -> bytes:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    times = f", {count} times by now" if count > 1 else ""
    lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-_FRAMES)
    text = f"{now} process {os.getpid()}: {what}{times}\n{''.join(lines)}"
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MAX_ENTRY_BYTES:
        return data
    half = MAX_ENTRY_BYTES // 2
    return data[:half] + b"\n...\n" + data[-half + 6 :]


def _append(run_dir: Path, entry: bytes) -> None:
    fd = open_log(run_dir)
    try:
        if os.fstat(fd).st_size + len(entry) > MAX_BYTES:
            _shorten(fd)
        os.write(fd, entry)
    finally:
        os.close(fd)


def _shorten(fd: int) -> None:
    """Keep the last half, in place: others have the file open as well."""
    with suppress(BlockingIOError):  # another process does it
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = os.fstat(fd).st_size
        tail = os.pread(fd, MAX_BYTES // 2, max(0, size - MAX_BYTES // 2))
        os.ftruncate(fd, 0)
        os.write(fd, tail)
        fcntl.flock(fd, fcntl.LOCK_UN)
