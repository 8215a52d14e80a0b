"""Ranks that all others wait for seldom, but for long."""

from __future__ import annotations

from random import Random

import pytest

from hangwatch.efficiency.standstills import KEPT, KEPT_S, LEAST_S, Standstill, Standstills

SIZE = 4
ALL = frozenset(range(SIZE))


def frozen(*ranks: int) -> frozenset[int]:
    return frozenset(ranks)


class Job:
    """Ten moments a second."""

    def __init__(self) -> None:
        self.standstills = Standstills()
        self.at = self.place = 0

    @property
    def now_s(self) -> float:
        return self.at / 10

    def goes(self, seconds: float, *active: frozenset[int]) -> None:
        """It waits for these ranks in turn; without any, all work and issue calls."""
        for number in range(round(10 * seconds)):
            self.place += 0 if active else 1
            now = active[number % len(active)] if active else ALL
            self.standstills.add(self.now_s, now, self.place)
            self.at += 1
        if active:
            self.place += 1

    def worst(self) -> tuple[int, ...] | None:
        found = self.standstills.worst(self.now_s, SIZE)
        return found[0] if found else None


def test_who_is_waited_for_again_and_again_has_cost_that() -> None:
    job = Job()
    for _ in range(12):
        job.goes(180)
        job.goes(20, frozen(0))
    job.goes(180)
    found = job.standstills.worst(job.now_s, SIZE)
    assert found is not None
    ranks, fraction, since_s = found
    assert ranks == (0,)
    assert fraction == pytest.approx(0.1, abs=0.01)
    assert since_s == pytest.approx(180, abs=1)


def test_a_few_times_are_chance() -> None:
    job = Job()
    for _ in range(5):
        job.goes(30)
        job.goes(20, frozen(0))
    assert job.worst() is None


def test_several_in_a_turn_are_one() -> None:
    job = Job()
    for _ in range(6):
        for _ in range(4):
            job.goes(2)
            job.goes(1.2, frozen(0))
        job.goes(30)
    assert job.standstills.worst(job.now_s, SIZE) is not None
    assert job.standstills.worst(job.now_s, SIZE, turn_s=43.0) is None


@pytest.mark.parametrize("seed", range(10))
def test_any_rank_in_turn_is_nobodys_fault(seed: int) -> None:
    """Turns of half a minute, of which some rank is the last by chance."""
    random = Random(seed)  # noqa: S311 (no secret)
    job = Job()
    for _ in range(500):
        lengths = sorted((random.gauss(30, 3), rank) for rank in ALL)
        job.goes(0.1)
        for (since, _), (until, _), rest in zip(
            lengths, lengths[1:], range(SIZE - 1, 0, -1), strict=False
        ):
            job.standstills.add(job.now_s + since, _last(lengths, rest), job.place)
            job.standstills.add(job.now_s + until, _last(lengths, rest), job.place)
        job.at += round(10 * lengths[-1][0]) + 1
        assert job.worst() is None


def _last(lengths: list[tuple[float, int]], count: int) -> frozenset[int]:
    return frozenset(rank for _, rank in lengths[-count:])


def test_one_long_one_among_short_ones_counts_as_these() -> None:
    job = Job()
    for seconds in [*([2] * 8), 600]:
        job.goes(60)
        job.goes(seconds, frozen(3))
    job.goes(60)
    assert job.standstills.cost((3,), job.now_s, SIZE) < 0.05


def test_what_others_cost_is_usual() -> None:
    job = Job()
    for rank in (0, 1, 2, 3, 0, 0, 0, 0):
        job.goes(7)
        job.goes(3, frozen(rank))
    cost = job.standstills.cost((0,), job.now_s, SIZE)
    assert cost == pytest.approx((5 * 3 - 3) / 80, abs=0.05)
    assert job.standstills.cost((1, 2), job.now_s, SIZE) == 0.0


def test_the_longest_are_kept_for_half_a_day() -> None:
    job = Job()
    for number in range(KEPT + 20):
        job.goes(1)
        job.goes(30 if number == 5 else 2, frozen(number % SIZE))
    job.goes(1)
    assert len(job.standstills.over) == KEPT
    assert max(one.length_s for one in job.standstills.over) > 29
    job.at += int(10 * KEPT_S)
    job.goes(3, frozen(1))
    job.goes(1)
    assert len(job.standstills.over) == 1


def test_of_many_ranks_a_few_are_told_and_half_of_them_are_not() -> None:
    standstills = Standstills()
    for number in range(20):
        slow = frozenset(range(2000 if number % 2 else 2))
        for at_s, active, place in ((0, range(5000), 1), (1, slow, 1), (9, slow, 1), (10, slow, 2)):
            standstills.add(60.0 * number + at_s, frozenset(active), 2 * number + place)
    found = standstills.worst(1200.0, 5000)
    assert found is not None
    assert found[0] == (0, 1)


def test_it_is_over_after_far_longer_than_between_two() -> None:
    job = Job()
    assert job.standstills.is_over((0,), job.now_s)
    for _ in range(8):
        job.goes(60)
        job.goes(5, frozen(0))
    job.goes(170)
    assert not job.standstills.is_over((0,), job.now_s)
    job.goes(15)
    assert job.standstills.is_over((0,), job.now_s)


def test_it_begins_when_the_others_wait_and_ends_with_the_next_call() -> None:
    job = Job()
    job.goes(5, ALL)
    job.place -= 1
    job.goes(3, frozen(2), frozen(2, 1), frozen())
    job.goes(LEAST_S / 2, frozen(1))
    job.goes(1)
    assert list(job.standstills.over) == [Standstill((2,), 5.0, 7.9)]
    job.standstills.forget()
    assert list(job.standstills.over) == []
    assert job.worst() is None
