"""The thread that samples."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from waiting import BOUND_S, until

from hangwatch import _native
from hangwatch.agent.guard import LIMIT, Guard
from hangwatch.agent.periodic import FlagBell, Periodic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Holding(FlagBell):
    """One that holds the collector and waits as the native module does in a rank."""

    wait_for_request = staticmethod(_native.wait_for_request)
    watch_collector = staticmethod(_native.watch_collector)
    hold_collector = staticmethod(_native.hold_collector)
    let_collect = staticmethod(_native.let_collect)


def _longer_than(runs: list[int], count: int) -> bool:
    return len(runs) > count


def test_it_runs_again_and_again_until_it_is_stopped() -> None:
    runs: list[int] = []
    thread = Periodic(lambda: runs.append(1), 0.001, Guard())
    until(lambda: len(runs) > 3)
    assert thread.stop()
    count = len(runs)
    time.sleep(0.05)
    assert len(runs) == count


def test_it_does_not_wait_out_its_period_to_stop() -> None:
    runs: list[int] = []
    thread = Periodic(lambda: runs.append(1), 1000.0, Guard())
    until(lambda: runs)
    assert thread.stop()


def test_a_bell_makes_it_run_before_its_time() -> None:
    runs: list[int] = []
    bell = FlagBell()
    thread = Periodic(lambda: runs.append(1), 1000.0, Guard(), bell)
    while len(runs) < 5:
        before = len(runs)
        bell.ring()
        until(partial(_longer_than, runs, before))
    assert thread.stop()


def test_it_survives_a_bad_run_and_counts_it() -> None:
    runs: list[int] = []
    firewall = Guard()

    def run() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError

    thread = Periodic(run, 0.001, firewall)
    until(lambda: len(runs) > 2)
    assert thread.stop()
    assert firewall.swallowed == 1


def test_it_gives_up_after_a_few() -> None:
    def run() -> None:
        raise ValueError

    firewall = Guard()
    thread = Periodic(run, 0.001, firewall)
    until(lambda: not firewall.open)
    assert thread.stop()
    assert firewall.swallowed == LIMIT


def test_no_list_of_the_users_threads_shows_it() -> None:
    seen: list[list[threading.Thread]] = []
    before = threading.enumerate()
    thread = Periodic(lambda: seen.append(threading.enumerate()), 0.001, Guard())
    until(lambda: seen)
    thread.stop()
    assert seen[0] == before


def test_a_run_that_hangs_does_not_hang_the_end() -> None:
    release = threading.Lock()
    release.acquire()
    started = threading.Event()

    def run() -> None:
        started.set()
        release.acquire()

    thread = Periodic(run, 0.001, Guard())
    assert started.wait(BOUND_S)
    assert not thread.stop()
    release.release()


def test_it_takes_no_signal_in_the_place_of_the_program() -> None:
    blocked: list[set[int | signal.Signals]] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    thread = Periodic(
        lambda: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())), 0.001, Guard()
    )
    until(lambda: blocked)
    assert thread.stop()
    assert blocked[0] >= {signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM, signal.SIGINT}
    assert not blocked[0] & {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


class Finalized:
    """Notes in which thread it is finalized; a cycle, which the collector alone takes apart."""

    def __init__(self, threads: list[int]) -> None:
        self.threads = threads
        self.me = self

    def __del__(self) -> None:
        self.threads.append(threading.get_ident())


@pytest.fixture
def hasty_collector() -> Iterator[None]:
    """A collector that looks whenever ten objects more are there."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(10)
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("hasty_collector")
def test_garbage_of_the_program_is_not_collected_in_it() -> None:
    threads: list[int] = []
    runs: list[int] = []

    def run() -> None:
        runs.append(len([[] for _ in range(1000)]))

    thread = Periodic(run, 0.001, Guard(), Holding())
    for count in range(40):
        Finalized(threads)
        until(partial(_longer_than, runs, 2 * count))  # meanwhile this thread makes no objects
    assert thread.stop()
    gc.collect()
    assert len(threads) == 40
    assert set(threads) == {threading.get_ident()}
    assert gc.isenabled()


def test_a_collector_that_the_program_has_turned_off_stays_off() -> None:
    runs: list[int] = []
    gc.disable()
    try:
        thread = Periodic(lambda: runs.append(1), 0.001, Guard(), Holding())
        until(lambda: len(runs) > 3)
        assert thread.stop()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def finish() -> Iterator[Callable[[], None]]:
    """Ends a run of the thread, amid of which the test begins."""
    begun, go_on = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        go_on.wait(BOUND_S)

    thread = Periodic(run, 0.001, Guard(), Holding())
    assert begun.wait(BOUND_S)

    def end() -> None:
        go_on.set()
        assert thread.stop()

    yield end
    go_on.set()
    gc.enable()


def collects() -> bool:
    """Return True if garbage is collected, whatever is said of it."""
    before = gc.get_stats()[0]["collections"]
    made: list[list[int]] = [[] for _ in range(2 * gc.get_threshold()[0])]
    return gc.get_stats()[0]["collections"] > before and bool(made)


def test_the_program_sees_nothing_of_the_hold(finish: Callable[[], None]) -> None:
    assert not collects()
    assert gc.isenabled()
    gc.enable()
    assert not collects()
    finish()
    assert collects()


def test_what_the_program_asks_for_amid_a_run_counts_after_it(finish: Callable[[], None]) -> None:
    gc.enable()
    gc.disable()
    assert not gc.isenabled()
    finish()
    assert not gc.isenabled()
    assert not collects()


def test_what_the_program_restores_amid_a_run_is_restored(finish: Callable[[], None]) -> None:
    before = gc.isenabled()
    gc.disable()
    if before:
        gc.enable()
    finish()
    assert gc.isenabled()
    assert collects()


def test_the_functions_of_gc_look_as_before() -> None:
    code = """
    import gc, inspect, pickle
    def look():
        return [(repr(f), f.__doc__, f.__module__, f.__self__ is gc, str(inspect.signature(f)),
                 inspect.isbuiltin(f), pickle.dumps(f), f())
                for f in (gc.disable, gc.isenabled, gc.enable)]
    before = look()
    from hangwatch import _native
    _native.watch_collector()
    _native.watch_collector()
    assert look() == before, (look(), before)
    """
    subprocess.run([sys.executable, "-c", dedent(code)], check=True)  # noqa: S603 (our own)


def test_the_child_of_a_fork_in_the_middle_of_a_run_collects(finish: Callable[[], None]) -> None:
    assert not collects()
    child = os.fork()
    if child == 0:
        os._exit(3 if collects() else 4)
    _, status = os.waitpid(child, 0)
    finish()
    assert os.waitstatus_to_exitcode(status) == 3
