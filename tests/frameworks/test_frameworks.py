"""Real frameworks, healthy and not: hangwatch says of each program what its header says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expectations import Expectation, expectations, marked_line, mistakes, run

pytestmark = pytest.mark.quiet
CASES = list(expectations(Path(__file__).parent / "programs"))
FRAMEWORKS = {"accelerate", "deepspeed", "lightning", "transformers"}


def _imported(case: Expectation) -> set[str]:
    """The frameworks that a program uses."""
    text = case.program.read_text()
    return FRAMEWORKS & set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in CASES])
def test_the_verdict_on_a_program_of_a_framework_is_what_its_header_says(
    case: Expectation, framework_python: str
) -> None:
    result = run(case, framework_python)
    assert mistakes(case, result) == []
    called = case.values.get("call", "")
    if called:  # the terminal shows the user's line, and what it has called
        line = marked_line(case.program, case.values["site"])
        told = " ".join(result.stderr.split())
        assert re.search(rf"in {called} of \w+, called at {case.program.name}:{line}\b", told)
        assert f"calling {called} of " in told


def test_each_framework_has_a_program_that_hangs_and_one_that_is_well() -> None:
    for healthy in (False, True):
        imported = [_imported(case) for case in CASES if case.healthy is healthy]
        assert set().union(*imported) == FRAMEWORKS
