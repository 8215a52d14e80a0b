"""Where ranks stand, by what their pages say: who is ended for a hang is ended by this."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from made_pages import event, group, page, write

from hangwatch.console import News
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import CallId, RankStatus, rank_statuses
from hangwatch.evidence.processes import LaunchedRank, read_stat
from hangwatch.model.kinds import OpState, Phase

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.model.page import RankPage

S = 10**9
BLOCKED = event(3, index=3)


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    news = News(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    return Pages(tmp_path, news, alive=lambda *_: True)


def stuck(**changes: Any) -> RankPage:
    """The page of a rank that is blocked in its third collective."""
    made = group(3, completed=2, left=2, changed_ns=BLOCKED.issued_ns)
    moments = {"phase_ns": 1, "created_ns": 1, "gil_ns": 1}
    return page(0, **{**moments, "groups": (made,), "events": (BLOCKED,), **changes})


def seen(tmp_path: Path, pages: Pages, content: RankPage) -> dict[int, RankStatus]:
    write(tmp_path, content)
    return rank_statuses(pages.look(), ())


def test_a_rank_that_is_blocked_stands_in_its_call_since_then(tmp_path: Path, pages: Pages) -> None:
    (one,) = seen(tmp_path, pages, stuck()).values()
    assert one.waits == {CallId("all_reduce", 0, 3, 3): BLOCKED.blocked_ns}
    assert one.since_ns == one.moved_ns == BLOCKED.blocked_ns
    assert one.process == (os.getpid(), 1)


def test_of_a_rank_whose_page_is_written_no_more_nothing_is_known(
    tmp_path: Path, pages: Pages
) -> None:
    assert seen(tmp_path, pages, stuck(disarmed="no memory")) == {}


def test_of_a_rank_whose_page_cannot_be_read_nothing_is_known(tmp_path: Path, pages: Pages) -> None:
    path = write(tmp_path, stuck())
    looked = pages.look()
    with path.open("r+b") as file:
        file.write(b"\xff" * 4096)
    assert rank_statuses(looked, ()) == {}


@pytest.mark.parametrize("phase", [Phase.EXITED, Phase.RAISED])
def test_a_rank_that_is_at_its_end_waits_for_nothing(
    tmp_path: Path, pages: Pages, phase: Phase
) -> None:
    (one,) = seen(tmp_path, pages, stuck(phase=phase)).values()
    assert one.waits == {}


@pytest.mark.parametrize(
    "change",
    [
        {"groups": (group(3, completed=3, left=2, changed_ns=BLOCKED.issued_ns),)},
        {"groups": (group(3, completed=2, left=2, reached=3, changed_ns=BLOCKED.issued_ns),)},
        {"groups": (group(3, completed=2, left=2, passed=3, changed_ns=BLOCKED.issued_ns),)},
        {"events": (event(2, OpState.DONE, issued_ns=1, done_ns=BLOCKED.issued_ns + S), BLOCKED)},
        {
            "events": (
                event(4, index=4, issued_ns=BLOCKED.issued_ns, blocked_ns=BLOCKED.blocked_ns),
            )
        },
        {"events": (replace(BLOCKED, state=OpState.DONE),)},
    ],
    ids=["completed", "device-reached", "device-passed", "call-done", "next-call", "returned"],
)
def test_any_sign_of_progress_shows_that_a_rank_has_gone_on(
    tmp_path: Path, pages: Pages, change: dict[str, Any]
) -> None:
    before = seen(tmp_path, pages, stuck())[0]
    assert seen(tmp_path, pages, stuck())[0].is_where(before)
    assert not seen(tmp_path, pages, stuck(**change))[0].is_where(before)


def test_a_rank_that_was_busy_and_has_come_to_wait_has_gone_on(
    tmp_path: Path, pages: Pages
) -> None:
    busy = seen(tmp_path, pages, stuck(events=()))[0]
    pending = seen(tmp_path, pages, stuck(events=(), pending_since_ns=BLOCKED.issued_ns))[0]
    assert not pending.is_where(busy)


def test_a_rank_without_a_page_stands_where_it_started() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    launched = LaunchedRank(os.getpid(), stat.start_ticks, 1, 1, 2)
    (one,) = rank_statuses({}, [launched]).values()
    assert not one.has_page
    assert 0 < one.moved_ns <= time.monotonic_ns()
