"""The cheap look at all ranks: who waits, since when, and when that is worth a diagnosis."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from made_pages import event, group, page, write

from hangwatch.console import News
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import (
    UNFINISHED,
    Look,
    Looker,
    Waiting,
    longest_wait,
    may_wait,
    moved_ns,
    position,
    without_servers,
)
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.snapshot import Thresholds
from hangwatch.watchdog.cadence import Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.evidence.pages.finder import Seen

S = 1_000_000_000
THRESHOLDS = Thresholds(10, 300)


class Clock:
    """CLOCK_MONOTONIC, and what a test adds to it."""

    def __init__(self) -> None:
        self.added_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.added_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looker(tmp_path: Path, clock: Clock) -> Looker:
    return Looker(Pages(tmp_path, News(os.open(os.devnull, os.O_WRONLY))), lambda *_: True, clock)


def test_a_rank_that_issues_collectives_waits_for_nothing(tmp_path: Path, looker: Looker) -> None:
    write(tmp_path, page(0))
    assert looker.look().moved
    write(tmp_path, page(0, groups=(group(4),)))
    look = looker.look()
    assert (look.moved, look.waits, look.longest_wait_s) == (True, {0: None}, 0)


def test_nothing_moves_when_nothing_is_issued(tmp_path: Path, looker: Looker) -> None:
    content = page(0)
    write(tmp_path, content)
    looker.look()
    write(tmp_path, replace(content, gil_ns=content.gil_ns + 1))
    assert not looker.look().moved


def test_a_quiet_rank_that_is_blocked_waits_since_it_blocked(
    tmp_path: Path, looker: Looker, clock: Clock
) -> None:
    blocked = event()
    write(tmp_path, page(0, groups=(group(left=2),), events=(event(2, OpState.DONE), blocked)))
    assert looker.look().waits == {0: None}  # not for long enough to look at
    clock.added_ns = 3 * S
    look = looker.look()
    assert look.waits == {0: blocked.blocked_ns}
    assert look.waiting == {0: Waiting(blocked.blocked_ns, "all_reduce", 0)}
    assert 3 <= look.longest_wait_s < 60


def test_a_wait_that_has_passed_is_not_taken_for_the_one_after_it(
    tmp_path: Path, looker: Looker
) -> None:
    now_ns = time.monotonic_ns()
    for seq, since_ns in ((4, now_ns - 60 * S), (5, now_ns - 2 * S)):
        moments = {"phase_ns": 1, "created_ns": 1}
        made = group(seq, left=seq - 1, changed_ns=since_ns)
        call = event(seq, issued_ns=since_ns, blocked_ns=since_ns)
        write(tmp_path, page(0, groups=(made,), events=(call,), **moments))
        assert looker.look().waits == {0: since_ns}


def test_a_quiet_rank_that_computes_does_not_wait(
    tmp_path: Path, looker: Looker, clock: Clock
) -> None:
    write(tmp_path, page(0, events=(event(3, OpState.DONE),)))
    looker.look()
    clock.added_ns = 30 * S
    assert looker.look().waits == {0: None}


def test_a_send_that_is_not_received_is_seen_although_no_counter_tells(
    tmp_path: Path, looker: Looker, clock: Clock
) -> None:
    send = event(1, op="send", wire="send", p2p=True, peer=1)
    write(tmp_path, page(0, events=(send,)))
    looker.look()
    clock.added_ns = 3 * S
    assert looker.look().waits == {0: send.blocked_ns}


def test_a_rank_busy_in_one_thread_may_still_be_stuck_in_another(
    tmp_path: Path, looker: Looker, clock: Clock
) -> None:
    stuck, blocked = group(left=2), event()
    for count in range(3, 7):
        busy = group(count, slot=1, name="1")
        write(tmp_path, page(0, groups=(stuck, busy), events=(blocked,)))
        clock.added_ns += S
        look = looker.look()
        assert look.moved
    assert look.waits == {0: blocked.blocked_ns}


def test_a_page_that_is_cut_while_its_calls_are_read_tells_of_no_wait(
    tmp_path: Path, looker: Looker, clock: Clock
) -> None:
    path = write(tmp_path, page(0, events=(event(),)))
    clock.added_ns = 3 * S
    assert looker.look().waits != {0: None}
    read = looker.pages.look

    def read_and_cut() -> dict[int, Seen]:
        seen = read()
        os.truncate(path, 100)
        return seen

    looker.pages.look = read_and_cut  # type: ignore[method-assign]
    clock.added_ns += 60 * S
    assert looker.look().waits == {0: None}


def test_a_rank_that_has_ended_is_in_no_wait(tmp_path: Path, clock: Clock) -> None:
    pages = Pages(tmp_path, News(os.open(os.devnull, os.O_WRONLY)))
    looker = Looker(pages, lambda *_: False, clock)
    write(tmp_path, page(0, events=(event(),)))
    clock.added_ns = 3 * S
    look = looker.look()
    assert (list(look.seen), look.waits) == ([0], {})
    assert not look.all_wait()


def test_all_wait_only_when_each_living_rank_does() -> None:
    def look(waits: dict[int, int | None]) -> Look:
        waiting = {r: None if since is None else Waiting(since, "x") for r, since in waits.items()}
        return Look(10 * S, {}, waiting, moved=False)

    assert look({0: 2 * S, 1: 9 * S}).all_wait()
    assert not look({0: 2 * S, 1: None}).all_wait()
    assert not look({0: 2 * S, 1: 10 * S}).all_wait()
    assert not look({}).all_wait()


def test_the_longest_of_all_waits_counts() -> None:
    blocked = Waiting(9, "all_reduce", 0)
    content = page(0, in_call="new_group", in_call_ns=5, pending_since_ns=7)
    assert longest_wait(content, blocked) == Waiting(5, "all_reduce", 0)
    assert longest_wait(content, None) == Waiting(5, "new_group")
    assert longest_wait(page(0, pending_since_ns=7), blocked) == Waiting(7, "all_reduce", 0)
    assert longest_wait(page(0, pending_since_ns=7), None) == Waiting(7, UNFINISHED)
    assert longest_wait(page(0), blocked) == blocked
    assert longest_wait(page(0), None) is None


@pytest.mark.parametrize("phase", [Phase.EXITED, Phase.RAISED])
def test_who_has_left_waits_for_nothing(phase: Phase) -> None:
    content = page(0, phase=phase, pending_since_ns=7, in_call="x", in_call_ns=7)
    assert longest_wait(content, Waiting(9, "all_reduce")) is None
    assert not may_wait(content, 100 * S, 1)


def test_what_the_counters_leave_open_is_looked_into() -> None:
    now_ns = time.monotonic_ns() + 5 * S
    assert not may_wait(page(0), now_ns, 1)
    assert may_wait(page(0, groups=(group(left=2),)), now_ns, 1)
    assert may_wait(page(0, in_call="init_process_group"), now_ns, 1)
    assert may_wait(page(0, pending_since_ns=now_ns - 2 * S), now_ns, 1)
    assert not may_wait(page(0, pending_since_ns=now_ns), now_ns, 1)


def test_the_position_tells_new_calls_and_nothing_else() -> None:
    content = page(0)
    assert position(content) == position(replace(content, gil_ns=1, heartbeat_ns=2))
    assert position(content) != position(replace(content, groups=(group(4),)))
    assert position(content) != position(replace(content, groups=(group(3, p2p=1),)))
    assert position(content) != position(replace(content, phase=Phase.FINALIZING))
    assert moved_ns(content) == max(content.phase_ns, content.groups[0].changed_ns)


def test_a_wait_is_judged_at_once_and_then_less_and_less_often() -> None:
    schedule = Schedule()
    ages = [tenths / 10 for tenths in range(1, 600)]
    judged = [age for age in ages if schedule.due(age, THRESHOLDS, moved=False, asking=False)]
    assert judged[0] == 1.0
    assert 10.0 in judged  # the threshold itself
    assert len(judged) < 20


def test_other_nodes_are_asked_less_often() -> None:
    def count(*, asking: bool) -> int:
        schedule = Schedule()
        ages = [tenths / 10 for tenths in range(1, 600)]
        return sum(schedule.due(a, THRESHOLDS, moved=True, asking=asking) for a in ages)

    assert count(asking=True) < 9
    assert count(asking=False) > 20


def test_a_younger_wait_is_a_new_one() -> None:
    schedule = Schedule()
    assert schedule.due(5, THRESHOLDS, moved=False, asking=False)
    assert schedule.due(2, THRESHOLDS, moved=False, asking=False)
    assert not schedule.due(0.5, THRESHOLDS, moved=False, asking=False)
    assert schedule.due(1.0, THRESHOLDS, moved=False, asking=False)


def test_flight_recorders_are_asked_for_rarely() -> None:
    schedule = Schedule()
    assert [age for age in range(1, 100) if schedule.flight_due(age)] == [1, 3, 9, 27, 81]


@pytest.mark.parametrize(
    ("others", "since"),
    [
        ([None], None),  # it works, and may set the key any time
        ([Waiting(7, "all_reduce", 0)], 7),  # since then all wait
        ([Waiting(7, "all_reduce", 0), None], None),
        ([Waiting(9, "store.wait")], 9),
    ],
)
def test_who_serves_others_by_the_store_waits_since_all_do(
    others: list[Waiting | None], since: int | None
) -> None:
    waiting = dict(enumerate([Waiting(2, "store.get"), *others]))
    found = without_servers(waiting)[0]
    assert (None if found is None else found.since_ns) == since
