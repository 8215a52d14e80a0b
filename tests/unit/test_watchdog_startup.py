"""What a watched job is told when it does not come together, and when it is not."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from made_hello import hello
from made_pages import page, write
from watched import Watched

from hangwatch.model.kinds import Phase
from hangwatch.model.page import ExceptionRecord, RankPage
from hangwatch.preflight import Grade
from hangwatch.watchdog import timing
from hangwatch.watchdog.startup import Preflight, Start, certain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

HOSTNAME = socket.gethostname()
NODES = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29500"}


class Bench(Watched):
    """A watch over ranks that are made up."""

    def __init__(self, where: Path) -> None:
        super().__init__(where)
        started = hello(self.run_dir, command=("python", "train.py"), command_pid=os.getpid())
        self.preflight = Preflight(started, self.news)

    def look(self, after_s: float = 0.0) -> str:
        """A look a while later, with its answers; all that was said so far."""

        async def look() -> None:
            self.preflight.look(self.seen(after_s))
            await self.preflight.conclude()

        asyncio.run(look())
        return self.said


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def waits(rank: int = 0, **changes: Any) -> RankPage:
    """A rank inside init_process_group."""
    inside = {"in_call": "init_process_group", "in_call_ns": time.monotonic_ns()}
    return page(rank, **{"phase": Phase.INIT, **inside, **changes})


def test_a_job_that_starts_is_told_nothing(bench: Bench) -> None:
    write(bench.run_dir, waits(3, world_size=2))
    assert bench.look() == ""
    write(bench.run_dir, page(3, world_size=2))
    assert bench.look(timing.INIT_SOON_S) == ""
    write(bench.run_dir, waits(3, world_size=2))
    assert bench.look(timing.INIT_LATE_S) == ""


def test_a_rank_that_the_job_does_not_have_is_told_once(bench: Bench) -> None:
    write(bench.run_dir, waits(2, world_size=2))
    assert bench.look() == ""
    said = bench.look(timing.INIT_SOON_S)
    assert said == (
        "hangwatch: the job cannot start: RANK=2 with WORLD_SIZE=2: ranks count from 0 to 1;"
        " start each rank with a RANK of its own below WORLD_SIZE\n"
    )
    assert bench.look(timing.INIT_LATE_S) == said


def test_ranks_that_wait_for_healthy_reasons_are_told_nothing(bench: Bench) -> None:
    write(bench.run_dir, waits(0, world_size=2))
    assert bench.look(timing.INIT_SOON_S) == ""
    assert bench.look(timing.INIT_LATE_S) == ""


def started(
    pages: Sequence[RankPage], variables: Mapping[str, str] = NODES, *, late: bool = False
) -> Start:
    return Start(("python", "train.py"), (os.getpid(),), tuple(pages), dict(variables), late)


def loopback(_: str) -> Sequence[str]:
    return ("127.0.0.1",)


def test_two_commands_of_one_rank_are_told_where_that_rank_waits(tmp_path: Path) -> None:
    for pid in (11, 12, 13):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(b"RANK=%d\0" % min(pid - 11, 1))
    start = Start(
        ("python",), (11, 12, 13), (waits(1, pid=12),), NODES, late=False, proc=str(tmp_path)
    )
    (finding,) = certain(start, loopback)
    assert finding.what.startswith("2 processes of this node have RANK=1")
    # Children that the commands have started inherit what is not theirs.
    assert list(certain(replace(start, ranks=(waits(1, pid=99),)), loopback)) == []


def test_gloo_on_the_loopback_is_told_where_a_rank_listens_there() -> None:
    start = started([waits(1)])
    assert list(certain(start, loopback)) == []
    with socket.create_server(("127.0.0.1", 0)):
        (finding,) = certain(start, loopback)
    assert finding.grade is Grade.FAIL
    assert f"gloo would use 127.0.0.1 on lo (the name of this machine, {HOSTNAME}" in finding.what
    with socket.create_server(("127.0.0.1", 0)):
        one_node = {**NODES, "LOCAL_WORLD_SIZE": "2"}
        assert list(certain(started([waits(1)], one_node), loopback)) == []


def test_gloo_on_the_loopback_is_told_where_a_rank_has_failed_of_it() -> None:
    error = ExceptionRecord("RuntimeError", "timed out connecting: remote=[127.0.0.1]:5471$0")
    raised = page(1, phase=Phase.RAISED, exception=error)
    (finding,) = certain(started([raised]), loopback)
    assert "ranks of other nodes cannot connect to that" in finding.what
    other = page(1, phase=Phase.RAISED, exception=ExceptionRecord("ValueError", "a bug"))
    assert list(certain(started([other]), loopback)) == []


def test_a_name_that_does_not_resolve_is_told_late() -> None:
    def unknown(_: str) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    variables = {**NODES, "MASTER_ADDR": "node-0"}
    assert list(certain(started([waits(1)], variables), unknown)) == []
    (finding,) = certain(started([waits(1)], variables, late=True), unknown)
    assert finding.what.startswith("node-0 does not resolve here (Name or service not known)")


def test_a_launcher_that_waits_alone_is_judged_by_its_line() -> None:
    line = ("torchrun", "--nnodes=2", "--rdzv-endpoint=localhost:1", "--node-rank=1", "a.py")
    (finding,) = certain(Start(line, (os.getpid(),), (), {}, late=True), loopback)
    assert "is this node itself, on a job of 2 nodes" in finding.what
    alone = ("python", "train.py")
    assert list(certain(Start(alone, (os.getpid(),), (), {}, late=True), loopback)) == []
