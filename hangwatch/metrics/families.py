"""The metric families of one node, made from its last snapshot.

The watchdog's loop makes a new snapshot at each look, and the threads that answer scrapes read
the last one. So nothing in it ever changes. Labels of groups are made before, by the loop.

A row is the values of a family's labels, and its value; rows whose value is None are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from hangwatch.console import cut
from hangwatch.evidence.pages.arrivals import GroupArrivals
from hangwatch.evidence.timing import ARRIVAL_BOUNDS_S
from hangwatch.metrics.labels import command_label, label
from hangwatch.model.kinds import Kind, State
from hangwatch.model.page import PageGroup, RankPage
from hangwatch.model.report import RunInfo, Straggler
from hangwatch.model.snapshot import Thresholds
from hangwatch.model.verdict import Verdict
from hangwatch.safety.texts import readable, readable_all
from hangwatch.text import fold_ranks

Row = tuple[tuple[str, ...], float | None]

NAMESPACE = "hangwatch_"
_BOUNDS = (*map(str, ARRIVAL_BOUNDS_S), "+Inf")


@dataclass(frozen=True, slots=True)
class WaitState:
    """The call in which a rank waits. ``group`` is a label, empty if it is unknown."""

    since_ns: int
    op: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of this node that has a page. Times are CLOCK_MONOTONIC."""

    page: RankPage
    alive: bool
    moved_ns: int
    """Time of the last call that it issued."""
    groups: tuple[tuple[str, PageGroup], ...] = ()
    """Live groups with their labels."""
    wait: WaitState | None = None
    loop_period_s: float | None = None


