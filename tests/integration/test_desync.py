"""Ranks that are out of step are found while the job still runs."""

from __future__ import annotations

from harness import PROGRAMS, reaches, watch

PROGRAM = PROGRAMS / "out_of_step.py"
LINES = PROGRAM.read_text().splitlines()
AHEAD_S = 4.0


def test_a_rank_that_left_one_collective_out_is_named_long_before_anything_is_stuck() -> None:
    result = watch(PROGRAM, "--suspect-after=2", "--hang-after=4", until=reaches("hang"))
    assert result.states() == ["desync", "hang"]
    assert result.announced["hang"] - result.announced["desync"] > AHEAD_S
    desync, hang = (report["verdict"] for report in result.reports)
    assert (desync["kind"], desync["culprits"]) == ("op_mismatch", [2])
    assert desync["certainty"] == "likely"
    assert desync["collective"]["op"] == "all_reduce"
    assert desync["victim_site"]["file"] == str(PROGRAM)
    assert LINES[desync["victim_site"]["line"] - 1].endswith("# left out")
    assert "skipped one collective" in desync["headline"]
    assert hang["culprits"] == [2]
