"""The metric families of one snapshot, without the labels that all of them have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from hangwatch.evidence.pages.arrivals import BOUNDS_S, GroupArrivals
from hangwatch.metrics.labels import cut, rank_label
from hangwatch.metrics.snapshot import NodeSnapshot, OwnState, RankState

Row = tuple[tuple[str, ...], float]
"""Label values, and a value."""

NAMESPACE = "hangwatch_"
_BOUNDS = (*map(str, BOUNDS_S), "+Inf")


def families(snapshot: NodeSnapshot) -> Iterator[Metric]:
    """All of them. Ages are as of the snapshot."""
    yield from _job(snapshot)
    yield from _ranks(snapshot.ranks)
    yield from _beats(snapshot)
    yield from _waits(snapshot)
    yield from _progress(snapshot)
    yield from _arrivals(snapshot.arrivals)
    yield from _verdicts(snapshot)
    yield from _own(snapshot.own)


def _job(snapshot: NodeSnapshot) -> Iterator[Metric]:
    limits = snapshot.thresholds
    for name, value, help_text in (
        ("world_size", snapshot.world_size, "Ranks of the job, 0 while unknown."),
        ("ranks_expected", snapshot.expected, "Ranks that this node should have, 0 if unknown."),
        ("ranks_seen", len(snapshot.ranks), "Ranks of this node that have been seen."),
        (
            "usual_gap_seconds",
            snapshot.usual_gap_s,
            "The longest time without a new collective in a typical half minute of the job.",
        ),
        ("suspect_after_seconds", limits.suspect_after_s, "Waiting so long is called slow."),
        ("hang_after_seconds", limits.hang_after_s, "Waiting so long is called a hang."),
    ):
        yield _gauge(name, help_text, (), [((), value)])


def _ranks(ranks: Iterable[RankState]) -> Iterator[Metric]:
    yield _gauge(
        "rank_up",
        "Whether the process of the rank runs.",
        ("rank",),
        [((_rank(one),), one.alive) for one in ranks],
    )
    yield _info(
        "rank",
        "What the rank is, and what it is recorded by.",
        (
            "rank",
            "local_rank",
            "pid",
            "phase",
            "recorder",
            "recorder_reason",
            "beacons",
            "torch_lacks",
        ),
        [_rank_info(one) for one in ranks],
    )
    yield _gauge(
        "rank_loop_period_seconds",
        "Median time between two collectives from one line of code, of the line that recurs "
        "least often of those in the rank's ring: one turn of the training loop.",
        ("rank",),
        [((_rank(one),), one.loop_period_s) for one in ranks if one.loop_period_s is not None],
    )
    yield _counter(
        "agent_errors_total",
        "Errors of hangwatch's own that the agent has kept from the job.",
        ("rank",),
        [((_rank(one),), one.page.swallowed) for one in ranks],
    )
    yield _gauge(
        "agent_disarmed",
        "Whether the agent has given up recording the rank.",
        ("rank",),
        [((_rank(one),), bool(one.page.disarmed)) for one in ranks],
    )


def _rank_info(one: RankState) -> tuple[str, ...]:
    page = one.page
    identity = page.identity
    return (
        *(_rank(one), str(identity.local_rank), str(identity.pid)),
        *(page.phase, cut(page.recorder), cut(page.recorder_reason), cut(page.beacons)),
        cut(page.torch_lacks),
    )


def _beats(snapshot: NodeSnapshot) -> Iterator[Metric]:
    pages = [(_rank(one), one.page) for one in snapshot.ranks if one.alive]
    yield _gauge(
        "rank_heartbeat_age_seconds",
        "Age of the last beat of the rank's agent that needs no GIL.",
        ("rank",),
        [
            ((rank,), _age_s(snapshot.at_ns, page.heartbeat_ns))
            for rank, page in pages
            if page.heartbeat_ns
        ],
    )
    yield _gauge(
        "rank_gil_delay_seconds",
        "How far the last beat that needs the GIL lies behind the last one of any kind, or, "
        "where all need it, how old it is.",
        ("rank",),
        [
            ((rank,), _age_s(page.heartbeat_ns or snapshot.at_ns, page.gil_ns))
            for rank, page in pages
            if page.gil_ns
        ],
    )


def _waits(snapshot: NodeSnapshot) -> Iterator[Metric]:
    ranks, at_ns = snapshot.ranks, snapshot.at_ns
    yield _gauge(
        "rank_since_progress_seconds",
        "Time since the rank last issued something, or came to another phase of its life.",
        ("rank",),
        [((_rank(one),), _age_s(at_ns, one.moved_ns)) for one in ranks],
    )
    yield _gauge(
        "rank_waiting_seconds",
        "How long the rank has been waiting for others, 0 where it does not.",
        ("rank",),
        [((_rank(one),), _age_s(at_ns, one.wait.since_ns) if one.wait else 0.0) for one in ranks],
    )
    yield _info(
        "rank_wait",
        "What the rank waits in, while it waits.",
        ("rank", "group", "op"),
        [(_rank(one), one.wait.group, cut(one.wait.op)) for one in ranks if one.wait],
    )


def _progress(snapshot: NodeSnapshot) -> Iterator[Metric]:
    places = [((_rank(one), label), group) for one in snapshot.ranks for label, group in one.groups]
    labels = ("rank", "group")
    counters: tuple[tuple[str, str, list[Row]], ...] = (
        (
            "collectives_enqueued_total",
            "Collectives that the rank has issued in the group, from Python and from C++.",
            [(names, group.enqueued) for names, group in places],
        ),
        (
            "collectives_entered_total",
            "Collectives that Python code of the rank has issued in the group.",
            [(names, group.entered) for names, group in places],
        ),
        (
            "collectives_completed_total",
            "Collectives of the group that are known to be complete on the rank.",
            [(names, group.completed) for names, group in places if group.completed >= 0],
        ),
        (
            "p2p_calls_total",
            "Point-to-point calls that the rank has issued in the group.",
            [(names, group.p2p) for names, group in places],
        ),
    )
    for name, help_text, rows in counters:
        yield _counter(name, help_text, labels, rows)
    yield _gauge(
        "group_lag_collectives",
        "How many collectives the rank has issued less than the furthest of the group's members "
        "on this node had a second ago: who is only counted a little later has no lag.",
        labels,
        [
            (names, max(0, snapshot.reached.get(names[1], 0) - group.enqueued))
            for names, group in places
        ],
    )


def _arrivals(arrivals: Iterable[GroupArrivals]) -> Iterator[Metric]:
    spread = HistogramMetricFamily(
        f"{NAMESPACE}arrival_spread_seconds",
        "Last minus first arrival of this node's members at a collective of the group, of the "
        "collectives that were seen in the rings of all of them.",
        labels=("group",),
    )
    last: list[Row] = []
    delay: list[Row] = []
    for one in arrivals:
        buckets = list(zip(_BOUNDS, map(float, accumulate(one.buckets)), strict=True))
        spread.add_metric((one.group,), buckets, one.spread_s)
        last += [((str(rank), one.group), count) for rank, count in one.last]
        delay += [((str(rank), one.group), seconds) for rank, seconds in one.delay_s]
    yield spread
    yield _counter(
        "arrivals_last_total",
        "Collectives of hangwatch_arrival_spread_seconds at which the rank was the last.",
        ("rank", "group"),
        last,
    )
    yield _counter(
        "arrival_delay_seconds_total",
        "Time that the rank arrived after the first one, at all these collectives together.",
        ("rank", "group"),
        delay,
    )


def _verdicts(snapshot: NodeSnapshot) -> Iterator[Metric]:
    yield _info(
        "verdict",
        "What is wrong with the job, as long as it is. culprits: ranks.",
        ("state", "kind", "reason", "cause", "certainty", "culprits"),
        [
            (
                one.state,
                one.kind or "",
                one.reason,
                one.cause.what if one.cause is not None else "",
                one.certainty,
                rank_label(one.culprits),
            )
            for one in snapshot.verdicts
        ],
    )
    yield _counter(
        "verdicts_total",
        "Verdicts that were announced.",
        ("state", "kind"),
        [((state, kind or ""), count) for (state, kind), count in snapshot.told.items()],
    )


def _own(own: OwnState) -> Iterator[Metric]:
    yield _gauge(
        "watchdog_loop_delay_seconds",
        "How much later than it should the watchdog's last look at the ranks began, or how "
        "long the next one is overdue.",
        (),
        [((), own.late_s)],
    )
    yield SummaryMetricFamily(
        f"{NAMESPACE}watchdog_look_seconds",
        "Time that the watchdog's looks at the ranks have taken.",
        count_value=own.looks,
        sum_value=own.look_s,
    )
    yield _counter(
        "watchdog_failures_total",
        "Looks of the watchdog that ended in an error of its own.",
        (),
        [((), own.failures)],
    )
    yield _gauge(
        "watchdog_lost",
        "What the watchdog could not do, counted by what it is about.",
        ("what",),
        [((cut(what),), count) for what, count in own.lost.items()],
    )


def _rank(one: RankState) -> str:
    return str(one.page.identity.rank)


def _age_s(at_ns: int, then_ns: int) -> float:
    return max(0, at_ns - then_ns) / 1e9


def _gauge(name: str, help_text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(NAMESPACE + name, help_text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _counter(name: str, help_text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    family = CounterMetricFamily(NAMESPACE + name, help_text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _info(
    name: str, help_text: str, labels: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> Metric:
    """``name`` without the ``_info`` that Prometheus sees."""
    family = InfoMetricFamily(NAMESPACE + name, help_text, labels=labels)
    for values in rows:
        family.add_metric(values, {})
    return family
