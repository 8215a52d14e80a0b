"""The dashboard of one job: is it moving, who is behind, since when, on which node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.models.dashboard import VariableSort

from definitions import board
from definitions.gpu import gpu_row
from definitions.health import with_health
from definitions.looks import (
    NO_VERDICT,
    ORANGE,
    RANK_STATES,
    RED,
    RUN_STATES,
    YELLOW,
    coloured,
    coloured_verdicts,
    dashed,
    link,
    named,
    sorted_by,
    steps,
    unit,
)
from definitions.nodes import with_nodes
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
    JOB,
    JOB_RANKS,
    MAP_ROWS,
    at_end,
    behind,
    blamed,
    by_rank,
    gap,
    in_order,
    most,
    rank_state,
    run_state,
    silence_s,
)
from definitions.stragglers import with_stragglers

if TYPE_CHECKING:
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models.dashboard import Panel

RUN = 'run="$run"'
SUSPECT = f"max(hangwatch_suspect_after_seconds{{{JOB}}})"
TO_RANK = (
    f"/d/{board.RANK}?var-datasource=${{datasource}}&var-run=${{run}}"
    "&var-rank=${__data.fields.Rank}&${__url_time_range}"
)


def dashboard() -> builder.Dashboard:
    """The dashboard."""
    made = (
        board.board(
            "hangwatch / Job",
            board.JOB,
            "One job: is it moving, who is behind, since when and on which node.",
        )
        .with_variable(
            board.one(
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
                'label_values(hangwatch_run_info{run="$run"}, node)',
                VariableSort.ALPHABETICAL_ASC,
            )
        )
        .with_variable(
            board.several(
                "rank",
                "Rank",
                'label_values(hangwatch_rank_up{run="$run",node=~"$node"}, rank)',
                VariableSort.NUMERICAL_ASC,
            )
        )
        .annotation(board.verdicts(RUN))
    )
    made = _with_progress(_with_ranks(_with_summary(made)))
    made = with_stragglers(made.with_row(builder.Row("Stragglers: who arrives last")))
    made = with_nodes(made.with_row(builder.Row("Nodes")))
    made = with_health(made.with_row(builder.Row("hangwatch itself")))
    return made.with_row(gpu_row(JOB))


def _with_summary(made: builder.Dashboard) -> builder.Dashboard:
    """What is to be read within five seconds."""
    silent = f"min({silence_s(JOB_RANKS)})"
    return (
        made.with_panel(
            stat(
                "Is it moving?",
                "What the verdict says. Without a verdict: `moves`, or `quiet` where no rank has "
                "done anything new for longer than usual.",
                width=4,
            )
            .mappings(named(RUN_STATES))
            .with_target(now(run_state(RUN)))
        )
        .with_panel(
            stat("Silent for", "Since any rank made progress.", width=3)
            .unit("s")
            .decimals(0)
            .thresholds(steps((10, YELLOW), (60, ORANGE), (300, RED)))
            .with_target(now(silent))
        )
        .with_panel(
            stat(
                "Of its patience",
                "The silence as a part of --suspect-after (learnt from the job unless it is "
                "given). At 100 % the job is called slow, unless a hang can be proved before.",
                width=3,
            )
            .unit("percentunit")
            .decimals(0)
            .thresholds(steps((0.5, YELLOW), (1, RED)))
            .with_target(now(f"{silent} / {SUSPECT}"))
        )
        .with_panel(
            stat("Ranks", "Ranks that live, of all ranks of the job.", width=3)
            .unit("short")
            .thresholds(steps(base="blue"))
            .with_target(now(f"sum({by_rank('hangwatch_rank_up', JOB_RANKS)})", "alive"))
            .with_target(now(f"max(hangwatch_world_size{{{RUN}}})", "of"))
        )
        .with_panel(_verdict())
    )


def _verdict() -> Builder[Panel]:
    labels = "state, kind, reason, certainty, culprits"
    verdict = f"max by ({labels}) (hangwatch_verdict_info{{{RUN}}})"
    none = f'label_replace(0 * max(hangwatch_run_info{{{RUN}}}), "state", "{NO_VERDICT}", "", "")'
    columns = {
        "state": "State",
        "kind": "What",
        "reason": "Why",
        "culprits": "Culprits",
        "certainty": "How sure",
    }
    return (
        table(
            "Verdict",
            "Which ranks broke it and how, while the incident lasts. The line of code and what "
            "to do are on the job's standard error, and in the report below --report-dir "
            "(`hangwatch report DIR/latest`).",
            11,
            4,
            columns,
        )
        .targets(rows(f"{verdict} or on () {none}"))
        .override_by_name("State", coloured_verdicts())
    )


def _with_ranks(made: builder.Dashboard) -> builder.Dashboard:
    """The map of ranks over time, and the ranks at fault as a table."""
    waits = f"max by (node, rank, op, group) (hangwatch_rank_wait_info{{{JOB_RANKS}}})"
    columns = {
        "rank": "Rank",
        "node": "Node",
        "Value #A": "State",
        "Value #B": "Behind",
        "Value #C": "Silent for",
        "op": "Waits in",
        "group": "of group",
    }
    first = blamed(JOB_RANKS, 30, now=True)
    since = "hangwatch_rank_since_progress_seconds"
    return made.with_panel(
        states(
            "Ranks over time",
            "A row for each rank, by node. Yellow: it waits in a collective. Red: it has issued "
            "nothing for longer than usual and waits for nobody: it is in its own code (loading "
            "data, writing a checkpoint, computing, stuck). Where most are yellow and one is "
            "red, the red one holds up the others. Of large jobs, the 64 worst ranks of the "
            "time shown.",
            14,
            11,
        )
        .mappings(named(RANK_STATES))
        .with_target(
            query(
                in_order(rank_state(JOB_RANKS, JOB, blamed(JOB_RANKS, MAP_ROWS))),
                "{{rank}} on {{node}}",
            )
        )
    ).with_panel(
        table(
            "Who is behind",
            "Ranks now, the most likely culprits first: gone, silent in their own code, then "
            "those that wait. Behind: collectives that the rank is behind the furthest of its "
            "group (0 while anybody moves). A rank leads to its "
            "own dashboard.",
            10,
            11,
            columns,
        )
        .targets(
            rows(
                f"max by (node, rank) ({rank_state(JOB_RANKS, JOB, first)})",
                f"max by (node, rank) ({behind(JOB_RANKS, RUN, first)})",
                f"max by (node, rank) ({by_rank(since, JOB_RANKS, first)})",
                f"{waits} and on (node, rank) {first}",
            )
        )
        .override_by_name("State", coloured(RANK_STATES))
        .override_by_name("Silent for", unit("s", 0))
        .override_by_name("Rank", link("This rank", TO_RANK))
        .sort_by(
            [
                *sorted_by("State", descending=True),
                *sorted_by("Behind", descending=True),
            ]
        )
    )


def _with_progress(made: builder.Dashboard) -> builder.Dashboard:
    """Progress, lag, and what hangwatch holds for normal."""
    silence = silence_s(JOB_RANKS)
    since = "hangwatch_rank_since_progress_seconds"
    waiting = f"hangwatch_rank_waiting_seconds{{{JOB_RANKS}}}"
    enqueued, p2p = "hangwatch_collectives_enqueued_total", "hangwatch_p2p_calls_total"
    collectives = most(
        10,
        "group",
        f"max by (group) (rate({enqueued}{{{JOB_RANKS}}}[$__rate_interval]))",
        f"max by (group) ({at_end(enqueued, JOB_RANKS)})",
    )
    calls = most(
        10,
        "group",
        f"sum by (group) (rate({p2p}{{{JOB_RANKS}}}[$__rate_interval]))",
        f"sum by (group) ({at_end(p2p, JOB_RANKS)}) > 0",
    )
    return (
        made.with_panel(
            timeseries(
                "Silence, and how much of it is normal",
                "Seconds without progress of the rank that moved last (the job's silence) and "
                "of the one that is silent the longest, and the longest wait in a collective; "
                "against what --suspect-after and --hang-after stand at. One rank silent alone "
                "is a straggler; all of them is a stall.",
            )
            .unit("s")
            .with_target(query(f"min({since}{{{JOB_RANKS}}})", "least silent rank"))
            .with_target(query(f"max({silence})", "most silent rank"))
            .with_target(query(f"max({waiting})", "longest wait"))
            .with_target(query(SUSPECT, "slow from"))
            .with_target(query(f"max(hangwatch_hang_after_seconds{{{JOB}}})", "hang from"))
            .override_by_name("slow from", dashed("orange"))
            .override_by_name("hang from", dashed("red"))
        )
        .with_panel(
            timeseries(
                "Collectives a second",
                "Of the fastest member of each group, and point-to-point calls of all members; "
                "the ten busiest groups. A fall to zero is a stall; saw teeth are checkpoints "
                "or evaluations.",
            )
            .unit("cps")
            .with_target(query(collectives, "{{group}}"))
            .with_target(query(calls, "p2p in {{group}}"))
        )
        .with_panel(
            timeseries(
                "Gap within groups",
                "Collectives between the furthest and the last member of a group, the ten widest "
                "gaps. 0 while anybody moves, since members are not counted at one moment. No gap "
                "in a stall means that all have entered the same collective, or that none waits.",
            )
            .unit("short")
            .with_target(query(f"topk(10, {gap(RUN)})", "{{group}}"))
        )
    )
