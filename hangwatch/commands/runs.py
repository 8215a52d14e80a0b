"""The watched runs of this node: finding one, and reading the pages of its ranks."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from hangwatch.console import News, fold_command, printable
from hangwatch.errors import PageError, UsageError
from hangwatch.evidence.pages.finder import Pages, Seen
from hangwatch.evidence.pages.look import Look, Looker
from hangwatch.evidence.pages.reader import SUFFIX
from hangwatch.evidence.processes import Tree, environment, read_stat
from hangwatch.model.calls import Site
from hangwatch.model.kinds import OpState
from hangwatch.model.page import PageEvent
from hangwatch.report.wording import group_label
from hangwatch.run import shared_run
from hangwatch.run.handshake import RunFacts, read_facts
from hangwatch.run.rundir import LOCK, PARENT, bases
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

MAX_RUNS = 256
"""Runs of one user that are read, the newest: anyone can make thousands."""
DIRECTORY = "HANGWATCH_DIR"
"""The variable by which the ranks of a watched job know the directory of their run."""


class UnclearError(UsageError):
    """No single run was named; ``runs`` are the candidates."""

    def __init__(self, message: str, runs: Sequence[Run]) -> None:
        super().__init__(message)
        self.runs = runs


@dataclass(frozen=True, slots=True)
class Run:
    """A run's directory and its facts."""

    path: Path
    facts: RunFacts | None
    """None for a directory of pages that no supervisor has described."""

    @property
    def name(self) -> str:
        """The run id, else the name of the directory."""
        return self.facts.run_id if self.facts else self.path.name

    @property
    def started_s(self) -> float:
        """Start in seconds of the epoch; 0 if unknown."""
        try:
            return datetime.fromisoformat(self.facts.started_at).timestamp() if self.facts else 0.0
        except (ValueError, OverflowError):
            return 0.0

    def __str__(self) -> str:
        """One line to choose the run by."""
        if self.facts is None:
            return printable(str(self.path))
        began = self.facts.started_at[:19].replace("T", " ")
        command = fold_command(self.facts.command)
        return printable(f"{self.name}  pid {self.facts.supervisor_pid}  since {began}  {command}")


def describe(path: Path) -> Run:
    """Return the run of a directory."""
    return Run(path, read_facts(path))


def is_active(run: Run) -> bool:
    """Return True if the run's supervisor still runs, as far as that can be known.

    A supervisor holds the lock on its directory; if that was deleted, its pid decides.
    Supervisors that share a directory hold a file each. Checking a lock takes it shared for
    a moment, which is harmless: once the facts are there no process waits for this lock.
    """
    facts = run.facts
    if facts is None:
        return run.path.is_dir()
    if not run.path.is_dir():
        supervisor = read_stat(facts.supervisor_pid)
        return supervisor is not None and not supervisor.ended
    if facts.shared:
        return any(command.running for command in shared_run.commands(run.path))
    with suppress(OSError):
        return untrusted.is_locked(run.path / LOCK)
    return False


def find(environ: Mapping[str, str]) -> list[Run]:
    """Return the active runs of this user on this node (root: of all users), oldest first."""
    runs: dict[Path, Run] = {}
    for path in _run_directories(environ):
        run = describe(path)
        if run.facts is not None and is_active(run):
            runs.setdefault(path, run)
    return sorted(runs.values(), key=lambda run: run.facts.started_at if run.facts else "")


def choose(word: str, environ: Mapping[str, str]) -> Run:
    """Return the run of a run id, a directory or a pid; for no word the only active run.

    Raises UnclearError if the word fits none or several, else UsageError.
    """
    if word and Path(word).is_dir():
        return _in_directory(Path(word))
    own = environ.get(DIRECTORY)
    if not word and own and read_facts(Path(own)):
        return describe(Path(own))  # called from inside a job
    runs = find(environ)
    if word.isdecimal() and (run := _of_pid(int(word), runs)):
        return run
    named = [run for run in runs if not word or word in (run.name, run.path.name)]
    if len(named) == 1:
        return named[0]
    if named:
        raise UnclearError(f"{len(named)} runs are watched here: name one, or a pid of it", named)
    if word:
        raise UnclearError(f"no run, directory or process of an active run: {word}", runs)
    raise UsageError(
        "no run is watched here: start one with `hangwatch COMMAND`; `hangwatch inspect` shows a "
        "job that was started without hangwatch"
    )


