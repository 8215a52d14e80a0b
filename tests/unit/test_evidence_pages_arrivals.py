"""Each collective counts once, and only where all members of this node were seen at it."""

from __future__ import annotations

import pytest

from hangwatch.evidence import timing
from hangwatch.evidence.pages.arrivals import Arrivals, Issued, Members, loop_period_s

MS = 1_000_000
PAIR = Members(0, ((0, 100), (1, 101)))
LINE = ("train.py", 9)


def calls(places: range, late_ms: float = 0, line: tuple[str, int] | None = LINE) -> list[Issued]:
    """A call every 100 ms, each so much too late."""
    return [Issued(0, n, int((n * 100 + late_ms) * MS), line) for n in places]


def add(
    arrivals: Arrivals, first: list[Issued], second: list[Issued], members: Members = PAIR
) -> None:
    arrivals.add({0: {"dp": first}, 1: {"dp": second}}, {"dp": members})


def test_a_place_counts_once_however_often_the_rings_are_read() -> None:
    arrivals = Arrivals()
    for end in (5, 5, 9):
        add(arrivals, calls(range(1, end)), calls(range(1, end), late_ms=2))
    (found,) = arrivals.groups()
    assert sum(found.buckets) == 8
    assert found.buckets[timing.ARRIVAL_BOUNDS_S.index(0.003)] == 8
    assert found.last == ((0, 0), (1, 8))
    assert dict(found.delay_s) == {0: 0, 1: pytest.approx(0.016)}
    assert found.spread_s == pytest.approx(0.016)


def test_only_places_that_all_rings_hold_count() -> None:
    arrivals = Arrivals()
    add(arrivals, calls(range(1, 6)), calls(range(4, 9)))
    add(arrivals, calls(range(1, 9)), calls(range(1, 9)))
    (found,) = arrivals.groups()
    assert sum(found.buckets) == 2 + 3  # 4 and 5, then 6, 7, 8; the first three are past


def test_a_member_that_was_not_seen_holds_up_the_count() -> None:
    arrivals = Arrivals()
    three = Members(0, (*PAIR.processes, (2, 102)))
    add(arrivals, calls(range(1, 4)), calls(range(1, 4)), three)
    assert arrivals.groups() == ()


def test_one_member_alone_has_nobody_to_be_late_for() -> None:
    arrivals = Arrivals()
    arrivals.add({0: {"dp": calls(range(1, 4))}}, {"dp": Members(0, ((0, 100),))})
    assert arrivals.groups() == ()


@pytest.mark.parametrize("later", [Members(1, PAIR.processes), Members(0, ((0, 7), (1, 8)))])
def test_another_group_of_the_name_and_other_processes_count_from_the_first_place(
    later: Members,
) -> None:
    arrivals = Arrivals()
    add(arrivals, calls(range(1, 9)), calls(range(1, 9)))
    add(arrivals, calls(range(1, 3)), calls(range(1, 3)), later)
    (found,) = arrivals.groups()
    assert sum(found.buckets) == 8 + 2


def test_the_buckets_take_what_is_up_to_their_bound() -> None:
    arrivals = Arrivals()
    for place, bound_s in enumerate((*timing.ARRIVAL_BOUNDS_S, 11.0), start=1):
        late = [Issued(0, place, int(bound_s * 1e9), LINE)]
        add(arrivals, [Issued(0, place, 0, LINE)], late)
    (found,) = arrivals.groups()
    assert found.buckets == (1,) * (len(timing.ARRIVAL_BOUNDS_S) + 1)


def test_a_turn_of_the_loop_is_between_calls_of_the_rarest_line() -> None:
    often = [Issued(0, n, n * MS, ("train.py", 5)) for n in range(300)]
    ring = sorted([*often, *calls(range(1, 5))], key=lambda call: call.at_ns)
    assert loop_period_s(ring) == pytest.approx(0.1)


def test_a_line_that_issues_several_calls_in_a_turn_counts_once() -> None:
    ring = [
        Issued(0, 10 * turn + n, (turn * 100 + n) * MS, ("train.py", line))
        for turn in range(4)
        for line, numbers in ((7, range(4)), (8, range(4, 8)))
        for n in numbers
    ]
    assert loop_period_s(ring) == pytest.approx(0.1)
    assert loop_period_s(ring[:16]) is None


def test_a_line_that_hardly_recurs_tells_no_period() -> None:
    assert loop_period_s(calls(range(1, 3))) is None
    assert loop_period_s(calls(range(1, 9), line=None)) is None
    assert loop_period_s([]) is None
