"""Tells Prometheus where this node's watchdogs are.

``<base>/hangwatch-metrics/<uid>-NAME.json``, one for each watchdog, in the format of
Prometheus' file_sd_config, which takes a ``*`` in the last part of a path only: so
all users have one directory, which anybody may add to as to /tmp. The base is that
of the run directories (rundir.py), which are private; these files may be read by all.
Each is locked (flock(2)) by its watchdog: one whose lock is free was left behind, and
is removed by the next watchdog of that user.
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
    from collections.abc import Mapping
    from pathlib import Path

SUFFIX = ".json"
DIRECTORY = "hangwatch-metrics"
_UNFINISHED = ".tmp"
"""Not to be found by Prometheus' glob."""
_MODE = 0o1777
"""Everybody adds, and removes what is their own (the sticky bit)."""
_YOUNG_S = 60.0
"""An unfinished file younger than this may still be at work."""


class Targets:
    """The file of one watchdog, there from publish() to withdraw()."""

    def __init__(self, base: Path, name: str) -> None:
        self._directory = base / DIRECTORY
        self._name = f"{os.getuid()}-{name}"
        self._lock: int | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory / f"{self._name}{SUFFIX}"

    def publish(self, target: str, labels: Mapping[str, str]) -> None:
        """Write the file, and sweep out what others left behind. Raises OSError.

        labels: of all series of the target, also of those that Prometheus makes (``up``).
        """
        self._make_directory()
        self._sweep()
        content = json.dumps([{"targets": [target], "labels": dict(labels)}])
        fresh = self._directory / f"{self._name}-{os.getpid()}{_UNFINISHED}"
        with suppress(FileNotFoundError):
            fresh.unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(fresh, flags, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held before anybody sees it
            os.fchmod(lock, 0o644)
            os.write(lock, content.encode())
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
            self._directory.mkdir()
        found = self._directory.lstat()
        ours = found.st_uid == os.getuid()
        if not stat.S_ISDIR(found.st_mode) or not (ours or found.st_mode & stat.S_ISVTX):
            raise OSError(f"{self._directory} is somebody else's")
        if ours and stat.S_IMODE(found.st_mode) != _MODE:
            self._directory.chmod(_MODE)

    def _sweep(self) -> None:
        for path in self._directory.iterdir():
            with suppress(OSError):
                found = path.lstat()
                young = time.time() - found.st_mtime < _YOUNG_S
                if found.st_uid == os.getuid() and (path.suffix == SUFFIX or not young):
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
