"""Ranks that are started each by itself, as srun and mpirun do: one hangwatch a rank.

Those of one job on one node have one watchdog, which gives one verdict.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from harness import PROGRAMS, TOKEN, end, environment, free_port, processes, read_reports
from waiting import BOUND_S, until

from hangwatch.evidence.pages.reader import parse_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangwatch.model.page import Identity

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
PROGRAM = PROGRAMS / "by_itself.py"


class Job:
    """A job of some ranks, each started below a hangwatch of its own."""

    def __init__(
        self,
        where: Path,
        size: int,
        rank: str = "RANK",
        count: str = "WORLD_SIZE",
        hosts: int = 1,
    ) -> None:
        self.port, self.where, self.token = free_port(), where, uuid.uuid4().hex
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), count: str(size)}
        job |= {"HANGWATCH_DIR": str(where), TOKEN: self.token}
        self.ranks = []
        for number in range(size):
            host = f"host-{number * hosts // size}" if hosts > 1 else ""
            self.ranks.append(self._start(number, {**job, rank: str(number)}, host))

    def _start(self, number: int, env: dict[str, str], host: str) -> subprocess.Popen[bytes]:
        command = ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
        command = command if host else []
        command += [sys.executable, "-m", "hangwatch", "--suspect-after", "3", sys.executable]
        with (self.where / f"stderr-{number}").open("wb") as stderr:
            return subprocess.Popen(  # noqa: S603 (our own Python)
                [*command, str(PROGRAM)],
                cwd=self.where,
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            end(process, self.token)
        sys.stderr.write(self.said())

    def said(self) -> str:
        """What all have said."""
        return "".join(path.read_text() for path in sorted(self.where.glob("stderr-*")))

    def until_running(self) -> None:
        ran = [self.where / f"ran-{number}" for number in range(len(self.ranks))]
        until(lambda: all(path.exists() for path in ran), "the ranks to run")

    def touch(self, name: str) -> None:
        (self.where / name).touch()

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said(), repr(text))

    def wait(self) -> list[int]:
        return [process.wait(BOUND_S) for process in self.ranks]

    def watchdogs(self) -> list[int]:
        found = processes(self.token)
        return [pid for pid, line in found.items() if "hangwatch.watchdog" in line]

    def owner(self) -> int:
        """The number of the rank whose supervisor has the watchdog."""
        until(lambda: len(self.watchdogs()) == 1, "one watchdog")
        (pid,) = self.watchdogs()
        parent = int(
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        )
        return [process.pid for process in self.ranks].index(parent)

    def run_dirs(self) -> list[Path]:
        return [path.parent for path in self.where.glob("hangwatch-*/*/lock")]

    def identities(self) -> list[Identity]:
        return identities(self.where)


def identities(where: Path) -> list[Identity]:
    """What the pages say of who they are of."""
    paths = where.glob("hangwatch-*/*/r*.page")
    found = [parse_page(path.read_bytes(), events=False).identity for path in paths]
    return sorted(found, key=lambda identity: identity.rank)


def test_ranks_that_are_started_one_by_one_have_one_watchdog(tmp_path: Path) -> None:
    with Job(tmp_path, 3) as job:
        job.until_running()
        assert len(job.watchdogs()) == 1
        assert len(job.run_dirs()) == 1
        job.touch("hold")
        job.until_said("SLOW")
        (tmp_path / "hold").unlink()
        job.until_said("the job recovered")
        job.touch("stop")
        assert job.wait() == [0, 0, 0]
        assert job.said().count("hangwatch: SLOW") == 1
        assert job.said().count(": watching ") == 1
    (report,) = read_reports(tmp_path / "hangwatch-reports")
    assert (report["verdict"]["culprits"], report["verdict"]["victims"]) == ([1], [0, 2])
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2]
    (run,) = tmp_path.glob("hangwatch-reports/[!.l]*/run*.json")
    assert json.loads(run.read_text())["exit_code"] == 0
    assert job.run_dirs() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="another hostname takes root")
def test_ranks_of_several_hosts_have_a_watchdog_on_each_and_one_report(tmp_path: Path) -> None:
    with Job(tmp_path, 4, hosts=2) as job:
        job.until_running()
        assert len(job.watchdogs()) == 2
        job.touch("hold")
        until(lambda: job.said().count("hangwatch: SLOW") == 2, "both verdicts")
        (tmp_path / "hold").unlink()
        until(lambda: job.said().count("the job recovered") == 2, "both going on")
        job.touch("stop")
        assert job.wait() == [0, 0, 0, 0]
    (report,) = read_reports(tmp_path / "hangwatch-reports")
    assert (report["verdict"]["culprits"], report["verdict"]["victims"]) == ([1], [0, 2, 3])
    assert [rank["node"] for rank in report["ranks"]] == [*["host-0"] * 2, *["host-1"] * 2]
    assert report["unseen"] == []


def test_each_keeps_its_exit_code_and_the_watchdog_stays_for_those_that_run(
    tmp_path: Path,
) -> None:
    with Job(tmp_path, 3) as job:
        job.until_running()
        job.touch("leave")
        codes = job.wait()
        assert codes[0] == 5
        assert all(codes[1:])
        # A rank that is long in leaving is found to hold up the others before they fail of it.
        assert "hangwatch: FAILED" in job.said() or "hangwatch: HANG" in job.said()
    (report,) = read_reports(tmp_path / "hangwatch-reports")
    assert (report["verdict"]["culprits"], report["verdict"]["victims"]) == ([0], [1, 2])
    (run,) = tmp_path.glob("hangwatch-reports/[!.l]*/run*.json")
    assert json.loads(run.read_text())["exit_code"] == 5
    assert job.run_dirs() == []


def test_another_supervisor_takes_the_watchdog_over(tmp_path: Path) -> None:
    with Job(tmp_path, 2) as job:
        job.until_running()
        owner, (watchdog,) = job.owner(), job.watchdogs()
        os.kill(job.ranks[owner].pid, signal.SIGKILL)
        os.kill(watchdog, signal.SIGKILL)
        job.ranks[owner].wait(BOUND_S)
        until(lambda: job.watchdogs() not in ([], [watchdog]), "another watchdog")
        job.touch("hold")
        job.until_said("SLOW")
        (tmp_path / "hold").unlink()
        job.touch("stop")
        assert job.ranks[1 - owner].wait(BOUND_S) == 0
        assert job.said().count(": watching ") == 1
    (report,) = read_reports(tmp_path / "hangwatch-reports")
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["verdict"]["culprits"] == [1]


def test_ranks_that_only_arguments_name_are_known(tmp_path: Path) -> None:
    with Job(tmp_path, 2, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") as job:
        job.until_running()
        assert len(job.watchdogs()) == 1
        found = [(one.rank, one.world_size, one.store_host) for one in job.identities()]
        assert found == [(0, 2, "127.0.0.1"), (1, 2, "127.0.0.1")]
        assert {one.store_port for one in job.identities()} == {job.port}
        job.touch("stop")
        assert job.wait() == [0, 0]


def listener(port: int) -> str:
    """The command line of the process that listens on a port."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if inodes & {str(fd.readlink()) for fd in (process / "fd").iterdir()}:
                return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return ""


