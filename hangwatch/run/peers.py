"""The supervisors of one job on one node: who is there, and who has the watchdog.

Each has a file in the run directory that it holds locked (flock(2)) as long as it
lives, with its command's pid and exit code; so nobody's end is missed, by whatever
means it came. Whoever gets the lock on the file ``watch`` starts the watchdog, which
inherits it: the lock is free only when both are gone, and then another supervisor
takes it. The watchdog outlives the supervisor that started it until the last of
the commands has ended.

``srun``, ``mpirun`` and scripts like them start hangwatch once for each rank, with the
rank in the environment. All of one job on one node then share a run directory and a
watchdog, which they find by a name made of what the launcher gave them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangwatch.safety import untrusted
from hangwatch.safety.foreign import Ignoring
from hangwatch.safety.untrusted import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "command-"
WATCH = "watch"
JOB = "job.json"
CONCLUDED = "concluded"
"""File by which the watchdog says that it has told of the end of all commands."""
_BYTES = 128
_JOB_BYTES = 1 << 16
_ODD = (ValueError, TypeError, KeyError, OverflowError)


@dataclass(frozen=True, slots=True)
class Command:
    """One supervisor's command."""

    pid: int
    running: bool
    exit_code: int | None = None
    """None while it runs, and where its supervisor was killed."""
    ended_ns: int = 0
    """CLOCK_MONOTONIC."""


def commands(run_dir: Path) -> list[Command]:
    """The commands of all supervisors that have entered, by pid."""
    found = []
    with suppress(OSError):
        for name in untrusted.names(run_dir, Owner.DIRECTORY):
            if name.startswith(PREFIX):
                with suppress(OSError, *_ODD):
                    found.append(_read(run_dir / name))
    return sorted(found, key=lambda command: command.pid)


def overall_exit_code(ended: list[Command]) -> int | None:
    """That of the job: of the command that failed first, else 0; None if nobody knows any."""
    known = [command for command in ended if command.exit_code is not None]
    failed = [command for command in known if command.exit_code]
    first = min(failed or known, key=lambda command: command.ended_ns, default=None)
    return first.exit_code if first else None


class Companions:
    """One supervisor's place among them. Raises OSError where the directory is gone."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._own: int | None = None
        self._command_pid = 0
        self.watch: int | None = None
        """File descriptor that holds the watch, for the watchdog to inherit."""

    def enter(self, command_pid: int) -> None:
        """Make our command known."""
        self._command_pid = command_pid
        fresh = self._run_dir / f".{PREFIX}{os.getpid()}"
        self._own = untrusted.create(fresh)
        fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._write(None)
        fresh.rename(self._run_dir / f"{PREFIX}{os.getpid()}")  # locked before anybody sees it

    def take_watch(self) -> bool:
        """Take the watch if nobody has it; whether that succeeded."""
        fd = untrusted.open_to_lock(self._run_dir / WATCH, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self.watch = fd
        return True

    def watch_fds(self) -> tuple[int, ...]:
        """File descriptors that the watchdog has to inherit."""
        return () if self.watch is None else (self.watch,)

    def let_watchdog_go(self) -> None:
        """It keeps the watch without us."""
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None

    def leave(self, exit_code: int) -> bool:
        """Our command has ended; whether it was the last one."""
        self._write(exit_code)
        return not any(command.running for command in commands(self._run_dir))

    def concluded(self) -> bool:
        """Whether a watchdog has told of the end of all commands."""
        return (self._run_dir / CONCLUDED).exists()

    def job(self, **values: Any) -> dict[str, Any]:
        """What the first to have the watch has kept for those after it; values, if we are it."""
        path = self._run_dir / JOB
        with suppress(OSError, ValueError, TypeError):
            return dict(untrusted.read_json(path, _JOB_BYTES, Owner.DIRECTORY))
        untrusted.replace(path, json.dumps(values).encode())
        return values

    def _write(self, exit_code: int | None) -> None:
        if self._own is not None:
            record = {"pid": self._command_pid, "exit_code": exit_code, "ns": time.monotonic_ns()}
            os.pwrite(self._own, json.dumps(record).ljust(_BYTES).encode(), 0)


def _read(path: Path) -> Command:
    """One file. Raises OSError, and one of _ODD for one that is being written."""
    fd = untrusted.open_file(path, Owner.DIRECTORY)
    try:
        record = json.loads(os.pread(fd, _BYTES, 0))
        pid, code = int(record["pid"]), record["exit_code"]
        if code is not None:
            return Command(pid, running=False, exit_code=int(code), ended_ns=int(record["ns"]))
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Command(pid, running=True)
        return Command(pid, running=False)
    finally:
        os.close(fd)


TASKS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Where launchers put a task's number, and how many there are."""
ON_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""Where they put how many tasks a node has: one that is alone has nothing to share."""
_SAME_JOB = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")


def job_name(environ: Mapping[str, str], run_id: str) -> str | None:
    """The name that all commands of one job on this node share, None for a job of its own.

    run_id: as the user gave it, empty where not. Without it, and without a
    MASTER_ADDR and MASTER_PORT, nothing tells one job from another.
    """
    if not any(_is_task(environ, *names) for names in TASKS):
        return None
    if any(environ.get(name) == "1" for name in ON_NODE):
        return None
    if not run_id and not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        return None
    return shared_name(environ, run_id)


def shared_name(environ: Mapping[str, str], *told: str) -> str:
    """The same for all that are on this node and were told the same."""
    known = [*told, *(environ.get(name, "") for name in _SAME_JOB)]
    known += [socket.gethostname(), _pid_namespace()]
    told_bytes = "/".join(known).encode("utf-8", "surrogateescape")
    return f"job-{hashlib.blake2b(told_bytes, digest_size=8).hexdigest()}"


def _is_task(environ: Mapping[str, str], rank: str, size: str) -> bool:
    number, count = environ.get(rank, ""), environ.get(size, "")
    return number.isdecimal() and count != "1"


def _pid_namespace() -> str:
    """Containers that share /dev/shm are nodes of their own."""
    with Ignoring(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""
