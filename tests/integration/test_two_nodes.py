"""Two nodes on one machine: each its own torchrun, its own watchdog and half of the ranks."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import pytest
from harness import environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
    pytest.mark.timeout(300),
]
WAIT_S = 120.0
PROGRAM = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(60):
    if step == 30 and dist.get_rank() == 3:
        while not os.path.exists("go"):
            time.sleep(0.1)  # culprit
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
"""


class Node:
    """One node of the job, under watch."""

    def __init__(self, where: Path, number: int, port: int) -> None:
        self.where, self._stderr = where, where / f"stderr-{number}"
        self.reports = where / f"reports-{number}"
        command = [sys.executable, "-m", "hangwatch", "--report-dir", str(self.reports)]
        command += ["--suspect-after", "4", "--hang-after", "100", sys.executable]
        command += ["-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"]
        command += ["--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(  # noqa: S603 (our own Python)
                [*command, "train.py"],
                cwd=where,
                env=environment({}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def said(self) -> str:
        return self._stderr.read_text("utf-8", "replace")

    def reported(self) -> list[dict[str, Any]]:
        paths = sorted(self.reports.glob("*/incident-*/report.json"))
        return [json.loads(path.read_text()) for path in paths if path.parts[-3] != "latest"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(WAIT_S)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def test_one_watchdog_judges_all_ranks_and_the_other_repeats_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(tmp_path, number, port)) for number in (0, 1)]
        wait_for(lambda: all("SLOW" in node.said() for node in nodes))
        (report,) = [report for node in nodes for report in node.reported()]
        (tmp_path / "go").touch()
        assert [node.process.wait(WAIT_S) for node in nodes] == [0, 0]
        assert all("the job goes on" in node.said() for node in nodes)
        assert not any("HANG" in node.said() for node in nodes)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]
    verdict = report["verdict"]
    assert (verdict["culprits"], verdict["victims"]) == ([3], [0, 1, 2])
    assert verdict["site"]["source"] == "time.sleep(0.1)  # culprit"
    assert report["unseen"] == []
