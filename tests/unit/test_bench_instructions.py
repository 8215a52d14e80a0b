"""What counts of instructions are compared with, and how far they may have grown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from instructions import ADDED, LIMIT, LIMIT_ELSEWHERE, Counts, beyond, compare

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = {"python": "CPython 3.11.7"}
ELSEWHERE = {"python": "CPython 3.13.0"}
RECORDED = {
    "reference": 1000,
    "call, not wrapped": 100,
    "call, wrapped": 300,
    "sample": 500,
}


def counts(changes: Mapping[str, int] = {}, surroundings: Mapping[str, str] = HERE) -> Counts:
    return Counts({**surroundings}, {**RECORDED, **changes})


def times(factor: float) -> dict[str, int]:
    return {name: round(each * factor) for name, each in RECORDED.items()}


def test_what_has_grown_within_the_limit_is_let_pass() -> None:
    assert beyond(counts({"sample": round(500 * LIMIT)}), counts()) == ([], [])


def test_what_has_grown_beyond_it_is_told_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(counts({"sample": 550}), counts()) == 1
    assert "instructions: sample: 10.0% more than recorded" in capsys.readouterr().out


def test_of_a_wrapped_call_what_the_wrapper_adds_is_compared() -> None:
    now = counts({"call, wrapped": 320})
    assert beyond(now, counts()) == ([f"{ADDED}: 10.0% more"], [])


def test_what_takes_less_passes_and_is_to_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(counts({"sample": 400}), counts()) == 0
    assert "sample: 20.0% less than recorded: keep it" in capsys.readouterr().out


def test_an_interpreter_that_takes_more_for_everything_changes_no_figure() -> None:
    now = counts(times(1.5), ELSEWHERE)
    assert set(now.ratios(counts()).values()) == {1.0}


@pytest.mark.parametrize(("grown", "failed"), [(LIMIT_ELSEWHERE - 0.01, 0), (1.3, 1)])
def test_elsewhere_the_limit_is_wider_and_that_is_said(
    grown: float, failed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    now = counts({"sample": round(500 * grown)}, ELSEWHERE)
    assert compare(now, counts()) == failed
    said = capsys.readouterr().out
    assert "instructions: python: CPython 3.13.0, recorded with CPython 3.11.7" in said
    assert "so a figure may be 25% more, instead of 5%" in said


def test_a_figure_that_is_not_recorded_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(counts({"another": 7}), counts()) == 1
    assert "--record" in capsys.readouterr().out
