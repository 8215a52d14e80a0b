"""torchrun starts the ranks anew: each incarnation is watched, and reported, for itself."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Self

import pytest
from harness import PROGRAMS, TOKEN, end, environment, read_reports, watch
from waiting import BOUND_S, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torchrun 2.13 else lets the ranks find the addresses of those before them in the store, and
leaves a node that joins waiting for the store's address."""


def test_each_incarnation_has_its_own_incident_and_an_abort_restarts_the_job() -> None:
    program = PROGRAMS / "elastic.py"
    began = time.monotonic()
    result = watch(
        program, "--on-hang", "abort", launch=["--max-restarts=3"], nproc=3, env=NEW_STORE
    )
    took_s = time.monotonic() - began
    assert result.exit_code == 0
    assert "finished in incarnation 2" in result.stdout
    failed, hung = result.reports
    assert [one["run"]["restart"] for one in result.reports] == [0, 1]
    assert [one["verdict"]["state"] for one in result.reports] == ["failed", "hang"]
    assert (failed["verdict"]["kind"], failed["verdict"]["culprits"]) == ("died", [1])
    assert "first failure" in failed["verdict"]["site"]["source"]
    assert (hung["verdict"]["kind"], hung["verdict"]["culprits"]) == ("subset_entered", [2])
    assert "second failure" in hung["verdict"]["site"]["source"]
    for report in result.reports:
        assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2]
    assert result.run is not None
    assert result.run["exit_code"] == 0
    assert result.run["incidents"] == ["incident-001", "incident-002"]
    for restart in (1, 2):
        line = f"the launcher has restarted the ranks (restart {restart})"
        assert result.stderr.count(line) == 1
    print(f"a failure, a hang and their restarts took {took_s:.0f} s instead of 30 minutes")  # noqa: T201 (a figure)


class Node:
    """One torchrun under watch, with two ranks. All share one report directory and run id."""

    def __init__(self, where: Path, name: str, port: int, *, is_host: bool) -> None:
        self._stderr = where / f"stderr-{name}"
        self._token = uuid.uuid4().hex
        host = f"is_host={int(is_host)}"
        command = [
            sys.executable,
            "-m",
            "hangwatch",
            "--report-dir",
            "reports",
            "--run-id",
            "night",
        ]
        command += ["--suspect-after", "3", "--hang-after", "300", "torchrun", "--nnodes=1:3"]
        command += ["--nproc-per-node=2", "--max-restarts=2", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={port}"]
        command += ["--local-addr=127.0.0.1"]
        command += [f"--rdzv-conf={host},last_call_timeout=1,keep_alive_interval=1"]
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(  # noqa: S603 (our own Python)
                [*command, str(PROGRAMS / "rounds.py")],
                cwd=where,
                env=environment(NEW_STORE) | {TOKEN: self._token},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process, self._token)
        sys.stderr.write(self.said())

    def said(self) -> str:
        return self._stderr.read_text("utf-8", "replace")


def test_nodes_that_join_and_leave_make_new_incarnations_of_another_size(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def ran(world_size: int, restart: int) -> bool:
        names = (f"ran-{world_size}-{rank}-{restart}" for rank in range(world_size))
        return all((tmp_path / name).exists() for name in names)

    with Node(tmp_path, "one", port, is_host=True) as one:
        until(lambda: ran(2, 0), "the first node")
        (tmp_path / "hold").touch()
        with Node(tmp_path, "two", port, is_host=False) as two:
            until(lambda: ran(4, 0), "the second node")
            # Nothing failed, and both nodes know the same job.
            until(lambda: "SLOW" in one.said() and "SLOW" in two.said(), "the verdict on both")
            (report,) = read_reports(tmp_path / "reports")
            (tmp_path / "hold").unlink()
            until(
                lambda: all("the job recovered" in node.said() for node in (one, two)),
                "both going on",
            )
            assert "FAILED" not in one.said() + two.said()
            two.process.terminate()
            code = two.process.wait(BOUND_S)
        until(lambda: ran(2, 1), "the first node alone")
        (tmp_path / "stop").touch()
        assert one.process.wait(BOUND_S) == 0
    runs = [json.loads(path.read_text()) for path in tmp_path.glob("reports/night/run*.json")]
    assert sorted(run["exit_code"] for run in runs) == [0, code]
    told = subprocess.run(
        [sys.executable, "-m", "hangwatch", "report", "reports/latest"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    last = read_reports(tmp_path / "reports")[-1]
    assert told.stdout.startswith(f"hangwatch: {last['verdict']['state'].upper()} (")
    assert (report["run"]["world_size"], report["run"]["restart"]) == (4, 0)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]
    assert report["unseen"] == []
    verdict = report["verdict"]
    assert (verdict["culprits"], verdict["victims"]) == ([3], [0, 1, 2])
    assert verdict["site"]["source"] == "time.sleep(0.05)  # culprit"
