"""The metrics of a made node, as Prometheus would scrape them."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from made_hello import hello
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hangwatch.console import News
from hangwatch.efficiency.straggler_watch import StragglerWatch
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import Looker
from hangwatch.model.report import RunInfo
from hangwatch.watchdog.cadence import Cadence
from hangwatch.watchdog.incident.stages import Incidents
from hangwatch.watchdog.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from prometheus_client.core import Metric, Sample

    from hangwatch.settings.config import Config

RUN = RunInfo("r1", ("/opt/bin/torchrun", "--rdzv", "x", "/home/me/train.py", "--key=secret"), "")


class Clock:
    """CLOCK_MONOTONIC, and what a test adds to it."""

    def __init__(self) -> None:
        self.added_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.added_ns


class Node:
    """A node whose pages a test writes into ``run_dir``."""

    def __init__(
        self,
        base: Path,
        *,
        run: RunInfo = RUN,
        config: Config | None = None,
        alive: Callable[[int, int], bool] = lambda *_: True,
        extra: Sequence[Callable[[], Iterable[Metric]]] = (),
    ) -> None:
        self.run_dir = base / f"hangwatch-{os.getuid()}" / "r1-7"
        self.run_dir.mkdir(parents=True)
        self.clock = Clock()
        self.began_ns = self.clock()
        self.said = base / "said"
        self._fd = os.open(self.said, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.news = News(self._fd)
        self.cadence = Cadence(None, None)
        self.incidents = Incidents()
        self.stragglers = StragglerWatch(60.0)
        self._looker = Looker(Pages(self.run_dir, self.news), alive, self.clock)
        started = hello(self.run_dir, config, run_id=run.run_id, command=run.command)
        started = replace(started, versions=run.versions)
        self.telemetry = Telemetry(started, self.news, "node-a", extra, now_ns=self.clock)

    def look(self, *, failures: int = 0) -> None:
        """Look at the pages and publish what was seen, as the monitor does."""
        began_ns = self.clock()
        look = self._looker.look()
        self.telemetry.looked(began_ns)
        self.telemetry.publish(look, self.cadence, self.incidents, self.stragglers, failures)

    def exposition(self) -> str:
        """What a scrape gets."""
        registry = CollectorRegistry()
        registry.register(self.telemetry.collector)
        return generate_latest(registry).decode()

    def samples(self) -> Samples:
        """The same, parsed."""
        found = text_string_to_metric_families(self.exposition())
        return Samples([sample for family in found for sample in family.samples])

    def close(self) -> None:
        """Let go of the files."""
        os.close(self._fd)


class Samples:
    """The samples of one scrape. A name stands without ``hangwatch_``."""

    def __init__(self, samples: list[Sample]) -> None:
        self.all = samples

    def of(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Values of a metric whose labels have these values, by those of its other labels."""
        constant = {"run", "node", *labels}
        return {
            tuple(v for k, v in sorted(one.labels.items()) if k not in constant): one.value
            for one in self.all
            if one.name == f"hangwatch_{name}" and labels.items() <= one.labels.items()
        }

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of each sample of a metric, without those that all have."""
        return [
            {k: v for k, v in one.labels.items() if k not in {"run", "node"}}
            for one in self.all
            if one.name == f"hangwatch_{name}"
        ]

    def series(self) -> Counter[str]:
        """How many there are of each name."""
        return Counter(one.name for one in self.all)
