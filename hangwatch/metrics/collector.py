"""A prometheus_client Collector over the last snapshot of the node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from hangwatch.metrics.families import NAMESPACE, families
from hangwatch.metrics.labels import command_label, cut
from hangwatch.metrics.snapshot import NodeSnapshot
from hangwatch.model.report import RunInfo
from hangwatch.safety.texts import readable, readable_all


class NodeCollector(Collector):
    """What a scrape reads, in whatever thread it is answered.

    snapshot: the last one, None before there is any. extra: makers of further
    families, which need not have the labels ``run`` and ``node``; of one that fails
    the families are missing, and on_error hears of it.
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
        self.constant = {"run": cut(run.run_id, 128), "node": cut(readable(node))}
        """Labels that all series have."""
        self._interval_s = interval_s
        self._snapshot = snapshot
        self._extra = extra
        self._on_error = on_error
        self._now_ns = now_ns

    def collect(self) -> Iterator[Metric]:
        """All families, with the labels that all have."""
        for metric in self._families():
            metric.samples = [
                sample._replace(labels=readable_all({**self.constant, **sample.labels}))
                for sample in metric.samples
            ]
            yield metric

    def _families(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield self._run_info(snapshot.torch if snapshot else "")
        if snapshot is not None:
            yield from families(self._overdue(snapshot))
        for make in self._extra:
            try:
                yield from list(make())
            except Exception as error:  # noqa: BLE001 (the rest is worth having without them)
                self._on_error(error)

    def _run_info(self, torch: str) -> Metric:
        family = InfoMetricFamily(f"{NAMESPACE}run", "The job that is watched.")
        version = self._run.versions.get("hangwatch", "")
        command = command_label(self._run.command)
        family.add_metric((), {"version": version, "command": command, "torch": cut(torch)})
        return family

    def _overdue(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """The snapshot with how late the watchdog is now, should it have got stuck."""
        age_s = (self._now_ns() - snapshot.at_ns) / 1e9
        late_s = max(snapshot.own.late_s, age_s - self._interval_s)
        return replace(snapshot, own=replace(snapshot.own, late_s=late_s))
