"""Rows for ranks: their order, and how they are made to fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangwatch.commands.top.rows import Row, Trouble, arrange, merged, rate_text
from hangwatch.model.calls import Site

SITE = Site("/home/ada/train.py", 41, "main")


def waiting(rank: int, age_s: float = 9.0, does: str = "all_reduce #46") -> Row:
    return Row((rank,), Trouble.WAITS, does=does, waits_s=age_s, site=SITE, rate=0.0, beat_s=0.1)


def test_those_in_trouble_come_first_and_the_latest_of_them() -> None:
    rows = [
        Row((0,)),
        waiting(1),
        Row((2,), Trouble.LATE, behind=1),
        Row((3,), Trouble.LATE, behind=7),
        Row((4,), Trouble.ODD, does="stopped"),
        Row((5,), Trouble.CULPRIT),
        waiting(6),
    ]
    shown, _ = arrange(rows)
    assert [row.ranks[0] for row in shown] == [5, 4, 3, 2, 1, 6, 0]


def test_waiting_ranks_keep_their_order_however_long_they_wait() -> None:
    shown, _ = arrange([waiting(2, 9.0), waiting(0, 8.7), waiting(1, 9.9)])
    assert [row.ranks[0] for row in shown] == [0, 1, 2]


def test_ranks_that_do_the_same_share_a_row_when_there_are_too_many() -> None:
    rows = [*(waiting(rank, 5.0 + rank) for rank in range(1, 8)), Row((0,), Trouble.CULPRIT)]
    shown, left_out = arrange(rows, 4)
    assert [row.ranks for row in shown] == [(0,), tuple(range(1, 8))]
    assert shown[1].waits_s == 12.0
    assert left_out == []


def test_healthy_ranks_are_left_out_first() -> None:
    rows = [*(Row((rank,), rate=40.0) for rank in range(99)), waiting(99)]
    shown, left_out = arrange(rows, 5)
    assert [row.ranks for row in shown] == [(99,), (0,), (1,), (2,)]
    assert sum(len(row.ranks) for row in left_out) == 96


def test_a_merged_row_tells_extremes() -> None:
    one = Row((3,), rate=1.0, behind=2, behind_in="tp", node="a", last=("tp #1",))
    other = Row((1,), rate=5.0, behind=4, behind_in="dp", node="b", last=("tp #2",), beat_s=8.0)
    (row,) = merged([one, other])
    assert (row.ranks, row.rate, row.fastest, row.behind, row.behind_in) == ((1, 3), 1, 5, 4, "dp")
    assert (row.node, row.last, row.beat_s, row.waits_s) == ("several", (), 8.0, None)


@given(
    st.lists(
        st.builds(
            Row,
            st.tuples(st.integers(0, 9999)),
            st.sampled_from(Trouble),
            does=st.sampled_from(["", "all_reduce #1", "stopped"]),
            waits_s=st.none() | st.floats(0, 1e6),
        ),
        max_size=60,
    ),
    st.integers(-3, 40),
)
def test_every_rank_is_shown_or_counted_and_the_lines_fit(rows: list[Row], room: int) -> None:
    shown, left_out = arrange(rows, room)
    assert len(shown) + bool(left_out) <= max(room, 1)
    assert sum(len(row.ranks) for row in [*shown, *left_out]) == len(rows)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (None, None, ""),
        (0.0, None, "0"),
        (0.31, None, "0.3"),
        (41.2, None, "41"),
        (39.8, 42.3, "40-42"),
        (41.1, 41.3, "41"),
        (12_345, None, "12k"),
    ],
)
def test_rates_are_short(low: float | None, high: float | None, text: str) -> None:
    assert rate_text(low, high) == text
