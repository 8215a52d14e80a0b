"""Real programs, healthy and not: hangwatch says of each what its header says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expectations import Expectation, expectations, mistakes, run, unexplained

from hangwatch.types import Kind

CASES = list(expectations())
BROKEN = [case for case in CASES if not case.healthy]
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_verdict_on_a_program_is_what_its_header_says(case: Expectation) -> None:
    assert mistakes(case, run(case)) == []


def test_what_is_told_besides_is_a_mistake_unless_the_header_explains_it() -> None:
    case = next(case for case in BROKEN if case.values.get("also") == "slow:0")
    assert (case.values["state"], case.values["culprits"]) == ("hang", "1")

    def told(*verdicts: tuple[str, list[int]]) -> list[str]:
        found = [{"state": s, "culprits": ranks, "headline": "It is so."} for s, ranks in verdicts]
        return list(unexplained(case, found))

    assert told(("slow", [0])) == []
    assert told(("slow", [0]), ("slow", [1]), ("failed", [1])) == []
    assert told() == ["it is not called slow of 0"]
    assert told(("slow", [0]), ("hang", [0])) == ["it is also called HANG: It is so."]
    assert told(("slow", [0]), ("slow", [0, 1])) == ["it is also called SLOW: It is so."]
    assert told(("slow", [0]), ("desync", [1])) == ["it is also called DESYNC: It is so."]


def test_every_kind_of_verdict_is_in_the_zoo() -> None:
    assert {kind for case in BROKEN for kind in case.values["kind"].split("|")} == set(Kind)


def test_the_zoo_is_as_large_as_the_readme_says() -> None:
    programs = len({case.program for case in CASES})
    healthy = len({case.program for case in CASES if case.healthy})
    cascades = len({case.program for case in BROKEN if case.groups})
    (told,) = re.findall(
        r"(\d+) training\s+programs.*?(\d+) of them are healthy.*?(\d+) hang with several groups",
        README.read_text(),
        re.DOTALL,
    )
    assert told == (str(programs), str(healthy), str(cascades))
    assert programs >= 30
    assert healthy >= 10
    assert cascades >= 8
