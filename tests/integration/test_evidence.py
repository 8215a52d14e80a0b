"""What the watchdog gathers of real processes, and what it says it could not have."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from acting_rank import Rank
from sampling import sampling
from waiting import BOUND_S, in_time

from hangwatch.console import News
from hangwatch.evidence import timing
from hangwatch.evidence.exits import Exits
from hangwatch.evidence.flight import request
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.processes import read_stat
from hangwatch.evidence.stacks import PySpy
from hangwatch.model.kinds import Phase
from hangwatch.settings.config import Stacks
from hangwatch.watchdog.incident.evidence import Collected, Gatherer, Level

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangwatch.model.snapshot import RankSnapshot

pytest.importorskip("hangwatch._native")
WORKER = """
import subprocess, sys
def load():
    print(1, flush=True)
    sys.stdin.read()
load()
"""
PARENT = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
time.sleep(600)
"""


class Node:
    """A gatherer over a run directory."""

    def __init__(self, where: Path, *, binary: str | None = None) -> None:
        self.run_dir = where / "run"
        self.run_dir.mkdir(exist_ok=True)
        self.stderr = where / "stderr"
        fd = os.open(self.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self.news = News(fd)
        self._binary = binary

    def collect(self, level: Level, budget_s: float = BOUND_S) -> Collected:
        async def run() -> Collected:
            exits = Exits()
            found = await self._gatherer(exits).collect(level, budget_s)
            exits.close()
            return found

        return asyncio.run(run())

    def forget_recorders(self) -> None:
        async def run() -> None:
            exits = Exits()
            self._gatherer(exits).forget_recorders()
            exits.close()

        asyncio.run(run())

    def _gatherer(self, exits: Exits) -> Gatherer:
        return Gatherer(
            pages=Pages(self.run_dir, self.news),
            exits=exits,
            py_spy=PySpy(Stacks.PYTHON, binary=self._binary),
            news=self.news,
            node="node0",
            commands=lambda: [os.getpid()],
        )

    def rank(self, level: Level, number: int = 0, budget_s: float = BOUND_S) -> RankSnapshot:
        ranks = {rank.rank: rank for rank in self.collect(level, budget_s).ranks}
        return ranks[number]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def pair(node: Node, stack: ExitStack) -> tuple[Rank, Rank]:
    ranks = tuple(stack.enter_context(Rank(node.run_dir, number)) for number in (0, 1))
    for rank in ranks:
        rank.do("work 3")
    return ranks[0], ranks[1]


def test_the_light_look_has_the_page_and_the_process(node: Node, stack: ExitStack) -> None:
    one, _ = pair(node, stack)
    one.do("begin")
    found = node.rank(Level.LIGHT)
    assert (found.node, found.pid, found.phase) == ("node0", one.process.pid, Phase.RUNNING)
    assert found.process.alive
    assert found.groups[0].enqueued == 4
    assert found.ops[-1].blocked_age_s is not None
    assert (found.threads, found.children, found.missing_evidence) == (None, (), ())


def test_the_full_look_has_stacks_sources_and_raw_pages(node: Node, stack: ExitStack) -> None:
    pair(node, stack)
    found = node.collect(Level.FULL)
    assert set(found.pages) == {0, 1}
    assert any(file.endswith("acting_rank.py") for file in found.sources)
    assert [rank.rank for rank in found.ranks] == [0, 1]
    for rank in found.ranks:
        assert rank.threads
        assert rank.threads[0].frames[-1].function == "<module>"


def test_a_rank_that_was_launched_but_never_came_is_there_without_a_page(
    node: Node, stack: ExitStack
) -> None:
    stack.enter_context(Rank(node.run_dir, 0))
    late = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", "print(1, flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"},
        )
    )
    stack.callback(late.kill)
    assert late.stdout is not None
    late.stdout.readline()
    found = node.rank(Level.FULL, 1)
    assert (found.pid, found.phase, found.groups) == (late.pid, Phase.BORN, ())
    assert found.threads
    assert "it has no page" in found.missing_evidence[0]


