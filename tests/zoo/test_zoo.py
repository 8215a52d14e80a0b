"""Real programs, healthy and not: hangwatch says of each what its header says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from expectations import Expectation, expectations, misjudged, mistakes, run
from recordings import loaded, record, result_of

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = list(expectations())
FORKED = [case for case in CASES if case.forks]
CORE = {
    *("ddp_data_worker_stuck", "ddp_graphs", "ddp_uneven_iterable --exit", "every_collective"),
    *("join_uneven --metric", "missing_init", "oom --numpy", "pipeline_schedules", "rank_raises"),
    *("rank_sigkilled", "rank_sigstopped", "recompiles", "restart_then_hang", "slow_checkpoint"),
    *("serves_by_store", "store_in_python", "tp_dp_order_swapped", "uneven_experts"),
    "unused_parameters",
}
"""Those of torchrun's that ``make test-all`` has time for, beside what it runs by forks."""
SLOW = {"compiled_skip inductor"}
"""What is long also where ranks are forked."""


def _few(cases: list[Expectation], chosen: Callable[[str], bool]) -> list[Any]:
    """Cases for a test, those that are not chosen for ``make campaign``."""
    return [
        pytest.param(case, marks=() if chosen(str(case)) else pytest.mark.campaign, id=str(case))
        for case in cases
    ]


@pytest.mark.parametrize("case", _few(CASES, CORE.__contains__))
def test_the_verdict_on_a_program_is_what_its_header_says(case: Expectation) -> None:
    assert mistakes(case, run(case)) == []


@pytest.mark.parametrize("case", _few(FORKED, lambda name: name not in SLOW))
def test_the_verdict_is_the_same_where_the_program_forks_its_ranks(case: Expectation) -> None:
    result, parts = record(case, forked=True)
    assert mistakes(case, result) == []
    # What is said is made of what is recorded, and of nothing else.
    assert list(misjudged(case, result_of(case, map(loaded, parts)))) == []
