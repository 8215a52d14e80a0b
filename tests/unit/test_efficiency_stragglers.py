"""Who makes a job slow, from hand-made moments; property/test_slow_jobs.py has whole jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb

import pytest

from hangwatch.efficiency.leads import Ranks
from hangwatch.efficiency.straggler_watch import Observation, StragglerWatch
from hangwatch.efficiency.stragglers import (
    RankMoment,
    SlowRanks,
    Waiting,
    Window,
    chance,
    cost_of,
    longest_wait,
    stragglers_of,
    who_waits,
)
from hangwatch.model.kinds import Reason
from hangwatch.model.report import Why

WORLD = {0: (0, 1, 2)}
S = 20.0


def at(*issued: int, idle: bool = False, unfinished: bool = False, peer: int = -1) -> RankMoment:
    """A rank that has issued so many calls in groups 0, 1 and so on."""
    return RankMoment(dict(enumerate(issued)), idle, unfinished or idle, peer)


def frozen(*ranks: int) -> frozenset[int]:
    return frozenset(ranks)


def held_by(active: Ranks, everyone: Ranks = frozenset(range(4))) -> Waiting:
    """All others wait for some ranks, none of them for others."""
    rest = everyone - active
    return Waiting(active, ((active, rest),) if active and rest else (), for_data=not active)


def seen(moment: dict[int, RankMoment], members: Mapping[int, Sequence[int]]) -> tuple[Ranks, bool]:
    """The ranks that do not wait, and True if all others wait for these."""
    waiting = who_waits(moment, members)
    return waiting.awake, not waiting.for_data


class TestWhoWaits:
    def test_all_are_active_where_none_waits(self) -> None:
        assert seen({0: at(5), 1: at(6), 2: at(5)}, WORLD) == (frozen(0, 1, 2), True)

    def test_a_rank_that_is_ahead_and_idle_waits_for_those_behind(self) -> None:
        moment = {0: at(6, idle=True), 1: at(5), 2: at(6, idle=True)}
        assert seen(moment, WORLD) == (frozen(1), True)

    def test_a_rank_that_is_ahead_and_busy_does_not_wait(self) -> None:
        moment = {0: at(6, unfinished=True), 1: at(5), 2: at(6, idle=True)}
        assert seen(moment, WORLD) == (frozen(0, 1), True)

    def test_an_idle_rank_that_has_issued_the_least_is_active(self) -> None:
        # It waits for its data loader.
        moment = {0: at(6, idle=True), 1: RankMoment({0: 5}, idle=True), 2: at(6, idle=True)}
        assert seen(moment, WORLD) == (frozen(1), True)

    def test_nothing_is_known_while_data_are_on_their_way(self) -> None:
        assert seen({0: at(6, idle=True), 1: at(6), 2: at(6, idle=True)}, WORLD) == (
            frozen(1),
            False,
        )

    def test_the_last_to_arrive_may_wait_itself(self) -> None:
        # Rank 1 is the last in group 0, since it waits for rank 3 in group 1.
        members = {0: (0, 1), 1: (1, 3), 2: (2, 3)}
        moment = {
            0: RankMoment({0: 2}, idle=True),
            1: RankMoment({0: 1, 1: 2}, idle=True),
            2: RankMoment({2: 2}, idle=True),
            3: RankMoment({1: 1, 2: 1}),
        }
        assert seen(moment, members) == (frozen(3), True)
        assert who_waits(moment, members).awaited == ((frozen(3), frozen(0, 1, 2)),)

    def test_each_waits_for_its_own_though_all_are_in_one_group(self) -> None:
        # Two stages of two: ranks 2 and 3 wait for a message, rank 3 for a rank that is behind.
        moment = {0: at(1), 1: at(1), 2: at(1, idle=True, peer=0), 3: at(1, idle=True, peer=1)}
        waiting = who_waits(moment, {0: (0, 1, 2, 3)})
        assert dict(waiting.awaited) == {frozen(0): frozen(2), frozen(1): frozen(3)}

    def test_a_message_is_waited_for_from_its_sender(self) -> None:
        moment = {0: at(idle=True, peer=1), 1: at(idle=True, peer=2), 2: at()}
        assert seen(moment, {}) == (frozen(2), True)

    def test_two_ranks_that_wait_for_each_other_have_data_on_their_way(self) -> None:
        moment = {0: at(idle=True, peer=1), 1: at(idle=True, peer=0), 2: at()}
        assert seen(moment, {}) == (frozen(2), False)

    def test_a_group_that_a_member_does_not_count_proves_nothing(self) -> None:
        moment = {0: at(6, idle=True), 1: RankMoment({}), 2: at(6, idle=True)}
        assert seen(moment, WORLD) == (frozen(1), False)

    def test_a_group_with_members_out_of_sight_proves_nothing(self) -> None:
        assert seen({0: at(6, idle=True), 1: at(5)}, WORLD) == (frozen(1), False)


FOUR = {0: frozen(0, 1, 2, 3)}
THREE = {0: frozen(0, 1, 2)}


class TestAWindow:
    def window(self, *pattern: frozenset[int], times: int = 100) -> Window:
        moments = [held_by(active) for active in pattern] * times
        return Window(FOUR, moments, range(len(moments)))

    def test_the_rank_that_all_wait_for(self) -> None:
        all_ = frozen(0, 1, 2, 3)
        found = stragglers_of(self.window(all_, all_, frozen(2), frozen(2)))
        assert found is not None
        assert found.ranks == (2,)
        assert found.fraction == pytest.approx(0.5, abs=0.01)

    def test_two_ranks_that_are_slow_alike(self) -> None:
        all_ = frozen(0, 1, 2, 3)
        window = self.window(all_, all_, frozen(2, 0), frozen(2), frozen(0))
        found = stragglers_of(window)
        assert found is not None
        assert found.ranks == (0, 2)
        assert found.fraction == pytest.approx(0.6, abs=0.01)
        assert cost_of(window, frozen(2)) < found.fraction

    def test_late_by_turns_is_nobodys_fault(self) -> None:
        turns = [frozen(rank) for rank in range(4)]
        assert stragglers_of(self.window(*turns)) is None

    def test_a_window_that_is_too_short_tells_nothing(self) -> None:
        assert stragglers_of(self.window(frozen(2), times=5)) is None

    def test_data_on_their_way_cost_nothing(self) -> None:
        assert stragglers_of(self.window(frozen())) is None

    def test_most_ranks_are_no_stragglers(self) -> None:
        assert stragglers_of(self.window(frozen(0, 1, 2))) is None


def test_the_longest_standstill_is_left_out_where_it_is_long() -> None:
    assert longest_wait([*range(20), *([20] * 20)]) == slice(20, 40)
    assert longest_wait(range(40)) == slice(0, 0)
    assert longest_wait([]) == slice(0, 0)


class TestChance:
    """Ten moments in each of the last turns: all work in seven, and wait for a rank in three."""

    def found(self, last: list[int], calls: int = 1, apart: int = 1) -> SlowRanks | None:
        active, places = [], []
        for turn, rank in enumerate(last):
            active += [*[frozen(0, 1, 2, 3)] * 7, *[frozen(rank)] * 3]
            places += [turn * calls + number * calls // 10 for number in range(10)]
        return stragglers_of(Window(FOUR, [held_by(one) for one in active], places, apart))

    def test_it_takes_as_many_turns_as_cannot_be_chance(self) -> None:
        assert self.found([1] * 12) is not None
        assert self.found([1] * 8) is None
        assert self.found([1] * 18 + [0, 2, 3]) is not None

    def test_a_turn_counts_once_however_many_calls_it_has(self) -> None:
        few_turns = [1] * 8
        assert self.found(few_turns, calls=10) is not None  # it does not know better
        assert self.found(few_turns, calls=10, apart=10) is None
        assert self.found([1] * 12, calls=10, apart=10) is not None

    def test_short_waits_by_chance_do_not_hide_long_ones(self) -> None:
        active, places = [], []
        for turn in range(400):
            long_one = turn % 20 == 0
            active += [
                frozen(0, 1, 2, 3),
                *[frozen(2 if long_one else turn % 4)] * (8 if long_one else 1),
            ]
            places += [turn] * (9 if long_one else 2)
        found = stragglers_of(Window(FOUR, [held_by(one) for one in active], places))
        assert found is not None
        assert found.ranks == (2,)

    def test_the_bound_is_exact_where_all_are(self) -> None:
        assert chance(10, 10, 0.25) == pytest.approx(0.25**10)
        assert chance(2, 10, 0.25) == chance(0, 0, 0.5) == 1.0
        assert 0.0 <= chance(4000, 4800, 0.5) < 1e-100
        assert chance(8, 10, 0.25) >= 4.1e-4  # what it is
        assert chance(10, 10, 0.25, 100) == pytest.approx(100 * 0.25**10)
        assert chance(10, 10, 0.9, 100) == 1.0
        assert chance(1300, 1300, 0.5, comb(1280, 640)) < 1e-5


class TestAWatch:
    all_ = frozen(0, 1, 2)

    def fill(
        self, watch: StragglerWatch, from_s: int, to_s: int, *pattern: frozenset[int]
    ) -> list[tuple[float, tuple[int, ...]]]:
        """Ten moments a second; when there was news, and of which ranks."""
        news = []
        for number in range(from_s * 10, to_s * 10):
            at_s = number / 10
            watch.add(Observation(at_s, held_by(pattern[number % len(pattern)]), number, number))
            found = watch.assess(at_s, THREE)
            if found:
                news.append((at_s, found.ranks))
        return news

    def test_it_is_told_once_and_ends(self) -> None:
        watch = StragglerWatch(S)
        news = self.fill(watch, 0, 100, self.all_, frozen(1))
        ((told_s, ranks),) = news
        assert ranks == (1,)
        assert S < told_s <= 1.5 * S + 2
        current = watch.export().current
        assert current is not None
        assert current.since_s < 2
        assert watch.lost_s == pytest.approx(50, abs=3)

        ((over_s, _),) = self.fill(watch, 100, 300, self.all_)
        assert over_s < 100 + 2 * S
        assert watch.current is None
        assert [one.ranks for one in watch.told] == [(1,)]

    def test_its_reason_stays_with_it(self) -> None:
        watch = StragglerWatch(S)
        assert watch.explain((1,), Why(Reason.DATA_LOADING)) is None
        self.fill(watch, 0, 100, self.all_, frozen(1))
        assert watch.explain((2,), Why(Reason.DATA_LOADING)) is None
        assert watch.explain((1,), Why(Reason.DATA_LOADING)) == watch.current
        self.fill(watch, 100, 300, self.all_)
        assert [one.why.reason for one in watch.told] == [Reason.DATA_LOADING]

    def test_one_that_was_dismissed_is_not_told_for_a_while(self) -> None:
        watch = StragglerWatch(S)
        ((told_s, _),) = self.fill(watch, 0, 100, self.all_, frozen(1))
        watch.dismiss((1,), told_s)
        assert watch.current is None
        again = self.fill(watch, 100, 700, self.all_, frozen(1))
        assert [ranks for _, ranks in again] == [(1,)]
        assert again[0][0] == pytest.approx(told_s + 8 * S, abs=S)
        assert watch.told == []

    def test_how_long_all_have_waited(self) -> None:
        watch = StragglerWatch(S)
        assert watch.held_s((1,)) == 0.0
        self.fill(watch, 0, 100, self.all_, frozen(1))
        assert watch.waiting_share(1, 50, 100) == 0.0
        assert watch.waiting_share(0, 50, 100) == pytest.approx(0.5, abs=0.01)
        assert watch.waiting_share(0, 200, 300) == pytest.approx(0.5, abs=0.01)
        self.fill(watch, 100, 102, frozen(1))
        assert watch.held_s((1,)) == pytest.approx(2.0)
        assert watch.held_s((0, 1)) == pytest.approx(2.0)
        assert watch.held_s((0,)) == 0.0
        self.fill(watch, 102, 103, frozen())
        assert watch.held_s((1,)) == 0.0

    def test_its_cost_is_that_of_its_own_time(self) -> None:
        watch = StragglerWatch(S)
        self.fill(watch, 0, 60, self.all_)
        self.fill(watch, 60, 160, self.all_, frozen(1))
        current = watch.export().current
        assert current is not None
        assert current.since_s == pytest.approx(60, abs=3)
        assert current.fraction == pytest.approx(0.5, abs=0.02)

        self.fill(watch, 160, 260, self.all_)
        (over,) = watch.told
        assert over.until_s == pytest.approx(160, abs=3)
        assert over.fraction == pytest.approx(0.5, abs=0.02)

    def test_another_takes_its_place(self) -> None:
        watch = StragglerWatch(S)
        self.fill(watch, 0, 60, self.all_, frozen(1))
        news = self.fill(watch, 60, 140, self.all_, frozen(2))
        assert (2,) in [ranks for _, ranks in news]
        assert watch.current is not None
        assert watch.current.ranks == (2,)

    def test_data_on_their_way_are_a_part_of_the_time(self) -> None:
        watch = StragglerWatch(S)
        ((_, ranks),) = self.fill(watch, 0, 100, frozen(), frozen(), frozen(1))
        assert ranks == (1,)
        assert watch.current is not None
        assert watch.current.fraction == pytest.approx(0.33, abs=0.02)

    def test_one_that_is_late_but_seldom_is_told_and_ends(self) -> None:
        watch = StragglerWatch(S)
        at_s, told = 0.0, []

        def goes(seconds: int, active: frozenset[int], *, place: int = -1) -> None:
            nonlocal at_s
            for number in range(seconds * 10):
                place_now = number if place < 0 else place
                watch.add(Observation(at_s, held_by(active), place_now, place_now))
                at_s += 0.1
                if number % 10 == 0 and (found := watch.assess(at_s, THREE)):
                    told.append((found.ranks, watch.current is not None))

        def runs(checkpoint_s: int) -> None:
            goes(90, self.all_)
            goes(checkpoint_s, frozen(1), place=10**6)

        for _ in range(13):
            runs(10)
        assert told == [((1,), True)]
        assert watch.current is not None
        assert watch.current.fraction == pytest.approx(0.1, abs=0.02)
        again = StragglerWatch(S)
        again.restore(watch.export())
        watch = again
        for _ in range(4):
            runs(0)
        assert told == [((1,), True), ((1,), False)]
        assert watch.told[0].lost_s == pytest.approx(13 * 10, rel=0.1)

    def test_a_restart_ends_it(self) -> None:
        watch = StragglerWatch(S)
        self.fill(watch, 0, 60, self.all_, frozen(1))
        watch.forget()
        assert watch.current is None
        assert [one.ranks for one in watch.told] == [(1,)]
        assert watch.assess(61.0, THREE) is None

    def test_it_goes_on_after_another_watchdog(self) -> None:
        first = StragglerWatch(S)
        self.fill(first, 0, 60, self.all_, frozen(1))
        second = StragglerWatch(S)
        second.restore(first.export())
        assert self.fill(second, 60, 120, self.all_, frozen(1)) == []
        assert second.current is not None
        assert second.current.until_s == pytest.approx(120, abs=2)
        assert second.measured_s == pytest.approx(120, abs=1)
