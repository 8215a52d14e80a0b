"""The doctor on real machines, launchers and networks; and what a watched job is told."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from harness import TOKEN, end, environment, processes
from hosts import Host, hosts, needs_hosts
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
DOCTOR = (sys.executable, "-m", "hangwatch", "doctor", "--json")
STANDALONE = ("torchrun", "--standalone", "--nproc-per-node=2")
ETH0 = {"GLOO_SOCKET_IFNAME": "eth0"}
START = "hangwatch: the job cannot start: gloo would use 127.0.0.1 on lo"
LATE_PYTHON = """#!/bin/sh
[ "$RANK" = 1 ] && exec sleep 1000
exec {python} "$@"
"""
STUCK = """
import os, threading, time

def stick():
    import torch.distributed as dist
    dist.all_reduce = lambda *args: time.sleep(1000)

if os.environ.get("RANK") == "1":
    threading.Thread(target=stick, daemon=True).start()
"""


def examine(
    *words: str, env: Mapping[str, str] | None = None, where: Path | None = None
) -> dict[str, Any]:
    """What the doctor says, as JSON, with its exit code; it leaves no process behind."""
    token = uuid.uuid4().hex
    process = subprocess.Popen(  # noqa: S603 (ours)
        [*DOCTOR, *words],
        env=environment({**(env or {}), TOKEN: token}),
        cwd=where,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=200)
        until(lambda: not processes(token), "the end of all ranks")
    finally:
        end(process, token)
    return {**json.loads(out), "exit_code": process.returncode}


def said(answer: Mapping[str, Any], check: str, grade: str = "fail") -> str:
    """What is said under a check with a grade; empty where that is nothing."""
    found = [one for one in answer["findings"] if (one["check"], one["grade"]) == (check, grade)]
    return "; ".join(one["what"] for one in found)


def test_two_ranks_of_one_node_meet_and_are_timed(tmp_path: Path) -> None:
    answer = examine("--", *STANDALONE, "-m", "train", "--lr=1", where=tmp_path)
    assert (answer["schema"], answer["exit_code"]) == ("hangwatch.doctor/1", 0)
    assert said(answer, "trial", "ok").startswith("2 ranks on 1 node met and reduced by gloo")
    assert "the same on all ranks: torch" in said(answer, "versions", "ok")
    trial = answer["trial"]
    assert (trial["stage"], trial["world_size"], trial["exit_code"]) == ("done", 2, 0)
    assert [one["rank"] for one in trial["ranks"]] == [0, 1]
    assert trial["times"]["barrier_s"] > 0
    assert [one["bytes"] for one in trial["times"]["all_reduce"]][:2] == [4, 1 << 20]
    assert trial["times"]["pairs"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(LATE_PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    line = (*STANDALONE, "--no-python", str(python), "train.py")
    answer = examine("--timeout=3", "--", *line)
    assert answer["exit_code"] == 1
    assert said(answer, "trial").startswith("rank 1 of 2 did not come: 1 rank of ")
    assert answer["trial"]["missing"] == [1]


def test_a_rank_that_is_stuck_in_the_trial_is_named_by_the_watch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    env = {"PYTHONPATH": str(tmp_path)}
    answer = examine("--timeout=20", "--", *STANDALONE, "train.py", env=env)
    assert answer["exit_code"] == 1
    assert "all 2 ranks came, and init_process_group failed with gloo" in said(answer, "trial")
    assert said(answer, "verdict").startswith("Rank 1 never entered all_reduce")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--", "make", "train"], "no Python script found in: make train"),
        (["--timeout=x"], "argument --timeout: x: use 1 to 3600 seconds"),
        (["train.py"], "unrecognized arguments: train.py"),
    ],
)
def test_bad_usage_is_told(words: Sequence[str], complaint: str) -> None:
    done = subprocess.run(  # noqa: S603 (ours)
        [*DOCTOR, *words], capture_output=True, text=True, check=False, env=environment({})
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


def torchrun(made: Sequence[Host], host: Host) -> list[str]:
    """A line for one of two nodes, whose first has the rendezvous."""
    return [
        *("torchrun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"),
        *(f"--rdzv-endpoint={made[0].address}:29400", f"--local-addr={host.address}"),
        *(f"--rdzv-conf=is_host={int(host is made[0])}", "train.py"),
    ]


def answers(made: Sequence[Host]) -> list[dict[str, Any]]:
    """What the doctor of each host has said."""
    for host in made:
        until(lambda host=host: host.exit_code() is not None, f"the doctor on {host.name}")  # type: ignore[misc]
    return [
        {**json.loads((host.where / "stdout").read_text()), "exit_code": host.exit_code()}
        for host in made
    ]


@needs_hosts
def test_two_nodes_meet_where_gloo_is_told_its_interface(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        for host in made:
            host.start([*DOCTOR, "--", *torchrun(made, host)], ETH0)
        both = answers(made)
    for answer in both:
        assert answer["exit_code"] == 0
        assert said(answer, "trial", "ok").startswith("2 ranks on 2 nodes met and reduced by gloo")
        (pair,) = answer["trial"]["times"]["pairs"]
        assert pair["ranks"] == [0, 1]
        assert pair["round_trip_s"] > 0
        assert said(answer, "links", "ok").startswith("1 pair of nodes, node-")
    assert "10.77.0.1:29400 is this machine" in said(both[0], "rendezvous", "ok")


@needs_hosts
def test_two_nodes_whose_names_lead_to_the_loopback_do_not_meet(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        for host in made:
            host.start([*DOCTOR, "--timeout=60", "--", *torchrun(made, host)], {})
        both = answers(made)
    for answer, own, other in zip(both, made, reversed(made), strict=True):
        assert answer["exit_code"] == 1
        assert f"gloo would use 127.0.0.1 on lo (the name of this machine, {own.name}" in said(
            answer, "gloo"
        )
        assert (
            f"{own.name} cannot connect to {other.name}, where gloo listens at 127.0.0.1"
            in said(answer, "trial")
        )


@needs_hosts
def test_a_node_without_a_way_to_the_rendezvous(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        made[1].cut_off()
        place = {"MASTER_ADDR": made[0].address, "MASTER_PORT": "29500"}
        ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        for host in made:
            host.start(DOCTOR, {**ETH0, **place, **ranks})
        first, second = answers(made)
    assert said(first, "rendezvous", "ok").startswith("10.77.0.1:29500 is this machine")
    assert (first["exit_code"], second["exit_code"]) == (0, 1)
    assert said(second, "rendezvous") == (
        "10.77.0.1:29500 is not reached from here (10.77.0.1: no answer within 3 s)"
    )


@needs_hosts
def test_a_watched_job_is_told_that_its_nodes_cannot_connect(tmp_path: Path) -> None:
    watch = (sys.executable, "-m", "hangwatch", "--report-dir", "reports")
    program = tmp_path / "train.py"
    program.write_text('import torch.distributed as dist\ndist.init_process_group("gloo")\n')
    with hosts(tmp_path) as made:
        for host in made:
            host.start([*watch, *torchrun(made, host)[:-1], str(program)], {})

        # One of the two connects and fails, the other waits to be connected to.
        def told() -> list[str]:
            return [line for host in made for line in host.said().splitlines() if START in line]

        until(told, START)
        assert all(line.endswith(" or correct /etc/hosts") for line in told())
