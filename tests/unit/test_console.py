"""Standard error may be full, and nobody may read it: what is said there never waits for long."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from waiting import in_time

from hangwatch import console
from hangwatch.console import UNREAD, News

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def full() -> Iterator[int]:
    """A blocking pipe that has no room."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with suppress(BlockingIOError):
        while True:
            os.write(into, b"x" * 4096)
    os.set_blocking(into, True)
    yield into
    os.close(into)
    os.close(out)


def test_what_a_full_pipe_has_no_room_for_is_given_up(full: int) -> None:
    began = time.monotonic()
    assert not console.write(full, b"news\n")
    in_time(began, 20)
    assert os.get_blocking(full)


def test_a_watchdog_tells_in_its_reports_that_nobody_reads_standard_error(full: int) -> None:
    news = News(full)
    news.say("once")
    news.say("twice")
    assert news.lost == [UNREAD]


def test_more_than_a_pipe_takes_at_once_arrives_whole() -> None:
    out, into = os.pipe()
    data = b"y" * 50_000
    assert console.write(into, data)
    os.close(into)
    with os.fdopen(out, "rb") as file:
        assert file.read() == data
