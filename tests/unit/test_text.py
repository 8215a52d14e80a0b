"""Ranks, nodes and signals as people read them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hangwatch.text import fold_ranks, signal_name, the_nodes, the_ranks


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
