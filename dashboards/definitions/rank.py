"""The dashboard of one rank, with everything that is known of it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.models.dashboard import VariableSort

from definitions import board
from definitions.gpu import gpu_row
from definitions.looks import (
    AS_NAME,
    ORANGE,
    RANK_STATES,
    RED,
    YELLOW,
    dashed,
    named,
    sorted_by,
    steps,
)
from definitions.panels import (
    arrivals,
    now,
    query,
    rows,
    stat,
    states,
    table,
    timeseries,
)
from definitions.promql import ONE_RANK, behind, by_rank, most_behind, rank_state, silence_s

RUN = 'run="$run"'
_STATE = rank_state(ONE_RANK, RUN)
_RATE = "[$__rate_interval]"


def dashboard() -> builder.Dashboard:
    """The dashboard."""
    made = (
        board.board("hangwatch / Rank", board.RANK, "One rank, with all that is known of it.")
        .with_variable(
            board.one(
                "run",
                "Run",
                "label_values(hangwatch_run_info, run)",
                VariableSort.ALPHABETICAL_DESC,
            )
        )
        .with_variable(
            board.one(
                "rank",
                "Rank",
                'label_values(hangwatch_rank_up{run="$run"}, rank)',
                VariableSort.NUMERICAL_ASC,
            )
        )
        .annotation(board.verdicts(RUN))
    )
    made = _with_groups(_with_time(_with_summary(made)))
    made = _with_arrivals(made.with_row(builder.Row("Against its peers")))
    made = _with_process(made.with_row(builder.Row("The process")))
    return made.with_row(gpu_row(RUN, ONE_RANK))


def _with_summary(made: builder.Dashboard) -> builder.Dashboard:
    waits = (
        f"label_join(max by (op, group) (hangwatch_rank_wait_info{{{ONE_RANK}}}), "
        '"where", " of ", "op", "group")'
    )
    nowhere = f'label_replace(0 * max(hangwatch_rank_up{{{ONE_RANK}}}), "where", "nothing", "", "")'
    columns = {
        "node": "Node",
        "local_rank": "Local rank",
        "pid": "Process",
        "phase": "Phase",
        "recorder": "Recorder",
        "recorder_reason": "Why not native",
    }
    return (
        made.with_panel(
            stat(
                "State",
                "`own code`: it has issued nothing for longer than usual, and waits for nobody.",
                width=3,
            )
            .mappings(named(RANK_STATES))
            .with_target(now(f"max({_STATE})"))
        )
        .with_panel(
            stat("Silent for", "Since it made progress.", width=3)
            .unit("s")
            .decimals(0)
            .thresholds(steps((10, YELLOW), (60, ORANGE), (300, RED)))
            .no_value("gone")
            .with_target(now(f"max({silence_s(ONE_RANK)})"))
        )
        .with_panel(
            stat("Waits in", "The collective that it is blocked in now, and its group.", width=6)
            .text_mode(AS_NAME)
            .thresholds(steps((1, YELLOW)))
            .with_target(now(f"{waits} or on () {nowhere}", "{{where}}"))
        )
        .with_panel(
            table(
                "What it is",
                "Where it runs, how far it has come in its life, and what records it.",
                12,
                4,
                columns,
            ).targets(rows(f"max by ({', '.join(columns)}) (hangwatch_rank_info{{{ONE_RANK}}})"))
        )
    )


def _with_time(made: builder.Dashboard) -> builder.Dashboard:
    waiting = by_rank("hangwatch_rank_waiting_seconds", ONE_RANK)
    node = "on (run, node) max by (run, node)"
    of_node = f"and {node} (hangwatch_rank_up{{{ONE_RANK}}})"
    suspect = f"max(hangwatch_suspect_after_seconds{{{RUN}}} {of_node})"
    hang = f"max(hangwatch_hang_after_seconds{{{RUN}}} {of_node})"
    return made.with_panel(
        states("State over time", "As above, at each moment.", 24, 4)
        .mappings(named(RANK_STATES))
        .with_target(query(_STATE, "{{rank}} on {{node}}"))
    ).with_panel(
        timeseries(
            "Silence and waiting",
            "Where both rise together it is a victim: it waits for somebody. Where the silence "
            "rises alone it is in its own code, and others may wait for it.",
            width=12,
        )
        .unit("s")
        .with_target(query(f"max({silence_s(ONE_RANK)})", "silent for"))
        .with_target(query(f"max({waiting})", "waits for"))
        .with_target(query(suspect, "slow from"))
        .with_target(query(hang, "hang from"))
        .override_by_name("slow from", dashed("orange"))
        .override_by_name("hang from", dashed("red"))
    )


def _with_groups(made: builder.Dashboard) -> builder.Dashboard:
    def count(metric: str) -> str:
        return f"max by (group) ({metric}{{{ONE_RANK}}})"

    columns = {
        "group": "Group",
        "Value #A": "Issued",
        "Value #B": "by Python",
        "Value #C": "Completed",
        "Value #D": "Behind",
        "Value #E": "Point to point",
    }
    rates = [
        (f"sum by (group) (rate({metric}{{{ONE_RANK}}}{_RATE}))", legend)
        for metric, legend in (
            ("hangwatch_collectives_enqueued_total", "issued, {{group}}"),
            ("hangwatch_collectives_completed_total", "completed, {{group}}"),
            ("hangwatch_p2p_calls_total", "p2p, {{group}}"),
        )
    ]
    panel = timeseries(
        "Calls a second",
        "Collectives that it issued and that completed, and point-to-point calls.",
        width=12,
    ).unit("cps")
    for expression, legend in rates:
        panel = panel.with_target(query(expression, legend))
    return (
        made.with_panel(panel)
        .with_panel(
            table(
                "Its groups",
                "How far it has come in each group. Issued counts what Python and C++ issued "
                "(DDP, functional collectives, compiled graphs); Completed is not known of every "
                "backend. Behind: the furthest member of the group, 0 while anybody in it moves.",
                12,
                8,
                columns,
            )
            .targets(
                rows(
                    count("hangwatch_collectives_enqueued_total"),
                    count("hangwatch_collectives_entered_total"),
                    count("hangwatch_collectives_completed_total"),
                    f"max by (group) ({behind(ONE_RANK, RUN)})",
                    count("hangwatch_p2p_calls_total"),
                )
            )
            .sort_by(sorted_by("Behind", descending=True))
        )
        .with_panel(
            timeseries(
                "Behind the furthest of its groups",
                "Collectives, while the group stands still; and as counted last on this node "
                "alone, which while it moves may be half a second of work out of step where C++ "
                "issues the collectives. A lag that grows and grows is real.",
                width=12,
            )
            .unit("short")
            .with_target(query(most_behind(ONE_RANK, RUN), "standing"))
            .with_target(query(f"max(hangwatch_group_lag_collectives{{{ONE_RANK}}})", "counted"))
        )
    )


def _with_arrivals(made: builder.Dashboard) -> builder.Dashboard:
    delay = "hangwatch_arrival_delay_seconds_total"
    last = f"sum by (node, group) (rate(hangwatch_arrivals_last_total{{{ONE_RANK}}}{_RATE}))"
    counted = f"sum by (node, group) (rate(hangwatch_arrival_spread_seconds_count{{{RUN}}}{_RATE}))"
    period = "hangwatch_rank_loop_period_seconds"
    return (
        made.with_panel(
            timeseries(
                "How late it arrives",
                "Seconds behind the first rank of its node, in each second: its own, and the "
                "median of all ranks of the run.",
            )
            .unit("percentunit")
            .with_target(arrivals(f"sum(rate({delay}{{{ONE_RANK}}}{_RATE}))", "this rank"))
            .with_target(
                arrivals(
                    f"quantile(0.5, sum by (rank) (rate({delay}{{{RUN}}}{_RATE})))",
                    "median rank",
                )
            )
        )
        .with_panel(
            timeseries(
                "How often it arrives last",
                "Part of the collectives of each group in which it was the last of its node.",
            )
            .unit("percentunit")
            .max(1)
            .with_target(arrivals(f"{last} / on (node, group) ({counted} > 0)", "{{group}}"))
        )
        .with_panel(
            timeseries(
                "Time of a step",
                "Median time between two collectives of one line of code, of the line that "
                "comes by least often.",
            )
            .unit("s")
            .with_target(query(f"max({period}{{{ONE_RANK}}})", "this rank"))
            .with_target(query(f"quantile(0.5, {period}{{{RUN}}})", "median rank"))
        )
    )


def _with_process(made: builder.Dashboard) -> builder.Dashboard:
    return (
        made.with_panel(
            timeseries(
                "Heartbeat",
                "Age of its last sign of life that needs no GIL. It grows where the process is "
                "stopped, frozen or gone.",
            )
            .unit("s")
            .with_target(query(f"max(hangwatch_rank_heartbeat_age_seconds{{{ONE_RANK}}})", "age"))
        )
        .with_panel(
            timeseries(
                "GIL",
                "How long its sampler has been waiting for the GIL. Seconds mean native code "
                "that holds it.",
            )
            .unit("s")
            .with_target(query(f"max(hangwatch_rank_gil_delay_seconds{{{ONE_RANK}}})", "delay"))
        )
        .with_panel(
            stat(
                "Its agent",
                "Errors that the agent kept from the job, and whether it has stopped recording.",
                width=8,
                height=8,
            )
            .thresholds(steps((1, ORANGE)))
            .with_target(now(f"max(hangwatch_agent_errors_total{{{ONE_RANK}}})", "errors"))
            .with_target(now(f"max(hangwatch_agent_disarmed{{{ONE_RANK}}})", "disarmed"))
        )
    )
