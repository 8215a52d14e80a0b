"""The directory of one run in shared memory: made, held, swept and removed.

It is ``<base>/hangwatch-<uid>/<run-id>-<pid>`` with mode 0700. The base is
``$HANGWATCH_DIR`` where that is set, else /dev/shm, else the directory for
temporary files. Whoever made it holds a lock (flock(2)) on its file ``lock``
until it ends, by whatever means; a directory whose lock is free has been left
behind and is removed by the next run. A lock and not a pid, since containers
that share /dev/shm do not share their pids.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENOUGH_BYTES = 16 << 20
"""Free space below which a base is passed over: the pages of 16 ranks and more."""
YOUNG_S = 60.0
"""A run directory younger than this is never swept: its lock may not be taken yet."""
LOCK = "lock"


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory that this process holds."""

    path: Path
    lock: int
    """File descriptor that holds the lock; not inherited by children."""
    lost: str = ""
    """What could not be had (a full /dev/shm), or empty."""

    def remove(self) -> None:
        """Delete the directory and let go of it; never raises."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self.lock)


def bases(environ: Mapping[str, str]) -> Iterator[Path]:
    """The bases to try, in order."""
    own = environ.get("HANGWATCH_DIR", "")
    if own:
        yield Path(own).absolute()
    yield Path("/dev/shm")  # noqa: S108 (our directory below it is 0700 and checked to be ours)
    yield Path(tempfile.gettempdir())


def make(run_id: str, environ: Mapping[str, str]) -> RunDir:
    """Make the directory of this run in the first base that serves.

    Raises OSError, with all that was tried in its message, if none does.
    """
    refused: list[str] = []
    for base in bases(environ):
        try:
            parent = _parent(base)
            _sweep(parent)
            path = parent / f"{run_id}-{os.getpid()}"
            path.mkdir(mode=0o700)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            refused.append(f"{base}: {error.strerror or error}")
        else:
            return RunDir(path, lock, lost="; ".join(refused))
    raise OSError("; ".join(refused))


def _parent(base: Path) -> Path:
    """Our own directory below base, private to this user. Raises OSError."""
    space = os.statvfs(base)
    free = space.f_bavail * space.f_frsize
    if free < ENOUGH_BYTES:
        raise OSError(f"only {free >> 10} KiB free")
    parent = base / f"hangwatch-{os.getuid()}"
    with suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OSError(f"{parent.name} belongs to somebody else")
    if found.st_mode & 0o077:
        parent.chmod(0o700)
    return parent


def _sweep(parent: Path) -> None:
    """Remove what ended runs left behind (a supervisor killed by SIGKILL)."""
    for path in parent.iterdir():
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > YOUNG_S and _abandoned(path / LOCK):
                shutil.rmtree(path, ignore_errors=True)


def _abandoned(lock: Path) -> bool:
    """Whether nobody holds the lock; a directory without one was never finished."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
