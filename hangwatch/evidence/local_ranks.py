"""The ranks of this node by their pages: which run, and how the others ended."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hangwatch.errors import PageError
from hangwatch.evidence.exits import kept_status, open_pid
from hangwatch.evidence.pages.reader import MAX_BYTES, SUFFIX, parse_page
from hangwatch.evidence.processes import PROC, read_stat
from hangwatch.model.kinds import Phase
from hangwatch.model.page import RankPage
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

_FAILED = 1
"""The exit code of a rank that ended badly, where its own code is unknown."""


@dataclass(slots=True)
class _Rank:
    """The process that a page belongs to."""

    path: Path
    pid: int
    start_ticks: int
    rank: int
    started: tuple[int, int]
    """The launcher's restarts before it, and when its page was made (monotonic, ns)."""
    pidfd: int | None
    ended_ns: int = 0
    """CLOCK_MONOTONIC, 0 while it runs."""
    exit_code: int = _FAILED


class LocalRanks:
    """The ranks whose pages are in one directory."""

    def __init__(self, directory: Path, proc: str = PROC) -> None:
        self._directory = directory
        self._proc = proc
        self._ranks: dict[str, _Rank] = {}

    def look(self) -> bool:
        """Notice new ranks and ends; return True if any rank runs."""
        with suppress(OSError):
            for name in untrusted.names(self._directory, Owner.DIRECTORY):
                if name.endswith(SUFFIX) and name not in self._ranks:
                    self._add(self._directory / name)
        for rank in self._running():
            self._check(rank)
        return bool(self._running())

    def wait(self, seconds: float) -> None:
        """Wait until a rank ends, for so many seconds at most."""
        poll = select.poll()
        for rank in self._running():
            if rank.pidfd is not None:
                poll.register(rank.pidfd, select.POLLIN)
        poll.poll(seconds * 1000)

    def exit_code(self) -> int:
        """Return the job's exit code: of the first rank to fail after its last restart, else 0."""
        by_start = sorted(self._ranks.values(), key=lambda rank: rank.started)
        newest = {rank.rank: rank for rank in by_start}.values()
        restart = max((rank.started[0] for rank in newest), default=0)
        failed = [rank for rank in newest if rank.exit_code and rank.started[0] == restart]
        return min(failed, key=lambda rank: rank.ended_ns).exit_code if failed else 0

    def pids(self) -> list[int]:
        """Return the pids of the ranks that run."""
        return [rank.pid for rank in self._running()]

    def forget_ended(self) -> None:
        """Remove the pages of ended ranks: the ranks that run belong to another run."""
        for name, rank in list(self._ranks.items()):
            if rank.ended_ns:
                rank.path.unlink(missing_ok=True)
                del self._ranks[name]

    def _running(self) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if not rank.ended_ns]

    def _add(self, path: Path) -> None:
        page = _page(path)
        if page is None:
            return  # it is being made
        identity = page.identity
        self._ranks[path.name] = _Rank(
            path,
            identity.pid,
            identity.start_ticks,
            identity.rank,
            (identity.restart, page.created_ns),
            open_pid(identity.pid),
        )

    def _check(self, rank: _Rank) -> None:
        stat = read_stat(rank.pid, self._proc)
        if stat is not None and stat.start_ticks == rank.start_ticks:
            if not stat.ended:
                return
            status: int | None = stat.exit_status
        else:
            status = kept_status(rank.pidfd)
        rank.ended_ns = time.monotonic_ns()
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            rank.exit_code = code if code >= 0 else 128 - code  # as a shell has it
        else:
            page = _page(rank.path)
            exited = page is not None and page.phase is Phase.EXITED
            rank.exit_code = 0 if exited else _FAILED
        if rank.pidfd is not None:
            os.close(rank.pidfd)
            rank.pidfd = None


def _page(path: Path) -> RankPage | None:
    with suppress(OSError, PageError):
        return parse_page(untrusted.read(path, MAX_BYTES, Owner.DIRECTORY), events=False)
    return None


def launcher_of(pid: int, proc: str = PROC) -> int:
    """Return the process that started a rank if it is a Python, as all launchers are.

    Else the rank itself: a shell, a batch system's daemon or Ray's may run several jobs.
    """
    stat = read_stat(pid, proc)
    with suppress(OSError):
        if stat and Path(proc, str(stat.ppid), "exe").readlink().name.startswith("python"):
            return stat.ppid
    return pid
