"""Real jobs that are slow: who makes them so, and what it costs by their own clocks."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from control_groups import CPU, control_group, takes_root
from harness import PROGRAMS, RECORDED, read_run, watch
from hosts import hosts, launch, needs_hosts
from waiting import NoAnswerError, until

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Result
    from hosts import Host

PROGRAM = PROGRAMS / "slow_ranks.py"
WINDOW_S = 10
HEALTHY_S = 12
SLOW_S = 30
RECOVERS_S = 45
WITH = {
    "one_late": ((2,), "user_code", "work(ms)"),
    "two_late": ((1, 2), "user_code", "work(ms)"),
    "first_writes": ((0,), "checkpoint_io", "os.fsync(file.fileno())"),
    "shares_a_core": ((1,), "cpu_contention", None),
    "throttled": ((1,), "cpu_throttled", None),
    "collects": ((1,), "garbage_collection", "gc.collect()"),
    "longer": ((1,), "uneven_work", "matrix = torch.tanh"),
    "workers": ((1,), "data_loading", "time.sleep"),
    "feeds": ((1,), "user_code", "work(ms)"),
    "tensor_parallel": ((3,), "user_code", "work(ms)"),
    "pipeline": ((2,), "user_code", "work(ms)"),
    "local_sgd": ((1,), "user_code", "work(ms)"),
    "sharded": ((2,), "user_code", "work(ms)"),
    "checkpoints": ((0,), "user_code", "work(ms)"),
    "recovers": ((1,), "user_code", "work(ms)"),
}
"""Kinds of the program: the ranks that are slow, why, and at which line, if one is told."""
ONE_AFTER_THE_OTHER = ("pipeline",)
"""Some ranks wait in any turn of these, so that the cost is known from below only."""
WITHOUT = (
    "by_turns",
    "by_chance",
    "long_tail",
    "all_alike",
    "even_stages",
    "evaluates",
    "hidden",
    "hidden_by_a_queue",
    "logs_in_a_thread",
    "compiles_once",
)
ON_HOSTS = {
    "two_of_a_node": (2, (2, 3), "user_code", "work(ms)"),
    "one_late": (2, (2,), "user_code", "work(ms)"),
    "pipeline": (2, (2,), "user_code", "work(ms)"),
    "workers": (2, (1,), "data_loading", "time.sleep"),
    "local_sgd": (4, (1,), "user_code", "work(ms)"),
}
"""Kinds of the program: on how many hosts, and the same."""
SLOW_ON_HOSTS_S = 40
TOLERANCE = 0.12
"""Of the cost: twenty seconds are measured, on a machine that does other things."""

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.skipif(not RECORDED, reason="this torch does not count gloo's calls"),
]


def run(kind: str) -> Result:
    slow_s = RECOVERS_S if kind == "recovers" else SLOW_S
    with control_group(CPU, 10_000) if kind == "throttled" else nullcontext() as limited:
        return watch(
            PROGRAM,
            f"--straggler-window={WINDOW_S}",
            arguments=(kind, str(HEALTHY_S), str(slow_s)),
            env={"LIMITED": str(limited)},
            nproc=4,
        )


def turns_ms(stdout: str) -> tuple[float, float]:
    """What a turn takes without and with the fault."""
    healthy, slow = (
        float(re.findall(rf"^{part} ([\d.]+)", stdout, re.MULTILINE)[0])
        for part in ("healthy", "slow")
    )
    return healthy, slow


def marks(kind: str, *often: str) -> list[pytest.MarkDecorator]:
    own = [] if kind in often else [pytest.mark.campaign]
    return [*own, takes_root] if kind == "throttled" else own


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=marks(kind, "one_late", "tensor_parallel")) for kind in WITH],
)
def test_the_slow_ranks_are_named_with_what_they_cost(kind: str) -> None:
    result = run(kind)
    assert result.exit_code == 0
    assert result.reports == []
    healthy_ms, slow_ms = turns_ms(result.stdout)
    assert result.run is not None
    assert result.run["straggler_watch"]["unknown"] is None
    found = result.run["stragglers"]
    if not found:
        raise NoAnswerError(f"no straggler was told of {kind}")
    ranks, reason, line = WITH[kind]
    assert [one["ranks"] for one in found] == [list(ranks)]
    assert found[0]["reason"] == reason
    site = found[0]["site"]
    assert (line is None) == (site is None)
    if line is not None and site is not None:
        assert line in (site["source"] or "")
    cost = 1 - healthy_ms / slow_ms
    if kind in ONE_AFTER_THE_OTHER:
        assert 0.05 <= found[0]["fraction"] < cost + TOLERANCE
    elif kind != "recovers":  # the mean of its second part is that of both
        assert found[0]["fraction"] == pytest.approx(cost, abs=TOLERANCE)
    assert result.run["straggler_reports"] == ["straggler-001"]
    assert result.stderr.count("hangwatch: STRAGGLER (") == 1
    assert "hangwatch: stragglers have cost this run" in result.stderr
    assert ("the job no longer waits for" in result.stderr) == (kind == "recovers")


@pytest.mark.campaign
@pytest.mark.parametrize("kind", WITHOUT)
def test_a_job_without_a_straggler_is_told_none(kind: str) -> None:
    result = run(kind)
    assert result.exit_code == 0
    assert result.run is not None
    assert result.run["stragglers"] == []
    if kind != "hidden_by_a_queue":  # which is known only once it would be told
        assert result.run["straggler_watch"]["unknown"] is None
    assert "STRAGGLER" not in result.stderr


def run_on_hosts(where: Path, kind: str, count: int, slow_s: int) -> list[Host]:
    """Run the job on some hosts, to its end."""
    with hosts(where, count) as made:
        options = [f"--straggler-window={WINDOW_S}"]
        arguments = (PROGRAM.name, kind, str(HEALTHY_S), str(slow_s))
        launch(made, *arguments, options=options, nproc=4 // count)
        until(lambda: all(host.exit_code() is not None for host in made), "the job's end")
    assert [host.exit_code() for host in made] == [0] * count
    assert [host.reports() for host in made] == [[]] * count
    return made


@needs_hosts
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=marks(kind, "two_of_a_node")) for kind in ON_HOSTS]
)
def test_the_slow_ranks_of_several_hosts_are_named_on_all_of_them(
    kind: str, tmp_path: Path
) -> None:
    count, ranks, reason, line = ON_HOSTS[kind]
    made = run_on_hosts(tmp_path, kind, count, SLOW_ON_HOSTS_S)
    healthy_ms, slow_ms = turns_ms((made[0].where / "stdout").read_text())
    cost = 1 - healthy_ms / slow_ms
    here = made[ranks[0] * count // 4]
    for host in made:
        account = read_run(host.where / "reports")
        assert account is not None
        assert account["straggler_watch"]["unknown"] is None
        found = account["stragglers"]
        if not found:
            raise NoAnswerError(f"no straggler was told of {kind}")
        assert [one["ranks"] for one in found] == [list(ranks)]
        assert found[0]["reason"] == reason
        assert line in found[0]["site"]["source"]
        if kind in ONE_AFTER_THE_OTHER:
            assert 0.05 <= found[0]["fraction"] < cost + TOLERANCE
        else:
            assert found[0]["fraction"] == pytest.approx(cost, abs=TOLERANCE)
        said = host.said()
        assert said.count("hangwatch: STRAGGLER (") == 1
        assert (f"(reported by node {here.name})" in said) == (host is not here)
        assert (f"rank {ranks[0]} is process" in said) == (host is here)
        assert account["straggler_reports"] == (["straggler-001"] if host is here else [])


@needs_hosts
@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kind", "count"),
    [("by_turns", 2), ("by_chance", 2), ("evaluates", 2), ("even_stages", 2), ("all_alike", 4)],
)
def test_hosts_without_a_straggler_are_told_none(kind: str, count: int, tmp_path: Path) -> None:
    for host in run_on_hosts(tmp_path, kind, count, SLOW_S):
        account = read_run(host.where / "reports")
        assert account is not None
        assert account["stragglers"] == []
        assert account["straggler_watch"]["unknown"] is None
        assert "STRAGGLER" not in host.said()
