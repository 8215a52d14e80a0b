"""Ranks, counts and durations, as people read them."""

from __future__ import annotations

import pytest

from hangwatch.text import counted, duration, ranks_text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (-1, "0.0 s"),
        (0.26, "0.3 s"),
        (9.94, "9.9 s"),
        (42.4, "42 s"),
        (179, "179 s"),
        (181, "3 min"),
        (3599, "59 min"),
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
