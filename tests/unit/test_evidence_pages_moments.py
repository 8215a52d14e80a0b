"""The moments that a rank notes beside its heartbeat, without the GIL."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from recording import only_native, only_python
from waiting import until

from hangwatch import _native
from hangwatch.errors import PageError
from hangwatch.evidence.pages.reader import parse_moments

if TYPE_CHECKING:
    from recording import Recording

    from hangwatch.model.page import PageMoment

pytest_plugins = ["recorders"]

PERIOD_NS = 100_000_000


def moments(recording: Recording, after: int = 0) -> list[PageMoment]:
    return parse_moments(recording.path.read_bytes(), after)


@pytest.fixture
def noting(recording: Recording) -> Recording:
    _native.start_heartbeat(1000, True)  # noqa: FBT003 (positional only)
    return recording


@only_native
def test_they_are_noted_at_times_that_follow_from_their_numbers(noting: Recording) -> None:
    until(lambda: len(moments(noting)) >= 3, "three moments")
    found = moments(noting)
    assert [one.number for one in found] == sorted({one.number for one in found})
    for one in found:
        assert 0 <= one.at_ns - one.number * PERIOD_NS < PERIOD_NS + 5_000_000
        assert one.thread == os.getpid()
        assert one.cpu_ns > 0
        assert one.groups == []  # no torch counts them here
    first, *later = found
    assert moments(noting, first.number)[: len(later)] == later
    assert moments(noting, time.monotonic_ns() // PERIOD_NS + 10_000) == []


@only_native
def test_a_thread_that_sleeps_is_told_from_one_that_works(noting: Recording) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=1.0)  # sleeps in a system call
    asleep = moments(noting)[-1]
    assert asleep.call >= 0
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:
        sum(range(1000))

    # Where the machine is busy the rank may not have had its CPU at each of them.
    def works() -> bool:
        sum(range(100_000))
        return moments(noting)[-1].call < 0

    until(works, "a moment at which it works", poll_s=0)
    assert moments(noting)[-1].cpu_ns > asleep.cpu_ns


@only_native
def test_the_call_that_it_is_blocked_in(noting: Recording) -> None:
    noting.begin(slot=noting.slot(noting.group()))
    before = time.monotonic_ns() // PERIOD_NS
    until(lambda: moments(noting, before + 1), "a moment in the call")
    assert moments(noting)[-1].blocked_slot == 0
    assert moments(noting)[-1].blocked_peer == -1


@only_native
def test_none_are_noted_unless_asked_for(recording: Recording) -> None:
    _native.start_heartbeat(1)
    time.sleep(0.3)
    assert moments(recording) == []


@only_python
def test_the_recorder_in_python_notes_none(recording: Recording) -> None:
    with pytest.raises(PageError, match="cannot be read"):
        moments(recording)


def test_what_is_no_page_is_an_error() -> None:
    with pytest.raises(PageError):
        parse_moments(b"\0" * 64, 0)
