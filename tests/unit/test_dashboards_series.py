"""Dashboards and rules on the series that hangwatch serves, made up where there is no such job."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from monitoring import RULES, all_panels, boards, expressions, tool

from hangwatch.metrics.families import NodeCollector, NodeSnapshot
from hangwatch.metrics.gpu import gpu_metrics
from hangwatch.model.gpu import GpuState, NodeGpus, Xid
from hangwatch.model.report import RunInfo
from hangwatch.model.snapshot import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from prometheus_client.core import Metric

SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "summary": ("_sum", "_count"),
}
RUN = RunInfo("r", ("torchrun", "train.py"), "")
SNAPSHOT = NodeSnapshot(0, Thresholds(10, 300), 1.0)
VARIABLES = {"__rate_interval": "60s", "__range": "300s", "run": "r", "node": ".*", "rank": ".*"}


def _metrics(node: NodeGpus) -> Iterator[Metric]:
    """All that a watchdog serves."""
    served = NodeCollector(
        run=RUN,
        node="a",
        interval_s=1,
        snapshot=lambda: SNAPSHOT,
        extra=(lambda: gpu_metrics(node),),
        now_ns=lambda: SNAPSHOT.at_ns,
    )
    yield from served.collect()


def _named(text: str) -> set[str]:
    """The metrics that an expression names, without what rules record."""
    return set(re.findall(r"(?<![:\w])hangwatch_\w+\b(?!:)", text))


def _asked() -> set[str]:
    rules = re.findall(r"(?ms)^ +expr: (.+?)^ +(?:- |labels:|for:|record:)", RULES.read_text())
    variables = json.dumps([board["templating"] for board in boards().values()])
    notes = [a["expr"] for board in boards().values() for a in board["annotations"]["list"]]
    panels = [text for board in boards().values() for text in expressions(board)]
    return set().union(*map(_named, [*rules, variables, *notes, *panels]))


def test_every_metric_that_is_asked_for_is_served_and_the_other_way_round() -> None:
    served = {
        metric.name: {metric.name + suffix for suffix in SUFFIXES[metric.type]}
        for metric in _metrics(NodeGpus())
    }
    assert len(served) > 30
    asked = _asked()
    assert asked <= set().union(*served.values())
    assert not [name for name, series in served.items() if not series & asked]


GPUS = NodeGpus(
    tuple(
        GpuState(
            uuid,
            index,
            "H200",
            parent=parent,
            ranks=(index,),
            utilization=0.5,
            memory_used_bytes=1,
            memory_total_bytes=2,
            temperature_c=50.0,
            power_w=500.0,
            sm_clock_hz=2e9,
            memory_clock_hz=1e9,
            throttle=("sw_power_cap",),
            ecc_corrected=1,
            ecc_uncorrected=1,
            remapped_rows={"correctable": 1, "uncorrectable": 0, "pending": 0, "failure": 0},
            nvlink_errors=1,
            xids=(Xid(79),),
        )
        for index, (uuid, parent) in enumerate((("GPU-0", ""), ("MIG-1", "GPU-1111-2222")))
    )
)


def test_each_panel_on_gpus_has_data_where_there_are_gpus(tmp_path: Path) -> None:
    series = _served(GPUS)
    asked = {}
    for name, board in boards().items():
        chosen = VARIABLES | ({"rank": "0"} if name == "rank" else {})
        for row in board["panels"]:
            for panel in row.get("panels", []):
                for target in panel["targets"]:
                    what = f"{name}: {panel['title']} {target['refId']}"
                    asked[what] = _filled(target["expr"], chosen)
    assert len(asked) > 25
    _expect(tmp_path, series, {f"count({text}) > bool 0": {"{}": 1} for text in asked.values()})


def test_a_divided_gpu_has_its_whole_shown_by_its_uuid(tmp_path: Path) -> None:
    series = _served(GPUS)
    power = _panel_expression("job", "Power")
    power_of = {
        f'{{node="a",gpu="{gpu}",index="{index}"}}': 500.0
        for gpu, index in (("GPU-0", "0"), ("GPU-1111-2222", "GPU-1111-222"))
    }
    used = _panel_expression("job", "Memory in use")
    used_of = {
        f'{{node="a",gpu="{gpu}",index="{index}"}}': 0.5
        for gpu, index in (("GPU-0", "0"), ("MIG-1", "1"))
    }
    _expect(tmp_path, series, {power: power_of, used: used_of})


# Two nodes of one run, scraped a moment apart: b's counts are the newer ones.
MOVES = "hangwatch_rank_since_progress_seconds"
COUNT = "hangwatch_collectives_enqueued_total"


def _two_nodes(stuck: bool) -> dict[str, str]:  # noqa: FBT001 (one of two pictures)
    """Ranks 0 and 1 on a, 2 and 3 on b; stuck: rank 1 is 2 behind in world, the others wait."""
    series = {}
    for rank, node in ((0, "a"), (1, "a"), (2, "b"), (3, "b")):
        one = f'run="r",node="{node}",rank="{rank}"'
        series[f"hangwatch_rank_up{{{one}}}"] = "1x40"
        waits = stuck and rank != 1
        series[f"hangwatch_rank_waiting_seconds{{{one}}}"] = "0+15x40" if waits else "0x40"
        series[f"{MOVES}{{{one}}}"] = "0+15x40" if stuck else "0.1x40"
        ahead = 500 if node == "b" and not stuck else 0
        still = f"{98 if rank == 1 else 100}x40"
        series[f'{COUNT}{{{one},group="world"}}'] = still if stuck else f"{ahead}+1000x40"
        pair = "pair [0, 1]" if node == "a" else "pair [2, 3]"
        series[f'{COUNT}{{{one},group="{pair}"}}'] = "7x40"
    for node in "ab":
        series[f'hangwatch_usual_gap_seconds{{run="r",node="{node}"}}'] = "1x40"
        series[f'hangwatch_run_info{{run="r",node="{node}"}}'] = "1x40"
    return series


def test_a_rank_of_another_node_is_behind_only_where_the_group_stands(tmp_path: Path) -> None:
    behind = _panel_expression("job", "Who is behind", 1)
    nodes = {"0": "a", "1": "a", "2": "b", "3": "b"}
    for stuck in (False, True):
        expected = {
            f'{{node="{node}",rank="{rank}"}}': 2.0 if stuck and rank == "1" else 0.0
            for rank, node in nodes.items()
        }
        _expect(tmp_path, _two_nodes(stuck), {behind: expected})


def test_the_map_tells_who_waits_from_who_is_waited_for(tmp_path: Path) -> None:
    ranks = _panel_expression("job", "Ranks over time")
    expected = {
        f'{{run="r",node="{node}",rank="{rank}",order="0000{rank}"}}': state
        for rank, node, state in ((0, "a", 1), (1, "a", 2), (2, "b", 1), (3, "b", 3))
    }
    gone = {'hangwatch_rank_up{run="r",node="b",rank="3"}': "1x4 0x36"}
    _expect(tmp_path, _two_nodes(stuck=True) | gone, {ranks: expected})


def test_of_a_large_job_the_map_has_the_ranks_at_fault(tmp_path: Path) -> None:
    series = {}
    for rank in range(300):
        one = f'run="r",node="n{rank // 8}",rank="{rank}"'
        at_fault = rank in (123, 250)
        series[f"hangwatch_rank_up{{{one}}}"] = f"1x4 {0 if rank == 250 else 1}x36"
        series[f"hangwatch_rank_waiting_seconds{{{one}}}"] = "0x40" if at_fault else "0+15x40"
        series[f"{MOVES}{{{one}}}"] = "0+15x40"
        series[f'hangwatch_usual_gap_seconds{{run="r",node="n{rank // 8}"}}'] = "1x40"
    ranks = _panel_expression("job", "Ranks over time")
    _expect(
        tmp_path,
        series,
        {
            f"count({ranks})": {"{}": 64.0},
            f"sum by (rank) ({ranks}) > 1": {'{rank="123"}': 2.0, '{rank="250"}': 3.0},
        },
    )


@pytest.mark.parametrize(
    ("verdict", "state"), [("slow", 2), ("desync", 3), ("hang", 4), ("failed", 5), ("", 1)]
)
def test_the_state_of_a_run_is_its_worst_verdict(tmp_path: Path, verdict: str, state: int) -> None:
    series = _two_nodes(stuck=True)
    if verdict:
        series[f'hangwatch_verdict_info{{run="r",node="a",state="{verdict}"}}'] = "1x40"
        series['hangwatch_verdict_info{run="r",node="b",state="slow"}'] = "1x40"
    moving = _panel_expression("job", "Is it moving?")
    _expect(tmp_path, series, {moving: {'{run="r"}': float(state)}})
    _expect(tmp_path, _two_nodes(stuck=False), {moving: {'{run="r"}': 0.0}})


def _served(node: NodeGpus) -> dict[str, str]:
    """What a watchdog serves for eight minutes, as promtool takes it."""
    series = {}
    for sample in (sample for metric in _metrics(node) for sample in metric.samples):
        labels = ",".join(f"{key}={json.dumps(value)}" for key, value in sample.labels.items())
        series[f"{sample.name}{{{labels}}}"] = f"{float(sample.value)}x40"
    return series


def _filled(text: str, values: Mapping[str, str] = VARIABLES) -> str:
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), text)


def _panel_expression(name: str, title: str, target: int = 0) -> str:
    panel = next(panel for panel in all_panels(boards()[name]) if panel["title"] == title)
    return _filled(panel["targets"][target]["expr"])


def _expect(
    where: Path,
    series: Mapping[str, str],
    answers: Mapping[str, Mapping[str, float]],
) -> None:
    """Have promtool find these answers after eight minutes, with a value each 15 s."""
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": one, "values": text} for one, text in series.items()],
        "promql_expr_test": [
            {
                "expr": text,
                "eval_time": "8m",
                "exp_samples": [{"labels": one, "value": value} for one, value in answer.items()],
            }
            for text, answer in answers.items()
        ],
    }
    path = where / "test.json"  # JSON is YAML
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "15s", "tests": [test]}))
    tool("promtool", "test", "rules", str(path))
