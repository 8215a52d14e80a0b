"""Mistakes that do not hang: told once, at the end, and never of a healthy job."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from harness import PROGRAMS, Result, environment, watch

from hangwatch.model.kinds import Cost

if TYPE_CHECKING:
    from pathlib import Path

OBSERVED = PROGRAMS / "costly" / "observed.py"
UNNOTICED = PROGRAMS / "costly" / "unnoticed.py"
MISTAKES = PROGRAMS / "costly" / "mistakes.py"
SAID = "this cost the run time or accuracy, but did not hang it"


def train(*arguments: str) -> Result:
    return watch(MISTAKES, arguments=arguments, nproc=2)


def run(program: Path) -> str:
    """What a program prints that looks at itself, without being watched."""
    done = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-W", "ignore", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
        env=environment({}),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def costs(result: Result) -> list[str]:
    assert result.run is not None
    return [note["cost"] for note in result.run["notes"]]


def test_several_mistakes_are_told_once_at_the_end() -> None:
    result = train("5", "order", "sync")
    assert result.exit_code == 0
    assert costs(result) == ["same_order", "sync_each_batch"]
    assert result.run is not None
    source = MISTAKES.read_text().splitlines()
    lines = [source[note["site"]["line"] - 1] for note in result.run["notes"]]
    assert "in enumerate(loader)" in lines[0]
    assert "DistributedDataParallel(" in lines[1]
    assert result.stderr.count(SAID) == 1
    said = " ".join(result.stderr[result.stderr.index(SAID) :].split())
    assert "set_epoch was not called" in said
    assert "about 4 times for each" in said
    assert said.count("https://docs.pytorch.org/") == 2


def test_a_mistake_is_told_also_where_the_run_fails() -> None:
    result = train("1", "order", "fail")
    assert result.exit_code == 1
    assert costs(result) == ["same_order"]
    (report,) = result.reports
    (note,) = report["notes"]
    assert note["cost"] == "same_order"
    assert note["ranks"] == [0, 1]
    assert "at a cost  Each of 3 epochs went through the data in the same order" in result.stderr
    assert result.stderr.count(SAID) == 1


def test_a_healthy_job_is_told_nothing() -> None:
    result = train("2")
    assert result.exit_code == 0
    assert costs(result) == []
    assert SAID not in result.stderr


def test_of_many_ways_to_train_only_the_mistaken_ones_are_told() -> None:
    told = json.loads(run(OBSERVED))
    assert sum(name.startswith("healthy") for name in told) > 20
    for name, found in told.items():
        expected = [cost.value for cost in Cost if name.startswith(cost.value)]
        assert found == expected, name
    assert {found[0] for found in told.values() if found} == set(Cost) - {Cost.ONE_GPU}


def test_what_is_observed_compiles_and_travels_as_without_us() -> None:
    assert run(UNNOTICED).endswith("good\n")
