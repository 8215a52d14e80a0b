"""Whatever of hangwatch fails, the job goes on to its own end, and the loss is said once.

The job is a real one of two ranks. Each fault is done to it for real.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import processes
from steady import TORCHRUN, Job, environ_of

if TYPE_CHECKING:
    from collections.abc import Iterator

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")


@contextmanager
def small_file_system(path: Path, size: str) -> Iterator[None]:
    """A tmpfs at path for as long as it is needed."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "hangwatch-test", str(path)]
    subprocess.run(mount, check=True)  # noqa: S603 (as root, in a directory of our own)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)  # noqa: S603, S607 (see above)


QUICK = ("--suspect-after", "1", "--hang-after", "2", "--on-hang", "abort")
HANG = "hangwatch: HANG ("


def test_a_job_that_fails_keeps_its_own_exit_code(tmp_path: Path) -> None:
    with Job(tmp_path, code=3, launch=TORCHRUN) as job:
        job.stop()
        assert job.wait() == 1  # torchrun's, for any rank's failure


def test_torchrun_is_ended_in_order_where_everything_is_signalled_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, launch=TORCHRUN) as job:
        job.until_running()
        os.killpg(job.process.pid, signal.SIGTERM)
        assert job.wait() == 1
        job.says_once("Received 15 death signal")  # by torchrun; a second one would confuse it
        assert processes(job.token) == {}


KILLS = """
import os, signal, subprocess, sys
def end(*_):
    for rank in ranks:
        rank.kill()
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
ranks = [
    subprocess.Popen([sys.executable, *sys.argv[1:]], env=os.environ | {"RANK": str(number)})
    for number in range(2)
]
for rank in ranks:
    rank.wait()
"""
"""A launcher that gives its ranks no time where it is asked to end."""


def test_ranks_that_the_launcher_kills_when_it_is_asked_to_end_have_not_failed(
    tmp_path: Path,
) -> None:
    launch = (sys.executable, "-c", KILLS)
    env = {"WORLD_SIZE": "2"}
    with Job(tmp_path, rendezvous=f"file://{tmp_path}/meet", launch=launch, env=env) as job:
        job.until_running()
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 1
        assert "FAILED" not in job.said()


def test_a_report_directory_that_is_a_file_costs_only_the_reports(tmp_path: Path) -> None:
    (tmp_path / "reports").touch()
    with Job(tmp_path, "--report-dir", "reports", *QUICK, fault="hang") as job:
        assert job.wait() == 75
        job.says_once("reports cannot be written to")
        assert HANG in job.said()
        assert "report     none could be written" in job.said()


