"""Which ranks are ended for a hang: those whose own pages show that they do not go on."""

from __future__ import annotations

from dataclasses import replace

from hangwatch.evidence.pages.look import CallId, RankStatus
from hangwatch.watchdog.incident.abort import Abort

S = 10**9
PATIENCE = 10 * S
NOW = 1000 * S


def waiting(pid: int, since_s: float, seq: int = 5) -> RankStatus:
    """A rank that waits since so many seconds before NOW."""
    since = NOW - int(since_s * S)
    return RankStatus(pid, 1, {CallId("all_reduce", 0, seq, seq): since}, (seq,), since)


def idle(pid: int, since_s: float) -> RankStatus:
    """A rank that is in no call, since so many seconds before NOW."""
    return RankStatus(pid, 1, {}, (0,), NOW - int(since_s * S))


def begun(seen: dict[int, RankStatus], *culprits: int, proving: tuple[int, ...] = ()) -> Abort:
    abort = Abort(frozenset(culprits), proving=frozenset(proving))
    abort.begin(seen, NOW, PATIENCE)
    return abort


def test_waits_that_stand_for_long_and_the_culprit_that_stands_as_long_are_ended() -> None:
    seen = {0: waiting(10, 11), 1: idle(11, 12)}
    abort = begun(seen, 1)
    assert abort.due(seen, NOW, PATIENCE) == {0, 1}
    assert abort.unmoved({0, 1}, seen) == {0, 1}


