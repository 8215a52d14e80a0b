"""Opens paths that others could have made: the files of runs and reports, and of jobs.

A FIFO blocks its opener, a link leads to ``/dev/zero`` or to a file of root's, a device acts
when it is opened, a sparse file has more bytes than there is memory. One rule for all these
paths, and here only:

- A file is examined before it is opened (O_PATH), and opened by the handle that was examined:
  only a regular file, which cannot be swapped in between.
- No symbolic link is followed in the last part of a path, nor in the directory of a file
  whose owner counts. The parts before that are the operator's, or the system's.
- Nothing waits: for no writer of a FIFO, no lock, no lease (O_NONBLOCK, LOCK_NB).
- The bytes and names that are read are bounded, however large a file is or grows.

In the directory of a run a file's owner counts (Owner.DIRECTORY): the file and its directory
have to belong to this user. Root's own commands (top, inspect, doctor) look at the runs of all
users: there both have to belong to one user, so that no user has root read another one's file
by a hard link. Reports, dumps and pages that the operator names (Owner.ANYBODY) are read with
the operator's own rights.

A path that is refused raises RefusedError, an OSError whose ``strerror`` says why. A file
system that hangs (NFS without a server) still blocks its reader.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from contextlib import contextmanager, suppress
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NAMES = 1 << 16
"""Entries of one directory that are looked at."""
MAX_VALUES = 4_000_000
"""Values in one JSON text, which take some 300 MB at the most."""
_CHUNK_BYTES = 1 << 20
_LOOK = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LIST = _READ | os.O_DIRECTORY
_PROC = "/proc"
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Owner(Enum):
    """The owner that a file has to have."""

    ANYBODY = auto()
    DIRECTORY = auto()
    """Its directory's owner, who is this user, or any user if this one is root."""


class RefusedError(OSError):
    """Raised for a path that is not to be opened."""

    def __init__(self, why: str, path: Path) -> None:
        super().__init__(errno.EPERM, why, str(path))


