"""The directory of one run in shared memory: made, held, swept and removed.

It is ``<base>/hangwatch-<uid>/<run-id>-<pid>`` with mode 0700. The base is
``$HANGWATCH_DIR`` if that is set, else /dev/shm, else the directory for temporary files,
else ``$XDG_RUNTIME_DIR``. If another user has taken that name in all of them, it is
``<base>/hangwatch-<uid>-<random>``, which no one can take first; the next run finds the
first that is ours. The process that made the directory of a run holds a lock (flock(2)) on its
file ``lock`` until it ends, by whatever means; a directory whose lock is free was left behind,
and the next run sweeps it. A lock and not a pid, since containers that share /dev/shm do not
share their pids.

Commands that were started for one rank each (run/shared_run.py) share the directory
``<base>/hangwatch-<uid>/job-<hash>``: each holds a shared lock on it, and the last
one to leave removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from hangwatch.safety import untrusted
from hangwatch.safety.foreign import Ignoring, is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

ENOUGH_BYTES = 16 << 20
"""Free space below which a base is passed over: the pages of 16 ranks and more."""
YOUNG_S = 60.0
"""A run directory younger than this is never swept: its lock may not be taken yet."""
LOCK = "lock"
PARENT = re.compile(r"hangwatch-(?P<uid>[0-9]+)(?:-[a-z0-9_]+)?")
"""Names of directories that hold those of a user's runs."""
_TRIES = 200
_LOCK_TRIES = 50
_DELETE_TRIES = 3
_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory that this process holds."""

    path: Path
    lock: int
    """File descriptor that holds the lock; not inherited by children."""
    lost: str = ""
    """Bases that were refused, and why (a full /dev/shm); empty if none was."""
    shared: bool = False

    def remove(self) -> None:
        """Let go of the directory, and delete it unless others hold it; never raises."""
        if not self.shared:
            for _ in range(_DELETE_TRIES):  # a rank that lives on may add files meanwhile
                shutil.rmtree(self.path, ignore_errors=True)
                if not os.path.lexists(self.path):
                    break
        elif untrusted.take_lock(self.lock, fcntl.LOCK_EX):
            shutil.rmtree(self.path, ignore_errors=True)  # once: it may be another's again
        with suppress(OSError):
            os.close(self.lock)


def bases(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the bases to try, in order."""
    own = environ.get("HANGWATCH_DIR", "")
    if own:
        with Ignoring(OSError):  # relative, and the working directory is gone
            yield Path(own).absolute()
    yield Path("/dev/shm")  # noqa: S108 (our directory below it is 0700 and checked to be ours)
    with Ignoring(OSError):  # there is none
        yield Path(tempfile.gettempdir())
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        yield Path(runtime)


def make(run_id: str, environ: Mapping[str, str]) -> RunDir:
    """Make the directory of this run in the first base that is usable.

    Raises OSError that names all refused bases if none is.
    """

    def take(parent: Path) -> RunDir:
        path = parent / f"{run_id}-{os.getpid()}"
        path.mkdir(mode=0o700)
        try:
            lock = untrusted.create(path / LOCK)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return RunDir(path, lock)

    return _in_first_base(environ, take)


def join(name: str, environ: Mapping[str, str]) -> RunDir:
    """Make or join the directory that the commands of one job share. Raises OSError.

    Ranks call it, in which a signal handler of the program may raise a TimeoutError.
    """
    return _in_first_base(environ, lambda parent: _join(parent / name))


def _in_first_base(environ: Mapping[str, str], take: Callable[[Path], RunDir]) -> RunDir:
    refused: list[str] = []
    taken: list[Path] = []
    parents = chain(
        ((_parent, base) for base in bases(environ)), ((_private_parent, base) for base in taken)
    )
    for find, base in parents:
        try:
            held = take(find(base))
        except OSError as error:
            if is_foreign(error):
                raise
            refused.append(f"{base}: {error.strerror or error}")
            if isinstance(error, TakenError):
                taken.append(base)
        else:
            return replace(held, lost="; ".join(refused))
    raise OSError("; ".join(refused))


