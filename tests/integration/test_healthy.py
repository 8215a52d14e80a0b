"""Real programs that are slow, uneven or quiet, but healthy: nothing is called a hang."""

from __future__ import annotations

import pytest
from harness import PROGRAMS, Expectation, expectations, marked_line, watch

CASES = [case for case in expectations() if case.healthy]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_healthy_program_ends_well_and_is_never_called_a_hang(case: Expectation) -> None:
    result = watch(case.program, arguments=case.arguments)
    assert result.exit_code == 0
    # One that keeps the others waiting may be called slow, if its header says so.
    assert set(result.states()) <= {case.values.get("may_be", "")}
    assert result.survivors == []
    assert result.run is not None
    assert result.run["exit_code"] == 0
    assert len(result.run["incidents"]) == len(result.reports)


@pytest.mark.timeout(240)
def test_a_slow_checkpoint_is_called_slow_and_that_it_recovered_is_said() -> None:
    program = PROGRAMS / "slow_checkpoint.py"
    result = watch(program, "--suspect-after", "3")
    assert result.exit_code == 0
    assert result.states() == ["slow"]
    verdict = result.reports[0]["verdict"]
    assert verdict["kind"] == "never_entered"
    assert verdict["reason"] == "checkpoint_io"
    assert verdict["culprits"] == [0]
    assert verdict["victims"] == [1, 2, 3]
    assert verdict["collective"]["op"] == "barrier"
    assert verdict["site"]["line"] == marked_line(program, "slow")
    assert "what was reported has passed" in result.stderr


@pytest.mark.timeout(240)
def test_a_healthy_job_that_is_ended_from_outside_is_not_called_failed() -> None:
    result = watch(PROGRAMS / "endless.py", until_printed="training")
    assert result.reports == []
    assert "hangwatch: FAILED" not in result.stderr
