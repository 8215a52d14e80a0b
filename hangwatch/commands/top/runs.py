"""Finds the runs that are watched on this node, and tells whether one still goes on."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hangwatch.console import fold_command, printable
from hangwatch.errors import UsageError
from hangwatch.evidence.page import SUFFIX
from hangwatch.evidence.processes import PROC, Tree, environment, read_stat
from hangwatch.run import peers, runfacts
from hangwatch.run.rundir import LOCK, PARENT, bases
from hangwatch.run.runfacts import RunFacts
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

MAX_RUNS = 256
"""Runs of one user that are looked at, the newest: anybody can make thousands."""
DIRECTORY = "HANGWATCH_DIR"
"""Where the ranks of a watched job are told the directory of their run."""


class UnclearError(UsageError):
    """No one run was named; ``runs`` are those that could be."""

    def __init__(self, message: str, runs: Sequence[Run]) -> None:
        super().__init__(message)
        self.runs = runs


@dataclass(frozen=True, slots=True)
class Run:
    """The directory of a run, and what is known of the run."""

    path: Path
    facts: RunFacts | None
    """None for a directory of pages that no supervisor has described."""

    @property
    def name(self) -> str:
        """What to call it: its id, else the name of its directory."""
        return self.facts.run_id if self.facts else self.path.name

    def __str__(self) -> str:
        """One line to choose it by."""
        if self.facts is None:
            return printable(str(self.path))
        began = self.facts.started_at[:19].replace("T", " ")
        command = fold_command(self.facts.command)
        return printable(f"{self.name}  pid {self.facts.supervisor_pid}  since {began}  {command}")


def describe(path: Path) -> Run:
    """The run of a directory."""
    return Run(path, runfacts.read(path))


def going_on(run: Run, proc: str = PROC) -> bool:
    """Whether its supervisor still runs, as far as that can be known.

    A supervisor holds the lock on its directory; if that was deleted, its pid says it.
    Several that share a directory hold a file each. The look at a lock takes it shared
    for a moment, which nobody minds: this one is never waited for once the facts are there.
    """
    facts = run.facts
    if facts is None:
        return run.path.is_dir()
    if not run.path.is_dir():
        stat = read_stat(facts.supervisor_pid, proc)
        return stat is not None and not stat.ended
    if facts.shared:
        return any(command.running for command in peers.commands(run.path))
    return _is_held(run.path / LOCK)


def find(environ: Mapping[str, str]) -> list[Run]:
    """The runs of this user on this node (root: of all users) that go on, oldest first."""
    found: dict[Path, Run] = {}
    for path in _directories(environ):
        run = describe(path)
        if run.facts is not None and going_on(run):
            found.setdefault(path, run)
    return sorted(found.values(), key=lambda run: run.facts.started_at if run.facts else "")


def choose(word: str, environ: Mapping[str, str], proc: str = PROC) -> Run:
    """The run that a word means: a run id, a directory, a pid; empty: the only one there is.

    Raises UnclearError where it names none or several, else UsageError.
    """
    if word and Path(word).is_dir():
        return _of_directory(Path(word))
    own = environ.get(DIRECTORY)
    if not word and own and runfacts.read(Path(own)):
        return describe(Path(own))  # called from inside a job
    runs = find(environ)
    if word.isdecimal() and (run := _of_pid(int(word), runs, proc)):
        return run
    named = [run for run in runs if not word or word in (run.name, run.path.name)]
    if len(named) == 1:
        return named[0]
    if named:
        raise UnclearError(f"{len(named)} runs are watched here: name one, or a pid of it", named)
    if word:
        raise UnclearError(f"no run, directory or process of a run that goes on: {word}", runs)
    raise UsageError(
        "no run is watched here: start one with `hangwatch COMMAND`; a job that was started "
        "without hangwatch can be looked at with `hangwatch inspect`"
    )


def _directories(environ: Mapping[str, str]) -> Iterator[Path]:
    """What may be the directory of a run."""
    own = None if os.geteuid() == 0 else str(os.getuid())
    for base in bases(environ):
        with suppress(OSError):
            for parent in untrusted.names(base, follow=True):
                named = PARENT.fullmatch(parent)
                if not named or own not in {None, named["uid"]}:
                    continue
                with suppress(OSError):
                    yield from _of_user(base / parent)


def _of_user(parent: Path) -> Iterator[Path]:
    """The newest run directories of one user. Raises OSError."""
    owner = parent.lstat().st_uid
    found = []
    for name in untrusted.names(parent, Owner.DIRECTORY):
        with suppress(OSError):
            below = (parent / name).lstat()
            if stat.S_ISDIR(below.st_mode) and below.st_uid == owner:
                found.append((below.st_mtime, parent / name))
    yield from (path for _, path in sorted(found)[-MAX_RUNS:])


def _of_directory(path: Path) -> Run:
    run = describe(path.resolve())
    if run.facts is None and not any(
        name.endswith(SUFFIX) for name in untrusted.names(run.path, Owner.DIRECTORY)
    ):
        raise UsageError(f"{path} is no directory of a run: it holds neither its facts nor pages")
    return run


def _of_pid(pid: int, runs: list[Run], proc: str) -> Run | None:
    """The run that a process belongs to: a rank, its launcher, the supervisor, their parents.

    Ranks are told the directory of their run, wherever it is.
    """
    below = [pid, *(stat.pid for stat in Tree(proc).descendants(pid))]
    for one in below:
        told = environment(one, DIRECTORY.__eq__, proc).get(DIRECTORY, "")
        if told and (run := describe(Path(told))).facts:
            return run
    pids = set(below)
    named = [
        run
        for run in runs
        if run.facts and not pids.isdisjoint({run.facts.supervisor_pid, run.facts.command_pid})
    ]
    return named[0] if len(named) == 1 else None


def _is_held(lock: Path) -> bool:
    """Whether somebody holds a lock (flock(2))."""
    with suppress(OSError):
        return untrusted.is_locked(lock)
    return False
