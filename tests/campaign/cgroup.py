"""Control groups in which a fault freezes processes or leaves them little memory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path("/sys/fs/cgroup")
LEAVE_S = 5.0
POLL_S = 0.01


class NoCgroupError(Exception):
    """None can be made here, or it has no such controller."""


class Cgroup:
    """One of our own, of either version. Raises NoCgroupError."""

    def __init__(self, controller: str, name: str) -> None:
        """controller: ``freezer`` or ``memory``."""
        self._controller = controller
        failure = "there are no control groups"
        for parent in _parents(controller):
            path = parent / f"{name}-{os.getpid()}"
            try:
                path.mkdir()
            except OSError as error:
                failure = f"{parent}: {error.strerror}"
                continue
            if any((path / file).exists() for file in self._files()):
                self.path, self._parent = path, parent
                return
            path.rmdir()
            failure = f"{parent} has no {controller}"
        raise NoCgroupError(failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let out whoever is in it, and remove it."""
        if self._controller == "freezer":
            with suppress(OSError):
                self.freeze(frozen=False)
        deadline = time.monotonic() + LEAVE_S
        while self.path.exists() and time.monotonic() < deadline:
            for pid in (self.path / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (self._parent / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(POLL_S)

    def add(self, pids: Iterable[int]) -> None:
        """Move processes into it; those that have ended are left out."""
        for pid in pids:
            with suppress(ProcessLookupError):
                (self.path / "cgroup.procs").write_text(str(pid))

    def freeze(self, *, frozen: bool) -> None:
        """Freeze all, at the same moment, or let them go on; returns once it is so."""
        one, two = self._files()
        if (self.path / one).exists():
            wanted = "FROZEN" if frozen else "THAWED"
            (self.path / one).write_text(wanted)
            self._until(lambda: (self.path / one).read_text().strip() == wanted)
        else:
            (self.path / two).write_text(str(int(frozen)))
            wanted = f"frozen {int(frozen)}"
            self._until(lambda: wanted in (self.path / "cgroup.events").read_text())

    def limit(self, size_bytes: int) -> None:
        """Of the memory that those in it take from now on."""
        for name in self._files():
            if (self.path / name).exists():
                (self.path / name).write_text(str(size_bytes))

    def _files(self) -> tuple[str, str]:
        if self._controller == "freezer":
            return "freezer.state", "cgroup.freeze"
        return "memory.limit_in_bytes", "memory.max"

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LEAVE_S
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_S)


def _parents(controller: str) -> list[Path]:
    """Where a group of ours may be made: below the one that we are in, else at the top."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, own = line.split(":", 2)
            if controller in names.split(","):
                top = ROOT / controller
            elif not names:
                top = ROOT
            else:
                continue
            found += [top / own.lstrip("/"), top]
    return [path for path in dict.fromkeys(found) if (path / "cgroup.procs").exists()]
