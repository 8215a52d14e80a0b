"""Which processes are ranks of one start of the job, told by when they lived."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from made_pages import page

from hangwatch.evidence.pages.worlds import split_incarnations
from hangwatch.model.kinds import Phase
from hangwatch.model.page import Identity, RankPage

if TYPE_CHECKING:
    from collections.abc import Mapping

TICKS_A_S = os.sysconf("SC_CLK_TCK")


def rank(pid: int, started_s: float, seen_s: float, restart: int = 0) -> RankPage:
    """A rank that started then and left its last sign of life later."""
    identity = Identity(pid, int(started_s * TICKS_A_S), 0, 4, restart=restart)
    seen_ns = int(seen_s * 1e9)
    return replace(
        page(phase=Phase.RUNNING, phase_ns=0, created_ns=seen_ns, gil_ns=0), identity=identity
    )


def told(
    *pages: RankPage, living: tuple[int, ...] = (), ended_s: Mapping[int, float] | None = None
) -> list[list[int]]:
    """The pids of each incarnation."""
    named = {str(one.identity.pid): one for one in pages}
    ended = {pid: int(at_s * 1e9) for pid, at_s in (ended_s or {}).items()}
    found = split_incarnations(named, lambda pid, _: pid in living, ended, boot_ns=0)
    return [sorted(int(name) for name in names) for names in found]


def test_ranks_that_live_at_the_same_time_belong_together() -> None:
    assert told(rank(1, 10, 12), rank(2, 10.5, 12), living=(1, 2)) == [[1, 2]]


def test_ranks_that_start_after_all_others_have_ended_do_not() -> None:
    old = rank(1, 10, 12), rank(2, 10, 30)
    new = rank(3, 31, 33), rank(4, 31.2, 33)
    assert told(*new, *old, living=(3, 4)) == [[1, 2], [3, 4]]


def test_a_rank_started_anew_while_others_live_is_one_of_them() -> None:
    assert told(rank(1, 10, 12), rank(2, 10, 12), rank(3, 20, 22), living=(1, 3)) == [[1, 2, 3]]


def test_one_that_lives_through_all_holds_those_together_that_never_met() -> None:
    late = rank(3, 20, 22)
    assert told(rank(1, 10, 12), rank(2, 10, 15), late, living=(1, 3)) == [[1, 2, 3]]


def test_when_a_process_was_seen_to_end_counts_for_more_than_its_last_sign() -> None:
    first, second = rank(1, 10, 12), rank(2, 14, 16)
    assert told(first, second, living=(2,)) == [[1], [2]]
    assert told(first, second, living=(2,), ended_s={1: 15}) == [[1, 2]]


def test_another_count_of_the_launcher_is_another_incarnation_in_any_case() -> None:
    assert told(rank(1, 10, 12), rank(2, 20, 22, restart=1), living=(1, 2)) == [[1], [2]]


@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_sleep_of_the_machine_does_not_matter(ahead_s: int) -> None:
    old, new = rank(1, 10 + ahead_s, 12), rank(2, 12.5 + ahead_s, 15)
    found = split_incarnations(
        {"old": old, "new": new}, lambda pid, _: pid == 2, {}, boot_ns=ahead_s * 10**9
    )
    assert found == [frozenset({"old"}), frozenset({"new"})]


def test_without_a_rank_there_is_no_incarnation() -> None:
    assert told() == []
