"""The supervisors of one job on one node share a run directory and a watchdog.

``srun``, ``mpirun`` and scripts like them start hangwatch once for each rank, with the
rank in the environment. The supervisors find their directory by a name made of the
launcher's variables (``launchers.job_name``).

Each has a file there, with its command's pid and exit code, that it holds locked (flock(2))
as long as it lives: no end is missed, by whatever means it came. The supervisor that gets the
lock on the file ``watch`` starts the watchdog, which inherits the lock: it is free only when
both are gone, and then another supervisor takes it. The watchdog outlives the supervisor that
started it until the last of the commands has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "command-"
WATCH = "watch"
JOB = "job.json"
ABORTED = "aborted"
"""File that the watchdog leaves once it has ended ranks."""
CONCLUDED = "concluded"
"""File that the watchdog leaves once it has reported the end of all commands."""
_BYTES = 128
_JOB_BYTES = 1 << 16
_ODD = (ValueError, TypeError, KeyError, OverflowError)


@dataclass(frozen=True, slots=True)
class Command:
    """One supervisor's command."""

    pid: int
    running: bool
    exit_code: int | None = None
    """None while it runs, and if its supervisor was killed."""
    ended_ns: int = 0
    """CLOCK_MONOTONIC."""


def commands(run_dir: Path) -> list[Command]:
    """Return the commands of all supervisors that have entered, sorted by pid."""
    found = []
    with suppress(OSError):
        for name in untrusted.names(run_dir, Owner.DIRECTORY):
            if name.startswith(PREFIX):
                with suppress(OSError, *_ODD):
                    found.append(_read(run_dir / name))
    return sorted(found, key=lambda command: command.pid)


def overall_exit_code(ended: list[Command]) -> int | None:
    """Return the exit code of the command that failed first, else 0; None if none is known."""
    known = [command for command in ended if command.exit_code is not None]
    failed = [command for command in known if command.exit_code]
    first = min(failed or known, key=lambda command: command.ended_ns, default=None)
    return first.exit_code if first else None


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run, the same for all supervisors that share it."""

    run_id: str
    started_at: str
    """UTC, ISO 8601."""
    started_ns: int
    """``started_at`` by time.monotonic_ns(): the wall clock may be set meanwhile."""
    pid: int
    """The first supervisor."""


class SharedRun:
    """One supervisor's part in a shared run. Raises OSError if the directory is gone."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._own: int | None = None
        self._command_pid = 0
        self.watch: int | None = None
        """File descriptor that holds the watch, for the watchdog to inherit."""

    def enter(self, command_pid: int) -> None:
        """Publish our command."""
        self._command_pid = command_pid
        fresh = self._run_dir / f".{PREFIX}{os.getpid()}"
        self._own = untrusted.create(fresh)
        fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._write(None)
        fresh.rename(self._run_dir / f"{PREFIX}{os.getpid()}")  # locked before it is visible

    def take_watch(self) -> bool:
        """Take the lock on the watch; True if it was free."""
        fd = untrusted.open_ours(self._run_dir / WATCH, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self.watch = fd
        return True

    def watch_fds(self) -> tuple[int, ...]:
        """Return the file descriptors that the watchdog has to inherit."""
        return () if self.watch is None else (self.watch,)

    def release_watch(self) -> None:
        """Leave the watch to the watchdog, which inherited it."""
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None

    def leave(self, exit_code: int) -> bool:
        """Publish how our command ended; True if no other command runs."""
        self._write(exit_code)
        return not any(command.running for command in commands(self._run_dir))

    def concluded(self) -> bool:
        """Return True if a watchdog has reported the end of all commands."""
        return (self._run_dir / CONCLUDED).exists()

    def agree(self, own: Start) -> Start:
        """Return the start of the first supervisor that had the watch; ours if we are it."""
        path = self._run_dir / JOB
        with suppress(OSError, *_ODD):
            job = untrusted.read_json(path, _JOB_BYTES, Owner.DIRECTORY)
            numbers = int(job["started_ns"]), int(job["pid"])
            return Start(str(job["run_id"]), str(job["started_at"]), *numbers)
        untrusted.replace(path, json.dumps(asdict(own)).encode())
        return own

    def _write(self, exit_code: int | None) -> None:
        if self._own is not None:
            record = {"pid": self._command_pid, "exit_code": exit_code, "ns": time.monotonic_ns()}
            os.pwrite(self._own, json.dumps(record).ljust(_BYTES).encode(), 0)


def _read(path: Path) -> Command:
    """Read one supervisor's file. Raises OSError, and one of _ODD if it is being written."""
    fd = untrusted.open_file(path, Owner.DIRECTORY)
    try:
        record = json.loads(os.pread(fd, _BYTES, 0))
        pid, code = int(record["pid"]), record["exit_code"]
        if code is not None:
            return Command(pid, running=False, exit_code=int(code), ended_ns=int(record["ns"]))
        return Command(pid, running=not untrusted.take_lock(fd, fcntl.LOCK_SH))
    finally:
        os.close(fd)