def _run_directories(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the newest directories of each user that may be those of runs."""
    own = None if os.geteuid() == 0 else str(os.getuid())
    for base in bases(environ):
        with suppress(OSError):
            for parent in untrusted.names(base, follow=True):
                named = PARENT.fullmatch(parent)
                if named and own in {None, named["uid"]}:
                    with suppress(OSError):
                        yield from _of_user(base / parent)


def _of_user(parent: Path) -> list[Path]:
    """Return the newest run directories of one user. Raises OSError."""
    owner = parent.lstat().st_uid
    dated = []
    for name in untrusted.names(parent, Owner.DIRECTORY):
        with suppress(OSError):
            below = (parent / name).lstat()
            if stat.S_ISDIR(below.st_mode) and below.st_uid == owner:
                dated.append((below.st_mtime, parent / name))
    return [path for _, path in sorted(dated)[-MAX_RUNS:]]


def _in_directory(path: Path) -> Run:
    run = describe(path.resolve())
    if run.facts is None and not any(
        name.endswith(SUFFIX) for name in untrusted.names(run.path, Owner.DIRECTORY)
    ):
        raise UsageError(f"{path} is no directory of a run: it holds neither its facts nor pages")
    return run


def _of_pid(pid: int, runs: list[Run]) -> Run | None:
    """Return the run of a process: a rank, its launcher, the supervisor, or a parent of these.

    The environment of a rank names the directory of its run, wherever that is.
    """
    below = [pid, *(stat.pid for stat in Tree().descendants(pid))]
    for process in below:
        directory = environment(process, DIRECTORY.__eq__).get(DIRECTORY, "")
        if directory and (run := describe(Path(directory))).facts:
            return run
    pids = set(below)
    named = [
        run
        for run in runs
        if run.facts and not pids.isdisjoint({run.facts.supervisor_pid, run.facts.command_pid})
    ]
    return named[0] if len(named) == 1 else None


class RunPages:
    """The pages of one run and the states of its processes; a context manager."""

    def __init__(self, run_dir: Path, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._states: dict[tuple[int, int], str] = {}
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._news = News(self._null)
        self._pages = Pages(run_dir, self._news, alive=self._is_alive)
        self._looker = Looker(self._pages, self._is_alive, now_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the pages."""
        self._pages.close()
        os.close(self._null)

    def look(self) -> Look:
        """Read the pages of the job's newest start."""
        self._states.clear()
        look = self._looker.look()
        while self._pages.superseded:
            self._pages.advance()
            look = self._looker.look()
        return look

    def state(self, pid: int, start_ticks: int) -> str:
        """Return the letter of proc(5) for a process, read once per look; empty if it ended."""
        known = self._states.get((pid, start_ticks))
        if known is None:
            stat = read_stat(pid)
            gone = stat is None or stat.ended or stat.start_ticks != start_ticks
            known = "" if gone or stat is None else stat.state
            self._states[pid, start_ticks] = known
        return known

    @property
    def unreadable(self) -> list[str]:
        """Reasons why some pages cannot be read."""
        return self._news.lost

    @property
    def unrecorded(self) -> list[str]:
        """Reasons that ranks left behind for not being recorded."""
        return list(self._pages.notes().values())

    def _is_alive(self, pid: int, start_ticks: int) -> bool:
        return bool(self.state(pid, start_ticks))


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """A call that a rank waits in, as people read it."""

    name: str
    """``all_reduce #46``, ``recv from rank 3``, ``init_process_group``."""
    group: str = ""
    site: Site | None = None

    def __str__(self) -> str:
        """``all_reduce #46 of default_pg``."""
        return f"{self.name} of {self.group}" if self.group else self.name


def blocking_call(seen: Seen) -> BlockingCall:
    """Return the oldest call that the rank is blocked in, else what its counters show."""
    try:
        page = seen.page.read(events=True)
    except PageError:
        page = seen.light
    blocked = [event for event in page.events if event.state is OpState.BLOCKED]
    if blocked:
        event = min(blocked, key=lambda event: event.blocked_ns or event.issued_ns)
        key = next((group.key for group in page.groups if group.slot == event.slot), None)
        return BlockingCall(_event_name(event), group_label(key) if key else "", event.site)
    if page.in_call:
        return BlockingCall(page.in_call, site=page.in_call_site)
    # Issued by C++ (DDP's reducer): c10d has unfinished work, and no frame shows whose.
    unfinished = [g for g in page.groups if g.alive and 0 <= g.completed < g.enqueued]
    if unfinished:
        group = min(unfinished, key=lambda group: group.changed_ns)
        return BlockingCall(f"collective #{group.completed + 1}", group_label(group.key))
    return BlockingCall("a collective")


def _event_name(event: PageEvent) -> str:
    if event.p2p:
        towards = "to" if event.wire.startswith("send") else "from"
        peer = f"rank {event.peer}" if event.peer >= 0 else "any rank"
        return f"{event.op} {towards} {peer}"
    return f"{event.op} #{event.seq}" if event.seq > 0 else event.op
