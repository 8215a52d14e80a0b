"""``--on-hang abort`` ends ranks that hang, and no others.

Whatever comes over the store, and whatever happens between the verdict and the end. The
jobs are real ones; watchdogs are held at named moments, not by sleeping.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from harness import free_port
from steady import TORCHRUN, Job

from hangwatch.run.test_hooks import VARIABLE, Point

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HANG = "hangwatch: HANG ("
PATIENCE_S = 4.0
"""What OPTIONS say of a hang."""
OPTIONS = ("--suspect-after", "4", "--hang-after", "4", "--on-hang", "abort")

STRANGER = """
import sys
from torch.distributed import PrefixStore, TCPStore
from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.verdict import Verdict
from hangwatch.model import codec
from hangwatch.watchdog.peers.messages import Incident, Published
port = int(sys.argv[1])
tcp = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
store = PrefixStore("hangwatch/job/2", tcp)
verdict = Verdict(State(sys.argv[2]), Kind.DIED, Reason.SIGNAL, Certainty.PROVED, culprits=(0, 1),
                  victims=(0, 1), headline="A stranger says so.")
for number in range(1, 4):
    store.set(f"incident/{number}", codec.dumps(Incident("a:b", str(number), full=False)))
    store.set(f"verdict/{number}", codec.dumps(Published("a", (verdict,))))
