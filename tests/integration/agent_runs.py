"""Runs programs in the environment that the supervisor gives to its command.

No supervisor and no watchdog take part: what is tested is what the agent does
inside the processes of a job, and what it leaves in their pages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waiting import BOUND_S

from hangwatch.agent.environment import RECORDER, job_environment
from hangwatch.evidence.pages.reader import parse_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangwatch.model.page import PageEvent, PageGroup, RankPage

COUNTED = Path(__file__).parent / "programs" / "counted"
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC_", "TORCH_FR")


@dataclass(frozen=True, slots=True)
class Run:
    """How a command ended, and what it left in the directory of the run."""

    exit_code: int
    stdout: str
    stderr: str
    pages: list[RankPage]
    """In the order of their ranks, then of their making."""
    notes: list[str]
    """What agents wrote that could not record."""


def run(
    command: Sequence[str | Path],
    directory: Path,
    *,
    recorder: str = "native",
    environ: Mapping[str, str] | None = None,
) -> Run:
    """Run a command to its end as the supervisor would; directory is the run's."""
    directory.mkdir(mode=0o700, exist_ok=True)
    process = subprocess.run(  # noqa: S603 (the command is the test's own)
        command,
        env=watched(directory, environ or {}) | {RECORDER: recorder},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    sys.stderr.write(process.stderr)
    pages = [parse_page(path.read_bytes()) for path in directory.glob("*.page")]
    return Run(
        process.returncode,
        process.stdout,
        process.stderr,
        sorted(pages, key=lambda page: (page.identity.rank, page.created_ns)),
        [path.read_text() for path in directory.glob("*.err")],
    )


def watched(directory: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job whose run has this directory."""
    return job_environment(unwatched(extra), directory)


def unwatched(extra: Mapping[str, str]) -> dict[str, str]:
    """Our own environment without what a launcher of ours may have set."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(_OF_A_LAUNCHER)
    }
    return {**kept, "OMP_NUM_THREADS": "1", **extra}


def torchrun(program: Path, *arguments: str | Path, ranks: int = 2) -> list[str | Path]:
    """The command that runs a program on so many ranks of this machine."""
    launcher = Path(sys.executable).parent / "torchrun"
    return [launcher, "--standalone", f"--nproc-per-node={ranks}", program, *arguments]


def group_of(page: RankPage, desc: str, index: int = 0) -> PageGroup:
    """The group of that description, the index-th with its members."""
    (found,) = (g for g in page.groups if (g.key.desc, g.key.index) == (desc, index))
    return found


def calls(page: RankPage, group: PageGroup, *, p2p: bool = False) -> list[PageEvent]:
    """The calls of a group that Python issued, oldest first."""
    return [event for event in page.events if event.slot == group.slot and event.p2p is p2p]