def open_file(path: Path, owner: Owner = Owner.ANYBODY, *, follow: bool = False) -> int:
    """Return a file descriptor to read a regular file by. Raises OSError.

    follow: the operator has typed this path, so it may be a link.
    """
    if owner is Owner.ANYBODY:
        return _open(path, str(path), None, follow=follow)
    directory = os.open(path.parent, _LOOK | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_owner(directory, path.parent)
        return _open(path, path.name, directory, follow=False)
    finally:
        os.close(directory)


def read(
    path: Path, most_bytes: int, owner: Owner = Owner.ANYBODY, *, follow: bool = False
) -> bytes:
    """Return the content of a file. Raises OSError, also where it has more than most_bytes."""
    handle = open_file(path, owner, follow=follow)
    try:
        size = os.fstat(handle).st_size
        data = b"" if size > most_bytes else read_from(handle, most_bytes + 1)
    finally:
        os.close(handle)
    if max(size, len(data)) > most_bytes:
        raise RefusedError(f"it has {max(size, len(data))} bytes, more than {most_bytes}", path)
    return data


def read_from(handle: int, most_bytes: int) -> bytes:
    """Read from a file descriptor up to its end or most_bytes. Raises OSError."""
    parts = []
    left = most_bytes
    while left > 0 and (part := os.read(handle, min(left, _CHUNK_BYTES))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_json(
    path: Path, most_bytes: int, owner: Owner = Owner.ANYBODY, *, follow: bool = False
) -> Any:
    """Return the value of a JSON file. Raises OSError, and ValueError for malformed JSON."""
    return parse_json(read(path, most_bytes, owner, follow=follow))


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError.

    A list of empty lists takes 30 times as much memory as its text: values are counted.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES} values")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_number(text: str, most_digits: int = 9) -> int | None:
    """Return the number that plain digits stand for, None for any other text, or a longer one."""
    plain = text.isascii() and text.isdecimal() and len(text) <= most_digits
    return int(text) if plain else None


def names(
    directory: Path,
    owner: Owner = Owner.ANYBODY,
    *,
    follow: bool = False,
    most: int = MAX_NAMES,
) -> list[str]:
    """Return the names in a directory, at most ``most``. Raises OSError."""
    handle = os.open(directory, _LIST if follow else _LIST | os.O_NOFOLLOW)
    try:
        if owner is Owner.DIRECTORY:
            _check_owner(handle, directory)
        with os.scandir(handle) as entries:
            return [entry.name for entry in islice(entries, most)]
    finally:
        os.close(handle)


def is_directory(path: Path) -> bool:
    """Return True if ``path`` is a directory, and no link to one."""
    with suppress(OSError, ValueError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def is_locked(path: Path) -> bool:
    """Return True if a process holds a lock (flock(2)) on a file. Raises OSError.

    The test takes the lock shared for an instant, without waiting.
    """
    handle = open_file(path, Owner.DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def open_ours(path: Path, flags: int = os.O_RDWR, *, create: bool = False) -> int:
    """Return a file descriptor of a file of this user, empty if it is new. Raises OSError."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if create:
        with Ignoring(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    _check_ours(path.lstat(), path)  # a device is not even opened
    handle = os.open(path, flags)
    try:
        _check_ours(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def take_lock(handle: int, kind: int) -> bool:
    """Take or change a lock (flock(2)) without waiting; True if that succeeded."""
    with Ignoring(OSError):
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
        return True
    return False


def is_at(handle: int, path: Path) -> bool:
    """Return True if an open file still lies at a path."""
    with Ignoring(OSError):
        return os.path.samestat(os.fstat(handle), path.lstat())
    return False


def create(path: Path) -> int:
    """Return a file descriptor of a new file that only this user may read. Raises OSError.

    A file of that name is replaced, a directory is not.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def replace(path: Path, data: bytes) -> None:
    """Write a file, 0600, whole or not at all. Raises OSError."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    handle = create(fresh)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        fresh.replace(path)
    except OSError:
        with Ignoring(OSError):  # half a file would only fill the memory that it lies in
            fresh.unlink()
        raise


@contextmanager
def held_directory(path: Path) -> Iterator[Path]:
    """Yield a path that leads to a directory whatever is renamed meanwhile. Raises OSError.

    The directory must not be a link, and has to have the owner of our own files in it: on a
    network file system root's files may belong to the user nobody.
    """
    handle = os.open(path, _LIST | os.O_NOFOLLOW)
    try:
        held = Path(_PROC, "self", "fd", str(handle))
        probe = held / f".probe-{os.getpid()}-{os.urandom(4).hex()}"
        mine = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            ours = os.fstat(mine).st_uid
        finally:
            os.close(mine)
            probe.unlink()
        owner = os.fstat(handle).st_uid
        if owner != ours:
            raise RefusedError(f"it belongs to user {owner}", path)
        yield held
    finally:
        os.close(handle)


def _open(path: Path, name: str, directory: int | None, *, follow: bool) -> int:
    handle = os.open(name, _LOOK if follow else _LOOK | os.O_NOFOLLOW, dir_fd=directory)
    try:
        status = os.fstat(handle)
        _check_regular(status, path)
        if directory is not None and status.st_uid != os.fstat(directory).st_uid:
            raise RefusedError(f"it belongs to user {status.st_uid}", path)
        try:
            return os.open(f"{_PROC}/self/fd/{handle}", _READ)
        except BlockingIOError:
            raise RefusedError("another process holds a lease on it (fcntl(2))", path) from None
        except FileNotFoundError:  # there is no /proc
            return _opened_again(path, name, directory, status)
    finally:
        os.close(handle)


def _opened_again(path: Path, name: str, directory: int | None, seen: os.stat_result) -> int:
    """Open by name the file that was examined. Raises OSError if it was replaced."""
    handle = os.open(name, _READ, dir_fd=directory)
    if not os.path.samestat(os.fstat(handle), seen):
        os.close(handle)
        raise RefusedError("it was replaced while it was opened", path)
    return handle


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise RefusedError(f"it is {kind}, not a file", path)


def _check_ours(status: os.stat_result, path: Path) -> None:
    _check_regular(status, path)
    if status.st_uid != os.geteuid():
        raise RefusedError(f"it belongs to user {status.st_uid}", path)


def _check_owner(directory: int, path: Path) -> None:
    owner = os.fstat(directory).st_uid
    if os.geteuid() not in {0, owner}:
        raise RefusedError(f"it belongs to user {owner}", path)
