"""The observer says which signals were for the whole group, however late it gets to run."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import until

from hangwatch.launch import timing
from hangwatch.launch.signals import GroupObserver

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGRTMIN,
)


@pytest.fixture
def child() -> Iterator[GroupObserver]:
    """An observer that waits for signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    one = GroupObserver(SIGNALS)
    until(lambda: state(one) == "S")
    yield one
    with suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGCONT)
    one.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def state(one: GroupObserver) -> str:
    return Path(f"/proc/{one.pid}/stat").read_text("ascii").rpartition(") ")[2][0]


def saw(one: GroupObserver, number: int) -> bool:
    return one.saw(number, time.monotonic())


def test_what_it_was_sent_was_for_all_and_counts_once(child: GroupObserver) -> None:
    os.kill(child.pid, signal.SIGUSR1)
    assert saw(child, signal.SIGUSR1)
    until(lambda: not waiting(child))
    assert not saw(child, signal.SIGUSR1)
    assert not saw(child, signal.SIGUSR2)


def test_one_that_gets_no_processor_is_believed_by_what_waits_for_it(child: GroupObserver) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: state(child) == "T")
    os.kill(child.pid, signal.SIGUSR1)
    time.sleep(2 * timing.GRACE_S)
    assert saw(child, signal.SIGUSR1)
    assert not saw(child, signal.SIGUSR2)
    os.kill(child.pid, signal.SIGCONT)
    # What it reports now has been counted.
    until(lambda: not waiting(child))
    assert not saw(child, signal.SIGUSR1)


def test_one_that_was_for_the_supervisor_alone_is_told_from_one_just_before(
    child: GroupObserver,
) -> None:
    os.kill(child.pid, signal.SIGUSR1)
    assert saw(child, signal.SIGUSR1)
    assert not saw(child, signal.SIGUSR1)


def test_those_that_queue_are_each_reported(child: GroupObserver) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: state(child) == "T")
    for _ in range(3):
        os.kill(child.pid, signal.SIGRTMIN)
        assert saw(child, signal.SIGRTMIN)
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: not waiting(child))
    assert not saw(child, signal.SIGRTMIN)


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGCONT, signal.SIGTSTP), (signal.SIGTSTP, signal.SIGCONT)],
)
def test_one_that_the_next_took_back_is_not_passed_on(
    child: GroupObserver, first: int, second: int
) -> None:
    # The kernel has discarded the first before the observer took it.
    os.kill(child.pid, second)
    assert saw(child, first)
    assert saw(child, second)
    until(lambda: not waiting(child))
    assert not saw(child, second)
    assert not saw(child, first)


def test_one_taken_back_while_it_waited_is_not_expected_any_more(child: GroupObserver) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: state(child) == "T")
    os.kill(child.pid, signal.SIGTSTP)
    assert saw(child, signal.SIGTSTP)
    os.kill(child.pid, signal.SIGCONT)
    assert saw(child, signal.SIGCONT)
    until(lambda: not waiting(child))
    os.kill(child.pid, signal.SIGTSTP)
    until(lambda: not waiting(child))
    assert saw(child, signal.SIGTSTP)
    assert not saw(child, signal.SIGTSTP)


def test_an_old_one_that_the_supervisor_never_got_takes_nothing_back(child: GroupObserver) -> None:
    for number in (signal.SIGTSTP, signal.SIGCONT):
        os.kill(child.pid, number)
        until(lambda: not waiting(child))
    assert saw(child, signal.SIGCONT)
    assert not saw(child, signal.SIGCONT)


def test_one_that_has_ended_has_seen_nothing(child: GroupObserver) -> None:
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: state(child) == "Z")
    assert not saw(child, signal.SIGUSR1)


def waiting(one: GroupObserver) -> bool:
    """Whether it has signals to take, or one that it is about to report."""
    text = Path(f"/proc/{one.pid}/status").read_text("ascii")
    lines = dict(line.split(":", 1) for line in text.splitlines())
    pending = int(lines["SigPnd"], 16) | int(lines["ShdPnd"], 16)
    return bool(pending) or not lines["State"].strip().startswith("S")
