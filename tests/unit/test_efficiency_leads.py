"""For how long ranks lead without being slow."""

from __future__ import annotations

from random import Random

import pytest

from hangwatch.efficiency.leads import Leads

NOBODY: frozenset[int] = frozenset()
FIRST, SECOND, THIRD, FOURTH = RANKS = [frozenset({rank}) for rank in range(4)]
ALL = frozenset(range(4))


def leads(*moments: frozenset[int]) -> Leads:
    """What is known after these moments."""
    known = Leads()
    for active in moments:
        known.add(active, 4)
    return known


def by_chance(times: int, *, waits: int = 1, works: int = 0) -> list[frozenset[int]]:
    """Turns in which one rank leads for so many moments, by chance, after others without a wait."""
    chance = Random(3)  # noqa: S311 (chance that can be repeated)
    turns = (waits * [chance.choice(RANKS)] + works * [ALL] for _ in range(times))
    return [active for turn in turns for active in turn]


def test_nobody_leads_where_nobody_waits_or_all_others_are_awake() -> None:
    assert leads(*100 * (ALL, NOBODY, ALL - FIRST)).usual(NOBODY) == 0


def test_a_chance_of_each_moment_is_no_lead() -> None:
    assert leads(*by_chance(1000)).usual(NOBODY) == 0
    assert leads(*by_chance(1000)).usual(FIRST) == 0
    assert leads(*by_chance(1000, works=5)).usual(NOBODY) == 0


@pytest.mark.parametrize(("waits", "works"), [(10, 0), (10, 20), (50, 0)])
def test_what_stays_the_same_for_a_while(waits: int, works: int) -> None:
    known = leads(*by_chance(150, waits=waits, works=works))
    for ranks in (NOBODY, FIRST, SECOND | THIRD):
        assert known.usual(ranks) == pytest.approx(waits + works, rel=0.35)


def test_one_rank_that_was_slow_for_a_while_is_no_usual_lead() -> None:
    assert leads(*by_chance(300), *500 * [SECOND], *by_chance(300)).usual(FIRST) == 0


def test_leads_are_forgotten() -> None:
    known = leads(*by_chance(10, waits=200), *by_chance(11_000))
    assert known.usual(FIRST) == 0
    known.forget()
    assert known.usual(NOBODY) == 0
