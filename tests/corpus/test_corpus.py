"""What was known of the programs of the zoo is judged as their headers say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from expectations import against_the_schema, expectations, misjudged
from recordings import Recorded, judged, recorded, result_of, text_of

from hangwatch.types.kinds import State
from hangwatch.types.snapshot import Thresholds

CASES = list(expectations())
RUNS = list(recorded(CASES))
PATIENT = Thresholds(math.inf, math.inf)


def _runs(*, well: bool) -> list[Any]:
    found = [run for run in RUNS if (run.case.values["state"] == "ok") is well]
    return [pytest.param(run, id=f"{run.case} {run.how}") for run in found]


@pytest.mark.parametrize("run", _runs(well=False))
def test_a_job_is_judged_as_its_header_says(run: Recorded) -> None:
    result = result_of(run.case, run.told)
    assert [*misjudged(run.case, result), *against_the_schema(result)] == []


@pytest.mark.parametrize("run", _runs(well=True))
def test_nothing_is_proved_of_a_job_that_is_well(run: Recorded) -> None:
    for told in run.told:
        assert {verdict.state for verdict in judged(told, PATIENT)} <= {State.OK}


def test_every_case_of_the_zoo_is_recorded() -> None:
    known = {str(run.case) for run in RUNS}
    assert {str(case) for case in CASES} - known == set()


def test_the_programs_are_those_that_were_recorded() -> None:
    changed = {str(run.case) for run in RUNS if run.program != text_of(run.case.program)}
    assert changed == set(), "make corpus WORDS=... records them anew"
