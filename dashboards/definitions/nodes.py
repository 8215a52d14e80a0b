"""The row on the nodes of a job: whether it is one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from definitions.looks import (
    RANK_STATES,
    named,
    sorted_by,
    unit,
)
from definitions.panels import (
    query,
    rows,
    states,
    table,
)
from definitions.promql import (
    JOB,
    JOB_RANKS,
    MAP_ROWS,
    blamed,
    by_node,
    by_rank,
    most_behind,
    rank_state,
    silence_s,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard as builder

RUN = 'run="$run"'


def with_nodes(made: builder.Dashboard) -> builder.Dashboard:
    """Tell whether it is one node."""
    silence = f"min by (node) ({silence_s(JOB_RANKS)})"
    own_code = f"sum by (node) ({rank_state(JOB_RANKS, JOB)} == bool 2)"
    waiting = f"sum by (node) ({rank_state(JOB_RANKS, JOB)} == bool 1)"
    columns = {
        "node": "Node",
        "Value #A": "Alive",
        "Value #B": "Expected",
        "Value #C": "Wait",
        "Value #D": "In own code",
        "Value #E": "Silent for",
        "Value #F": "Behind",
    }
    worst = rank_state(JOB_RANKS, JOB, blamed(JOB_RANKS, MAP_ROWS))
    return made.with_panel(
        table(
            "Ranks by node",
            "Where the ranks that wait are, and where those are that they may wait for.",
            12,
            8,
            columns,
        )
        .targets(
            rows(
                f"sum by (node) ({by_rank('hangwatch_rank_up', JOB_RANKS)})",
                f"max by (node) ({by_node('hangwatch_ranks_expected', JOB)})",
                waiting,
                own_code,
                silence,
                f"max by (node) ({most_behind(JOB_RANKS, RUN)})",
            )
        )
        .override_by_name("Silent for", unit("s", 0))
        .sort_by(sorted_by("In own code", descending=True))
    ).with_panel(
        states(
            "Nodes over time",
            "The worst state of any rank of each node: the node whose row turns red first is "
            "the one to look at. Of large jobs, the nodes of the 64 worst ranks.",
            12,
            8,
        )
        .mappings(named(RANK_STATES))
        .with_target(query(f"max by (node) ({worst})", "{{node}}"))
    )