def _join(path: Path) -> RunDir:
    for _ in range(_TRIES):
        with Ignoring(FileExistsError):
            path.mkdir(mode=0o700)
        try:
            lock = untrusted.open_ours(path / LOCK, create=True)
        except FileNotFoundError:
            continue  # its last holder has just removed it
        joined = False
        try:
            # A deleted lock file says nothing about a directory that was made since.
            if untrusted.take_lock(lock, fcntl.LOCK_EX) and untrusted.is_at(lock, path / LOCK):
                empty(path)  # no one else is here: the files were left behind
            # A process that has it alone for an instant empties or removes it.
            joined = untrusted.take_lock(lock, fcntl.LOCK_SH) and untrusted.is_at(lock, path / LOCK)
        finally:
            if not joined:
                os.close(lock)
        if joined:
            return RunDir(path, lock, shared=True)
        time.sleep(_PAUSE_S)
    raise OSError(f"{path.name} cannot be joined")


def empty(path: Path, *, keep: Collection[str] = (LOCK,)) -> None:
    """Delete the files in a run directory except those of these names."""
    for entry in path.iterdir():
        if entry.name not in keep:
            with Ignoring(OSError):
                entry.unlink()


class TakenError(OSError):
    """Raised for a directory of our name that another user has made or filled."""


def _parent(base: Path) -> Path:
    """Return our own directory below base, private to this user. Raises OSError."""
    space = os.statvfs(base)
    free = space.f_bavail * space.f_frsize
    if free < ENOUGH_BYTES:
        raise OSError(f"only {free >> 10} KiB free")
    parent = base / f"hangwatch-{os.getuid()}"
    with Ignoring(FileExistsError):
        parent.mkdir(mode=0o700)
    if not _is_ours(parent):
        raise TakenError(f"{parent.name} belongs to another user")
    if parent.lstat().st_mode & 0o077:
        parent.chmod(0o700)
    for path in parent.iterdir():
        with Ignoring(FileNotFoundError):  # its run has just ended
            if path.lstat().st_uid != os.getuid():
                # It was open to all once, and others may have made files that look like ours.
                raise TakenError(f"{parent.name} holds files of others: delete it")
    return parent


def _private_parent(base: Path) -> Path:
    """Return a directory whose name no one can guess before it exists. Raises OSError.

    All supervisors of a job must find the same one, so the first is taken again.
    """
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_LOCK_TRIES):  # others may hold it for as long as they like
            if untrusted.take_lock(handle, fcntl.LOCK_EX):
                break
            time.sleep(_PAUSE_S)
        with os.scandir(base) as entries:
            names = sorted(entry.name for entry in entries if PARENT.fullmatch(entry.name))
        prefix = f"hangwatch-{os.getuid()}-"
        for name in names:
            path = base / name
            if name.startswith(prefix) and _is_ours(path) and not path.lstat().st_mode & 0o077:
                return path
        return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    finally:
        os.close(handle)


def _is_ours(path: Path) -> bool:
    """Return True for a directory of this user that is no link."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def sweep(parent: Path) -> None:
    """Remove the directories that killed supervisors left behind; never raises.

    parent: the directory that holds those of this user's runs.
    """
    names = []
    with suppress(OSError):
        names = untrusted.names(parent)
    for name in names:
        path = parent / name
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > YOUNG_S:
                remove_abandoned(path)


def remove_abandoned(path: Path) -> bool:
    """Remove the directory of a run if its lock is free; True if it was. Raises OSError.

    One without a lock was never finished.
    """
    try:
        handle = untrusted.open_ours(path / LOCK)
    except FileNotFoundError:
        shutil.rmtree(path, ignore_errors=True)
        return True
    try:
        free = untrusted.take_lock(handle, fcntl.LOCK_EX)
        if free:
            shutil.rmtree(path, ignore_errors=True)
        return free
    finally:
        os.close(handle)
