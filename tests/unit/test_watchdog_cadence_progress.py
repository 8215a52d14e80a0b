"""When what was reported counts as passed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from made_pages import group, page

from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import Look, Waiting
from hangwatch.model.kinds import Phase
from hangwatch.watchdog.cadence import Progress

if TYPE_CHECKING:
    from hangwatch.evidence.pages.finder import OpenPage

S = 1_000_000_000


def look(at_s: float, waits: dict[int, float | None]) -> Look:
    """What is seen at at_s; waits: rank to since when, in seconds."""
    waiting = {
        rank: None if since is None else Waiting(int(since * S), "all_reduce")
        for rank, since in waits.items()
    }
    return Look(int(at_s * S), {}, waiting, moved=False)


@pytest.fixture
def progress() -> Progress:
    """Ranks 0 and 1 have waited since second 10; rank 2 does not wait."""
    found = Progress()
    found.begin(look(20, {0: 10, 1: 10, 2: None}))
    return found


def test_those_who_wait_at_that_moment_are_remembered(progress: Progress) -> None:
    progress.begin(look(20, {0: 10, 1: 19.5, 2: None}))
    assert progress.waited == {0: 10 * S}


def test_a_wait_that_goes_on_has_not_passed(progress: Progress) -> None:
    for second in range(21, 60):
        assert progress.passed_after_s(look(second, {0: 10, 1: 10, 2: None})) is None


def test_a_wait_has_passed_once_it_is_over_for_a_moment(progress: Progress) -> None:
    over: dict[int, float | None] = {0: None, 1: None, 2: None}
    assert progress.passed_after_s(look(30, over)) is None
    assert progress.passed_after_s(look(30.5, over)) is None
    assert progress.passed_after_s(look(31, over)) == 20


def test_a_newer_wait_is_another_one(progress: Progress) -> None:
    newer: dict[int, float | None] = {0: 29.0, 1: 29.0, 2: None}
    progress.passed_after_s(look(30, newer))
    assert progress.passed_after_s(look(31, newer)) == 20


def test_all_who_waited_have_to_go_on(progress: Progress) -> None:
    for second in range(21, 60):
        assert progress.passed_after_s(look(second, {0: None, 1: 10, 2: None})) is None


def test_a_job_that_falls_apart_has_not_recovered(progress: Progress) -> None:
    for second in range(21, 60):
        assert progress.passed_after_s(look(second, {0: None, 2: None})) is None
        assert progress.passed_after_s(look(second + 0.5, {})) is None


@pytest.mark.parametrize(
    "failing", [{"phase": Phase.RAISED}, {"handling": "RuntimeError"}], ids=["raised", "handling"]
)
def test_a_rank_that_fails_in_its_wait_has_not_gone_on(
    progress: Progress, failing: dict[str, Any]
) -> None:
    no_page = cast("OpenPage", None)
    seen = {1: Seen(no_page, page(1, phase_ns=0, **failing))}
    for second in range(21, 60):
        found = look(second, {0: None, 1: None, 2: None})
        assert progress.passed_after_s(replace(found, seen=seen)) is None


def test_what_another_node_reported_passes_with_the_waits_of_this_one() -> None:
    progress = Progress()
    assert progress.passed_after_s(look(20, {0: 10})) is None
    assert progress.passed_after_s(look(30, {0: None})) is None
    assert progress.passed_after_s(look(31, {0: None})) == 20


def busy(at_s: float, *moved_s: float) -> Look:
    """What is seen where nobody waits; moved_s: when each rank last issued something."""
    no_page = cast("OpenPage", None)
    seen = {
        rank: Seen(no_page, page(rank, phase_ns=0, groups=(group(changed_ns=int(one * S)),)))
        for rank, one in enumerate(moved_s)
    }
    return Look(int(at_s * S), seen, dict.fromkeys(seen), moved=False)


def test_what_another_node_waits_for_here_has_not_passed_before_it_goes_on() -> None:
    progress = Progress()
    for second in range(20, 60):
        assert progress.passed_after_s(busy(second, 19, second)) is None
    assert progress.passed_after_s(busy(60, 59.5, 60)) is None
    assert progress.passed_after_s(busy(61, 61, 61)) == 40


def test_a_watchdog_that_takes_over_remembers_them(progress: Progress) -> None:
    successor = Progress(progress.waited)
    assert successor.passed_after_s(look(30, {0: None, 1: None})) is None
    assert successor.passed_after_s(look(31, {0: None, 1: None})) == 20
