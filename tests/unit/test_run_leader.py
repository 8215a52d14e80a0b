"""Which commands are ranks of one job on this node."""

from __future__ import annotations

import pytest

from hangwatch.run.peers import ON_NODE, TASKS, job_name

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
