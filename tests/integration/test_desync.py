"""Ranks that are out of step are found while the job still runs."""

from __future__ import annotations

import pytest
from harness import PROGRAMS, reaches, watch

PROGRAM = PROGRAMS / "out_of_step.py"
LINES = PROGRAM.read_text().splitlines()


@pytest.mark.timeout(240)
def test_a_rank_that_left_one_collective_out_is_named_long_before_anything_is_stuck() -> None:
    result = watch(PROGRAM, until=reaches("desync"))
    assert "finished" not in result.stdout
    (report,) = result.reports
    verdict = report["verdict"]
    assert (verdict["kind"], verdict["culprits"]) == ("op_mismatch", [2])
    assert verdict["certainty"] == "likely"
    assert verdict["collective"]["op"] == "all_reduce"
    assert verdict["victim_site"]["file"] == str(PROGRAM)
    assert LINES[verdict["victim_site"]["line"] - 1].endswith("# left out")
    assert "left out one collective" in verdict["headline"]


@pytest.mark.timeout(240)
def test_what_comes_of_it_later_is_an_incident_of_its_own() -> None:
    result = watch(PROGRAM)
    assert result.states()[0] == "desync"
    assert set(result.states()[1:]) <= {"hang", "failed"}
    assert len(result.states()) == 2
    assert result.reports[1]["verdict"]["culprits"] == [2]