@dataclass(frozen=True, slots=True)
class OwnState:
    """The watchdog itself."""

    looks: int = 0
    look_s: float = 0.0
    """Seconds spent looking, in all."""
    late_s: float = 0.0
    """Delay of the last look."""
    failures: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    """Number of losses of each sort."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node as its watchdog sees it."""

    at_ns: int
    """CLOCK_MONOTONIC: all ages are as of then."""
    thresholds: Thresholds
    usual_gap_s: float
    world_size: int = 0
    expected: int = 0
    """Ranks that this node should have, 0 while that is not known."""
    torch: str = ""
    ranks: tuple[RankState, ...] = ()
    reached: Mapping[str, int] = field(default_factory=dict)
    """Label of a group to how far its furthest member on this node was a second ago."""
    arrivals: tuple[GroupArrivals, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts that are still true."""
    announced: Mapping[tuple[State, Kind | None], int] = field(default_factory=dict)
    """Number of announcements so far."""
    straggler: Straggler | None = None
    """The ranks that make the job slow now."""
    straggler_lost_s: float = 0.0
    """Time that stragglers have cost the job."""
    straggler_measured_s: float = 0.0
    """Time in which it was known which rank waits for which."""
    own: OwnState = field(default_factory=OwnState)


def family(name: str, help_text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    """Make a counter if the name ends in ``_total``, else a gauge."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    made = kind(NAMESPACE + name, help_text, labels=labels)
    for values, number in rows:
        if number is not None:
            made.add_metric(values, number)
    return made


def info(
    name: str, help_text: str, labels: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> Metric:
    """Make an info, whose rows have no value. ``name``: without the ``_info`` of its series."""
    made = InfoMetricFamily(NAMESPACE + name, help_text, labels=labels)
    for values in rows:
        made.add_metric(values, {})
    return made


class NodeCollector(Collector):
    """Makes the metrics of a scrape, in any thread.

    snapshot: the last one, None before there is any. extra: makers of further
    families, which need not have the labels ``run`` and ``node``; if one fails
    its families are missing, and on_error gets the exception.
    """

    def __init__(  # noqa: PLR0913 (all by keyword)
        self,
        *,
        run: RunInfo,
        node: str,
        interval_s: float,
        snapshot: Callable[[], NodeSnapshot | None],
        extra: Sequence[Callable[[], Iterable[Metric]]] = (),
        on_error: Callable[[Exception], None] = lambda _: None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._run = run
        self.constant = {"run": cut(run.run_id, 128), "node": label(readable(node))}
        """Labels that all series have."""
        self._interval_s = interval_s
        self._snapshot = snapshot
        self._extra = extra
        self._on_error = on_error
        self._now_ns = now_ns

    def collect(self) -> Iterator[Metric]:
        """Yield all families, with the labels that all series have."""
        for metric in self._families():
            metric.samples = [
                sample._replace(labels=readable_all({**self.constant, **sample.labels}))
                for sample in metric.samples
            ]
            yield metric

    def _families(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        version = self._run.versions.get("hangwatch", "")
        torch = snapshot.torch if snapshot else ""
        row = (version, command_label(self._run.command), label(torch))
        yield info("run", "The job that is watched.", ("version", "command", "torch"), [row])
        if snapshot is not None:
            # The watchdog may have got stuck since.
            age_s = (self._now_ns() - snapshot.at_ns) / 1e9
            late_s = max(snapshot.own.late_s, age_s - self._interval_s)
            yield from families(replace(snapshot, own=replace(snapshot.own, late_s=late_s)))
        for make in self._extra:
            try:
                yield from list(make())
            except Exception as error:  # noqa: BLE001 (the rest is worth having without them)
                self._on_error(error)


def families(snapshot: NodeSnapshot) -> Iterator[Metric]:
    """Yield the families of a snapshot. Ages are as of the snapshot."""
    yield from _of_node(snapshot)
    ranks = [(str(one.page.identity.rank), one) for one in snapshot.ranks]
    for name, help_text, value in _OF_RANKS:
        rows = [((rank,), value(one, snapshot.at_ns)) for rank, one in ranks]
        yield family(name, help_text, ("rank",), rows)
    yield from _rank_infos(ranks)
    groups = [((rank, name), group) for rank, one in ranks for name, group in one.groups]
    for name, help_text, count in _OF_GROUPS:
        counts = [(labels, count(group)) for labels, group in groups]
        yield family(name, help_text, ("rank", "group"), counts)
    yield family(
        "group_lag_collectives",
        "Collectives by which the rank is behind the furthest member of the group on this node, as "
        "of a second ago, so that a rank that is only counted a little later has no lag.",
        ("rank", "group"),
        [
            ((rank, name), max(0, snapshot.reached.get(name, 0) - group.enqueued))
            for (rank, name), group in groups
        ],
    )
    yield from _arrivals(snapshot.arrivals)
    yield from _stragglers(snapshot)
    yield from _verdicts(snapshot)


def _of_node(snapshot: NodeSnapshot) -> Iterator[Metric]:
    limits, own = snapshot.thresholds, snapshot.own
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
        (
            "watchdog_loop_delay_seconds",
            own.late_s,
            "Delay of the watchdog's last look at the ranks, or of the next if it is overdue.",
        ),
        (
            "watchdog_failures_total",
            own.failures,
            "Looks of the watchdog that ended in an error of its own.",
        ),
    ):
        yield family(name, help_text, (), [((), value)])
    yield SummaryMetricFamily(
        f"{NAMESPACE}watchdog_look_seconds",
        "Time that the watchdog's looks at the ranks have taken.",
        count_value=own.looks,
        sum_value=own.look_s,
    )
    yield family(
        "watchdog_lost",
        "Things that the watchdog could not do, by subject.",
        ("what",),
        [((label(what),), count) for what, count in own.lost.items()],
    )


def _age_s(at_ns: int, then_ns: int) -> float:
    return max(0, at_ns - then_ns) / 1e9


def _heartbeat_age_s(rank: RankState, at_ns: int) -> float | None:
    beat_ns = rank.page.heartbeat_ns
    return _age_s(at_ns, beat_ns) if rank.alive and beat_ns else None


def _gil_delay_s(rank: RankState, at_ns: int) -> float | None:
    page = rank.page
    return _age_s(page.heartbeat_ns or at_ns, page.gil_ns) if rank.alive and page.gil_ns else None


_OF_RANKS: tuple[tuple[str, str, Callable[[RankState, int], float | None]], ...] = (
    ("rank_up", "1 if the process of the rank runs, else 0.", lambda rank, _: rank.alive),
    (
        "rank_loop_period_seconds",
        (
            "Median time between two collectives from one line of code, of the line that recurs "
            "least often of those in the rank's ring: one turn of the training loop."
        ),
        lambda rank, _: rank.loop_period_s,
    ),
    (
        "agent_errors_total",
        "Errors of hangwatch's own that the agent has kept from the job.",
        lambda rank, _: rank.page.swallowed,
    ),
    (
        "agent_disarmed",
        "1 if the agent has given up recording the rank, else 0.",
        lambda rank, _: bool(rank.page.disarmed),
    ),
    (
        "rank_heartbeat_age_seconds",
        "Age of the last beat of the rank's agent that needs no GIL.",
        _heartbeat_age_s,
    ),
    (
        "rank_gil_delay_seconds",
        (
            "Time from the last heartbeat that needed the GIL to the last one of any kind; the age "
            "of the last one where all need it."
        ),
        _gil_delay_s,
    ),
    (
        "rank_since_progress_seconds",
        "Time since the rank last issued something, or came to another phase of its life.",
        lambda rank, at_ns: _age_s(at_ns, rank.moved_ns),
    ),
    (
        "rank_waiting_seconds",
        "Time for which the rank has been waiting for others, 0 if it does not wait.",
        lambda rank, at_ns: _age_s(at_ns, rank.wait.since_ns) if rank.wait else 0.0,
    ),
)
"""Name, help, and the value of a rank at a time."""
_OF_GROUPS: tuple[tuple[str, str, Callable[[PageGroup], float | None]], ...] = (
    (
        "collectives_enqueued_total",
        "Collectives that the rank has issued in the group, from Python and from C++.",
        lambda group: group.enqueued,
    ),
    (
        "collectives_entered_total",
        "Collectives that Python code of the rank has issued in the group.",
        lambda group: group.entered,
    ),
    (
        "collectives_completed_total",
        "Collectives of the group that are known to be complete on the rank.",
        lambda group: group.completed if group.completed >= 0 else None,
    ),
    (
        "p2p_calls_total",
        "Point-to-point calls that the rank has issued in the group.",
        lambda group: group.p2p,
    ),
)
"""Name, help, and the value of a group on a rank."""


def _rank_infos(ranks: Sequence[tuple[str, RankState]]) -> Iterator[Metric]:
    labels = ("local_rank", "pid", "phase", "recorder", "recorder_reason", "beacons", "torch_lacks")
    yield info(
        "rank",
        "Identity of the rank, and the recorder that records it.",
        ("rank", *labels),
        [(rank, *_rank_labels(one.page)) for rank, one in ranks],
    )
    yield info(
        "rank_wait",
        "The call that the rank waits in, while it waits.",
        ("rank", "group", "op"),
        [(rank, one.wait.group, label(one.wait.op)) for rank, one in ranks if one.wait],
    )


def _rank_labels(page: RankPage) -> Iterator[str]:
    identity = page.identity
    known = (identity.local_rank, identity.pid, page.phase, page.recorder, page.recorder_reason)
    return (label(value) for value in (*known, page.beacons, page.torch_lacks))


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
    yield family(
        "arrivals_last_total",
        "Collectives of hangwatch_arrival_spread_seconds at which the rank was the last.",
        ("rank", "group"),
        last,
    )
    yield family(
        "arrival_delay_seconds_total",
        "Time that the rank arrived after the first one, at all these collectives together.",
        ("rank", "group"),
        delay,
    )


def _stragglers(snapshot: NodeSnapshot) -> Iterator[Metric]:
    now = snapshot.straggler
    yield family(
        "straggler_cost_ratio",
        "Share of the time that would be saved if the ranks that make the job slow took as long "
        "as the others: of each of these ranks, all together.",
        ("rank",),
        [((str(rank),), now.fraction) for rank in now.ranks] if now else [],
    )
    for name, value, help_text in (
        (
            "straggler_lost_seconds_total",
            snapshot.straggler_lost_s,
            "Time that ranks which made the job slow have cost it.",
        ),
        (
            "straggler_measured_seconds_total",
            snapshot.straggler_measured_s,
            "Time in which it was known which rank waits for which.",
        ),
    ):
        yield family(name, help_text, (), [((), value)])


def _verdicts(snapshot: NodeSnapshot) -> Iterator[Metric]:
    yield info(
        "verdict",
        "A verdict on the job, while it holds. culprits: ranks.",
        ("state", "kind", "reason", "cause", "certainty", "culprits"),
        [
            (
                one.state,
                one.kind or "",
                one.reason,
                one.cause.what if one.cause else "",
                one.certainty,
                label(fold_ranks(one.culprits)),
            )
            for one in snapshot.verdicts
        ],
    )
    yield family(
        "verdicts_total",
        "Verdicts that were announced.",
        ("state", "kind"),
        [((state, kind or ""), count) for (state, kind), count in snapshot.announced.items()],
    )
