"""``hangwatch inspect`` on real jobs, watched or not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import looked_at
import pytest
from harness import environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from looked_at import Job

STALLED = "Rank 1 is not where the others are: it is in its own code at looked_at.py:20."
NAMELESS = """
import multiprocessing, os, sys
import torch

def work(number):
    os.write(1, b"%d\\n" % number)  # at once: two write to one pipe
    sys.stdin = open(0)
    sys.stdin.read()

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    children = [multiprocessing.Process(target=work, args=(n,)) for n in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
"""


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job that nobody watches, in which rank 1 stays in its own code."""
    job = looked_at.start(tmp_path_factory.mktemp("stalled"), "stalls", watched=False)
    try:
        job.until(lambda: "step 19\n" in job.printed(), "the stall")
        job.until(lambda: STALLED in inspect(job), "a look at the stall")
        yield job
    finally:
        looked_at.stop(job)


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A watched job in which rank 1 waits for its data worker; patiently."""
    options = ("--suspect-after", "60", "--hang-after", "90")
    job = looked_at.start(tmp_path_factory.mktemp("loading"), "loads", options=options)
    try:
        job.until(lambda: "step 19\n" in job.printed(), "the stall")
        job.until(lambda: "#41 of default_pg" in inspect(job), "a look at the stall")
        yield job
    finally:
        looked_at.stop(job)


def inspect(job: Job, *words: str | int) -> str:
    """What it prints of a job that it is shown by the pid of its launcher."""
    done = job.hangwatch("inspect", *(words or (job.process.pid,)))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_unwatched_job_is_told_apart_by_what_its_ranks_do(stalled: Job) -> None:
    said = inspect(stalled)
    lines = said.splitlines()
    assert lines[0].startswith("Job: 3 ranks, store at ")
    assert lines[1].strip() == STALLED
    assert lines[2].strip() == "Ranks 0 and 2 wait in all_reduce at looked_at.py:43."
    assert "not a verdict" in said
    assert said.count("        dist.all_reduce(over)") == 1, "identical stacks are merged"
    assert re.search(r"^ranks 0 and 2 \(pid \d+, \d+\) wait in all_reduce", said, re.MULTILINE)


def test_all_jobs_are_found_without_a_pid(stalled: Job, loading: Job) -> None:
    wanted = (
        f"  {STALLED}",
        str(stalled.rank_pid(0)),
        str(loading.rank_pid(0)),
        "watched: hangwatch top r1",
    )

    def found() -> bool:
        # Where many run at once, a py-spy may not answer in time for all ranks of all jobs.
        said = inspect(stalled, "--")
        return all(part in said for part in wanted)

    stalled.until(found, "a look at all jobs")


def test_one_rank_alone_is_no_reason_to_miss_the_others(stalled: Job) -> None:
    said = inspect(stalled, stalled.rank_pid(2))
    assert said.startswith("Job: 1 rank of 3 here")
    assert "  Rank 2 waits in all_reduce at looked_at.py:43." in said
    assert "has no process" not in said


def test_a_stopped_rank_is_named_first(stalled: Job) -> None:
    pid = stalled.rank_pid(2)
    os.kill(pid, signal.SIGSTOP)
    try:
        lines = inspect(stalled).splitlines()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert lines[1].startswith("  Rank 2 is stopped (SIGSTOP")
    assert lines[2].strip() == STALLED


def test_native_frames_are_shown_when_asked_for(stalled: Job) -> None:
    said = inspect(stalled, "--native", stalled.process.pid)
    assert STALLED in said
    assert "c10d::Work::wait  torch/lib/libtorch_cpu.so" in said
    assert len(said.splitlines()) < 60


def test_a_stuck_data_worker_is_shown_with_its_stack(loading: Job) -> None:
    said = inspect(loading)
    assert "watched: hangwatch top r1" in said.splitlines()[0]
    assert "Rank 1 is not where the others are: it is loading data (worker pid " in said
    assert re.search(
        r"Ranks 0 and 2 wait in all_reduce #41 of default_pg at looked_at\.py:4\d, for \d", said
    )
    assert "  its data worker, pid " in said
    assert "Samples.__getitem__  " in said


def test_processes_without_a_rank_are_shown_by_their_pids(tmp_path: Path) -> None:
    script = tmp_path / "nameless.py"
    script.write_text(NAMELESS)
    with subprocess.Popen(  # noqa: S603 (the test's own script)
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {"0\n", "1\n"}
        done = subprocess.run(  # noqa: S603 (the test's own command)
            looked_at.command("inspect", process.pid), capture_output=True, text=True, check=True
        )
        process.communicate("")
    assert done.stdout.startswith(f"Job: 3 with torch, started by pid {process.pid}\n")
    assert f"process {process.pid} (pid {process.pid}) is " in done.stdout
    assert re.search(r"work  .*nameless\.py:8", done.stdout)


def test_what_is_no_process_is_an_error(stalled: Job) -> None:
    for words in (("4194304",), ("x",)):
        done = stalled.hangwatch("inspect", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("hangwatch: ")


def test_where_py_spy_is_refused_it_says_what_to_do(stalled: Job) -> None:
    """As in a container without SYS_PTRACE; the kernel still tells of the processes."""
    without = ("--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    done = subprocess.run(  # noqa: S603 (the test's own command)
        ["/usr/bin/setpriv", *without, *looked_at.command("inspect", stalled.process.pid)],
        env=stalled.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.startswith("Job: 3 ranks, ")
    assert "No stacks: py-spy was refused: give hangwatch CAP_SYS_PTRACE" in done.stdout
    assert done.stdout.count("py-spy was refused") == 1


def test_a_rank_that_is_gone_is_missed(tmp_path: Path) -> None:
    """Nothing ends the others: they were started without torchrun."""
    script = tmp_path / "lone.py"
    script.write_text("import torch\nprint(flush=True)\ninput()\n")
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    with subprocess.Popen(  # noqa: S603 (the test's own script)
        [sys.executable, script],
        env=environment({**told, "RANK": "0", "LOCAL_RANK": "0"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        done = subprocess.run(  # noqa: S603 (the test's own command)
            looked_at.command("inspect", os.getpid()), capture_output=True, text=True, check=True
        )
        process.communicate(b"")
    assert "Local rank 1 has no process here: it has ended, or never began." in done.stdout
