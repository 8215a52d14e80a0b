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
"""A run whose ranks are all silent for longer stands still."""
MAP_ROWS = 64
"""Rows of a map of ranks: what can be told apart on a screen."""


def by_rank(metric: str, where: str, chosen: str = "") -> str:
    """One value a rank. chosen: an expression; only of ranks that it has a value of."""
    among = f" and on (run, node, rank) {chosen}" if chosen else ""
    return f"max by (run, node, rank) ({metric}{{{where}}}{among})"


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


def rank_state(where: str, run: str, chosen: str = "") -> str:
    """MOVES; WAITS in a collective, OWN_CODE: neither moves nor waits; GONE.

    where: of the ranks, run: of their nodes, chosen: as of by_rank().
    """
    up = by_rank("hangwatch_rank_up", where, chosen)
    since = by_rank("hangwatch_rank_since_progress_seconds", where, chosen)
    waiting = by_rank("hangwatch_rank_waiting_seconds", where, chosen)
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


def behind(where: str, run: str, chosen: str = "") -> str:
    """Collectives that each rank is behind the furthest of its group, by group.

    0 while any rank of the run makes progress: nodes are scraped one after the other,
    and what C++ issues is counted twice a second on each rank, so that healthy ranks seem
    to be hundreds behind each other.
    run: of all nodes of the run. chosen: as of by_rank().
    """
    among = f" and on (run, node, rank) {chosen}" if chosen else ""
    own = f"max by (run, node, rank, group) ({_ENQUEUED}{{{where}}}{among})"
    furthest = f"(max by (run, group) ({_ENQUEUED}{{{run}}}) and on (run) {stands(run)} == 1)"
    return f"({furthest} - on (run, group) group_right () {own} or 0 * {own})"


def most_behind(where: str, run: str, chosen: str = "") -> str:
    """The same of the group in which each rank is behind the most."""
    return f"max by (run, node, rank) ({behind(where, run, chosen)})"


def gap(run: str) -> str:
    """The furthest member of each group less its last, 0 while the run moves."""
    furthest = f"max by (run, group) ({_ENQUEUED}{{{run}}})"
    last = f"min by (run, group) ({_ENQUEUED}{{{run}}})"
    return f"({furthest} - {last}) * on (run) group_left () {stands(run)}"


def stands(run: str) -> str:
    """1 for a run none of whose ranks has made progress for a moment, else 0."""
    return f"(min by (run) (hangwatch_rank_since_progress_seconds{{{run}}}) > bool {STANDS_S})"


def blamed(where: str, count: int, *, now: bool = False) -> str:
    """The ranks that were gone, or silent without waiting, the longest.

    In the whole time shown, so that they are the same ones at each moment of it; or now.
    """
    up, since, waiting = (
        f"hangwatch_rank_{name}{{{where}}}"
        for name in ("up", "since_progress_seconds", "waiting_seconds")
    )
    if not now:
        up = f"min_over_time({up}{_SHOWN})"
        since, waiting = f"max_over_time({since}{_SHOWN})", f"max_over_time({waiting}{_SHOWN})"
    labels = "run, node, rank"
    return (
        f"topk({count}, 1e6 * (1 - min by ({labels}) ({up})) + on ({labels}) "
        f"max by ({labels}) ({since}) - on ({labels}) max by ({labels}) ({waiting}))"
    )


def latest_ranks(where: str) -> str:
    """The ranks for a map: those that the others of their node waited for the longest."""
    delay = f"increase(hangwatch_arrival_delay_seconds_total{{{where}}}{_SHOWN})"
    return f"topk({MAP_ROWS}, sum by (run, node, rank) ({delay}))"


def most(count: int, labels: str, figure: str, score: str) -> str:
    """Of many series those few that have the highest score at the end of the time shown.

    The same ones for all of it, where topk() of the figure would take others at each moment.
    score: of a selector, with ``@ end()`` where it needs to be.
    """
    return f"{figure} and on ({labels}) topk({count}, {score})"


def at_end(metric: str, where: str) -> str:
    """The last value of the time shown."""
    return f"{metric}{{{where}}} @ end()"


def in_all(metric: str, where: str) -> str:
    """By how much a counter rose in the time shown."""
    return f"increase({metric}{{{where}}}{_SHOWN})"


def in_order(ranks: str) -> str:
    """Series of ranks by node and number: Prometheus orders them by their labels' text."""
    padded = f'label_replace({ranks}, "order", "0000$1", "rank", "(.+)")'
    return f'label_replace({padded}, "order", "$1", "order", ".*(.{{5}})")'


_ENQUEUED = "hangwatch_collectives_enqueued_total"
_SHOWN = "[$__range] @ end()"
