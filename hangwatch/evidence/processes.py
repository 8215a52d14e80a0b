"""Reads ranks, their children, and ranks that have no page from /proc.

Formats as in proc(5) and proc_pid_stat(5). The root is a parameter, and a
process that is gone is None or absent, never an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hangwatch.evidence import timing
from hangwatch.model.snapshot import ProcessState
from hangwatch.safety import redaction, untrusted
from hangwatch.safety.texts import readable

PROC = "/proc"
_SIGWAIT = "do_sigtimedwait"
COMMAND_CHARS = 200
"""Length up to which a command line is shown."""
COMMAND_BYTES = 32 << 10
"""Bytes of a command line that are read."""
MAX_ENVIRON_BYTES = 8 << 20
_ENDED = frozenset("ZXx")
_TICKS = os.sysconf("SC_CLK_TCK")
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"})


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that matter here."""

    pid: int
    comm: str
    state: str
    ppid: int
    start_ticks: int
    exit_status: int
    """As wait(2) gives it; of a zombie only, else 0."""
    cpu_s: float = 0.0
    """Processor time that it has used, and the children that it has waited for."""

    @property
    def ended(self) -> bool:
        """True if it has ended, reaped or not."""
        return self.state in _ENDED


def cpu_ns(pid: int, tid: int, proc: str = PROC) -> tuple[int, int]:
    """Return for how long a thread has had a CPU, and waited for one; 0 if this is not counted.

    As in Documentation/scheduler/sched-stats.rst.
    """
    try:
        words = Path(proc, f"{pid}/task/{tid}/schedstat").read_text("ascii").split()
        return int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):
        return 0, 0


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """A process that a launcher started as a rank, known from its environment."""

    pid: int
    start_ticks: int
    rank: int
    local_rank: int
    world_size: int


def read_stat(pid: int, proc: str = PROC) -> Stat | None:
    """Return /proc/PID/stat, or None for a process that does not exist."""
    try:
        text = Path(proc, str(pid), "stat").read_text("utf-8", "replace")
        # The command's name may hold blanks and parentheses; nothing after it does.
        head, _, tail = text.rpartition(")")
        state, *fields = tail.split()  # from field 3 on
        return Stat(
            pid,
            comm=head[head.index("(") + 1 :],
            state=state,
            ppid=int(fields[0]),
            start_ticks=int(fields[18]),
            exit_status=int(fields[48]),
            cpu_s=sum(map(int, fields[10:14])) / _TICKS,
        )
    except (OSError, ValueError, IndexError):
        return None


def alive(pid: int, start_ticks: int, proc: str = PROC) -> bool:
    """True if the process still runs and is not another one with a reused pid."""
    stat = read_stat(pid, proc)
    return stat is not None and not stat.ended and stat.start_ticks == start_ticks


def process_state(pid: int, start_ticks: int, proc: str = PROC) -> ProcessState:
    """Return the state of a process. One that has ended (or is another's) is not alive."""
    stat = read_stat(pid, proc)
    if stat is None or stat.start_ticks != start_ticks:
        return ProcessState(alive=False)
    if stat.ended:
        return ProcessState(alive=False, state=stat.state)
    return ProcessState(
        alive=True,
        state=stat.state,
        wchan=_wchan(str(pid), proc),
        tracer_pid=int(_status(str(pid), "TracerPid", proc) or 0),
    )


def takes(pid: int, number: int, proc: str = PROC) -> bool:
    """True if a process does something of its own with a signal.

    By a handler, or by a thread that waits for it (sigwait(3), signalfd(2)): then all
    threads have blocked it, and else it would have ended the process at once. A thread
    that runs does not count against it: it may just be about to wait.
    """

    def has(field: str, where: str) -> bool:
        return bool(int(_status(where, field, proc) or "0", 16) >> (number - 1) & 1)

    if has("SigCgt", str(pid)):
        return True
    threads = [f"{pid}/task/{name}" for name in _listdir(f"{proc}/{pid}/task")]

    def may(thread: str) -> bool:
        # While it waits for a signal the kernel shows a thread as if it had not blocked it; so
        # where it sleeps is read after that: nowhere while it runs.
        if has("SigBlk", thread):
            return True
        where = _wchan(thread, proc)
        return not where or where.startswith(_SIGWAIT)

    return bool(threads) and all(map(may, threads))


def command_line(pid: int, proc: str = PROC) -> str:
    """Return a command line for people, at most COMMAND_CHARS long, redacted; empty if gone."""
    text = " ".join(command_words(pid, proc)).strip()
    return text if len(text) <= COMMAND_CHARS else text[: COMMAND_CHARS - 1] + "…"


