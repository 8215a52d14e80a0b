"""Through whom a victim waits for the culprit."""

from __future__ import annotations

from hangwatch.model.calls import GroupKey
from hangwatch.model.verdict import Wait
from hangwatch.report.build import next_towards
from hangwatch.report.wording import chain

W = GroupKey(tuple(range(8)), "default_pg")


def wait(rank: int, *waits_for: int) -> Wait:
    return Wait(rank, W, 1, "all_reduce", waits_for, 1.0)


def test_the_shortest_way_leads_to_the_culprit() -> None:
    waits = [wait(0, 1, 5), wait(1, 2), wait(2, 7), wait(5, 7), wait(6, 6)]
    towards = next_towards(waits, [7])
    assert towards == {0: 5, 1: 2, 2: 7, 5: 7}
    assert chain(1, towards) == [2, 7]
    assert chain(0, towards) == [5, 7]
    assert chain(7, towards) == chain(6, towards) == []


def test_culprits_that_wait_for_each_other_are_ends_of_the_way() -> None:
    towards = next_towards([wait(0, 1), wait(1, 0), wait(2, 0, 1)], [0, 1])
    assert towards == {2: 0}


def test_a_rank_with_several_waits_goes_the_nearest_way() -> None:
    assert next_towards([wait(0, 1), wait(0, 3), wait(1, 3)], [3]) == {0: 3, 1: 3}


def test_a_way_that_goes_round_ends() -> None:
    assert chain(0, {0: 1, 1: 2, 2: 1}) == [1, 2]


def test_ten_thousand_ranks_that_wait_for_half_of_them_have_their_ways() -> None:
    ranks, missing = 10_000, tuple(range(5_000, 10_000))
    waits = [Wait(r, W, 1, "all_reduce", missing, 1.0) for r in range(5_000)]
    waits += [wait(r, r - 1) for r in range(5_001, ranks)]
    towards = next_towards(waits, [5_000])
    assert towards[0] == 5_000
    assert len(chain(9_999, towards)) == 4_999
