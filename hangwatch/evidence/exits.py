"""Watches how processes end.

A pidfd (pidfd_open(2)) of each rank becomes readable when the process ends.
Its exit status is then in field 52 of /proc/PID/stat until the launcher
reaps it, and from Linux 6.15 on the pidfd keeps it for good (PIDFD_GET_INFO of
include/uapi/linux/pidfd.h), also of a process that is no child of ours. Where
neither can be had, the status is unknown.

The kernel's out-of-memory killer sends a plain SIGKILL; only counters show it: ``oom_kill`` in
memory.events of the process's cgroup (cgroup v2, Documentation/admin-guide/cgroup-v2.rst), in
memory.oom_control (v1), else in /proc/vmstat for the whole machine.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from hangwatch.evidence import cgroups, timing
from hangwatch.evidence.processes import PROC, process_state, read_stat
from hangwatch.model.snapshot import ProcessState

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info, version 0: mask, cgroup, 11 ids, exit_code."""
_INFO_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)."""


def open_pid(pid: int) -> int | None:
    """Return a pidfd, or None where the kernel or a sandbox refuses one."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def kept_status(pidfd: int | None) -> int | None:
    """Return the exit status, as wait(2) gives it, that a pidfd keeps of a reaped process."""
    if pidfd is None:
        return None
    request = bytearray(_INFO.size)
    _INFO.pack_into(request, 0, _INFO_EXIT, *([0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, request)
    except OSError:
        return None
    fields = _INFO.unpack(request)
    return int(fields[-1]) if fields[0] & _INFO_EXIT else None


_COUNTER = re.compile(r"^oom_kill (\d+)\s*$", re.MULTILINE | re.ASCII)


class OomKills:
    """Notices kills in the counters of processes' cgroups."""

    def __init__(self, proc: str = "/proc", cgroup: str = cgroups.CGROUP) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._source: dict[int, Path] = {}
        self._seen: dict[Path, int] = {}

    def begin(self, pid: int) -> None:
        """Note the counter of a living process."""
        if (source := self._find(pid)) is not None:
            self._source[pid] = source
            self._seen.setdefault(source, _count(source) or 0)

    def explains(self, pid: int) -> bool:
        """True if a kill was counted since the last one that explained an end."""
        source = self._source.get(pid)
        count = _count(source) if source is not None else None
        if source is None or count is None or count <= self._seen[source]:
            return False
        self._seen[source] = count
        return True

    def _find(self, pid: int) -> Path | None:
        """Return the nearest counter that can be read."""
        candidates = [
            directory / name
            for directory in cgroups.directories(pid, "memory", self._proc, self._cgroup)
            for name in ("memory.events", "memory.oom_control")
        ]
        candidates.append(Path(self._proc, "vmstat"))
        return next((path for path in candidates if _count(path) is not None), None)


def _count(path: Path) -> int | None:
    """Return the counter in one of these files, None where it has none."""
    try:
        found = _COUNTER.search(path.read_text("utf-8", "replace"))
    except OSError:
        return None
    return int(found[1]) if found else None


_LAUNCHER_SIGNALS = frozenset({signal.SIGTERM, signal.SIGKILL})


@dataclass(slots=True)
class End:
    """The end of a process, as the next watchdog has to know it; without ``gone_ns`` it runs."""

    pid: int
    start_ticks: int
    gone_ns: int = 0
    """CLOCK_MONOTONIC."""
    status: int | None = None
    """As wait(2) gives it, None while unknown."""
    oom_killed: bool = False


@dataclass(slots=True)
class _Tracked(End):
    """A watched process."""

    pidfd: int | None = None


class Exits:
    """Watches processes and remembers how they ended."""

    def __init__(
        self,
        *,
        proc: str = PROC,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.on_exit: Callable[[int], None] | None = None
        """Called in the event loop with the pid of a process that has just ended."""
        self.asked_to_end_ns = 0
        """Time when the launcher was sent a signal to end it (CLOCK_MONOTONIC); 0 if it was not."""
        self._proc = proc
        self._now_ns = now_ns
        self._oom = OomKills(proc)
        self._tracked: dict[int, _Tracked] = {}
        self._remembered: dict[int, _Tracked] = {}

    def track(self, pid: int, start_ticks: int, last_seen_ns: int = 0) -> None:
        """Watch a process; idempotent, and a reused pid is a new process.

        last_seen_ns: when it surely lived, in case that it is already gone.
        """
        known = self._tracked.get(pid)
        if known is not None and known.start_ticks == start_ticks:
            return
        if known is not None:
            self._release(known)
        remembered = self._remembered.get(pid)
        if remembered is not None and remembered.start_ticks == start_ticks:
            self._tracked[pid] = remembered
            return
        tracked = _Tracked(pid, start_ticks, pidfd=open_pid(pid))
        self._tracked[pid] = tracked
        stat = read_stat(pid, self._proc)
        if stat is None or stat.start_ticks != start_ticks:
            self._release(tracked)  # the pidfd is another process's
            tracked.gone_ns = last_seen_ns or self._now_ns()
        elif stat.ended:
            self._ended(tracked, last_seen_ns)
        else:
            self._oom.begin(pid)
            if tracked.pidfd is not None:
                asyncio.get_running_loop().add_reader(tracked.pidfd, self._readable, tracked)

    def state(self, pid: int, start_ticks: int) -> ProcessState:
        """Return the state of a process, with how it ended where that is known."""
        tracked = self._tracked.get(pid)
        if tracked is None or tracked.start_ticks != start_ticks:
            return process_state(pid, start_ticks, self._proc)
        if not tracked.gone_ns:
            state = process_state(pid, start_ticks, self._proc)
            if state.alive:
                return state
            self._ended(tracked)
        if tracked.status is None:
            tracked.status = kept_status(tracked.pidfd)
        return self._judged(tracked)

    def ended(self) -> dict[int, int]:
        """Return the pids that have ended, with when (CLOCK_MONOTONIC, ns)."""
        return {pid: one.gone_ns for pid, one in self._tracked.items() if one.gone_ns}

    def failed(self, pid: int) -> bool:
        """True if a process has ended, and not by an exit code of 0."""
        tracked = self._tracked.get(pid)
        return tracked is not None and bool(tracked.gone_ns) and tracked.status != 0

    def forget_ended(self) -> None:
        """Forget ended processes: the launcher restarts the ranks, and how they ended is past."""
        for pid in self.ended():
            self._release(self._tracked.pop(pid))
        self._remembered.clear()

    def export(self) -> tuple[End, ...]:
        """Return the ends that were seen, for restore()."""
        return tuple(
            End(one.pid, one.start_ticks, one.gone_ns, one.status, one.oom_killed)
            for one in self._tracked.values()
            if one.gone_ns
        )

    def restore(self, ends: Iterable[End]) -> None:
        """Remember the ends that an earlier watchdog saw."""
        for end in ends:
            self._remembered[end.pid] = _Tracked(*astuple(end))

    def close(self) -> None:
        """Let go of every process."""
        for tracked in self._tracked.values():
            self._release(tracked)
        self._tracked.clear()

    def _readable(self, tracked: _Tracked) -> None:
        self._ended(tracked)
        if self.on_exit is not None:
            self.on_exit(tracked.pid)

    def _ended(self, tracked: _Tracked, gone_ns: int = 0) -> None:
        if tracked.gone_ns:
            return
        tracked.gone_ns = gone_ns or self._now_ns()
        if tracked.pidfd is not None:
            asyncio.get_running_loop().remove_reader(tracked.pidfd)
        stat = read_stat(tracked.pid, self._proc)
        if stat is not None and stat.ended and stat.start_ticks == tracked.start_ticks:
            tracked.status = stat.exit_status
        else:
            tracked.status = kept_status(tracked.pidfd)
        killed = tracked.status is not None and os.WIFSIGNALED(tracked.status)
        if killed and os.WTERMSIG(tracked.status or 0) == signal.SIGKILL:
            tracked.oom_killed = self._oom.explains(tracked.pid)

    def _judged(self, tracked: _Tracked) -> ProcessState:
        gone_age_s = max(0, self._now_ns() - tracked.gone_ns) / 1e9
        state = ProcessState(alive=False, oom_killed=tracked.oom_killed, gone_age_s=gone_age_s)
        if tracked.status is None:
            return state
        since_ns = tracked.gone_ns - self.asked_to_end_ns
        asked = self.asked_to_end_ns > 0 and 0 <= since_ns < timing.LAUNCHER_ENDS_S * 1e9
        if not os.WIFSIGNALED(tracked.status):
            # A handler of SIGTERM may end a process with any code.
            code = os.WEXITSTATUS(tracked.status)
            return replace(state, exit_code=code, terminated_by_launcher=asked and code != 0)
        number = os.WTERMSIG(tracked.status)
        # Launchers end all once one has failed; a good end is no reason for them.
        failed = any(
            0 < one.gone_ns < tracked.gone_ns and one.status != 0 for one in self._tracked.values()
        )
        launcher = number in _LAUNCHER_SIGNALS and (failed or asked) and not tracked.oom_killed
        return replace(state, signal=number, terminated_by_launcher=launcher)

    def _release(self, tracked: _Tracked) -> None:
        if tracked.pidfd is not None:
            with suppress(RuntimeError):  # no loop runs any more
                asyncio.get_running_loop().remove_reader(tracked.pidfd)
            os.close(tracked.pidfd)
            tracked.pidfd = None
