"""Real programs, healthy and not: hangwatch says of each what its header says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expectations import Expectation, expectations, mistakes, run

from hangwatch.types import Kind

CASES = list(expectations())
BROKEN = [case for case in CASES if not case.healthy]
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_verdict_on_a_program_is_what_its_header_says(case: Expectation) -> None:
    assert mistakes(case, run(case)) == []


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
