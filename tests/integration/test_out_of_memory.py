"""The kernel ends a rank for its use of memory, for real."""

from __future__ import annotations

from control_groups import MEMORY, control_group, takes_root
from harness import PROGRAMS, watch


@takes_root
def test_a_kill_by_the_kernel_for_memory_is_told_from_another_one() -> None:
    with control_group(MEMORY, 1 << 30) as group:
        # It goes to its group before it loads torch, and must not have loaded it to meet others.
        result = watch(PROGRAMS / "oom_killed.py", arguments=[str(group)], env={"TOGETHER": ""})
    (report,) = result.reports
    verdict = report["verdict"]
    assert (verdict["kind"], verdict["reason"]) == ("died", "out_of_memory")
    assert verdict["culprits"] == [2]
    assert verdict["certainty"] == "proved"
    assert "ran out of memory" in verdict["headline"]
    assert result.exit_code == 1
