"""Where the script is in a launcher's line, and what the line says of the job."""

from __future__ import annotations

import pytest

from hangwatch.preflight.job import Job, endpoint, job, parse_command

ACCELERATE = (
    "accelerate launch --num_machines 2 --machine_rank 0 --num_processes 8"
    " --main_process_ip n0 --main_process_port 1234 a.py"
)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("torchrun train.py", "torchrun OURS"),
        (
            "torchrun --standalone --nproc-per-node 2 train.py --standalone -m x",
            "torchrun --standalone --nproc-per-node 2 OURS",
        ),
        ("torchrun --nproc_per_node=2 -m pkg.train --lr 1", "torchrun --nproc_per_node=2 OURS"),
        ("torchrun --module pkg.train", "torchrun OURS"),
        ("torchrun -r 3 -t3 train.py", "torchrun -r 3 -t3 OURS"),
        (
            "torchrun --virtual_local_rank --run-path a.py",
            "torchrun --virtual_local_rank --run-path OURS",
        ),
        ("torchrun -- train.py", "torchrun OURS"),
        ("torchrun --no-python ./run.sh train.py", "torchrun OURS"),
        (
            "torchrun --no_python --nnodes=2 /opt/venv/bin/python3.12 -u train.py",
            "torchrun --nnodes=2 --no_python /opt/venv/bin/python3.12 OURS",
        ),
        (
            "/opt/venv/bin/python -u -m torch.distributed.run --nnodes 1:4 train.py",
            "/opt/venv/bin/python -u -m torch.distributed.run --nnodes 1:4 OURS",
        ),
        (
            "python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py",
            "python -m torch.distributed.launch --use_env --nproc_per_node 2 OURS",
        ),
        (
            "accelerate launch --config_file a.yaml --cpu --num_processes 2 train.py --cpu",
            "accelerate launch --config_file a.yaml --cpu --num_processes 2 OURS",
        ),
        ("accelerate-launch --multi-gpu -m pkg", "accelerate-launch --multi-gpu OURS"),
        (
            "python -m accelerate.commands.launch -q train.py",
            "python -m accelerate.commands.launch -q OURS",
        ),
        (
            "python -m accelerate.commands.accelerate_cli launch --num_machines 2 train.py",
            "python -m accelerate.commands.accelerate_cli launch --num_machines 2 OURS",
        ),
        (
            "deepspeed --hostfile hosts --no_local_rank train.py --deepspeed ds.json",
            "deepspeed --hostfile hosts --no_local_rank OURS",
        ),
        ("deepspeed --module pkg.train", "deepspeed OURS"),
        ("srun -N 2 -n 4 python -X dev train.py", "srun -N 2 -n 4 python -X dev OURS"),
        ("srun -N 2 torchrun --nnodes=2 train.py", "srun -N 2 torchrun --nnodes=2 OURS"),
        ("env A=b uv run python -um pkg.train", "env A=b uv run python -u OURS"),
        ("python -mpkg.train x", "python OURS"),
        ("python -W ignore -Xdev train.py x", "python -W ignore -Xdev OURS"),
        ("mpirun -np 4 ./train.py x", "mpirun -np 4 OURS"),
        ("torchrun --new-switch train.py x", "torchrun --new-switch OURS"),
    ],
)
def test_our_program_takes_the_place_of_the_script(line: str, ours: str) -> None:
    found = parse_command(line.split())
    assert found
    assert found.with_script("OURS") == ours.split()


@pytest.mark.parametrize(
    "line", ["", "torchrun", "torchrun --nnodes 2", "python -c pass", "make", "python -m"]
)
def test_a_line_without_a_script_is_none(line: str) -> None:
    assert parse_command(line.split()) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun --standalone --nproc-per-node=4 a.py", Job("torchrun", 1, 0, local_ranks=4)),
        (
            "torchrun --nnodes 2:4 --rdzv-backend=c10d --rdzv_endpoint=node-0 a.py",
            Job("torchrun", 2, None, "node-0", 29400, 1),
        ),
        (
            "torchrun --nnodes 2 --node_rank 1 --master-addr 10.0.0.1 --master-port 7 a.py",
            Job("torchrun", 2, 1, "10.0.0.1", 7, 1),
        ),
        ("torchrun a.py", Job("torchrun", 1, local_ranks=1)),
        (
            ACCELERATE,
            Job("accelerate", 2, 0, "n0", 1234, 4),
        ),
        (
            "deepspeed --num_nodes 2 --num_gpus 8 --master_addr n0 a.py",
            Job("deepspeed", 2, None, "n0", 29500, 8),
        ),
        ("accelerate launch a.py", Job("accelerate")),
    ],
)
def test_what_a_line_says_of_the_job(line: str, expected: Job) -> None:
    stale = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1"}
    assert job(stale, line.split()) == expected


def test_torchrun_takes_its_options_from_the_environment_too() -> None:
    """As the PyTorchJob of Kubernetes sets them."""
    environ = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_RDZV_ENDPOINT": "job-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
    }
    expected = Job("torchrun", 2, None, "job-worker-0", 23456, 8)
    assert job(environ, ["torchrun", "train.py"]) == expected
    assert job(environ, ["torchrun", "--nnodes=3", "train.py"]).nodes == 3
    assert job({"PET_STANDALONE": "0"}, ["torchrun", "a.py"]).nodes == 1
    assert job({"PET_NNODES": "2"}, ["accelerate", "launch", "a.py"]).nodes is None


def test_what_the_environment_says_of_the_job() -> None:
    environ = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "n0", "MASTER_PORT": "9"}
    assert job(environ) == Job("", 2, None, "n0", 9, 8)
    assert job({**environ, "GROUP_RANK": "1"}, ["python", "a.py"]).node_rank == 1
    assert job({"WORLD_SIZE": "1"}).nodes == 1
    assert job({"WORLD_SIZE": "many"}) == Job()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node-0", ("node-0", 5)),
        ("node-0:80", ("node-0", 80)),
        ("[fd77::1]:80", ("fd77::1", 80)),
        ("[fd77::1]", ("fd77::1", 5)),
        ("fd77::1", ("fd77::1", 5)),
    ],
)
def test_an_endpoint_is_a_host_and_perhaps_a_port(text: str, expected: tuple[str, int]) -> None:
    assert endpoint(text, 5) == expected
