"""The expressions that more than one panel needs.

They hold for a run on any number of nodes: every series has the labels ``run`` and
``node``, one target a node. What is joined is aggregated first, so that no two targets
with the same labels can make an expression fail.
"""

from __future__ import annotations

FLEET = 'run=~"$run",node=~"$node"'
"""The chosen runs, of the fleet's dashboard."""
JOB = 'run="$run",node=~"$node"'
"""The chosen nodes of the one chosen run."""
JOB_RANKS = f'{JOB},rank=~"$rank"'
ONE_RANK = 'run="$run",rank="$rank"'

MOVES, WAITS, OWN_CODE, GONE = range(4)
"""The values of rank_state()."""
RUN_MOVES, RUN_QUIET, RUN_SLOW, RUN_DESYNC, RUN_HANG, RUN_FAILED = range(6)
"""The values of run_state()."""

STANDS_S = 3
"""A group whose members are all silent for longer stands still."""
MAP_ROWS = 64
"""Rows of a map of ranks: what can be told apart on a screen."""


def by_rank(metric: str, where: str) -> str:
    """One value a rank."""
    return f"max by (run, node, rank) ({metric}{{{where}}})"


def by_node(metric: str, where: str) -> str:
    """One value a node."""
    return f"max by (run, node) ({metric}{{{where}}})"


def quiet_after_s(where: str) -> str:
    """How long a rank of a node may do nothing new until that is more than usual."""
    return f"clamp_min(2 * {by_node('hangwatch_usual_gap_seconds', where)}, {STANDS_S})"


def silence_s(where: str) -> str:
    """Seconds since the last progress of each living rank."""
    since = by_rank("hangwatch_rank_since_progress_seconds", where)
    return f"({since} and on (run, node, rank) {by_rank('hangwatch_rank_up', where)} == 1)"


def unseen(where: str) -> str:
    """Ranks of each node that no page was seen of; how many there should be may be unknown (0)."""
    expected = by_node("hangwatch_ranks_expected", where)
    seen = by_node("hangwatch_ranks_seen", where)
    return f"clamp_min({expected} - on (run, node) {seen}, 0)"


def rank_state(where: str, run: str) -> str:
    """MOVES; WAITS in a collective, OWN_CODE: neither moves nor waits; GONE.

    where: of the ranks, run: of their nodes.
    """
    up = by_rank("hangwatch_rank_up", where)
    since = by_rank("hangwatch_rank_since_progress_seconds", where)
    waiting = by_rank("hangwatch_rank_waiting_seconds", where)
    quiet = f"({since} > bool on (run, node) group_left () {quiet_after_s(run)})"
    return (
        f"(({up} == 0) + {GONE} or on (run, node, rank) "
        f"{quiet} * on (run, node, rank) ({OWN_CODE} - ({waiting} > bool 0)))"
    )


def run_state(where: str) -> str:
    """How the runs are: what the verdict says, else whether any rank moves."""
    verdicts = " or ".join(
        f'{value} * hangwatch_verdict_info{{{where},state="{state}"}}'
        for state, value in (
            ("failed", RUN_FAILED),
            ("hang", RUN_HANG),
            ("desync", RUN_DESYNC),
            ("slow", RUN_SLOW),
        )
    )
    quiet = f"max by (run) ({quiet_after_s(where)})"
    moving = f"(min by (run) ({silence_s(where)}) > bool {quiet})"
    return f"max by (run) ({verdicts} or {moving} or 0 * hangwatch_run_info{{{where}}})"


def behind(where: str, run: str) -> str:
    """Collectives that each rank is behind the furthest of its group, by group.

    0 while any member of the group makes progress: nodes are scraped one after the other,
    and what C++ issues is counted twice a second on each rank, so that healthy ranks seem
    to be hundreds behind each other.
    run: of all nodes of the run.
    """
    enqueued = "hangwatch_collectives_enqueued_total"
    labels = "run, node, rank, group"
    own = f"max by ({labels}) ({enqueued}{{{where}}})"
    members = f"0 * max by ({labels}) ({enqueued}{{{run}}})"
    since = by_rank("hangwatch_rank_since_progress_seconds", run)
    silence = f"min by (run, group) ({members} + on (run, node, rank) group_left () {since})"
    stands = f"(max by (run, group) ({enqueued}{{{run}}}) and {silence} > {STANDS_S})"
    return f"({stands} - on (run, group) group_right () {own} or 0 * {own})"


def most_behind(where: str, run: str) -> str:
    """The same of the group in which each rank is behind the most."""
    return f"max by (run, node, rank) ({behind(where, run)})"


def worst_ranks(where: str) -> str:
    """The ranks for a map: those that were gone or silent without waiting the longest.

    The same ones for the whole range shown.
    """
    gone = f"(1 - min by (run, node, rank) (min_over_time(hangwatch_rank_up{{{where}}}{_SHOWN})))"
    since = f"max_over_time(hangwatch_rank_since_progress_seconds{{{where}}}{_SHOWN})"
    waiting = f"max_over_time(hangwatch_rank_waiting_seconds{{{where}}}{_SHOWN})"
    return (
        f"topk({MAP_ROWS}, 1e6 * {gone} + on (run, node, rank) "
        f"max by (run, node, rank) ({since}) - on (run, node, rank) "
        f"max by (run, node, rank) ({waiting}))"
    )


def latest_ranks(where: str) -> str:
    """The ranks for a map: those that the others of their node waited for the longest."""
    delay = f"increase(hangwatch_arrival_delay_seconds_total{{{where}}}{_SHOWN})"
    return f"topk({MAP_ROWS}, sum by (run, node, rank) ({delay}))"


def in_order(ranks: str) -> str:
    """Series of ranks by node and number: Prometheus orders them by their labels' text."""
    padded = f'label_replace({ranks}, "order", "0000$1", "rank", "(.+)")'
    return f'label_replace({padded}, "order", "$1", "order", ".*(.{{5}})")'


_SHOWN = "[$__range] @ end()"