def test_a_verdict_alone_ends_nobody() -> None:
    seen = {0: waiting(10, 0.2), 1: idle(11, 0.1)}
    abort = begun(seen, 0, 1)
    assert abort.due(seen, NOW, PATIENCE) == set()
    for step in range(1, 300):  # both go on, as they did
        seen = {0: waiting(10, -step, 5 + step), 1: idle(11, -step)}
        assert abort.due(seen, NOW + step * S + S // 5, PATIENCE) == set()


def test_who_is_not_named_and_waits_for_nothing_is_never_ended() -> None:
    seen = {0: waiting(10, 11), 1: idle(11, 12), 2: idle(12, 500)}
    abort = begun(seen, 1)
    for step in range(3):  # also when it has been seen more than once
        assert abort.due(seen, NOW + step, PATIENCE) == {0, 1}


def test_a_culprit_that_went_on_lately_is_not_ended() -> None:
    seen = {0: waiting(10, 11), 1: idle(11, 2)}
    assert begun(seen, 1).due(seen, NOW, PATIENCE) == {0}


def test_that_the_culprit_has_come_gives_those_that_wait_the_whole_time_anew() -> None:
    seen = {0: waiting(10, 11), 1: idle(11, 12)}
    abort = begun(seen, 1)
    seen[1] = waiting(11, 0)
    assert abort.due(seen, NOW, PATIENCE) == set()
    assert abort.due(seen, NOW + PATIENCE - 1, PATIENCE) == set()
    abort.due(seen, NOW + PATIENCE, PATIENCE)
    assert abort.due(seen, NOW + PATIENCE + 1, PATIENCE) == {0, 1}


def test_who_waits_for_long_already_gets_the_whole_time_too_once_another_has_gone_on() -> None:
    seen = {0: waiting(10, 500), 1: waiting(11, 500, 6)}
    abort = begun(seen)
    seen[1] = idle(11, 0)
    assert [abort.due(seen, NOW + step * S, PATIENCE) for step in range(10)] == [set()] * 10
    assert abort.due(seen, NOW + PATIENCE, PATIENCE) == {0}


def test_a_wait_that_has_passed_is_not_taken_for_the_next_one() -> None:
    seen = {0: waiting(10, 11)}
    abort = begun(seen)
    assert abort.due({0: waiting(10, 10.5, 6)}, NOW, PATIENCE) == set()
    assert abort.unmoved({0}, {0: waiting(10, 10.5, 6)}) == set()


def test_a_rank_that_goes_on_between_two_signals_stands_no_more() -> None:
    seen = {0: waiting(10, 11), 1: waiting(11, 11)}
    abort = begun(seen)
    assert abort.due(seen, NOW, PATIENCE) == {0, 1}
    assert abort.unmoved({0, 1}, {0: seen[0], 1: waiting(11, 0, 6)}) == {0}


def test_a_rank_that_progresses_beside_a_wait_is_not_ended() -> None:
    busy = replace(waiting(10, 50), moved_ns=NOW - S)  # another thread of it goes on
    assert begun({0: busy}, 0).due({0: busy}, NOW, PATIENCE) == set()


def test_a_process_of_the_next_incarnation_is_another_one() -> None:
    seen = {0: waiting(10, 11)}
    abort = begun(seen)
    assert abort.due({0: replace(seen[0], start_ticks=2)}, NOW, PATIENCE) == set()
    assert abort.unmoved({0}, {0: replace(seen[0], pid=11)}) == set()


def test_what_this_node_proves_by_itself_need_not_last_as_long() -> None:
    seen = {0: waiting(10, 20), 1: waiting(11, 22, 6), 2: waiting(12, 22, 7)}
    abort = Abort(frozenset({1}), proving=frozenset({0, 1}))
    abort.begin(seen, NOW, 30 * PATIENCE)
    assert abort.due(seen, NOW, 30 * PATIENCE) == set()
    assert abort.due(seen, NOW + 9 * S, 30 * PATIENCE) == {1}
    assert abort.due(seen, NOW + 11 * S, 30 * PATIENCE) == {0, 1}


def test_a_proof_takes_no_longer_than_a_hang() -> None:
    seen = {0: waiting(10, 9.5), 1: waiting(11, 9.5, 6)}
    abort = begun(seen, 1, proving=(0, 1))
    assert abort.due(seen, NOW, PATIENCE) == set()
    assert abort.due(seen, NOW + S, PATIENCE) == {0, 1}


def test_a_proof_of_which_a_part_has_passed_is_none() -> None:
    seen = {0: waiting(10, 2), 1: waiting(11, 2, 6)}
    abort = begun(seen, 1, proving=(0, 1))
    seen[1] = waiting(11, 0, 7)
    assert abort.due(seen, NOW, PATIENCE) == set()
    assert abort.due(seen, NOW + S, PATIENCE) == set()


def test_waits_that_came_later_are_ended_once_they_stand_for_as_long() -> None:
    seen = {0: waiting(10, 1)}  # the verdict is of another node
    abort = begun(seen, 7)
    assert abort.due(seen, NOW + 8 * S, PATIENCE) == set()
    assert abort.due(seen, NOW + 9 * S, PATIENCE) == set()  # it is remembered
    assert abort.due(seen, NOW + 9 * S + 1, PATIENCE) == {0}


def test_ranks_that_come_due_in_a_moment_are_ended_together() -> None:
    seen = {0: waiting(10, 10.5), 1: waiting(11, 9.5)}
    abort = begun(seen)
    assert abort.due(seen, NOW, PATIENCE) == set()
    assert abort.due(seen, NOW + S // 2, PATIENCE) == set()
    assert abort.due(seen, NOW + S // 2 + 1, PATIENCE) == {0, 1}


def test_where_nobody_waits_the_culprit_is_ended_after_those_that_wait_elsewhere() -> None:
    seen = {1: idle(11, 12)}
    abort = begun(seen, 1)
    assert abort.due(seen, NOW, PATIENCE) == set()
    assert abort.due(seen, NOW + 5 * S - 1, PATIENCE) == set()
    assert abort.due(seen, NOW + 5 * S, PATIENCE) == {1}
    assert abort.due({1: idle(11, -5.5)}, NOW + 6 * S, PATIENCE) == set()


def test_a_rank_without_a_page_is_ended_only_where_others_wait() -> None:
    absent = replace(idle(11, 50), has_page=False)
    alone = begun({1: absent}, 1)
    for step in range(60):
        assert alone.due({1: absent}, NOW + step * S, PATIENCE) == set()
    seen = {0: waiting(10, 11), 1: absent}
    assert begun(seen, 1).due(seen, NOW, PATIENCE) == {0, 1}


def test_a_watchdog_that_takes_over_sees_for_itself_how_the_ranks_stand() -> None:
    seen = {0: waiting(10, 11), 1: idle(11, 12)}
    first = begun(seen, 1)
    abort = Abort(first.culprits, first.not_before_ns, ended_any=first.ended_any)
    assert abort.due(seen, NOW, PATIENCE) == set()
    assert abort.due(seen, NOW + 1, PATIENCE) == {0, 1}
