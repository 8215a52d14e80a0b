"""Ranks, nodes, signals, counts and durations, as people read them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hangwatch.text import (
    counted,
    duration,
    fold_ranks,
    ranks_text,
    signal_name,
    the_nodes,
    the_ranks,
)


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (-1, "0.0 s"),
        (0.0000124, "12.4 µs"),
        (0.0123, "12.3 ms"),
        (0.26, "0.3 s"),
        (9.94, "9.9 s"),
        (42.4, "42 s"),
        (179, "179 s"),
        (181, "3 min"),
        (720, "12 min"),
        (3599, "59 min"),
        (9e3, "2 h 30 min"),
        (12_060, "3 h 21 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_ages_are_as_exact_as_one_needs(age_s: float, text: str) -> None:
    assert duration(age_s) == text


def test_counts_read_well() -> None:
    assert [counted(n, "rank") for n in (0, 1, 2)] == ["no ranks", "1 rank", "2 ranks"]


def test_ranks_come_with_their_noun() -> None:
    assert [ranks_text(ranks) for ranks in ([2], [0, 1], [0, 1, 3, 4, 5])] == [
        "rank 2",
        "ranks 0, 1",
        "ranks 0, 1, 3-5",
    ]


@pytest.mark.parametrize(
    ("ranks", "folded", "named"),
    [
        ((2,), "2", "rank 2"),
        ((3, 1, 0, 1), "0, 1, 3", "ranks 0, 1 and 3"),
        (range(4), "0-3", "ranks 0-3"),
        ((0, 1, 2, 5), "0-2, 5", "ranks 0-2 and 5"),
        (range(0, 20, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18", "ranks 0, 2, 4, 6, 8, 10, 12, 14, "),
    ],
)
def test_ranks_in_a_row_are_a_range(ranks: Iterable[int], folded: str, named: str) -> None:
    assert fold_ranks(ranks) == folded
    assert the_ranks(ranks).removesuffix("... (10 in all)") == named


def test_many_nodes_are_cut() -> None:
    assert the_nodes(("a",)) == "a"
    assert the_nodes(("a", "b", "c")) == "a, b and c"
    assert the_nodes(tuple("abcdef")) == "a, b, c, d and 2 more"


def test_a_signal_without_a_name_is_a_number() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(63) == "signal 63"
