"""The thread that samples."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial

from waiting import BOUND_S, until

from hangwatch.agent.guard import LIMIT, Guard
from hangwatch.agent.periodic import LockBell, Periodic


def guard() -> Guard:
    return Guard(lambda: None, lambda _: None)


def _longer_than(runs: list[int], count: int) -> bool:
    return len(runs) > count


def test_it_runs_again_and_again_until_it_is_stopped() -> None:
    runs: list[int] = []
    thread = Periodic(lambda: runs.append(1), 0.001, guard())
    until(lambda: len(runs) > 3)
    assert thread.stop()
    count = len(runs)
    time.sleep(0.05)
    assert len(runs) == count


def test_it_does_not_wait_out_its_period_to_stop() -> None:
    runs: list[int] = []
    thread = Periodic(lambda: runs.append(1), 1000.0, guard())
    until(lambda: runs)
    assert thread.stop()


def test_a_bell_makes_it_run_before_its_time() -> None:
    runs: list[int] = []
    bell = LockBell()
    thread = Periodic(lambda: runs.append(1), 1000.0, guard(), bell)
    while len(runs) < 5:
        before = len(runs)
        bell.ring()
        until(partial(_longer_than, runs, before))
    assert thread.stop()


def test_it_survives_a_bad_run_and_counts_it() -> None:
    runs: list[int] = []
    firewall = guard()

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

    firewall = guard()
    thread = Periodic(run, 0.001, firewall)
    until(lambda: not firewall.open)
    assert thread.stop()
    assert firewall.swallowed == LIMIT


def test_no_list_of_the_users_threads_shows_it() -> None:
    seen: list[list[threading.Thread]] = []
    before = threading.enumerate()
    thread = Periodic(lambda: seen.append(threading.enumerate()), 0.001, guard())
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

    thread = Periodic(run, 0.001, guard())
    assert started.wait(BOUND_S)
    assert not thread.stop()
    release.release()


def test_it_takes_no_signal_in_the_place_of_the_program() -> None:
    blocked: list[set[int | signal.Signals]] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    thread = Periodic(
        lambda: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())), 0.001, guard()
    )
    until(lambda: blocked)
    assert thread.stop()
    assert blocked[0] >= {signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM, signal.SIGINT}
    assert not blocked[0] & {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
