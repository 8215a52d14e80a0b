"""Tells Prometheus where this node's watchdogs are.

``<base>/hangwatch-metrics/<uid>-NAME.json``, one for each watchdog, in the format of
Prometheus' file_sd_config, which takes a ``*`` in the last part of a path only: so
all users have one directory, if root has made it, which anybody may add to as to /tmp.
Whoever owns it can replace what others leave there; so where that is another user, this
one has ``<base>/hangwatch-metrics-<uid>`` instead. The base is that of the run directories
(rundir.py), which are private; these files may be read by all.
Each is locked (flock(2)) by its watchdog: one whose lock is free was left behind, and
is removed by the next watchdog of that user.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SUFFIX = ".json"
DIRECTORY = "hangwatch-metrics"
_UNFINISHED = ".tmp"
"""Not to be found by Prometheus' glob."""
_ROOT = 0
_SHARED, _OWN = 0o1777, 0o755
"""In root's everybody adds, and removes what is their own (the sticky bit)."""
_YOUNG_S = 60.0
"""An unfinished file younger than this may still be at work."""


class Targets:
    """The file of one watchdog, there from publish() to withdraw()."""

    def __init__(self, base: Path, name: str) -> None:
        self._base = base
        self._directory = base / DIRECTORY
        self.refused = ""
        """Why the directory that Prometheus knows is not used, empty where it is."""
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
        content = json.dumps([{"targets": [target], "labels": dict(labels)}])
        try:
            self._write(self._base / DIRECTORY, content)
        except OSError as error:
            self.refused = error.strerror or str(error)
            self._write(self._base / f"{DIRECTORY}-{os.getuid()}", content)

    def _write(self, directory: Path, content: str) -> None:
        _make(directory)
        self._directory = directory
        self._sweep()
        fresh = directory / f"{self._name}-{os.getpid()}{_UNFINISHED}"
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

    def _sweep(self) -> None:
        for path in self._directory.iterdir():
            with suppress(OSError):
                found = path.lstat()
                young = time.time() - found.st_mtime < _YOUNG_S
                if found.st_uid == os.getuid() and (path.suffix == SUFFIX or not young):
                    _remove_abandoned(path)


def _make(directory: Path) -> None:
    """Make a directory, or take one that nobody but root could play with. Raises OSError."""
    with suppress(FileExistsError):
        directory.mkdir(mode=_OWN)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {_ROOT, os.getuid()}:
        raise OSError(f"{directory} is somebody else's: have root make it, with mode 1777")
    mode = _SHARED if os.getuid() == _ROOT and directory.name == DIRECTORY else _OWN
    if found.st_uid == os.getuid():
        if stat.S_IMODE(found.st_mode) != mode:
            directory.chmod(mode)
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise OSError(f"{directory} lets all delete what is others': have root give it mode 1777")


def _remove_abandoned(path: Path) -> None:
    """Remove a file that nobody has locked. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.lstat()):  # else it was replaced just now
            path.unlink()
    finally:
        os.close(handle)
