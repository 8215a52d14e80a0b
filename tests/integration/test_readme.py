"""Every command of the README does what it says there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import environment
from steady import TORCHRUN, Job

from hangwatch.settings import options
from hangwatch.types.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
INSTALLING = {"make demo", "make test", "make zoo", "pip install ."}
"""Not run here: they install. What ``make demo`` runs then is run below."""
BESIDE_A_JOB = {"hangwatch top", "hangwatch inspect"}
"""What is run while a job goes on."""
TRAIN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user would be, with a training script and a hook."""
    path = tmp_path_factory.mktemp("user")
    (path / "train.py").write_text(TRAIN)
    hook = path / "notify.sh"
    hook.write_text('#!/bin/sh\necho "$1" > notified\n')
    hook.chmod(0o755)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that goes on until it is told to stop, under watch."""
    with Job(tmp_path, env={"HANGWATCH_DIR": str(tmp_path)}, launch=TORCHRUN) as job:
        job.until_running()
        yield job


def run(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the README as a user's shell would, in the environment of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(  # noqa: S602 (our own README)
        command,
        shell=True,
        cwd=where,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_the_commands_were_found() -> None:
    assert len(COMMANDS) >= 6
    assert set(COMMANDS) >= INSTALLING | BESIDE_A_JOB


@pytest.mark.timeout(600)
def test_each_command_works_in_the_order_of_the_readme(directory: Path) -> None:
    for command in COMMANDS:
        if command == "make demo":
            done = run("hangwatch demo", directory)
            assert "The verdict is right." in done.stderr
            found = (directory / "hangwatch-reports/latest").readlink()
        elif command in INSTALLING | BESIDE_A_JOB:
            continue
        else:
            # The newest run since then found nothing.
            command_then = command.replace("latest", str(found))
            done = run(command_then, ROOT if command.startswith("promtool") else directory)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command == "hangwatch report hangwatch-reports/latest":
            assert done.stdout.startswith("hangwatch: HANG (")
    assert "<title>" in (directory / "incident.html").read_text()


def test_inspect_shows_the_ranks_of_a_job_that_runs(job: Job) -> None:
    done = run("hangwatch inspect", job.where)
    assert done.returncode == 0, done.stderr
    assert "Job: 2 ranks" in done.stdout


def test_top_follows_a_job_to_its_end(job: Job) -> None:
    (lock,) = job.where.glob("hangwatch-*/*/lock")
    # As below the job, since others may be watched on this machine.
    here = {"HANGWATCH_DIR": str(lock.parent)}
    with subprocess.Popen(  # noqa: S602 (a line of our README)
        "hangwatch top",  # noqa: S607
        shell=True,
        cwd=job.where,
        env=environment(here),
        stdout=subprocess.PIPE,
        text=True,
    ) as top:
        assert top.stdout
        first = top.stdout.readline()
        (job.where / "stop").touch()
        rest = top.stdout.read()
    assert top.returncode == 0
    assert "2 ranks" in first
    assert "exit code 0" in rest


@pytest.mark.parametrize("command", ["make demo", "make test", "make zoo"])
def test_the_makefile_knows_the_target(command: str) -> None:
    assert run(f"{command} --dry-run", ROOT).returncode == 0


def test_every_option_and_every_kind_is_in_the_readme() -> None:
    for option in options.OPTIONS:
        assert f"{option.flag} {option.metavar}".strip().partition(" ")[0] in README
    for kind in Kind:
        assert f"| `{kind}` |" in README
