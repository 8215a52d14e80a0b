"""Jobs to look at from outside, watched or not, that run until they are told to end."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import FORKED, PROGRAMS, TOKEN, end, environment
from waiting import BOUND_S, until_in_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL_S = 0.05
PROGRAM = PROGRAMS / "looked_at.py"
STALLED_RANK = 1


@dataclass(slots=True)
class Job:
    """A job of some ranks. ``environ`` finds its run, and no other on this machine."""

    process: subprocess.Popen[bytes]
    directory: Path
    environ: dict[str, str]
    token: str

    @property
    def reports(self) -> Path:
        """Where its reports go."""
        return self.directory / "reports"

    @property
    def run_dir(self) -> Path:
        """The directory of its run."""
        (found,) = (self.directory / "base").glob("hangwatch-*/*/lock")
        return found.parent

    def printed(self) -> str:
        """What its ranks and hangwatch have written."""
        return (self.directory / "output").read_text(errors="replace")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        until_in_job(self.process, holds, what, self.printed)

    def let_end(self) -> int:
        """Have it come to its end."""
        (self.directory / "end").touch()
        return self.process.wait(BOUND_S)

    def hangwatch(self, *words: str | Path | int) -> subprocess.CompletedProcess[str]:
        """One of hangwatch's own commands."""
        return subprocess.run(  # noqa: S603 (the command is the test's own)
            command(*words),
            env=self.environ,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )

    def rank_pid(self, rank: int) -> int:
        """The process of a rank."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
                parent = int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if (
                f"{TOKEN}={self.token}".encode() in variables
                and f"RANK={rank}".encode() in variables
            ):
                above = Path(f"/proc/{parent}/environ").read_bytes().split(b"\0")
                if f"RANK={rank}".encode() not in above:
                    return int(path.name)
        raise LookupError(f"rank {rank} does not run")


def command(*words: str | Path | int) -> list[str]:
    """The line that starts hangwatch with some arguments."""
    return [sys.executable, "-m", "hangwatch", *map(str, words)]


def start(  # noqa: PLR0913 (how it is started, by keyword)
    directory: Path,
    what: str,
    *,
    ranks: int = 3,
    watched: bool = True,
    forked: bool = False,
    options: Sequence[str] = (),
) -> Job:
    """Start ranks of which rank 1 goes_on, stalls or loads.

    forked: fork the ranks, instead of torchrun.
    """
    (directory / "base").mkdir()
    token = uuid.uuid4().hex
    environ = environment({"HANGWATCH_DIR": str(directory / "base")})
    launcher = ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
    if forked:
        launcher = [sys.executable, str(FORKED), str(ranks)]
    line = [*launcher, str(PROGRAM), what, str(directory / "end")]
    if watched:
        line = command("--report-dir", directory / "reports", "--run-id", "r1", *options, *line)
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (as above)
            line,
            env=environ | {TOKEN: token},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Job(process, directory, environ, token)


def stop(job: Job) -> None:
    """Leave no process of it."""
    end(job.process, job.token)
