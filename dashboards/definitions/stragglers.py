"""The row on who arrives last, and what that costs.

When a rank arrives is known of collectives that Python issues (all of FSDP's, and what the
program calls itself); of those that C++ issues alone (DDP's reducer) it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from definitions.looks import (
    ORANGE,
    YELLOW,
    steps,
)
from definitions.panels import (
    arrivals,
    bars,
    heatmap,
    now,
    query,
    timeseries,
)
from definitions.promql import JOB, JOB_RANKS, in_all, in_order, latest_ranks, most

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard as builder

UNKNOWN = "Python issues no collectives that two ranks of a node are in"
"""What the row says in jobs all of whose collectives come from C++ (DDP alone)."""
_SPREAD = "hangwatch_arrival_spread_seconds"
_LAST = f"hangwatch_arrivals_last_total{{{JOB_RANKS}}}"
_DELAY = f"hangwatch_arrival_delay_seconds_total{{{JOB_RANKS}}}"


def with_stragglers(board: builder.Dashboard) -> builder.Dashboard:
    """The dashboard with the panels of this row."""
    return _with_cost(_with_arrivals(board))


def _with_arrivals(board: builder.Dashboard) -> builder.Dashboard:
    late = f"sum by (run, node, rank) (rate({_DELAY}[$__rate_interval]))"
    latest = f"({late} and on (run, node, rank) {latest_ranks(JOB_RANKS)})"
    buckets = f"sum by (le) (increase({_SPREAD}_bucket{{{JOB}}}[$__rate_interval]))"
    last = f"sum by (node, rank, group) (increase({_LAST}[$__range]))"
    seen = f"sum by (node, group) (increase({_SPREAD}_count{{{JOB}}}[$__range]))"
    return (
        board.with_panel(
            heatmap(
                "Late ranks over time",
                "A row for each rank: seconds that it arrived after the first rank of its node, "
                "in each second. A bright row is a straggler; a bright column is one event that "
                "all of them saw. Of large jobs, the 64 latest ranks of the time shown.",
                width=9,
                height=9,
            )
            .no_value(UNKNOWN)
            .with_target(arrivals(in_order(latest), "{{rank}} on {{node}}"))
        )
        .with_panel(
            heatmap(
                "Spread of arrivals",
                "How many collectives had their last rank (of the node) arrive how long after "
                "the first.",
                width=8,
                height=9,
            )
            .no_value(UNKNOWN)
            .with_target(arrivals(buckets, "{{le}}").format(PromQueryFormat.HEATMAP))
        )
        .with_panel(
            bars(
                "Last to arrive",
                "In how many of the collectives of a group each rank was the last of its node "
                "to arrive, over the time shown: the ten worst. With n ranks and no straggler "
                "each has about 1/n.",
                width=7,
                height=9,
            )
            .unit("percentunit")
            .no_value(UNKNOWN)
            .max(1)
            .thresholds(steps((0.6, YELLOW), (0.8, ORANGE)))
            .with_target(
                now(
                    f"topk(10, {last} / on (node, group) group_left () ({seen} > 0))",
                    "{{rank}} on {{node}}, {{group}}",
                )
            )
        )
    )


def _with_cost(board: builder.Dashboard) -> builder.Dashboard:
    spread = (
        f"sum by (node, group) (rate({_SPREAD}_sum{{{JOB}}}[$__rate_interval])) / "
        f"(sum by (node, group) (rate({_SPREAD}_count{{{JOB}}}[$__rate_interval])) > 0)"
    )
    # Of a job with very many collectives not all are seen: the mean spread, times all.
    entered = f"hangwatch_collectives_entered_total{{{JOB}}}"
    lost = most(
        10,
        "node, group",
        f"{spread} * max by (node, group) (rate({entered}[$__rate_interval]))",
        f"sum by (node, group) ({in_all(f'{_SPREAD}_sum', JOB)})",
    )
    buckets = most(
        5,
        "group",
        f"sum by (group, le) (rate({_SPREAD}_bucket{{{JOB}}}[$__rate_interval]))",
        f"sum by (group) ({in_all(f'{_SPREAD}_sum', JOB)})",
    )
    period = f"hangwatch_rank_loop_period_seconds{{{JOB_RANKS}}}"
    cost = f"max by (rank) (hangwatch_straggler_cost_ratio{{{JOB_RANKS}}})"
    known = f"rate(hangwatch_straggler_measured_seconds_total{{{JOB}}}[$__rate_interval])"
    saved = f"rate(hangwatch_straggler_lost_seconds_total{{{JOB}}}[$__rate_interval])"
    return (
        board.with_panel(
            timeseries(
                "What stragglers cost",
                "Share of the time that would be saved if the ranks that all others wait for again "
                "and again took as long as these: of each such rank, and lost by the job. Where it "
                "is known for a part of the time only, less is found.",
                width=24,
            )
            .unit("percentunit")
            .with_target(query(cost, "rank {{rank}}"))
            .with_target(query(f"max({saved})", "lost"))
            .with_target(query(f"max({known})", "known"))
        )
        .with_panel(
            timeseries(
                "Time lost to the last",
                "Part of the time in which the first rank of a node waits for the last of it "
                "(may be more than 100 % where collectives overlap), the ten groups that lose the "
                "most. From 5 % on it is worth looking for the rank.",
            )
            .unit("percentunit")
            .no_value(UNKNOWN)
            .with_target(arrivals(lost, "{{node}}, {{group}}"))
        )
        .with_panel(
            timeseries(
                "Spread of arrivals by group",
                "Half of the collectives, and 99 of 100, have their last rank arrive within "
                "this time after the first; the five groups that lose the most.",
            )
            .unit("s")
            .no_value(UNKNOWN)
            .with_target(arrivals(f"histogram_quantile(0.5, {buckets})", "half, {{group}}"))
            .with_target(arrivals(f"histogram_quantile(0.99, {buckets})", "99 %, {{group}}"))
        )
        .with_panel(
            timeseries(
                "Time of a step",
                "Median time between two collectives of one line of code, of the line that "
                "comes by least often: the training step where it has such a line. Of the "
                "fastest, the median and the slowest rank.",
            )
            .unit("s")
            .no_value(UNKNOWN)
            .with_target(query(f"max({period})", "slowest rank"))
            .with_target(query(f"quantile(0.5, {period})", "median rank"))
            .with_target(query(f"min({period})", "fastest rank"))
        )
    )