def test_the_stacks_of_data_workers_are_taken(node: Node, stack: ExitStack) -> None:
    # A process that has workers takes the rank's place: what counts is its pid on the page.
    parent = stack.enter_context(
        subprocess.Popen(  # noqa: S603 (our own Python)
            [sys.executable, "-c", PARENT, WORKER], stdout=subprocess.PIPE
        )
    )
    stack.callback(parent.kill)
    assert parent.stdout is not None
    parent.stdout.readline()  # of the worker, which is in its loop then
    stat = read_stat(parent.pid)
    assert stat is not None
    rank = stack.enter_context(Rank(node.run_dir, 0, pid=parent.pid, start_ticks=stat.start_ticks))
    (child,) = node.rank(Level.FULL).children
    assert child.process.alive
    assert [frame.function for frame in child.threads[0].frames][-2:] == ["load", "<module>"]
    rank.do("begin")  # one that waits itself is no culprit: its workers do not matter
    (child,) = node.rank(Level.FULL).children
    assert child.threads == ()
    parent.kill()
    os.kill(child.pid, signal.SIGKILL)


def test_a_missing_py_spy_is_mentioned_once_and_costs_only_the_stacks(
    tmp_path: Path, stack: ExitStack
) -> None:
    node = Node(tmp_path, binary=str(tmp_path / "py-spy"))
    pair(node, stack)
    for _ in range(2):
        found = node.rank(Level.FULL)
    assert found.threads == ()
    assert any("py-spy cannot be run" in text for text in found.missing_evidence)
    assert node.stderr.read_text().count("no stacks") == 1


def test_a_py_spy_that_hangs_does_not_hold_up_the_verdict(tmp_path: Path, stack: ExitStack) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    node = Node(tmp_path, binary=str(slow))
    pair(node, stack)
    began = time.monotonic()
    found = node.rank(Level.FULL, budget_s=0.5)
    in_time(began, 30)
    assert "no stack: py-spy was not done in time" in found.missing_evidence


def test_a_stopped_rank_is_shown_as_stopped_and_stays_so(node: Node, stack: ExitStack) -> None:
    one, _ = pair(node, stack)
    one.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, one.process.pid, os.WSTOPPED | os.WNOWAIT)
    found = node.rank(Level.FULL)
    assert found.process.state == "T"
    assert found.threads
    # It could not answer, and is not asked.
    assert not any("Flight Recorder" in what for what in found.missing_evidence)
    stat = read_stat(one.process.pid)
    assert stat is not None
    assert stat.state == "T"


def test_a_rank_that_is_gone_leaves_its_page(node: Node, stack: ExitStack) -> None:
    one, _ = pair(node, stack)
    one.do("begin")
    one.process.kill()
    one.process.wait(BOUND_S)
    found = node.rank(Level.FULL)
    assert not found.process.alive
    assert (found.ops[-1].op, found.threads) == ("all_reduce", None)


def test_a_corrupted_page_costs_its_rank_only(node: Node, stack: ExitStack) -> None:
    pair(node, stack)
    (page,) = node.run_dir.glob("r0-1-*.page")
    page.write_bytes(os.urandom(page.stat().st_size))
    assert [rank.rank for rank in node.collect(Level.FULL).ranks if rank.recorder] == [0]


def test_a_flight_recorder_is_asked_for_and_merged(node: Node, stack: ExitStack) -> None:
    one, _ = pair(node, stack)
    one.do("beat")
    (page,) = node.run_dir.glob("r0-0-*.page")
    with sampling(page):
        found = node.rank(Level.FLIGHT)
    assert found.flight
    assert (found.ops[-1].seq, found.ops[-1].source) == (4, "flight")
    # It lies there for a post-mortem, in which nobody can be asked, until the incident is over.
    assert request.left_behind(page, 0.0)
    node.forget_recorders()
    assert not list(node.run_dir.glob("*.flight"))


def test_a_sampler_without_the_gil_is_not_waited_for(node: Node, stack: ExitStack) -> None:
    pair(node, stack)
    began = time.monotonic()
    found = node.rank(Level.FLIGHT)
    in_time(began, timing.FLIGHT_ANSWER_S)
    assert not found.flight
    assert "does not get the GIL" in found.missing_evidence[0]
