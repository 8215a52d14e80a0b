"""For how long ranks lead without being slow."""

from __future__ import annotations

from hangwatch.efficiency.leads import Leads

NOBODY: frozenset[int] = frozenset()
FIRST, SECOND, THIRD = (frozenset({rank}) for rank in range(3))
ALL = FIRST | SECOND | THIRD


def leads(*moments: frozenset[int], times: int = 10) -> Leads:
    """What is known after these moments, again and again."""
    known = Leads()
    for active in times * moments:
        known.add(active, 3)
    return known


def test_nobody_leads_where_nobody_waits_or_all_others_are_awake() -> None:
    assert leads(ALL, NOBODY, FIRST | SECOND).usual(NOBODY) == 0


def test_a_lead_goes_on_until_others_are_waited_for() -> None:
    turns = leads(FIRST, ALL, NOBODY, FIRST, SECOND, THIRD)
    assert turns.usual(SECOND | THIRD) == 4
    assert turns.usual(FIRST) == 1


def test_long_leads_count_for_as_much_as_they_take() -> None:
    assert leads(*8 * (SECOND,), FIRST, SECOND, SECOND, FIRST).usual(FIRST) == 7


def test_one_rank_that_was_slow_for_a_while_is_no_usual_lead() -> None:
    known = leads(SECOND, FIRST)
    for _ in range(500):
        known.add(SECOND, 3)
    known.add(FIRST, 3)
    assert known.usual(FIRST) == 1


def test_leads_are_forgotten() -> None:
    known = leads(*50 * (SECOND,), *50 * (THIRD,))
    for _ in range(6000):
        known.add(FIRST, 3)
        known.add(SECOND, 3)
    assert known.usual(FIRST) == 1
    known.forget()
    assert known.usual(NOBODY) == 0
