"""Things that somebody puts where a file of hangwatch's is looked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import tempfile
import threading
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STRANGER = 65534
"""The user nobody."""
SPARSE_BYTES = 64 << 30
CROWD = 20_000
TURN_S = 0.0005
"""Between two swaps."""
PLANTS = (
    *("fifo", "link-zero", "link-secret", "link-dangling", "link-loop", "link-directory"),
    *("socket", "directory", "device", "sparse", "foreign", "swap"),
)


class UntriedError(Exception):
    """It cannot be planted on this machine, and why."""


@dataclass(slots=True)
class Secret:
    """What belongs to somebody else, is linked to, and must be neither shown nor touched."""

    where: Path
    like: bytes = b""
    """What a reader would take for its own, with the mark in it; by default no such."""
    mark: str = field(default_factory=lambda: f"mark{uuid.uuid4().hex}")
    _before: dict[str, tuple[str, int, int, int]] = field(default_factory=dict)

    def make(self) -> None:
        """A file, and a directory with files and one more directory in it."""
        self.where.mkdir(mode=0o755)
        inner = self.directory / "inner"
        inner.mkdir(parents=True)
        text = f"root:{self.mark}:0:0:root:/root:/bin/sh\n".encode()
        self.file.write_bytes(self.like.replace(b"MARK", self.mark.encode()) or text)
        for name in ("lock", "run.json", "report.json", "rank-0.page", "inner/file"):
            (self.directory / name).write_bytes(text)
        self._before = self._look()

    @property
    def file(self) -> Path:
        """To be linked to."""
        return self.where / "secret"

    @property
    def directory(self) -> Path:
        """To be linked to."""
        return self.where / "directory"

    def touched(self) -> list[str]:
        """What has become of it, by name; empty if nothing has."""
        now = self._look()
        return sorted(n for n in {*now, *self._before} if now.get(n) != self._before.get(n))

    def _look(self) -> dict[str, tuple[str, int, int, int]]:
        found = {}
        for path in [self.where, *self.where.rglob("*")]:
            status = path.lstat()
            data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            digest = hashlib.sha256(data).hexdigest()
            name = str(path.relative_to(self.where))
            found[name] = (digest, status.st_mtime_ns, status.st_mode, status.st_uid)
        return found


@contextmanager
def planted(what: str, path: Path, secret: Secret, *, stranger: bool) -> Iterator[None]:
    """Have it in the place of what lies there. Raises UntriedError.

    stranger: it belongs to another user.
    """
    if what == "swap":
        with _swapped(path, secret):
            yield
        return
    if what == "foreign":
        _give_away(path, whole=True)
        yield
        return
    _make_way(path)
    with _made(what, path, secret):
        if stranger:
            _give_away(path)
        yield


@contextmanager
def _made(what: str, path: Path, secret: Secret) -> Iterator[None]:
    targets = {
        "link-zero": Path("/dev/zero"),
        "link-secret": secret.file,
        "link-directory": secret.directory,
        "link-dangling": secret.where / "nothing",
        "link-loop": path,
    }
    if what in targets:
        path.symlink_to(targets[what])
    elif what == "fifo":
        os.mkfifo(path, 0o666)
    elif what == "socket":
        _bind(path)
    elif what == "directory":
        path.mkdir()
        for number in range(CROWD):
            (path / f"entry-{number:05}").symlink_to("nothing")
    elif what == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        except PermissionError:
            raise UntriedError("this user may not make devices") from None
    else:
        with path.open("wb") as file:
            file.truncate(SPARSE_BYTES)
    yield


def _bind(path: Path) -> None:
    """A socket, also where the path is longer than an address may be."""
    with tempfile.TemporaryDirectory(dir=path.parent) as near, socket.socket(socket.AF_UNIX) as own:
        handle = os.open(near, os.O_RDONLY | os.O_DIRECTORY)
        own.bind(f"/proc/self/fd/{handle}/s")
        os.close(handle)
        Path(near, "s").rename(path)


def _make_way(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _give_away(path: Path, *, whole: bool = False) -> None:
    """To another user. Raises UntriedError."""
    if whole and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    below = list(path.rglob("*")) if whole and path.is_dir() else []
    try:
        for one in (path, *below):
            os.chown(one, STRANGER, STRANGER, follow_symlinks=False)
    except PermissionError:
        raise UntriedError("only root has files of another user") from None


@contextmanager
def _swapped(path: Path, secret: Secret) -> Iterator[None]:
    """In turns what was there, a link to the secret, and a FIFO: as fast as it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    over = threading.Event()
    aside = path.with_name(f".{path.name}.aside")
    there = path.exists()

    def swap() -> None:
        while not over.wait(TURN_S):
            with suppress(OSError):
                if there:
                    path.rename(aside)
                _replace(path, lambda name: name.symlink_to(_target(secret, aside)))
            over.wait(TURN_S)
            with suppress(OSError):
                if not (there and aside.is_dir()):
                    _replace(path, os.mkfifo)
            over.wait(TURN_S)
            with suppress(OSError):
                path.unlink()
            with suppress(OSError):
                if there:
                    aside.rename(path)

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _target(secret: Secret, aside: Path) -> Path:
    return secret.directory if aside.is_dir() else secret.file


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.unlink(missing_ok=True)
    make(fresh)
    fresh.rename(path)
