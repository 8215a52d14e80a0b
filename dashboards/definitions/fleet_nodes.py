"""The rows on the nodes of the fleet: their watchdogs, agents and GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from definitions.looks import (
    sorted_by,
    unit,
)
from definitions.panels import (
    query,
    row,
    rows,
    table,
    timeseries,
)
from definitions.promql import FLEET, by_node, by_rank, unseen

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard as builder


def with_fleet_nodes(made: builder.Dashboard) -> builder.Dashboard:
    """The dashboard with the panels on nodes, watchdogs and agents."""
    looks = f"rate(hangwatch_watchdog_look_seconds_sum{{{FLEET}}}[$__rate_interval])"
    counted = f"rate(hangwatch_watchdog_look_seconds_count{{{FLEET}}}[$__rate_interval])"
    lost = by_node("hangwatch_run_info", FLEET)
    nodes = {
        "node": "Node",
        "run": "Run",
        "Value #A": "Alive",
        "Value #B": "Not seen",
        "Value #C": "Failed looks",
        "Value #D": "Lost",
        "Value #E": "Loop delay",
        "version": "hangwatch",
        "torch": "torch",
    }
    agents = {
        "run": "Run",
        "node": "Node",
        "recorder": "Recorder",
        "recorder_reason": "Why not native",
        "Value": "Ranks",
    }
    by_recorder = "count by (run, node, recorder, recorder_reason)"
    return (
        made.with_panel(
            table(
                "Nodes",
                "A row for each watchdog. Not seen: ranks that should be there and that it "
                "knows nothing of. Lost: what it could not do (see run.json).",
                24,
                8,
                nodes,
            )
            .targets(
                rows(
                    f"sum by (run, node) ({by_rank('hangwatch_rank_up', FLEET)})",
                    unseen(FLEET),
                    f"max by (run, node) (hangwatch_watchdog_failures_total{{{FLEET}}})",
                    f"sum by (run, node) (hangwatch_watchdog_lost{{{FLEET}}}) "
                    f"or on (run, node) 0 * {lost}",
                    f"max by (run, node) (hangwatch_watchdog_loop_delay_seconds{{{FLEET}}})",
                    f"max by (run, node, version, torch) (hangwatch_run_info{{{FLEET}}})",
                )
            )
            .override_by_name("Loop delay", unit("s", 2))
            .sort_by(sorted_by("Not seen", descending=True))
        )
        .with_panel(
            table(
                "Agents",
                "What the ranks are recorded by. `python` sees less than `native`, and nothing "
                "while a rank's GIL is held.",
                12,
                8,
                agents,
            )
            .targets(rows(f"{by_recorder} (hangwatch_rank_info{{{FLEET}}})"))
            .sort_by(sorted_by("Recorder", descending=True))
        )
        .with_panel(
            timeseries(
                "Watchdogs: time of a look, delay of the loop",
                "The ten slowest nodes. A delay of seconds means a node starved of CPU.",
                width=12,
            )
            .unit("s")
            .with_target(
                query(
                    f"topk(10, sum by (run, node) ({looks}) / sum by (run, node) ({counted}))",
                    "look, {{node}}",
                )
            )
            .with_target(
                query(
                    "topk(10, max by (run, node) "
                    f"(hangwatch_watchdog_loop_delay_seconds{{{FLEET}}}))",
                    "delay, {{node}}",
                )
            )
        )
    )


def fleet_gpus() -> builder.Row:
    """The row on GPUs, which is collapsed."""
    readable = {"node": "Node", "run": "Run", "reason": "Why not", "Value #A": "Read"}
    up = f"max by (run, node) (hangwatch_nvml_up{{{FLEET}}})"
    reason = f"max by (run, node, reason) (hangwatch_nvml_info{{{FLEET}}})"
    xids = f"sum by (node, gpu, xid) (hangwatch_gpu_xid_errors_total{{{FLEET}}}) > 0"
    ecc = f"sum by (node, gpu, kind) (hangwatch_gpu_ecc_errors_total{{{FLEET}}}) > 0"
    utilization = f"hangwatch_gpu_utilization_ratio{{{FLEET}}}"
    return row(
        "GPUs",
        [
            table(
                "NVML",
                "Nodes whose GPUs can be read, and why others cannot.",
                8,
                8,
                readable,
            ).targets(rows(up, reason)),
            timeseries(
                "Errors",
                "Xids since the run was first watched, ECC errors since the driver was loaded.",
            )
            .unit("short")
            .with_target(query(xids, "Xid {{xid}}, {{node}} {{gpu}}"))
            .with_target(query(ecc, "ECC {{kind}}, {{node}} {{gpu}}")),
            timeseries(
                "Utilisation",
                "Of the GPUs of each run: the median and the least.",
            )
            .unit("percentunit")
            .max(1)
            .with_target(query(f"quantile by (run) (0.5, {utilization})", "median, {{run}}"))
            .with_target(query(f"min by (run) ({utilization})", "least, {{run}}")),
        ],
    )
