"""What people launch with: a hang is named by rank and line, a healthy run is left alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import free_port
from hosts import hosts, needs_hosts
from launching import Launched, line_of
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.quiet
PROGRAMS = Path(__file__).parent / "programs" / "launched"
FAKE_SHELL = Path(__file__).parent / "fake_remote_shell.py"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")
PORT = free_port()
"""Instead of the one that each launcher takes: other tests may run beside these."""
# With --cpu accelerate starts several processes only by mpirun; so it does not ask for GPUs,
# and the program takes the CPU.
ACCELERATE = (
    "accelerate",
    "launch",
    "--multi_gpu",
    "--num_processes=2",
    f"--main_process_port={PORT}",
)
ACCELERATE_CONFIG = f"""\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
main_process_port: {PORT}
num_machines: 1
num_processes: 2
mixed_precision: 'no'
"""
DEEPSPEED = ("deepspeed", "--num_gpus=2", f"--master_port={PORT}")
ON_CPU = {"DS_ACCELERATOR": "cpu"}


def watched(*command: str) -> list[str]:
    """The command with hangwatch before it, which is quick to suspect."""
    return ["hangwatch", "--suspect-after=4", "--hang-after=100", *command]


@pytest.mark.parametrize(
    ("launcher", "program"),
    [
        (ACCELERATE, "accelerated.py"),
        pytest.param(TORCHRUN, "with_trainer.py", marks=pytest.mark.campaign),
        (("python",), "with_lightning.py"),
    ],
    ids=["accelerate", "trainer", "lightning"],
)
def test_a_rank_that_stalls_is_named(
    tmp_path: Path, launcher: Sequence[str], program: str, framework_python: str
) -> None:
    path = PROGRAMS / program
    command = watched(*launcher, str(path), "stall")
    with Launched(tmp_path, command, python=framework_python) as job:

        def named() -> list[tuple[list[int], str | None, int | None]]:
            verdicts = [report["verdict"] for report in job.reports()]
            # One that starts more slowly than the other is told as well.
            told = [verdict for verdict in verdicts if verdict["kind"] != "init_incomplete"]
            sites = [verdict["site"] or {} for verdict in told]
            return [
                (verdict["culprits"], site.get("file"), site.get("line"))
                for verdict, site in zip(told, sites, strict=True)
            ]

        culprit = ([1], str(path), line_of(path))
        until(lambda: culprit in named(), "the verdict")
        assert {tuple(ranks) for ranks, *_ in named()} == {(1,)}


@pytest.mark.parametrize(
    ("launcher", "program"),
    [
        (("accelerate", "launch", "--config_file=accelerate.yaml"), "with_trainer.py"),
        pytest.param(TORCHRUN, "with_lightning.py", marks=pytest.mark.campaign),
        (DEEPSPEED, "with_deepspeed.py"),
    ],
    ids=["accelerate-yaml", "lightning-torchrun", "deepspeed"],
)
def test_a_healthy_run_is_left_alone(
    tmp_path: Path, launcher: Sequence[str], program: str, framework_python: str
) -> None:
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE_CONFIG)
    command = ["hangwatch", *launcher, str(PROGRAMS / program)]
    with Launched(tmp_path, command, ON_CPU, python=framework_python) as job:
        assert job.wait() == 0
        # With python -u, as torchrun starts it, the newlines come by themselves.
        assert all(f"done {rank} of 2" in job.printed() for rank in range(2))
        assert len(job.news()) == 1  # that it watches
        job.until_nothing_runs()
    assert job.reports() == []


@needs_hosts
def test_deepspeed_has_its_other_node_watched_by_the_ranks_there(
    tmp_path: Path, framework_python: str
) -> None:
    path, spool = PROGRAMS / "with_deepspeed.py", tmp_path / "spool"
    spool.mkdir()
    pdsh = spool / "pdsh"
    pdsh.write_text(f'#!/bin/sh\nexec "{framework_python}" "{FAKE_SHELL}" pdsh "$@"\n')
    pdsh.chmod(0o755)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node-0 slots=1\nnode-1 slots=1\n")
    places = [str(spool), str(Path(framework_python).parent), os.environ["PATH"]]
    env = {"PATH": os.pathsep.join(places), "FAKE_SPOOL": str(spool), **ON_CPU}
    command = ["hangwatch", "--report-dir=reports", *watched()[1:], "deepspeed", "--hostfile"]
    with hosts(tmp_path) as (first, second):
        second.start([framework_python, str(FAKE_SHELL), "sshd"], env)
        where = ["--no_ssh_check", f"--master_addr={first.address}"]
        first.start([*command, str(hostfile), *where, str(path), "--stall"], env)
        culprit = f"{path.name}:{line_of(path)}"
        until(lambda: any(culprit in line for line in first.said().splitlines()), culprit)
        assert "watching the ranks of" in second.said()
        assert "watching the ranks of" not in first.said()
        report = first.report()
    verdict = report["verdict"]
    assert (verdict["culprits"], verdict["site"]["line"]) == ([1], line_of(path))
    assert [rank["node"] for rank in report["ranks"]] == ["node-0", "node-1"]
    assert report["unseen"] == []
