"""Jobs of real frameworks that one rank makes slow: who, why, and at which line."""

from __future__ import annotations

from pathlib import Path

import pytest
from expectations import marked_line
from harness import watch
from waiting import NoAnswerError

pytestmark = [pytest.mark.quiet, pytest.mark.campaign]
PROGRAMS = Path(__file__).parent / "programs" / "slow"
SECONDS = 40
SLOW = {
    "lightning_logs": (0, "checkpoint_io", "writes"),
    "accelerate_data": (1, "data_loading", "reads"),
    "deepspeed_longer": (1, "uneven_work", "goes_back"),
    "trainer_workers": (1, "data_loading", "decodes"),
}


def test_each_program_has_its_answer() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(SLOW)


@pytest.mark.parametrize("name", SLOW)
def test_the_slow_rank_of_a_framework_is_told_with_its_line(
    name: str, framework_python: str
) -> None:
    program = PROGRAMS / f"{name}.py"
    result = watch(
        program,
        "--straggler-window=10",
        arguments=[str(SECONDS)],
        nproc=2,
        python=framework_python,
    )
    assert result.exit_code == 0
    assert result.reports == []
    assert result.run is not None
    assert result.run["straggler_watch"]["unknown"] is None
    if not result.run["stragglers"]:
        raise NoAnswerError(f"no straggler was told of {name}")
    (found,) = result.run["stragglers"]
    rank, reason, site = SLOW[name]
    assert (found["ranks"], found["reason"]) == ([rank], reason)
    assert found["site"] is not None
    assert found["site"]["line"] == marked_line(program, site)
