"""The row on hangwatch itself: whether the other panels are to be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from definitions.looks import (
    plain,
    steps,
)
from definitions.panels import (
    now,
    query,
    stat,
    timeseries,
)
from definitions.promql import JOB, JOB_RANKS, most, unseen

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard as builder


def with_health(board: builder.Dashboard) -> builder.Dashboard:
    """The dashboard with the panels of this row."""
    recorders = f"count by (recorder) (hangwatch_rank_info{{{JOB_RANKS}}})"
    disarmed = f"sum(hangwatch_agent_disarmed{{{JOB_RANKS}}})"
    errors = f"sum(hangwatch_agent_errors_total{{{JOB_RANKS}}})"
    failures = f"sum(hangwatch_watchdog_failures_total{{{JOB}}})"
    lost = f"sum(hangwatch_watchdog_lost{{{JOB}}}) or vector(0)"
    looks = f"rate(hangwatch_watchdog_look_seconds_sum{{{JOB}}}[$__rate_interval])"
    counted = f"rate(hangwatch_watchdog_look_seconds_count{{{JOB}}}[$__rate_interval])"
    return (
        board.with_panel(
            stat(
                "Recorded by",
                "Ranks by what records them. `native` sees the process from outside of Python; "
                "`python` does not see a rank whose GIL is held, and knows less.",
                width=4,
                height=8,
            )
            .thresholds(plain())
            .with_target(now(recorders, "{{recorder}}"))
        )
        .with_panel(
            stat(
                "Blind spots",
                "Ranks that no page was seen of yet, and ranks whose agent has stopped "
                "recording. Nothing that these panels show holds for them.",
                width=4,
                height=8,
            )
            .thresholds(steps((1, "orange")))
            .with_target(now(f"sum({unseen(JOB)})", "not seen"))
            .with_target(now(disarmed, "disarmed"))
        )
        .with_panel(
            stat(
                "Errors of its own",
                "Errors that the agents kept from the job, looks of the watchdogs that failed, "
                "and what the watchdogs could not do (see run.json in the report directory).",
                width=4,
                height=8,
            )
            .thresholds(steps((1, "orange")))
            .with_target(now(errors, "in agents"))
            .with_target(now(failures, "looks failed"))
            .with_target(now(lost, "lost"))
        )
        .with_panel(
            timeseries(
                "Watchdog: delay of the loop, time of a look",
                "How late the watchdog's loop runs, and how long it takes to look at all ranks "
                "of its node; the five slowest nodes. A delay of seconds: a node starved of CPU.",
                width=6,
            )
            .unit("s")
            .with_target(
                query(
                    _worst("hangwatch_watchdog_loop_delay_seconds", JOB),
                    "delay, {{node}}",
                )
            )
            .with_target(
                query(
                    f"topk(5, sum by (node) ({looks}) / sum by (node) ({counted}))",
                    "look, {{node}}",
                )
            )
        )
        .with_panel(
            timeseries(
                "Heartbeats and the GIL",
                "Age of the oldest heartbeat (a thread that needs no GIL) and the longest wait "
                "for the GIL of any rank. Heartbeats that stop mean a stopped process; a GIL "
                "that is not to be had means native code that holds it.",
                width=6,
            )
            .unit("s")
            .with_target(
                query(
                    _worst("hangwatch_rank_heartbeat_age_seconds", JOB_RANKS),
                    "heartbeat, {{node}}",
                )
            )
            .with_target(
                query(
                    _worst("hangwatch_rank_gil_delay_seconds", JOB_RANKS),
                    "GIL, {{node}}",
                )
            )
        )
    )


def _worst(metric: str, where: str) -> str:
    """The highest value on each of the five nodes where it is the highest."""
    score = f"max by (node) (max_over_time({metric}{{{where}}}[$__range] @ end()))"
    return most(5, "node", f"max by (node) ({metric}{{{where}}})", score)