def command_words(pid: int, proc: str = PROC) -> list[str]:
    """Return the words of a command line, COMMAND_BYTES of it, redacted; none if it is gone."""
    try:
        with Path(proc, str(pid), "cmdline").open("rb") as file:
            raw = file.read(COMMAND_BYTES)
    except OSError:
        return []
    words = readable(os.fsdecode(raw)).rstrip("\0").split("\0")
    if len(raw) == COMMAND_BYTES:
        words[-1] = "…"  # it was cut, and half a secret is not known as one
    return redaction.command(words) if raw else []


def environment(pid: int, wanted: Callable[[str], bool], proc: str = PROC) -> dict[str, str]:
    """Return the variables whose name is wanted; the others are not kept anywhere.

    /proc/PID/environ has what the process was started with: a change that it
    made later does not show.
    """
    try:
        with Path(proc, str(pid), "environ").open("rb") as file:
            raw = file.read(MAX_ENVIRON_BYTES)
    except OSError:
        return {}
    variables = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals and wanted(name.decode("utf-8", "replace")):
            variables[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return variables


class Tree:
    """All processes of the node at one moment, by parent."""

    def __init__(self, proc: str = PROC, now_s: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._children: dict[int, list[Stat]] = {}
        self._by_pid: dict[int, Stat] = {}
        self._read_s = now_s()
        for name in _listdir(proc):
            if name.isdecimal():
                stat = read_stat(int(name), proc)
                if stat is not None and not stat.ended:
                    self._by_pid[stat.pid] = stat
                    self._children.setdefault(stat.ppid, []).append(stat)

    def children(self, pid: int) -> tuple[Stat, ...]:
        """Return the direct children of a process that still run, oldest first."""
        children = self._children.get(pid, [])
        return tuple(sorted(children, key=lambda stat: (stat.start_ticks, stat.pid)))

    def descendants(self, pid: int) -> Iterator[Stat]:
        """Yield all processes below pid, parents before their children."""
        for child in self.children(pid):
            yield child
            yield from self.descendants(child.pid)

    def processors(self, pid: int, before: Tree) -> float:
        """Return how many processors pid and the processes below it have kept busy since."""
        used_s = self._cpu_s(pid) - before._cpu_s(pid)
        return max(0.0, used_s) / max(self._read_s - before._read_s, timing.CPU_MOMENT_S)

    def _cpu_s(self, pid: int) -> float:
        own = self._by_pid.get(pid)
        return (own.cpu_s if own else 0.0) + sum(stat.cpu_s for stat in self.descendants(pid))

    def launched_ranks(self, pid: int) -> tuple[LaunchedRank, ...]:
        """Return the ranks among pid and the processes below it.

        A rank is a process whose RANK its parent does not have; what a rank
        starts (data workers, compilers) inherits it. Where one such process is
        below another, the lower one is the rank: the launcher itself was started
        in an environment with a RANK.
        """
        stat = read_stat(pid, self._proc)
        return () if stat is None or stat.ended else tuple(self._launched(stat, {}))

    def _launched(self, stat: Stat, inherited: dict[str, str]) -> Iterator[LaunchedRank]:
        own = environment(stat.pid, _RANK_VARIABLES.__contains__, self._proc)
        below = [r for child in self.children(stat.pid) for r in self._launched(child, own)]
        rank = _integer(own, "RANK")
        if below or rank < 0 or own == inherited:
            yield from below
        else:
            local_rank, world_size = _integer(own, "LOCAL_RANK"), _integer(own, "WORLD_SIZE")
            yield LaunchedRank(stat.pid, stat.start_ticks, rank, local_rank, world_size)


def _integer(variables: Mapping[str, str], name: str) -> int:
    """Return a variable as a number, -1 where it is none."""
    number = untrusted.parse_number(variables.get(name, ""))
    return -1 if number is None else number


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 (names only: there are thousands)
    except OSError:
        return []


def _wchan(where: str, proc: str) -> str:
    """Return the kernel function that a thread sleeps in, or empty. where: below /proc."""
    try:
        text = Path(proc, where, "wchan").read_text("utf-8", "replace")
    except OSError:
        return ""
    return "" if text == "0" else text


def _status(where: str, field: str, proc: str) -> str:
    """Return a field of the file status of a process or thread, empty where there is none."""
    try:
        text = Path(proc, where, "status").read_text("utf-8", "replace")
    except OSError:
        return ""
    fields = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in fields if name == field), "")
