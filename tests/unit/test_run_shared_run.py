"""The supervisors of one job on one node, and the commands that are ranks of one job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hangwatch
from hangwatch.run.launchers import ON_NODE, TASKS, job_name
from hangwatch.run.shared_run import Command, SharedRun, Start, commands, overall_exit_code

HOME = Path(hangwatch.__file__).parents[1]
OTHER = f"""
import sys
sys.path.insert(0, {str(HOME)!r})
from pathlib import Path
from hangwatch.run.shared_run import SharedRun
one = SharedRun(Path(sys.argv[1]))
one.enter(4242)
one.take_watch()
print("there", flush=True)
sys.stdin.read()
"""


def other(where: Path) -> subprocess.Popen[str]:
    """Another supervisor, which has entered and tried to take the watch."""
    process = subprocess.Popen(  # noqa: S603 (our own Python)
        [sys.executable, "-c", OTHER, str(where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "there\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_command_runs_until_its_supervisor_says_that_it_has_ended(tmp_path: Path) -> None:
    one = SharedRun(tmp_path)
    one.enter(77)
    assert commands(tmp_path) == [Command(77, running=True)]
    before = time.monotonic_ns()
    assert one.leave(3)
    (command,) = commands(tmp_path)
    assert (command.pid, command.running, command.exit_code) == (77, False, 3)
    assert command.ended_ns >= before


def test_the_last_one_to_leave_is_told_so_and_a_killed_one_counts_as_gone(tmp_path: Path) -> None:
    process = other(tmp_path)
    one = SharedRun(tmp_path)
    one.enter(77)
    assert [command.running for command in commands(tmp_path)] == [True, True]
    assert not one.leave(0)
    killed(process)
    assert commands(tmp_path)[1] == Command(4242, running=False)
    assert one.leave(0)


def test_one_of_them_has_the_watch_and_another_gets_it_when_that_is_gone(tmp_path: Path) -> None:
    process = other(tmp_path)
    one = SharedRun(tmp_path)
    assert not one.take_watch()
    assert one.watch_fds() == ()
    killed(process)
    assert one.take_watch()
    assert len(one.watch_fds()) == 1


def test_a_watchdog_keeps_the_watch_when_its_supervisor_lets_it_go(tmp_path: Path) -> None:
    one, two = SharedRun(tmp_path), SharedRun(tmp_path)
    assert one.take_watch()
    watchdog = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=one.watch_fds())
    one.release_watch()
    assert not two.take_watch()
    watchdog.kill()
    watchdog.communicate()
    assert two.take_watch()


def test_the_first_ones_values_hold_for_all(tmp_path: Path) -> None:
    first, second = Start("a", "now", 5, 77), Start("b", "then", 6, 78)
    assert SharedRun(tmp_path).agree(first) == first
    assert SharedRun(tmp_path).agree(second) == first


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "command-1").write_text("{")
    (tmp_path / "command-2").mkdir()
    (tmp_path / "command-3").write_text('{"pid": "x", "exit_code": null, "ns": 0}')
    assert commands(tmp_path) == []
    assert commands(tmp_path / "gone") == []


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SharedRun(tmp_path / "gone").enter(os.getpid())


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([], None),
        ([(None, 0)], None),
        ([(0, 5), (None, 0)], 0),
        ([(0, 1), (7, 9), (1, 4)], 1),
    ],
)
def test_the_exit_code_of_the_job_is_that_of_the_first_failure(
    ends: list[tuple[int | None, int]], expected: int | None
) -> None:
    ended = [Command(1, running=False, exit_code=code, ended_ns=ns) for code, ns in ends]
    assert overall_exit_code(ended) == expected


STORE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TASK = {"RANK": "1", "WORLD_SIZE": "8"}


@pytest.mark.parametrize("names", TASKS)
def test_each_launchers_tasks_are_known(names: tuple[str, str]) -> None:
    assert job_name({**STORE, names[0]: "3", names[1]: "8"}, "")


def test_all_ranks_of_a_job_have_one_name() -> None:
    assert len({job_name({**STORE, **TASK, "RANK": str(rank)}, "") for rank in range(8)}) == 1


def test_jobs_with_another_store_run_id_or_step_have_another_name() -> None:
    jobs = [
        job_name({**STORE, **TASK}, ""),
        job_name({**STORE, **TASK}, "night"),
        job_name({**TASK}, "night"),
        job_name({**STORE, **TASK, "MASTER_PORT": "29501"}, ""),
        job_name({**STORE, **TASK, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, ""),
        job_name({**STORE, **TASK, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, ""),
    ]
    assert None not in jobs
    assert len(set(jobs)) == len(jobs)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        STORE,
        TASK,
        {**STORE, "RANK": "0", "WORLD_SIZE": "1"},
        {**STORE, "RANK": "none", "WORLD_SIZE": "2"},
        *({**STORE, **TASK, name: "1"} for name in ON_NODE),
        {**TASK, "MASTER_ADDR": "10.0.0.1"},
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    ],
)
def test_a_command_that_may_be_a_job_of_its_own_shares_nothing(environ: dict[str, str]) -> None:
    assert job_name(environ, "") is None


def test_a_run_id_alone_shares_nothing() -> None:
    assert job_name({}, "night") is None
