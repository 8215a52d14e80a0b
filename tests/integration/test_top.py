"""``hangwatch top`` on real jobs, in a real terminal and without one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import looked_at
import pytest
from pseudo_terminal import ALTERNATE, NORMAL, Terminal
from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from looked_at import Job

PATIENT = ("--suspect-after", "60", "--hang-after", "90")
HASTY = ("--suspect-after", "2", "--hang-after", "4")


@pytest.fixture(params=[True], ids=["forked"])
def healthy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    job = looked_at.start(tmp_path, "goes_on", forked=request.param, options=PATIENT)
    try:
        job.until(lambda: "step 5\n" in job.printed(), "step 5")
        yield job
    finally:
        looked_at.stop(job)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A healthy job that several tests look at."""
    where = tmp_path_factory.mktemp("lasting")
    job = looked_at.start(where, "goes_on", forked=True, options=PATIENT)
    try:
        job.until(lambda: "step 5\n" in job.printed(), "step 5")
        yield job
    finally:
        looked_at.stop(job)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    where = tmp_path_factory.mktemp("hung")
    job = looked_at.start(where, "loads", forked=True, options=HASTY)
    try:
        job.until(lambda: "hangwatch: HANG (" in job.printed(), "the verdict")
        yield job
    finally:
        looked_at.stop(job)


def top(job: Job, columns: int, lines: int) -> Terminal:
    words = ("top", job.process.pid)  # other runs on this machine may be called as it is
    return Terminal(looked_at.command(*words), job.environ, columns, lines)


def fits(frame: list[str], columns: int, lines: int) -> bool:
    return 0 < len(frame) <= lines and all(cell_len(line) <= columns for line in frame)


@pytest.mark.parametrize("healthy", [False], indirect=True, ids=["torchrun"])
def test_a_healthy_run_is_shown_until_it_ends(healthy: Job) -> None:
    with top(healthy, 80, 24) as terminal:
        frame = terminal.until(lambda f: f[1].startswith("going on: 3 ranks"))
        assert fits(frame, 80, 24)
        assert frame[0].startswith("r1  torchrun --standalone")
        rows = [line.split() for line in frame[4:7]]
        assert [row[0] for row in rows] == ["0", "1", "2"]
        assert all(float(row[1]) > 1 for row in rows), "calls a second"
        assert all(row[2] == "default_pg" for row in rows)
        with lines(healthy) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert " going on: 3 ranks here, " in process.stdout.readline()
            assert healthy.let_end() == 0
            *_, last = process.stdout
        code, left = terminal.wait()
    assert (code, process.returncode) == (0, 0)
    assert left[-1] == last.strip() == "the run has ended, exit code 0, no incidents"
    assert left[0].startswith("r1  torchrun --standalone"), "the last picture stays"


def test_a_hang_is_shown_with_culprit_calls_and_lines(hung: Job) -> None:
    with top(hung, 80, 24) as terminal:
        frame = terminal.until(lambda f: f[1].startswith("HANG (likely)"))
        assert fits(frame, 80, 24)
        heading = next(at for at, line in enumerate(frame) if line.startswith("rank "))
        rows = frame[heading + 1 : heading + 4]
        assert [row.split()[0] for row in rows] == ["1", "0", "2"]
        assert re.search(r"data loading +looked_at\.py:20", rows[0])
        for row in rows[1:]:
            assert re.search(r" \d+(\.\d)? s all_reduce #41 +looked_at\.py:4\d", row)
        terminal.resize(200, 50)
        wide = terminal.until(lambda f: any("dist.all_reduce(over)" in line for line in f))
        assert fits(wide, 200, 50)
        assert any("all_reduce #41 of default_pg" in line for line in wide)
        terminal.resize(30, 8)
        narrow = terminal.until(lambda f: max(map(cell_len, f)) <= 30)
        assert fits(narrow, 30, 8)


def test_ctrl_c_ends_the_view_and_not_the_job(lasting: Job) -> None:
    with top(lasting, 80, 24) as terminal:
        terminal.until(bool)
        terminal.press("\x03")
        code, left = terminal.wait()
    assert code == 0
    assert left[-1] == "the run continues"
    assert "Traceback" not in terminal.output
    assert lasting.process.poll() is None


def test_sigterm_gives_the_terminal_back(lasting: Job) -> None:
    with top(lasting, 80, 24) as terminal:
        terminal.until(bool)
        terminal.signal(signal.SIGTERM)
        code, _ = terminal.wait()
    assert code == 128 + signal.SIGTERM
    assert terminal.output.rfind(NORMAL) > terminal.output.rfind(ALTERNATE)
    assert "\x1b[?25h" in terminal.output.rpartition(ALTERNATE)[2], "the cursor is back"


def test_a_run_directory_that_is_deleted_under_it_is_no_end(healthy: Job) -> None:
    with top(healthy, 100, 30) as terminal:
        terminal.until(bool)
        shutil.rmtree(healthy.run_dir)
        frame = terminal.until(lambda f: any("was deleted" in line for line in f))
        assert any(re.match(r"2 ", line) for line in frame)
        assert healthy.let_end() == 0
        code, left = terminal.wait()
    assert code == 0
    assert left[-1].startswith("the run has ended, exit code 0")


def test_garbage_among_the_pages_is_mentioned_and_passed_over(lasting: Job) -> None:
    garbage = lasting.run_dir / "r0-9-1.page"
    garbage.write_bytes(os.urandom(4096))
    with top(lasting, 100, 30) as terminal:
        frame = terminal.until(lambda f: any("r0-9-1.page cannot be read" in line for line in f))
        assert any(re.match(r"2 ", line) for line in frame)
    garbage.unlink()


def test_a_supervisor_that_is_killed_ends_the_view(healthy: Job) -> None:
    with top(healthy, 100, 30) as terminal:
        terminal.until(bool)
        healthy.process.kill()
        code, left = terminal.wait()
    assert code == 0
    assert left[-1] == "the supervisor is gone; 3 ranks still run, unwatched"


def test_one_picture_where_there_is_no_terminal(hung: Job) -> None:
    once = hung.hangwatch("top", "--once", hung.process.pid)
    assert (once.returncode, once.stderr) == (0, "")
    assert "\x1b" not in once.stdout
    assert "HANG (likely): Rank 1 never entered all_reduce #41" in once.stdout
    assert re.search(r"^1 .* data loading +looked_at\.py:20", once.stdout, re.MULTILINE)


def test_plain_lines_where_there_is_no_terminal(hung: Job) -> None:
    with lines(hung) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert re.match(r"\d\d:\d\d:\d\d HANG \(likely\): Rank 1 never entered", first)
        assert "; ranks 0, 2 in all_reduce #41 of default_pg" in first
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130


def lines(job: Job) -> subprocess.Popen[str]:
    words = ("top", "--interval", "0.5", job.process.pid)
    return subprocess.Popen(  # noqa: S603 (the command is the test's own)
        looked_at.command(*words), env=job.environ, stdout=subprocess.PIPE, text=True
    )
