"""A real job of the campaign, bare or watched, in a directory of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import TOKEN, end, environment, processes, read_reports, send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 90.0
"""How long anything may take before it counts as stuck."""
USUAL_LOAD = 3.0
"""Processes for each core while a campaign runs: it waits more than it computes."""
SAMPLE_S = 0.25
POLL_S = 0.01
LEAVE_S = 8.0
"""How long what a job has started may outlive it."""
QUICK = ("--suspect-after", "1", "--hang-after", "2", "--metrics-addr", "off")
"""Options with which a stalled rank is soon called one."""
_OURS = re.compile(r"-m hangwatch |hangwatch\.watchdog")
VERDICT = re.compile(r"^hangwatch: (SLOW|HANG|FAILED|DESYNC) \(", re.MULTILINE)


@dataclass(slots=True)
class Result:
    """How a job ended and what it left."""

    exit_code: int | None
    """None where it did not end within PATIENCE_S."""
    printed: str
    said: str
    """Standard error."""
    outputs: dict[str, str]
    """What the ranks wrote, by file."""
    seconds: float
    reports: list[dict[str, Any]] = field(default_factory=list)
    run: dict[str, Any] | None = None
    survivors: list[str] = field(default_factory=list)
    """Command lines of processes that outlived it."""
    left: list[str] = field(default_factory=list)
    """Files that hangwatch left in its directories."""
    peak_mib: dict[str, float] = field(default_factory=dict)
    """Largest resident size of supervisor and watchdog."""

    @property
    def lost(self) -> list[str]:
        """What hangwatch says it could not do."""
        return [str(one) for one in (self.run or {}).get("lost", ())]

    @property
    def news(self) -> list[str]:
        """What hangwatch said on standard error, line by line."""
        return [line for line in self.said.splitlines() if line.startswith("hangwatch: ")]


class Job:
    """One that runs; nothing of it is left when the ``with`` statement ends."""

    def __init__(  # noqa: PLR0913 (how it is started, by keyword)
        self,
        where: Path,
        *options: str,
        watched: bool = True,
        ranks: int = 2,
        program: str = "steps.py",
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        before: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        """options: of hangwatch. command: instead of the launcher. before: what starts all."""
        self.where, self.watched = where, watched
        self.token = uuid.uuid4().hex
        where.mkdir(parents=True, exist_ok=True)
        self.base, self.temporary = where / "base", where / "tmp"
        for own in (self.base, self.temporary):
            own.mkdir(exist_ok=True)
        launcher = (python, str(PROGRAMS / "ranks.py"), str(ranks), str(PROGRAMS / program))
        line = tuple(command) or (*launcher, *arguments)
        if watched:
            line = (python, "-m", "hangwatch", *options, *line)
        own_env = environment(
            {"HANGWATCH_DIR": str(self.base), "TMPDIR": str(self.temporary), **(env or {})}, python
        )
        self.began = time.monotonic()
        with (where / "stdout").open("wb") as out, (where / "stderr").open("wb") as err:
            self.process = subprocess.Popen(  # noqa: S603 (the campaign's own command)
                [*before, *line],
                cwd=where,
                env=own_env | {TOKEN: self.token},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._peak: dict[str, float] = {}
        self._over = threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)
        if watched:
            self._sampling.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        end(self.process, self.token)

    # What a fault waits for.

    def until(self, condition: Callable[[], object], *, bound_s: float = PATIENCE_S) -> bool:
        """Wait until something holds; False if the job ended, or time is over, before."""
        deadline = time.monotonic() + bound_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return bool(condition())
            time.sleep(POLL_S)
        return True

    def until_ready(self, ranks: int = 2) -> bool:
        """Wait until all ranks are at the gate."""
        paths = [self.where / f"ready-{rank}" for rank in range(ranks)]
        bound_s = PATIENCE_S * busy()
        return self.until(lambda: all(path.exists() for path in paths), bound_s=bound_s)

    def said(self) -> str:
        """Standard error so far."""
        return (self.where / "stderr").read_text("utf-8", "replace")

    def until_verdict(self, bound_s: float = 30.0) -> bool:
        """Wait until a verdict was said."""
        return self.until(lambda: VERDICT.search(self.said()), bound_s=bound_s)

    def touch(self, name: str) -> None:
        """Make a file that the program looks for, such as ``gate`` or ``release``."""
        (self.where / name).touch()

    def pids(self, part: str, but: str = "\0") -> list[int]:
        """Its processes with this, and not but, in their command line, oldest first."""
        found = processes(self.token).items()
        return sorted(pid for pid, line in found if part in line and but not in line)

    def watchdogs(self) -> list[int]:
        """Living watchdogs."""
        return self.pids("hangwatch.watchdog")

    def rank_pids(self) -> dict[int, int]:
        """Pid of each living rank, as its page says."""
        found = {}
        for page in self.base.glob("hangwatch-*/*/*.page"):
            _, rank, pid, *_ = page.name.removesuffix(".page").split("-")
            found[int(rank)] = int(pid)
        return found

    def pages(self) -> list[Path]:
        """The pages of its ranks."""
        return sorted(self.base.glob("hangwatch-*/*/*.page"))

    def signal(self, pids: Sequence[int], number: int) -> None:
        """Send a signal to those of its processes that still live."""
        send(pids, number, self.token)

    # How it ends.

    def finish(self) -> Result:
        """Wait for its end, and see what is left of it."""
        try:
            code: int | None = self.process.wait(PATIENCE_S * busy())
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - self.began
        survivors = self._survivors() if code is not None else []
        self._over.set()
        end(self.process, self.token)
        reports = self.where / "hangwatch-reports"
        return Result(
            code,
            (self.where / "stdout").read_text("utf-8", "replace"),
            self.said(),
            {path.name: path.read_text() for path in sorted(self.where.glob("out-*"))},
            seconds,
            read_reports(reports),
            _run(reports),
            survivors,
            self._left(),
            dict(self._peak),
        )

    def _survivors(self) -> list[str]:
        deadline = time.monotonic() + LEAVE_S * busy()
        while left := processes(self.token):
            if time.monotonic() > deadline:
                return list(left.values())
            time.sleep(POLL_S)
        return []

    def _left(self) -> list[str]:
        found = [*self.base.glob("hangwatch-*/*"), *self.temporary.glob("hangwatch-*/*")]
        found += [path for path in self.temporary.glob("*hangwatch*") if not _base(path)]
        return [str(path.relative_to(self.where)) for path in found if path.is_dir() or _full(path)]

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for pid, line in processes(self.token).items():
                if _OURS.search(line):
                    name = "watchdog" if "hangwatch.watchdog" in line else "supervisor"
                    self._peak[name] = max(self._peak.get(name, 0.0), peak_mib(pid))


def _base(path: Path) -> bool:
    """Whether it is the directory below which runs have theirs, which stays."""
    return path.name == f"hangwatch-{os.getuid()}"


def _full(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_size > 0
    return False


def peak_mib(pid: int) -> float:
    """The most that a process has had in main memory, in MiB, 0 where it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0


def _run(reports: Path) -> dict[str, Any] | None:
    for path in reports.glob("[!l]*/run.json"):
        with suppress(ValueError):
            found: dict[str, Any] = json.loads(path.read_bytes())
            return found
    return None


def busy() -> float:
    """How much longer things take than on a machine that does nothing but the campaign."""
    return max(1.0, os.getloadavg()[0] / (USUAL_LOAD * (os.cpu_count() or 1)))


def stop_and_go(job: Job, pids: Sequence[int], seconds: float) -> None:
    """Stop processes for a while."""
    job.signal(pids, signal.SIGSTOP)
    time.sleep(seconds)
    job.signal(pids, signal.SIGCONT)