@pytest.mark.parametrize(
    ("launch", "shared", "server"),
    [
        (["--standalone"], True, "torchrun"),
        (["--standalone"], False, PROGRAM.name),
        (["--nnodes=1", "--master-addr=127.0.0.1", "--master-port={port}"], True, "torchrun"),
    ],
)
def test_the_store_that_a_page_names_is_the_one_that_the_job_uses(
    tmp_path: Path, launch: Sequence[str], server: str, *, shared: bool
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "hangwatch", "torchrun", "--nproc-per-node=2"]
    command += [word.format(port=port) for word in launch]
    token = uuid.uuid4().hex
    env = {TOKEN: token, "HANGWATCH_DIR": str(tmp_path)}
    if not shared:
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    process = subprocess.Popen(  # noqa: S603 (our own Python)
        [*command, str(PROGRAM)],
        cwd=tmp_path,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until((tmp_path / "ran-1").exists, "the ranks to run")
        found = {(one.store_host, one.store_port) for one in identities(tmp_path)}
        ((host, named),) = found
        with socket.create_connection((host, named), BOUND_S):
            pass
        server_line = listener(named)
        assert ("/torchrun " in server_line) == (server == "torchrun"), server_line
        assert PROGRAM.name in server_line
        (tmp_path / "stop").touch()
        assert process.wait(BOUND_S) == 0
    finally:
        end(process, token)
