"""Processes are ended by a handle, and only while they are where they have to be."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from waiting import BOUND_S

from hangwatch.console import News
from hangwatch.evidence.processes import read_stat
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident import abort

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

pytest_plugins = ["said_news"]

IDLE = "print(1, flush=True); input()"
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print(1, flush=True); time.sleep(600)"
)
SAVING = """
import signal, sys, time
def save(*_):
    for part in range(8):
        print(part, flush=True)
        time.sleep(0.5)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
"""A program that saves a checkpoint when it is asked to end."""
WAITING = """
import signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
time.sleep(3)
print("saved", flush=True)
sys.exit(3)
"""
"""One that has blocked the signal and waits for it."""
BRIEF = """
import signal, sys, time
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(3)
    print("saved", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
"""One whose handler first takes itself away."""
Process = tuple[int, int]


@contextmanager
def child(code: str) -> Iterator[tuple[subprocess.Popen[bytes], Process]]:
    """A Python child that has printed a line; its pid and when it started."""
    with subprocess.Popen(  # noqa: S603 (our own Python)
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stat = read_stat(process.pid)
        assert stat is not None
        try:
            yield process, (process.pid, stat.start_ticks)
        finally:
            process.kill()


def ended(
    ranks: Mapping[int, Process],
    news: News,
    standing: Callable[[Collection[int]], Collection[int]] = lambda ranks: ranks,
) -> tuple[int, int]:
    """How many have ended of it, and how often it was said that this begins."""
    begun = []

    async def look(ranks: Collection[int]) -> Collection[int]:
        return standing(ranks)

    count = asyncio.run(abort.end_ranks(ranks, look, lambda: begun.append(1), news))
    return count, len(begun)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the signal has less time to end."""
    monkeypatch.setattr(timing, "CHECKPOINT_S", timing.TERM_S)


@pytest.mark.usefixtures("_impatient")
def test_ranks_are_ended_by_sigterm_and_the_deaf_by_sigkill(news: News) -> None:
    with child(IDLE) as (one, first), child(DEAF) as (other, second):
        assert ended({0: first, 1: second}, news) == (2, 1)
        assert one.wait(BOUND_S) == -signal.SIGTERM
        assert other.wait(BOUND_S) == -signal.SIGKILL


def test_a_rank_that_saves_when_it_is_asked_to_end_has_the_time_for_it(news: News) -> None:
    with child(SAVING) as (one, identity):
        assert ended({0: identity}, news) == (1, 1)
        assert one.wait(BOUND_S) == 3
        assert one.stdout is not None
        assert one.stdout.read().split() == [b"%d" % part for part in range(8)]


class Paused(asyncio.SelectorEventLoop):
    """Of a machine that is paused: its clock jumps, and nothing could run meanwhile."""

    paused_s = 0.0

    def time(self) -> float:
        return super().time() + self.paused_s

    def pause(self) -> None:
        self.paused_s += 10 * timing.CHECKPOINT_S


def test_the_time_in_which_the_machine_was_paused_is_not_that_of_a_rank_that_saves(
    news: News,
) -> None:
    async def look(ranks: Collection[int]) -> Collection[int]:
        return ranks

    with child(SAVING) as (one, identity), asyncio.Runner(loop_factory=Paused) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Paused)

        def begin() -> None:
            loop.call_later(1.0, loop.pause)

        assert runner.run(abort.end_ranks({0: identity}, look, begin, news)) == 1
        assert loop.paused_s
        assert one.wait(BOUND_S) == 3


@pytest.mark.parametrize("program", [WAITING, BRIEF])
def test_so_has_one_that_waits_for_the_signal_or_takes_its_handler_away(
    program: str, news: News
) -> None:
    with child(program) as (one, identity):
        assert ended({0: identity}, news) == (1, 1)
        assert one.wait(BOUND_S) == 3
        assert one.stdout is not None
        assert one.stdout.read().split() == [b"saved"]


def test_a_stopped_rank_is_ended_too(news: News) -> None:
    with child(IDLE) as (one, identity):
        one.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WNOWAIT)
        assert ended({0: identity}, news) == (1, 1)
        assert one.wait(BOUND_S) == -signal.SIGKILL


def test_a_process_that_only_has_a_ranks_old_pid_is_left_alone(news: News) -> None:
    with child(IDLE) as (one, (pid, _)):
        assert ended({0: (pid, 1)}, news) == (0, 0)
        assert one.poll() is None


def test_a_process_that_is_gone_is_no_error(news: News, said: Path) -> None:
    with child(IDLE) as (one, identity):
        one.kill()
        one.wait(BOUND_S)
        assert ended({0: identity}, news) == (0, 0)
    assert said.read_text() == ""


def test_a_rank_that_goes_on_before_the_signal_is_spared(news: News) -> None:
    with child(IDLE) as (one, first), child(IDLE) as (other, second):
        assert ended({0: first, 1: second}, news, lambda _: {1}) == (1, 1)
        assert one.poll() is None
        assert other.wait(BOUND_S) == -signal.SIGTERM


@pytest.mark.usefixtures("_impatient")
def test_who_goes_on_after_sigterm_gets_no_sigkill(news: News) -> None:
    looks = iter(({0}, set[int]()))
    with child(DEAF) as (one, identity):
        assert ended({0: identity}, news, lambda _: next(looks)) == (0, 1)
        assert one.poll() is None


def test_a_kernel_without_handles_on_processes_ends_nobody(
    news: News, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with child(IDLE) as (one, identity):
        assert ended({0: identity, 1: identity}, news) == (0, 0)
        assert one.poll() is None
    assert said.read_text().count("the ranks are not ended: this kernel gives no safe handle") == 1
