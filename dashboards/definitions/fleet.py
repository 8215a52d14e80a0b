"""The dashboard of all runs on all nodes: it shows which of them needs somebody."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.models.dashboard import VariableSort

from definitions import board
from definitions.fleet_nodes import fleet_gpus, with_fleet_nodes
from definitions.looks import (
    NO_VERDICT,
    ORANGE,
    PURPLE,
    RED,
    RUN_STATES,
    YELLOW,
    coloured,
    coloured_verdicts,
    link,
    named,
    plain,
    sorted_by,
    steps,
    unit,
)
from definitions.panels import (
    now,
    query,
    rows,
    stat,
    states,
    table,
    timeseries,
)
from definitions.promql import (
    FLEET,
    RUN_DESYNC,
    RUN_HANG,
    RUN_QUIET,
    RUN_SLOW,
    by_node,
    by_rank,
    run_state,
    silence_s,
    unseen,
)

TO_JOB = (
    f"/d/{board.JOB}?var-datasource=${{datasource}}"
    "&var-run=${__data.fields.Run}&${__url_time_range}"
)
_STATE = run_state(FLEET)


def dashboard() -> builder.Dashboard:
    """The dashboard."""
    made = (
        board.board(
            "hangwatch / Fleet",
            board.FLEET,
            "All runs on all nodes: which of them hang, and where hangwatch is blind.",
        )
        .with_variable(
            board.several(
                "run",
                "Run",
                "label_values(hangwatch_run_info, run)",
                VariableSort.ALPHABETICAL_DESC,
            )
        )
        .with_variable(
            board.several(
                "node",
                "Node",
                'label_values(hangwatch_run_info{run=~"$run"}, node)',
                VariableSort.ALPHABETICAL_ASC,
            )
        )
        .annotation(board.verdicts(FLEET))
    )
    made = _with_runs(_with_summary(made))
    made = with_fleet_nodes(made.with_row(builder.Row("Nodes and their watchdogs")))
    return made.with_row(fleet_gpus())


def _with_summary(made: builder.Dashboard) -> builder.Dashboard:
    """How many runs need somebody."""

    def runs(title: str, description: str, condition: str, color: str) -> None:
        made.with_panel(
            stat(title, description, width=3)
            .thresholds(steps((1, color)))
            .with_target(now(f"count({_STATE} {condition}) or vector(0)"))
        )

    made.with_panel(
        stat("Runs", "Runs that are under watch now.", width=3)
        .thresholds(plain())
        .with_target(now(f"count(count by (run) (hangwatch_run_info{{{FLEET}}})) or vector(0)"))
    )
    hang = f">= {RUN_HANG}"
    runs("Hang or failed", "Runs whose verdict is a hang, or why they failed.", hang, RED)
    slow = f"== {RUN_SLOW}"
    runs("Slow", "Runs that wait for longer than --suspect-after, and may recover.", slow, ORANGE)
    desync = f"== {RUN_DESYNC}"
    runs("Out of step", "Runs whose ranks have not issued the same.", desync, PURPLE)
    quiet = f"== {RUN_QUIET}"
    runs("Quiet", "Runs in which nothing has moved for longer than usual.", quiet, YELLOW)
    alive = f"sum({by_rank('hangwatch_rank_up', FLEET)})"
    return (
        made.with_panel(
            stat("Ranks alive", "Of all runs.", width=3)
            .thresholds(plain())
            .with_target(now(f"{alive} or vector(0)"))
        )
        .with_panel(
            stat(
                "Blind ranks",
                "Ranks that were expected and that no watchdog has seen a page of: python -I, "
                "another PYTHONPATH, or not started yet; and ranks whose agent is disarmed.",
                width=3,
            )
            .thresholds(steps((1, ORANGE)))
            .with_target(
                now(f"sum({unseen(FLEET)}) + sum(hangwatch_agent_disarmed{{{FLEET}}}) or vector(0)")
            )
        )
        .with_panel(
            stat(
                "Watchdogs down",
                "Watchdogs that Prometheus knows of and cannot reach.",
                width=3,
            )
            .thresholds(steps((1, RED)))
            .with_target(now('count(up{job="hangwatch"} == 0) or vector(0)'))
        )
    )


def _with_runs(made: builder.Dashboard) -> builder.Dashboard:
    silence = f"min by (run) ({silence_s(FLEET)})"
    labels = "run, state, kind, reason, culprits"
    of_each = f"max by (run) (hangwatch_run_info{{{FLEET}}})"
    none = f'label_replace({of_each}, "state", "{NO_VERDICT}", "", "")'
    verdict = f"max by ({labels}) (hangwatch_verdict_info{{{FLEET}}})"
    columns = {
        "run": "Run",
        "Value #A": "State",
        "state": "Verdict",
        "kind": "What",
        "reason": "Why",
        "culprits": "Culprits",
        "Value #C": "Silent for",
        "Value #D": "Alive",
        "Value #E": "World",
        "Value #F": "Nodes",
        "command": "Command",
    }
    rate = (
        "max by (run, group) "
        f"(rate(hangwatch_collectives_enqueued_total{{{FLEET}}}[$__rate_interval]))"
    )
    counted = f"max_over_time(hangwatch_verdicts_total{{{FLEET}}}[$__range])"
    verdicts = f"sum by (run, state, kind) ({counted}) > 0"
    of_all = f"0 * max(hangwatch_run_info{{{FLEET}}})"
    nothing = f'label_replace({of_all}, "state", "{NO_VERDICT}", "", "")'
    return (
        made.with_panel(
            table(
                "Runs",
                "Those that need somebody first. A run leads to its own dashboard.",
                24,
                9,
                columns,
            )
            .targets(
                rows(
                    _STATE,
                    f"{verdict} or on (run) {none}",
                    silence,
                    f"sum by (run) ({by_rank('hangwatch_rank_up', FLEET)})",
                    f"max by (run) (hangwatch_world_size{{{FLEET}}})",
                    f"count by (run) ({by_node('hangwatch_run_info', FLEET)})",
                    f"max by (run, command) (hangwatch_run_info{{{FLEET}}})",
                )
            )
            .override_by_name("Run", link("This run", TO_JOB))
            .override_by_name("State", coloured(RUN_STATES))
            .override_by_name("Verdict", coloured_verdicts())
            .override_by_name("Silent for", unit("s", 0))
            .sort_by(
                [
                    *sorted_by("State", descending=True),
                    *sorted_by("Silent for", descending=True),
                ]
            )
        )
        .with_panel(
            states("Runs over time", "How each run was at each moment.", 12, 9)
            .mappings(named(RUN_STATES))
            .with_target(query(_STATE, "{{run}}"))
        )
        .with_panel(
            table(
                "Verdicts in the time shown",
                "How often each was reached, also in runs that have ended since.",
                12,
                9,
                {"run": "Run", "state": "State", "kind": "What", "Value": "Times"},
            )
            .targets(rows(f"{verdicts} or on () {nothing}"))
            .override_by_name("State", coloured_verdicts())
            .override_by_name("Run", link("This run", TO_JOB))
            .sort_by(sorted_by("Run", descending=True))
        )
        .with_panel(
            timeseries(
                "Silence",
                "Seconds since any rank of the run made progress: the ten longest.",
                width=12,
            )
            .unit("s")
            .with_target(query(f"topk(10, {silence})", "{{run}}"))
        )
        .with_panel(
            timeseries(
                "Collectives a second",
                "Of the busiest group of each run.",
                width=12,
            )
            .unit("cps")
            .with_target(query(f"max by (run) ({rate})", "{{run}}"))
        )
    )
