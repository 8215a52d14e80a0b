"""Tells Prometheus where this node's watchdogs are.

``<base>/hangwatch-metrics-<uid>/NAME.json``, one for each watchdog, in the format of
Prometheus' file_sd_config: a glob of all of them finds every job of the node. The base
is that of the run directories (rundir.py), which are private; these files may be read
by all. Each is locked (flock(2)) by its watchdog: one whose lock is free was left
behind, and is removed by the next watchdog.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".json"
_UNFINISHED = ".tmp"
"""Not to be found by Prometheus' glob."""
_YOUNG_S = 60.0
"""An unfinished file younger than this may still be at work."""


class Targets:
    """The file of one watchdog, there from publish() to withdraw()."""

    def __init__(self, base: Path, name: str) -> None:
        self._directory = base / f"hangwatch-metrics-{os.getuid()}"
        self._name = name
        self._lock: int | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory / f"{self._name}{SUFFIX}"

    def publish(self, target: str) -> None:
        """Write the file, and sweep out what others left behind. Raises OSError."""
        self._make_directory()
        self._sweep()
        fresh = self._directory / f"{self._name}-{os.getpid()}{_UNFINISHED}"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(fresh, flags, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held before anybody sees it
            os.fchmod(lock, 0o644)
            os.write(lock, json.dumps([{"targets": [target], "labels": {}}]).encode())
            fresh.replace(self.path)
        except OSError:
            os.close(lock)
            with suppress(OSError):
                fresh.unlink()
            raise
        self._lock = lock

    def withdraw(self) -> None:
        """Remove the file; never raises."""
        if self._lock is None:
            return
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._lock), self.path.lstat()):
                self.path.unlink()
        os.close(self._lock)
        self._lock = None

    def _make_directory(self) -> None:
        with suppress(FileExistsError):
            self._directory.mkdir(mode=0o755)
        found = self._directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise OSError(f"{self._directory} belongs to somebody else")
        if stat.S_IMODE(found.st_mode) != 0o755:  # noqa: PLR2004 (its mode)
            self._directory.chmod(0o755)

    def _sweep(self) -> None:
        for path in self._directory.iterdir():
            with suppress(OSError):
                unfinished = path.suffix != SUFFIX
                if unfinished and time.time() - path.lstat().st_mtime < _YOUNG_S:
                    continue
                _remove_abandoned(path)


def _remove_abandoned(path: Path) -> None:
    """Remove a file that nobody has locked. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.lstat()):  # else it was replaced just now
            path.unlink()
    finally:
        os.close(handle)
