"""What was known of the programs of the zoo and of frameworks is judged as their headers say."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from expectations import against_the_schema, expectations, misjudged, named_cause
from recordings import OF_FRAMEWORKS, ON_GPU, Recorded, judged, recorded, result_of, text_of

from hangwatch.model.kinds import State
from hangwatch.model.snapshot import Thresholds

if TYPE_CHECKING:
    from harness import Result

CASES = [*expectations(), *expectations(ON_GPU), *expectations(OF_FRAMEWORKS)]
RUNS = list(recorded(CASES))
MISSED = {
    "breakpoint_left_in": "a debugger that was called stops at the next line",
    "comm_hook --skip": "the order of buckets within a backward pass is not compared",
    "deepspeed_experts": "that ZeRO-3 fetches ahead what the turn before used is not known",
    "errors_wrapped": "that a process ended itself has no line",
    "extra_gathers": "it waits where its extra calls show, long after it made them",
    "failed_amid_retries": "that a process ended itself has no line",
    "join_uneven --metric": "Join's own calls are issued by C++, and a call is paired with one",
    "sharded_checkpoint --shared": "the line that started a thread is not recorded",
    "time_out_of_the_job": "it ended before anybody looked",
    "tp_fsdp_mesh --accumulate": "whether a backward pass synchronises is not recorded",
}
"""Programs of which the cause, or its line, is not told, and what would tell it."""
PATIENT = Thresholds(math.inf, math.inf)


def _runs(*, well: bool) -> list[Any]:
    found = [run for run in RUNS if (run.case.values["state"] == "ok") is well]
    return [pytest.param(run, id=f"{run.case} {run.how}") for run in found]


@cache
def _result(number: int) -> Result:
    """What is said of one of the runs."""
    return result_of(RUNS[number].case, RUNS[number].told)


@pytest.mark.parametrize("run", _runs(well=False))
def test_a_job_is_judged_as_its_header_says(run: Recorded) -> None:
    result = _result(RUNS.index(run))
    assert [*misjudged(run.case, result), *against_the_schema(result)] == []


@pytest.mark.parametrize("run", [one for one in _runs(well=False) if one.values[0].case.causes])
def test_why_it_came_to_it_is_said_as_the_header_does(run: Recorded) -> None:
    sure, told = named_cause(run.case, _result(RUNS.index(run)))
    if str(run.case) in MISSED:
        assert told[0] not in run.case.causes, "it is not missed any more"
        assert not sure or told[0][0] in {what for what, _ in run.case.causes}
    else:
        assert told[0] in run.case.causes


@pytest.mark.parametrize("run", _runs(well=True))
def test_nothing_is_proved_of_a_job_that_is_well(run: Recorded) -> None:
    for told in run.told:
        assert {verdict.state for verdict in judged(told, PATIENT)} <= {State.OK}


def test_every_case_is_recorded() -> None:
    known = {str(run.case) for run in RUNS}
    assert {str(case) for case in CASES} - known == set()


def test_the_programs_are_those_that_were_recorded() -> None:
    changed = {str(run.case) for run in RUNS if run.program != text_of(run.case.program)}
    assert changed == set(), "make corpus WORDS=... records them anew"
