"""Jobs that nobody has wrapped: HANGWATCH=1 is all that there is.

The ranks start the watchdog of their node themselves, one for all.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import free_port
from launching import PROGRAMS, Launched, line_of
from waiting import until

from hangwatch.evidence.processes import read_stat

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
UNWRAPPED = {"HANGWATCH": "1", "HANGWATCH_SUSPECT_AFTER": "2"}
LAUNCHED = PROGRAMS / "launched.py"


def parents(pids: Iterable[int]) -> list[int]:
    """The parents of these processes."""
    return [stat.ppid for pid in pids if (stat := read_stat(pid)) is not None]


def ended_children(parents: Iterable[int]) -> list[str]:
    """Children of these that were not waited for."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = [stat for pid in pids if (stat := read_stat(pid)) is not None]
    return [stat.comm for stat in found if stat.ended and stat.ppid in parents]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_program_that_starts_its_own_ranks_is_watched(tmp_path: Path, method: str) -> None:
    program = PROGRAMS / "starts_its_own_ranks.py"
    command = [sys.executable, str(program), method, str(free_port())]
    with Launched(tmp_path, command, UNWRAPPED) as job:
        job.until_running()
        supervisor = job.only("hangwatch.launch.standalone")
        watchdog = job.only("hangwatch.watchdog")
        ranks = set(job.running("ython")) - {supervisor, watchdog}
        assert not ranks & set(parents([supervisor]))
        assert ended_children(ranks) == []
        job.touch("hold")
        job.until_said("SLOW")
        (tmp_path / "hold").unlink()
        job.until_said("the job recovered")
        job.touch("stop")
        assert job.wait() == 0
        job.until_nothing_runs()
        assert sorted(job.printed().splitlines()) == ["done 0", "done 1"]
        told = [line.partition(": ")[2].split()[0] for line in job.news()]
        assert told == ["watching", "SLOW", "the"], job.news()
    (report,) = job.reports()
    verdict = report["verdict"]
    assert (verdict["culprits"], verdict["victims"]) == ([1], [0])
    assert verdict["site"]["file"] == str(LAUNCHED)
    assert verdict["site"]["line"] == line_of(LAUNCHED)
    (run,) = tmp_path.glob("hangwatch-reports/[!.l]*/run.json")
    assert json.loads(run.read_text())["exit_code"] == 0


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_a_rank_raises_is_told_where_multiprocessing_catches_it(
    tmp_path: Path, method: str
) -> None:
    program = PROGRAMS / "starts_its_own_ranks.py"
    # Else it may be said twice: while the other rank still waits, and at the job's end.
    patient = {**UNWRAPPED, "HANGWATCH_SUSPECT_AFTER": "60"}
    command = [sys.executable, str(program), method, str(free_port())]
    with Launched(tmp_path, command, patient) as job:
        job.until_running()
        job.touch("hold")
        job.touch("fail")
        job.until_said("FAILED")
        assert job.wait() == 1
        job.until_nothing_runs()
        assert job.said().count("ValueError: bad batch") == 2  # the program's, and ours
    verdict = job.reports()[-1]["verdict"]
    assert (verdict["kind"], verdict["reason"]) == ("died", "exception")
    assert (verdict["culprits"], verdict["certainty"]) == ([1], "proved")
    assert verdict["site"]["file"] == str(LAUNCHED)
    assert verdict["site"]["line"] == line_of(LAUNCHED, "# raised")
    assert "shutting down" not in verdict["explanation"]


def test_a_rank_that_was_killed_is_named_and_its_restart_is_left_alone(tmp_path: Path) -> None:
    launch = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    # Else gloo may find the addresses of the ranks before in torchrun's store, as without us.
    environ = {**UNWRAPPED, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *launch, str(LAUNCHED)]
    with Launched(tmp_path, command, environ) as job:
        job.until_running()
        job.touch("hold")
        job.until_said("SLOW")
        job.touch("die")
        job.until_said("FAILED")
        (tmp_path / "hold").unlink()
        job.touch("stop")
        assert job.wait() == 0
        job.until_nothing_runs()
    verdict = next(r["verdict"] for r in job.reports() if r["verdict"]["state"] == "failed")
    assert (verdict["kind"], verdict["reason"]) == ("died", "signal")
    assert (verdict["culprits"], verdict["victims"]) == ([1], [0])


def test_the_watch_survives_its_own_death_and_ends_with_ranks_that_are_killed(
    tmp_path: Path,
) -> None:
    command = ["torchrun", "--standalone", "--nproc-per-node=2", str(LAUNCHED)]
    env = {**UNWRAPPED, "HANGWATCH_HANG_AFTER": "3", "HANGWATCH_ON_HANG": "abort"}
    with Launched(tmp_path, command, env) as job:
        job.until_running()
        watchdog = job.only("hangwatch.watchdog")
        os.kill(watchdog, signal.SIGKILL)
        until(lambda: job.running("hangwatch.watchdog") not in ([], [watchdog]), "another")
        job.touch("hold")
        job.until_said("ended 2 ranks")
        assert job.wait() == 1
        job.until_nothing_runs()
    assert [report["verdict"]["state"] for report in job.reports()] == ["hang"]
