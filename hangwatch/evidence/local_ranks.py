"""The ranks of this node as their pages name them: who runs, and how the others ended."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hangwatch.errors import PageError
from hangwatch.evidence.exits import kept_status, open_pid
from hangwatch.evidence.page import parse_page
from hangwatch.evidence.processes import PROC, read_stat
from hangwatch.model.kinds import Phase
from hangwatch.model.page import RankPage
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

SUFFIX = ".page"
MAX_PAGE_BYTES = 16 << 20
"""No page is larger; what is, is not one of ours."""
_FAILED = 1
"""The exit code of a rank of which nobody knows how it ended, but that it was not well."""


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
    """Those whose pages lie in one directory."""

    def __init__(self, directory: Path, proc: str = PROC) -> None:
        self._directory = directory
        self._proc = proc
        self._ranks: dict[str, _Rank] = {}

    def look(self) -> bool:
        """Notice who has come and who has ended; whether any runs."""
        with suppress(OSError):
            for name in untrusted.names(self._directory, Owner.DIRECTORY):
                if name.endswith(SUFFIX) and name not in self._ranks:
                    self._meet(self._directory / name)
        for one in self._ranks.values():
            if not one.ended_ns:
                self._check(one)
        return any(not one.ended_ns for one in self._ranks.values())

    def wait(self, seconds: float) -> None:
        """Until one of those that run ends, or so long."""
        poll = select.poll()
        for one in self._ranks.values():
            if not one.ended_ns and one.pidfd is not None:
                poll.register(one.pidfd, select.POLLIN)
        poll.poll(seconds * 1000)

    def exit_code(self) -> int:
        """That of the job here: of the rank that failed first since the last restart, else 0."""
        newest: dict[int, _Rank] = {}
        for one in sorted(self._ranks.values(), key=lambda one: one.started):
            newest[one.rank] = one
        restart = max((one.started[0] for one in newest.values()), default=0)
        failed = [one for one in newest.values() if one.exit_code and one.started[0] == restart]
        return min(failed, key=lambda one: one.ended_ns).exit_code if failed else 0

    def pids(self) -> list[int]:
        """Of those that run."""
        return [one.pid for one in self._ranks.values() if not one.ended_ns]

    def forget_ended(self) -> None:
        """Remove the pages of those that have ended: who runs belongs to another run."""
        for name, one in list(self._ranks.items()):
            if one.ended_ns:
                one.path.unlink(missing_ok=True)
                del self._ranks[name]

    def _meet(self, path: Path) -> None:
        try:
            page = parse_page(_content(path), events=False)
        except (OSError, PageError):
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

    def _check(self, one: _Rank) -> None:
        stat = read_stat(one.pid, self._proc)
        if stat is not None and stat.start_ticks == one.start_ticks:
            if not stat.ended:
                return
            status: int | None = stat.exit_status
        else:
            status = kept_status(one.pidfd)
        one.ended_ns = time.monotonic_ns()
        one.exit_code = _last_word(one.path) if status is None else _code(status)
        if one.pidfd is not None:
            os.close(one.pidfd)
            one.pidfd = None


def _code(status: int) -> int:
    """The exit code of a shell for what wait(2) gives."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _last_word(path: Path) -> int:
    """The exit code as far as the page tells."""
    page: RankPage | None = None
    with suppress(OSError, PageError):
        page = parse_page(_content(path), events=False)
    return 0 if page is not None and page.phase is Phase.EXITED else _FAILED


def _content(path: Path) -> bytes:
    """The bytes of a page. Raises OSError."""
    return untrusted.read(path, MAX_PAGE_BYTES, Owner.DIRECTORY)


def launcher_of(pid: int, proc: str = PROC) -> int:
    """The process that started a rank if that is of its job: a Python, as all launchers are.

    Else the rank itself: a shell, a batch system's daemon or Ray's may run several jobs.
    """
    stat = read_stat(pid, proc)
    with suppress(OSError):
        if stat and Path(proc, str(stat.ppid), "exe").readlink().name.startswith("python"):
            return stat.ppid
    return pid
