"""What the doctor says of the jobs that are watched while it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from made_hello import facts
from made_pages import page, write

from hangwatch.commands.doctor.machine import watched_jobs
from hangwatch.preflight import Finding, Grade
from hangwatch.run import rundir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HANGWATCH_DIR": str(tmp_path)}


@pytest.fixture
def held(environ: dict[str, str]) -> Iterator[rundir.RunDir]:
    found = rundir.make("night-7", environ)
    facts("night-7").keep(found.path)
    yield found
    found.remove()


def of_it(environ: dict[str, str]) -> list[Finding]:
    """What is said of the run of the test; /dev/shm may have others."""
    return [finding for finding in watched_jobs(environ) if finding.what.startswith("night-7: ")]


def test_a_job_without_ranks_yet(environ: dict[str, str], held: rundir.RunDir) -> None:
    assert held.path.is_dir()
    (finding,) = of_it(environ)
    assert (finding.grade, finding.what) == (Grade.OK, "night-7: no rank yet")


def test_ranks_that_are_recorded_well(environ: dict[str, str], held: rundir.RunDir) -> None:
    for rank in range(2):
        write(held.path, page(rank))
    (finding,) = of_it(environ)
    assert (finding.grade, finding.what) == (Grade.OK, "night-7: 2 ranks recorded natively")


def test_why_ranks_are_not_recorded_better(environ: dict[str, str], held: rundir.RunDir) -> None:
    write(held.path, page(0, recorder_reason="no module of ours"))
    write(held.path, page(1, disarmed="too many errors"))
    for rank in (2, 3):
        write(held.path, page(rank, torch_lacks="calls of gather_all are not seen"))
    (held.path / "agent-77.err").write_text("process 77 is not recorded: OSError: full\n")
    found = of_it(environ)
    assert all(finding.grade is Grade.WARN for finding in found)
    assert [finding.what for finding in found] == [
        "night-7: rank 0 recorded by Python, a few times a second: no module of ours",
        "night-7: rank 1 no longer recorded: too many errors",
        "night-7: ranks 2 and 3, by their torch and libraries: calls of gather_all are not seen",
        "night-7: a rank is not recorded: process 77 is not recorded: OSError: full",
    ]