print("forged", flush=True)
"""


@pytest.fixture
def moments(tmp_path: Path) -> Path:
    path = tmp_path / "moments"
    path.mkdir()
    return path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def reached(moments: Path, point: Point) -> bool:
    return (moments / point).exists()


def held(moments: Path, point: Point) -> Path:
    """Have a watchdog stay at a moment, from now on, for as long as the file is there."""
    (moments / point).unlink(missing_ok=True)
    hold = moments / f"{point}.hold"
    hold.touch()
    return hold


def nodes(tmp_path: Path, moments: Path, stack: ExitStack) -> tuple[list[Job], int]:
    """A job of two ranks, each below a supervisor of its own as if on two nodes; the store."""
    port = free_port()
    jobs = []
    for rank in range(2):
        where = tmp_path / str(rank)
        where.mkdir()
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            VARIABLE: str(moments),
        }
        job = Job(where, "-v", *OPTIONS, env=env, launch=(sys.executable,))
        jobs.append(stack.enter_context(job))
    for job in jobs:
        job.until_said("nodes know each other")
    return jobs, port


def forge(port: int, state: str) -> None:
    """Have somebody who is no watchdog say over the store that a job has come to this."""
    forging = [sys.executable, "-c", STRANGER, str(port), state]
    subprocess.run(forging, check=True, timeout=120)  # noqa: S603 (our own Python)


def test_a_stranger_at_the_store_ends_no_job_that_trains(
    tmp_path: Path, moments: Path, stack: ExitStack
) -> None:
    jobs, port = nodes(tmp_path, moments, stack)
    forge(port, "hang")
    for job in jobs:
        job.until_said("A stranger says so.")
        job.until_said("no rank will be aborted")
    began = time.monotonic()
    jobs[0].until(lambda: time.monotonic() - began > 2 * PATIENCE_S, "twice a hang's time")
    jobs[0].stop()
    for job in jobs:
        assert job.wait() == 0
        assert "ended " not in job.said()
        assert not reached(moments, Point.BEFORE_ABORT)
    assert (tmp_path / "0" / "out").read_text() == "finished\n"


def test_a_stranger_who_tells_of_a_failure_silences_nobody(
    tmp_path: Path, moments: Path, stack: ExitStack
) -> None:
    jobs, port = nodes(tmp_path, moments, stack)
    forge(port, "failed")
    for job in jobs:
        job.until_said("A stranger says so. (reported by node a)")
    jobs[0].until(lambda: reached(moments, Point.CONTRADICTED), Point.CONTRADICTED)
    for job in jobs:
        job.until_said("the failure reported by another node has cleared")
    jobs[1].pause()
    for job in jobs:
        assert job.wait() == 75
        job.says_once("hangwatch: HANG ")


def test_waits_on_one_node_and_the_culprit_on_another_are_ended_by_their_own_pages(
    tmp_path: Path, moments: Path, stack: ExitStack
) -> None:
    jobs, _ = nodes(tmp_path, moments, stack)
    jobs[1].pause()
    for job in jobs:
        assert job.wait() == 75
        job.says_once("ended 1 rank of this node (--on-hang abort)")
    seen = {one.name for one in moments.iterdir()}
    assert {Point.CLAIMED, Point.ASKED, Point.HEARD} <= seen


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(Point.JUDGED, marks=pytest.mark.campaign),
        pytest.param(Point.REPORTED, marks=pytest.mark.campaign),
        Point.BEFORE_ABORT,
        Point.BEFORE_TERM,
    ],
)
def test_a_job_that_has_recovered_since_the_verdict_is_not_ended(
    tmp_path: Path, moments: Path, point: Point
) -> None:
    with Job(tmp_path, *OPTIONS, env={VARIABLE: str(moments)}) as job:
        job.until_running()
        hold = held(moments, point)  # a start that is slow may come by it as well
        job.pause()
        job.until(lambda: reached(moments, point), point)
        job.go_on()
        hold_until_steps(job)
        hold.unlink()
        job.until_said("no rank will be aborted")
        job.ends_well()
        job.says_once("the job recovered")
        assert "ended " not in job.said()
        assert not reached(moments, Point.ENDED)


def hold_until_steps(job: Job) -> None:
    """Wait until the ranks have done a step since they could."""
    mark = job.where / "steps"
    before = mark.read_text() if mark.exists() else ""
    job.until(lambda: mark.exists() and mark.read_text() != before, "another step")


def test_a_rank_that_recovers_after_sigterm_gets_no_sigkill(tmp_path: Path, moments: Path) -> None:
    with Job(tmp_path, *OPTIONS, fault="deaf", env={VARIABLE: str(moments)}) as job:
        job.until_running()
        hold = held(moments, Point.BEFORE_KILL)
        job.pause()
        job.until(lambda: reached(moments, Point.BEFORE_KILL), "the look before SIGKILL")
        job.go_on()
        hold_until_steps(job)
        hold.unlink()
        job.ends_well()


def test_a_watchdog_that_is_killed_before_it_ends_the_ranks_leaves_that_to_the_next(
    tmp_path: Path, moments: Path
) -> None:
    with Job(tmp_path, *OPTIONS, fault="hang", env={VARIABLE: str(moments)}) as job:
        hold = held(moments, Point.BEFORE_ABORT)
        job.until(lambda: reached(moments, Point.BEFORE_ABORT), "the moment")
        (pid,) = job.watchdogs()
        os.kill(pid, signal.SIGKILL)
        hold.unlink()
        assert job.wait() == 75
        job.says_once(HANG)
        job.says_once("(--on-hang abort)")


ELSEWHERE = {Point.CLAIMED, Point.ASKED, Point.HEARD, Point.CONTRADICTED}
"""What takes more than one node."""
ALONE = {*Point} - ELSEWHERE - {Point.RECOVERED, Point.RESTARTED}
"""What a hang on one node comes by that ends the job."""


def test_a_hang_that_is_ended_comes_by_every_moment(tmp_path: Path, moments: Path) -> None:
    options = (*OPTIONS, "--hook", "true")
    env = {VARIABLE: str(moments)}
    with Job(tmp_path, *options, fault="deaf-hang", env=env, launch=TORCHRUN) as job:
        job.until_running()
        assert job.wait() == 75
        job.says_once(HANG)
    passed = {path.name for path in moments.iterdir()}
    assert {name for name in passed if not name.startswith("supervisor-")} == set(ALONE)
