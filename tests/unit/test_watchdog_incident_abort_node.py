"""Ranks are ended where that was asked for, and only while their pages show that they hang."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from made_hello import hello
from made_pages import event, group, page, write

from hangwatch.console import News
from hangwatch.evidence.exits import Exits
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.processes import read_stat
from hangwatch.evidence.stacks import PySpy
from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.verdict import Verdict
from hangwatch.run.shared_run import ABORTED
from hangwatch.settings.config import Config, OnHang, Stacks
from hangwatch.watchdog.incident.abort import Aborting
from hangwatch.watchdog.incident.evidence import Gatherer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

S = 10**9
PATIENCE_S = 10.0
WAIT_S = 30.0
HANG = Verdict(
    State.HANG, Kind.NEVER_ENTERED, Reason.UNKNOWN, Certainty.LIKELY, culprits=(1,), victims=(0,)
)
"""Rank 1 is on another node."""


class Node:
    """A node with one rank, which is a process that waits for ever, and its page."""

    def __init__(self, run_dir: Path, rank: subprocess.Popen[bytes], on_hang: OnHang) -> None:
        self.run_dir = run_dir
        self.rank = rank
        news = News(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        gatherer = Gatherer(
            pages=Pages(run_dir, news),
            exits=Exits(),
            py_spy=PySpy(Stacks.OFF),
            news=news,
            node="node0",
            commands=list,
        )
        self.aborting = Aborting(hello(run_dir, Config(on_hang=on_hang)), gatherer, news)

    @property
    def flagged(self) -> bool:
        """Whether the supervisor is told that ranks were ended."""
        return (self.run_dir / ABORTED).exists()

    def stands(
        self, since_s: float, *, blocked: bool = True, seq: int = 3, beat_ns: int = 0
    ) -> None:
        """Write the page of a rank that went on last so many seconds ago."""
        stat = read_stat(self.rank.pid)
        assert stat is not None
        then = time.monotonic_ns() - int(since_s * S)
        content = page(
            pid=self.rank.pid,
            start_ticks=stat.start_ticks,
            world_size=1,
            local_world_size=1,
            phase_ns=1,
            gil_ns=beat_ns,
            groups=(group(seq, left=seq - 1, changed_ns=then),),
            events=(event(seq, issued_ns=then, blocked_ns=then),) if blocked else (),
        )
        write(self.run_dir, content)

    def ends(
        self,
        meanwhile: Callable[[], object] = bool,
        proved_ns: int = 0,
        patience_s: float = PATIENCE_S,
    ) -> bool:
        """Whether a verdict ends the rank; meanwhile is called between it and the signal."""

        async def run() -> None:
            self.aborting.begin(HANG, patience_s, proved_ns)
            self.aborting.go_on(patience_s)
            meanwhile()
            await self.aborting.settle(WAIT_S)

        asyncio.run(run())
        return self.rank.poll() is not None


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def node(tmp_path: Path, rank: subprocess.Popen[bytes]) -> Node:
    return Node(tmp_path, rank, OnHang.ABORT)


def test_a_rank_that_hangs_is_ended_and_the_supervisor_is_told(node: Node) -> None:
    node.stands(20)
    assert node.ends()
    assert node.flagged
    assert node.aborting.incarnation == 0
    assert not node.aborting.forget()  # none was spared


def test_nobody_is_ended_where_only_a_report_was_asked_for(
    tmp_path: Path, rank: subprocess.Popen[bytes]
) -> None:
    node = Node(tmp_path, rank, OnHang.REPORT)
    node.stands(20)
    assert not node.ends()
    assert not node.flagged


def test_a_rank_that_goes_on_before_the_signal_is_spared(node: Node) -> None:
    node.stands(20)
    assert not node.ends(lambda: node.stands(0, seq=4))
    assert not node.flagged
    assert node.aborting.incarnation == -1
    assert node.aborting.forget()


def test_a_hang_that_is_over_before_the_signal_ends_nobody(node: Node) -> None:
    node.stands(20)
    assert not node.ends(node.aborting.forget)
    assert not node.aborting.pending


def test_what_the_sampler_has_yet_to_write_may_spare_a_rank(node: Node) -> None:
    """That C++ has completed something is on a page only then."""
    node.stands(20, beat_ns=time.monotonic_ns())

    def write_soon() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, lambda: node.stands(0, seq=4, beat_ns=time.monotonic_ns() + S))

    assert not node.ends(write_soon)


def test_the_end_of_ranks_in_an_earlier_hang_stays_told_when_a_later_one_passes(node: Node) -> None:
    (node.run_dir / ABORTED).touch()
    node.aborting.incarnation = 0
    node.stands(20)
    assert not node.ends(lambda: node.stands(0, seq=4))
    assert node.flagged
    assert node.aborting.incarnation == 0


def test_a_rank_that_ends_by_itself_right_before_the_signal_was_not_ended(node: Node) -> None:
    node.stands(20)

    def end_by_itself() -> None:
        node.rank.kill()
        node.rank.wait()

    node.aborting.keep = end_by_itself
    node.ends()
    assert not node.flagged
    assert node.aborting.incarnation == -1
    assert node.aborting.forget()


def test_a_wait_that_a_proof_rests_on_need_not_last_as_long_as_a_hang_takes(node: Node) -> None:
    node.stands(31)
    assert node.ends(proved_ns=time.monotonic_ns(), patience_s=300.0)


def test_a_proof_by_a_wait_that_is_young_ends_nobody_yet(node: Node) -> None:
    node.stands(20)
    assert not node.ends(proved_ns=time.monotonic_ns(), patience_s=300.0)


@pytest.mark.parametrize(
    ("since_s", "blocked"), [(2.0, True), (50.0, False)], ids=["came-later", "waits-for-nothing"]
)
def test_a_rank_that_is_no_part_of_a_proof_is_not_ended_for_it(
    node: Node, since_s: float, *, blocked: bool
) -> None:
    node.stands(since_s, blocked=blocked)
    assert not node.ends(proved_ns=time.monotonic_ns() - 5 * S)
