"""What the rings of the ranks show of the training loop, and what is exported of stragglers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from hangwatch.efficiency.straggler_watch import Loop
from hangwatch.evidence.pages.arrivals import Issued
from hangwatch.evidence.pages.look import Look
from hangwatch.model.report import Straggler
from hangwatch.watchdog.telemetry import loop_of, of_this_node

if TYPE_CHECKING:
    from hangwatch.evidence.pages.finder import Seen

S = 1_000_000_000


def ring(turns: int, turn_s: float, lines: tuple[int, ...]) -> list[Issued]:
    """Calls from these lines in each turn, evenly spread."""
    times = [(turn + n / len(lines)) * turn_s for turn in range(turns) for n in range(len(lines))]
    return [
        Issued(0, number, int(at_s * S), ("train.py", lines[number % len(lines)]))
        for number, at_s in enumerate(times)
    ]


def test_the_longest_turn_that_a_rank_shows_is_taken() -> None:
    loop = loop_of([ring(10, 0.5, (7, 8)), [], ring(5, 2.0, (7, 7, 7, 8))])
    assert loop.turn_s == pytest.approx(2.0)
    assert loop.calls_s == pytest.approx(2.0)


def test_where_no_line_recurs_often_enough_a_turn_takes_longer() -> None:
    few = ring(2, 9.0, (7, 7, 8))
    assert loop_of([few]).turn_s == pytest.approx(5.0)


def test_a_straggler_is_exported_by_the_node_that_has_it() -> None:
    two = Straggler((1, 4), 0.3, 0.0, 60.0)
    here = Look(0, {0: cast("Seen", None), 1: cast("Seen", None)}, {}, moved=True)
    assert of_this_node(two, here) == replace(two, ranks=(1,))
    assert of_this_node(None, here) is None


def test_without_calls_nothing_is_known() -> None:
    assert loop_of([]) == loop_of([[], ring(1, 1.0, (7,))]) == Loop()