@AS_ROOT
def test_a_report_directory_that_fills_up_costs_only_the_report(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    options = ("--report-dir", "reports", *QUICK)
    with small_file_system(reports, "64k"), Job(tmp_path, *options, fault="hang") as job:
        job.until_running()
        with suppress(OSError), (reports / "fill").open("wb") as fill:
            fill.write(bytes(1 << 20))
        assert job.wait() == 75
        assert HANG in job.said()
        job.says_once("cannot be written to")


@AS_ROOT
def test_a_full_shared_memory_is_passed_over(tmp_path: Path) -> None:
    small = tmp_path / "shm"
    env = {"HANGWATCH_DIR": str(small)}
    with small_file_system(small, "64k"), Job(tmp_path, *QUICK, fault="hang", env=env) as job:
        assert job.wait() == 75
        job.says_once("KiB free")
        assert HANG in job.said()


@AS_ROOT
def test_shared_memory_that_fills_up_before_the_ranks_start_costs_only_the_watch(
    tmp_path: Path,
) -> None:
    small = tmp_path / "shm"
    fill = f'cat /dev/zero > "{small}/fill" 2>&-; exec "$@"'
    env = {"HANGWATCH_DIR": str(small)}
    launch = ("sh", "-c", fill, "sh", *TORCHRUN)
    with small_file_system(small, "17m"), Job(tmp_path, env=env, launch=launch) as job:
        job.until_running()
        job.ends_well()
        job.says_once("No space left on device")
        assert any("No space left on device" in lost for lost in job.lost())


def test_without_py_spy_a_verdict_is_given_from_the_counters(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)  # noqa: S603 (our Python)
    (library,) = bare.glob("lib/python3*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    library.joinpath("all.pth").write_text(f"import site; list(map(site.addsitedir, {packages}))\n")
    directories = os.environ["PATH"].split(os.pathsep)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    bin_.joinpath("torchrun").symlink_to(Path(sys.executable).with_name("torchrun"))
    without = [d for d in directories if not Path(d, "py-spy").exists()]
    path = os.pathsep.join([str(bin_), *without])
    python, before = bare / "bin/python", ("env", f"PATH={path}")
    with Job(tmp_path, *QUICK, fault="hang", python=python, before=before, launch=TORCHRUN) as job:
        assert job.wait() == 75
        job.says_once("no stacks: py-spy was not found")
        assert HANG in job.said()


@AS_ROOT
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_where_py_spy_is_refused_it_is_said_what_would_help(tmp_path: Path) -> None:
    before = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")
    with Job(tmp_path, *QUICK, fault="undumpable", before=before, launch=TORCHRUN) as job:
        job.until_running()
        for pid, line in processes(job.token).items():
            if "-u steady.py" in line and b"RANK=1" in environ_of(pid):
                os.kill(pid, signal.SIGSTOP)
        job.until_said(HANG)
        job.says_once("hangwatch: no stacks: py-spy was refused")
        assert "CAP_SYS_PTRACE" in job.said()


def test_a_store_that_cannot_be_reached_costs_only_the_other_nodes(tmp_path: Path) -> None:
    """Two supervisors with a rank each, as on two nodes, whose store is nowhere."""
    rendezvous = f"file://{tmp_path}/rendezvous"
    jobs = []
    with ExitStack() as stack:
        for rank in range(2):
            where = tmp_path / str(rank)
            where.mkdir()
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "192.0.2.1",  # RFC 5737: nobody is there
                "MASTER_PORT": "9",
            }
            job = Job(where, "-v", env=env, rendezvous=rendezvous, launch=(sys.executable,))
            jobs.append(stack.enter_context(job))
        for job in jobs:
            job.until_said("other nodes cannot be asked")
        jobs[0].stop()
        for job in jobs:
            assert job.wait() == 0
            job.says_once("other nodes cannot be asked")
            assert sum("other nodes cannot be asked" in lost for lost in job.lost()) == 1


@pytest.mark.parametrize("moment", ["at the start", "while it runs", "again and again"])
def test_a_watchdog_that_is_killed_is_replaced(tmp_path: Path, moment: str) -> None:
    with Job(tmp_path) as job:
        if moment != "at the start":
            job.until_running()
        killed: set[int] = set()
        for _ in range(3 if moment == "again and again" else 1):
            job.until(lambda: set(job.watchdogs()) - killed, "a watchdog")
            for pid in job.watchdogs():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        job.until(lambda: set(job.watchdogs()) - killed, "a new watchdog")
        job.ends_well()
        job.says_once("the watchdog was killed by signal 9")


def test_a_watchdog_that_was_killed_in_a_hang_is_replaced_and_finds_it(tmp_path: Path) -> None:
    options = ("--suspect-after", "2", "--hang-after", "6", "--on-hang", "abort")
    with Job(tmp_path, *options, fault="hang") as job:
        job.until_said("hangwatch: SLOW (")
        for pid in job.watchdogs():
            os.kill(pid, signal.SIGKILL)
        assert job.wait() == 75
        assert job.said().count(HANG) == 1


def test_a_watchdog_that_misses_a_package_says_so_once(tmp_path: Path) -> None:
    # None in sys.modules is what the import system takes for "not there".
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    hidden.joinpath("sitecustomize.py").write_text("import sys\nsys.modules['orjson'] = None\n")
    with Job(tmp_path, env={"PYTHONPATH": str(hidden)}) as job:
        job.until_running()
        job.ends_well()
        job.says_once("the job is not watched")
        assert "orjson" in job.said()
        assert "Traceback" not in job.said()


def test_a_watchdog_that_cannot_live_is_given_up(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.until_running()
        while "the job goes on unwatched" not in job.said():
            for pid in job.watchdogs():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert job.process.poll() is None
            time.sleep(0.02)
        job.ends_well()
        job.says_once("again and again: the job goes on unwatched")
        assert "the watchdog did not run to the end" in job.lost()


def test_a_run_directory_that_is_deleted_costs_at_most_later_ranks(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.until_running()
        shutil.rmtree(job.run_dir())
        job.until_said("cannot be read any more")
        job.ends_well()
        job.says_once("the directory of this run cannot be read any more")


def test_a_corrupted_page_costs_only_the_watch_of_its_rank(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.until_running()
        for page in job.run_dir().glob("*-1-*.page"):
            with page.open("r+b") as file:
                file.write(os.urandom(page.stat().st_size))
        job.until_said("cannot be read (")
        job.ends_well()
        job.says_once("cannot be read (")
