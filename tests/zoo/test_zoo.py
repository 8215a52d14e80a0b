"""Real programs, healthy and not: hangwatch says of each what its header says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expectations import Expectation, expectations, mistakes, run, unexplained

from hangwatch.types import Kind

CASES = list(expectations())
BROKEN = [case for case in CASES if not case.healthy]
CORE = {
    *("async_overlap", "breakpoint_left_in", "checkpoint_stuck", "compiled_skip", "ddp_graphs"),
    *("connection_black_hole", "ddp_data_worker_stuck", "ddp_healthy", "ddp_stopped_unrecorded"),
    *("ddp_uneven_iterable", "destroy_and_reinit", "every_collective", "fsdp_sleep", "gil_held"),
    *("hsdp_stopped", "join_uneven", "many_groups", "mesh3d_stuck_reader", "metric_on_first_rank"),
    *("metric_shape_mismatch", "missing_init", "new_group_by_some", "oom", "op_mismatch"),
    *("order_swapped_in_pairs", "pipeline_schedules", "rank_raises", "rank_sigkilled"),
    *("rank_sigstopped", "recv_without_send", "restart_then_hang", "results_from_anyone"),
    *("send_without_recv", "slow_checkpoint", "step_skipped_before_the_next_group", "store_wait"),
    *("stopped_in_collective", "stuck_in_except", "swallowed_exception", "tp_dp_order_swapped"),
    *("uneven_experts", "unused_parameters", "worker_forked_with_lock"),
}
"""Programs that ``make test`` has time for: each kind of fault and of life, and each reason."""
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=() if case.program.stem in CORE else pytest.mark.campaign, id=str(case)
        )
        for case in CASES
    ],
)
def test_the_verdict_on_a_program_is_what_its_header_says(case: Expectation) -> None:
    assert mistakes(case, run(case)) == []


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


def test_every_kind_and_reason_of_the_zoo_is_in_what_make_test_runs() -> None:
    core = [case for case in BROKEN if case.program.stem in CORE]
    assert {kind for case in core for kind in case.values["kind"].split("|")} == set(Kind)
    reasons = [{case.values.get("reason") for case in cases} for cases in (core, BROKEN)]
    assert reasons[0] == reasons[1]
    assert {case.program.stem for case in CASES} >= CORE


def test_the_zoo_is_as_large_as_the_readme_says() -> None:
    programs = len({case.program for case in CASES})
    healthy = len({case.program for case in CASES if case.healthy})
    cascades = len({case.program for case in BROKEN if case.groups})
    (told,) = re.findall(
        r"(\d+) training\s+programs.*?(\d+) of them are healthy.*?(\d+) hang with several groups",
        README.read_text(),
        re.DOTALL,
    )
    assert told == (str(programs), str(healthy), str(cascades))
    assert programs >= 30
    assert healthy >= 10
    assert cascades >= 8
