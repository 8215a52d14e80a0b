"""Starts real training programs under watch, and ends whatever they leave behind."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waiting import BOUND_S, NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PROGRAMS = Path(__file__).parent / "programs"
FORKED = Path(__file__).parent / "forked.py"
_TOGETHER = Path(__file__).parent / "together"
TOKEN = "TEST_RUN_TOKEN"  # noqa: S105 (marks the processes of one run, keeps no secret)
GRACE_S = 8.0
WAKE_AFTER_S = 1.0
POLL_S = 0.02

_VERDICT = re.compile(r"^hangwatch: ([A-Z]+) \(", re.MULTILINE)
_LEFT_OUT = re.compile(r"HANGWATCH.*|RANK|WORLD_SIZE|LOCAL_.*|GROUP_.*|MASTER_.*|TORCHELASTIC_.*")


@dataclass(slots=True)
class Result:
    """What a watched program left behind."""

    exit_code: int | None
    """Of ``python -m hangwatch``; None where it was ended by us."""
    stdout: str
    stderr: str
    reports: list[dict[str, Any]]
    """report.json of each incident, in their order."""
    run: dict[str, Any] | None
    """run.json."""
    announced: dict[str, float] = field(default_factory=dict)
    """State to time.monotonic() of its first line on standard error."""
    survivors: list[str] = field(default_factory=list)
    """Processes that outlived a program that ended by itself."""
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    """All that was told: of each report, ``also`` too, and what it said before it was replaced."""

    def states(self) -> list[str]:
        """The states of all incidents."""
        return [report["verdict"]["state"] for report in self.reports]


class NothingCameError(NoAnswerError):
    """What a program was run up to did not come. ``verdicts``: what was told of it instead."""

    def __init__(self, message: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message)
        self.verdicts = verdicts


def reaches(state: str) -> Callable[[Sequence[Mapping[str, Any]]], bool]:
    """A condition: an incident has come to this state."""
    return lambda reports: any(report["verdict"]["state"] == state for report in reports)


def watch(  # noqa: PLR0913 (how a program is started, by keyword)
    program: Path,
    *options: str,
    arguments: Sequence[str] = (),
    launch: Sequence[str] = (),
    nproc: int = 4,
    env: Mapping[str, str] | None = None,
    until: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None,
    until_printed: str = "",
    bound_s: float = BOUND_S,
    python: str = sys.executable,
    forked: bool = False,
) -> Result:
    """Run a program by torchrun under watch until a condition holds or it has ended.

    python: that of the environment to run it in. forked: fork the ranks, instead of torchrun.
    Either way they begin together, whatever loading torch takes.

    options: of hangwatch, launch: of torchrun. until: judges the reports so far.
    until_printed: what the program prints. With neither the program comes to its
    end. Raises NothingCameError if nothing of that comes within bound_s. No process of
    the run is left when it returns.
    """
    launcher = ("torchrun", "--standalone", f"--nproc-per-node={nproc}", *launch)
    own = {"PYTHONPATH": str(_TOGETHER), "TOGETHER": str(program)}
    if forked:
        launcher, own = (python, str(FORKED), str(nproc)), {}
    condition = _Condition(until, until_printed)
    directory = Path(tempfile.mkdtemp(prefix="hangwatch-test-"))
    reports = directory / "reports"
    command = (python, "-m", "hangwatch", "--report-dir", str(reports), *options)
    command = (*command, *launcher, str(program), *arguments)
    token = uuid.uuid4().hex
    said = _Said()
    survivors: list[str] = []
    out, err = directory / "stdout", directory / "stderr"
    try:
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 (the command is made above)
                command,
                env=environment({**own, **(env or {})}, python) | {TOKEN: token},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        exit_code = None
        try:
            if _wait(process, directory, condition, said, bound_s):
                exit_code = process.returncode
                survivors = _outlived(token)
            elif not condition.holds(directory):
                said.read(directory)
                raise NothingCameError(
                    f"{program.name}: nothing within {bound_s:g} s", said.verdicts
                )
        finally:
            end(process, token)
            sys.stderr.write(err.read_text(errors="replace"))
        said.read(directory)
        return Result(
            exit_code,
            out.read_text(errors="replace"),
            err.read_text(errors="replace"),
            read_reports(reports),
            read_run(reports),
            said.announced,
            survivors,
            said.verdicts,
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


RECORDED = tuple(map(int, metadata.version("torch").split(".")[:2])) >= (2, 8)
"""Whether this torch records what C++ issues through gloo. Else nothing is proved of it, and
it has no name (docs/compatibility.md)."""


def environment(extra: Mapping[str, str], python: str = sys.executable) -> dict[str, str]:
    """The environment of a run: ours, but for what a launcher or hangwatch set."""
    kept = {key: value for key, value in os.environ.items() if not _LEFT_OUT.fullmatch(key)}
    kept["PATH"] = f"{Path(python).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, "OMP_NUM_THREADS": "1", **extra}


@dataclass(frozen=True, slots=True)
class _Condition:
    """What a program is run up to."""

    until: Callable[[Sequence[Mapping[str, Any]]], bool] | None
    printed: str

    def holds(self, directory: Path) -> bool:
        """Whether it has come to that."""
        if self.printed and self.printed in (directory / "stdout").read_text(errors="replace"):
            return True
        return self.until is not None and self.until(read_reports(directory / "reports"))


@dataclass(slots=True)
class _Said:
    """What hangwatch has said so far."""

    announced: dict[str, float] = field(default_factory=dict)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    _read_bytes: int = 0

    def note(self, directory: Path) -> None:
        """Read standard error and the reports, if there is more on the former.

        A report is written before people are told of it, and may be replaced later.
        """
        size = (directory / "stderr").stat().st_size
        if size != self._read_bytes:
            self._read_bytes = size
            self.read(directory)

    def read(self, directory: Path) -> None:
        """Read standard error and the reports."""
        for state in _VERDICT.findall((directory / "stderr").read_text(errors="replace")):
            self.announced.setdefault(state.lower(), time.monotonic())
        for report in read_reports(directory / "reports"):
            told = (report["verdict"], *report["also"])
            self.verdicts.extend(one for one in told if one not in self.verdicts)


def _wait(
    process: subprocess.Popen[bytes],
    directory: Path,
    condition: _Condition,
    said: _Said,
    bound_s: float,
) -> bool:
    """Whether the program ended; False once the condition holds, or time is over."""
    deadline = time.monotonic() + bound_s
    while time.monotonic() < deadline:
        over = process.poll() is not None
        said.note(directory)
        if over:
            return True
        if condition.holds(directory):
            return False
        time.sleep(POLL_S)
    return False


def read_reports(directory: Path) -> list[dict[str, Any]]:
    """report.json of each incident below a report directory."""
    found = []
    for path in sorted(directory.glob("[!.l]*/incident-*/report.json")):
        try:
            found.append(json.loads(path.read_bytes()))
        except FileNotFoundError:  # it is being replaced by a later one
            continue
    return found


def read_run(directory: Path) -> dict[str, Any] | None:
    """run.json of the run below a report directory."""
    for path in directory.glob("[!.l]*/run.json"):
        content: dict[str, Any] = json.loads(path.read_bytes())
        return content
    return None


def end(process: subprocess.Popen[bytes], token: str) -> None:
    """End a run: first as a scheduler would, then each process that is left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(WAKE_AFTER_S)
        except subprocess.TimeoutExpired:
            send(processes(token), signal.SIGCONT, token)  # one that is stopped ends only then
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    while left := processes(token):
        send(left, signal.SIGKILL, token)
        process.poll()
        time.sleep(POLL_S)
    process.wait()


def send(pids: Iterable[int], number: int, token: str) -> None:
    """Send a signal to those that still run with this token: a pid may be another's by now."""
    for pid in pids:
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if _has(pid, token):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _has(pid: int | str, token: str) -> bool:
    """Whether a process has inherited a token. Raises OSError if it has ended."""
    return f"{TOKEN}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def processes(token: str) -> dict[int, str]:
    """Living processes that inherited a token, with their command lines.

    Torchrun's workers have sessions of their own and outlive torchrun, so that
    neither a process group nor a parent finds them.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if _has(path.name, token):
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(path.name)] = line.decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
    return found


def _outlived(token: str) -> list[str]:
    """Processes that are still there a grace time after the program's end."""
    deadline = time.monotonic() + GRACE_S
    while left := processes(token):
        if time.monotonic() > deadline:
            return list(left.values())
        time.sleep(POLL_S)
    return []


def free_port() -> int:
    """A port of the loopback that nobody listens on.

    One that the kernel gives to nobody who connects (ip_local_port_range begins at 32,768): it
    is still free when, seconds later, somebody listens on it.
    """
    while True:
        port = secrets.randbelow(10_000) + 20_000
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
