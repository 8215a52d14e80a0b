"""Real programs, healthy and not: hangwatch says of each what its header says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chosen import ZOO
from expectations import Expectation, expectations, misjudged, mistakes, run, unexplained
from recordings import loaded, record, result_of

from hangwatch.types.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CASES = list(expectations())
BROKEN = [case for case in CASES if not case.healthy]
FORKED = [case for case in CASES if case.forks]
CORE = {
    *("ddp_data_worker_stuck", "ddp_graphs", "ddp_uneven_iterable --exit", "every_collective"),
    *("join_uneven --metric", "missing_init", "oom --numpy", "pipeline_schedules", "rank_raises"),
    *("rank_sigkilled", "rank_sigstopped", "restart_then_hang", "slow_checkpoint"),
    *("tp_dp_order_swapped", "uneven_experts", "unused_parameters"),
}
"""Those of torchrun's that ``make test-all`` has time for, beside what it runs by forks."""
SLOW = {"compiled_skip inductor"}
"""What is long also where ranks are forked."""
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


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


def test_what_is_told_besides_is_a_mistake_unless_the_header_explains_it() -> None:
    case = next(case for case in BROKEN if case.values.get("also") == "slow:0")
    assert (case.values["state"], case.values["culprits"]) == ("hang", "1")

    def told(*verdicts: tuple[str, list[int]]) -> list[str]:
        found = [{"state": s, "culprits": ranks, "headline": "It is so."} for s, ranks in verdicts]
        return list(unexplained(case, found))

    assert told(("slow", [0])) == []
    assert told(("slow", [0]), ("slow", [1]), ("failed", [1])) == []
    assert told() == ["it is not called slow of 0"]
    assert told(("slow", [0]), ("hang", [0])) == ["it is also called HANG: It is so."]
    assert told(("slow", [0]), ("slow", [0, 1])) == ["it is also called SLOW: It is so."]
    assert told(("slow", [0]), ("desync", [1])) == ["it is also called DESYNC: It is so."]
    case = next(case for case in BROKEN if case.values.get("may_be") == "desync")
    assert told(("desync", [1])) == []
    assert told(("desync", [0])) == ["it is also called DESYNC: It is so."]


def kinds(cases: Iterable[Expectation]) -> set[str]:
    return {kind for case in cases for kind in case.values["kind"].split("|")}


def test_every_kind_is_in_what_make_test_runs_and_every_reason_in_test_all() -> None:
    chosen = {name for names in ZOO.values() for name in names}
    assert kinds(case for case in BROKEN if str(case) in chosen) == set(Kind)
    core = [case for case in BROKEN if str(case) in CORE or case in FORKED]
    reasons = [{case.values.get("reason") for case in cases} for cases in (core, BROKEN)]
    assert reasons[0] == reasons[1]
    assert {str(case) for case in CASES} >= CORE | SLOW


def test_the_zoo_is_as_large_as_contributors_are_told() -> None:
    programs = len({case.program for case in CASES})
    healthy = len({case.program for case in CASES if case.healthy})
    cascades = len({case.program for case in BROKEN if case.groups})
    (told,) = re.findall(
        r"(\d+) training\s+programs.*?(\d+) of them are healthy.*?(\d+) hang with several groups",
        CONTRIBUTING.read_text(),
        re.DOTALL,
    )
    assert told == (str(programs), str(healthy), str(cascades))
    assert programs >= 30
    assert healthy >= 10
    assert cascades >= 8
