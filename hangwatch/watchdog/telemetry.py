"""Publishes the metrics of one watchdog: the snapshots, the server, its address.

Snapshots are made by the monitor's loop, at each look; scrapes are answered by threads that only
read the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from prometheus_client.core import Metric

from hangwatch.console import News
from hangwatch.efficiency.straggler_watch import Loop, StragglerWatch
from hangwatch.errors import PageError
from hangwatch.evidence.background import Tasks, in_thread
from hangwatch.evidence.environment import torch_version
from hangwatch.evidence.pages.arrivals import (
    RECURRENCES,
    Arrivals,
    GroupArrivals,
    Issued,
    Members,
    issued,
    loop_period_s,
)
from hangwatch.evidence.pages.look import Look, moved_ns
from hangwatch.metrics.families import NodeCollector, NodeSnapshot, OwnState, RankState, WaitState
from hangwatch.metrics.labels import GroupLabels
from hangwatch.metrics.server import Targets, listen
from hangwatch.model.page import RankPage
from hangwatch.model.report import Straggler
from hangwatch.run.handshake import Hello
from hangwatch.settings.config import parse_address
from hangwatch.watchdog import timing
from hangwatch.watchdog.cadence import Cadence
from hangwatch.watchdog.incident.evidence import local_size
from hangwatch.watchdog.incident.stages import Incidents

RINGS_SHARE = 0.003
"""Share of the time that is spent on reading rings, at most."""


class Telemetry:
    """The metrics of one watchdog."""

    def __init__(
        self,
        hello: Hello,
        news: News,
        node: str,
        extra: Sequence[Callable[[], Iterable[Metric]]] = (),
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """extra: makers of further families, called in the threads that answer scrapes."""
        self._address = parse_address(hello.config.metrics_addr)
        self._hello = hello
        self._news = news
        self._now_ns = now_ns
        self.collector = NodeCollector(
            run=hello.run,
            node=node,
            interval_s=hello.config.interval_s,
            snapshot=lambda: self.snapshot,
            extra=extra,
            on_error=self._scrape_failed,
            now_ns=now_ns,
        )
        self._targets = Targets(hello.run_dir.parent.parent, hello.run_dir.name)
        self.port = 0
        """The port that is served, or that an earlier watchdog served; 0 for none."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = Tasks(self._task_failed)
        self._labels = GroupLabels()
        self._rings = Rings(now_ns)
        self._furthest = Furthest()
        self._own = OwnState()
        self._looked_ns = 0
        self._torch = ""
        self._torch_due_ns = 0
        self.snapshot: NodeSnapshot | None = None
        """The last one."""

    def open(self) -> None:
        """Begin to serve in the background: names may have to be looked up."""
        self._loop = asyncio.get_running_loop()
        if self._address is not None:
            self._tasks.start(self._serve(*self._address))

    @property
    def loop(self) -> Loop:
        """The training loop, as the calls in the rings of the ranks show it."""
        return self._rings.loop

    def close(self) -> None:
        """Stop serving. The server's thread ends with the process."""
        self._tasks.cancel()
        self._targets.withdraw()

    def looked(self, began_ns: int) -> None:
        """Count a look that was made, and began then (CLOCK_MONOTONIC)."""
        now_ns = self._now_ns()
        late_ns = began_ns - self._looked_ns - self._hello.config.interval_s * 1e9
        self._own = OwnState(
            looks=self._own.looks + 1,
            look_s=self._own.look_s + (now_ns - began_ns) / 1e9,
            late_s=max(0.0, late_ns / 1e9) if self._looked_ns else 0.0,
        )
        self._looked_ns = began_ns

    def publish(
        self,
        look: Look,
        cadence: Cadence,
        incidents: Incidents,
        stragglers: StragglerWatch,
        failures: int,
    ) -> None:
        """Replace the snapshot, if metrics are served."""
        if self._address is None:
            return
        pages = [seen.light for seen in look.seen.values()]
        world_size = max((page.identity.world_size for page in pages), default=0)
        self._labels.update(pages, world_size)
        if self._labels.full:
            self._news.lose("metrics-groups", "the metrics leave out some of the job's groups")
        self._rings.read(look, self._labels)
        self._read_torch_version(look)
        ranks = tuple(self._rank(page, look) for page in pages)
        self.snapshot = NodeSnapshot(
            at_ns=look.now_ns,
            thresholds=cadence.thresholds(),
            usual_gap_s=cadence.typical_gap_s,
            world_size=max(0, world_size),
            expected=max(0, *map(local_size, pages), 0),
            torch=self._torch,
            ranks=ranks,
            reached=self._furthest.of(look.now_ns, ranks, self._labels.members),
            arrivals=self._rings.arrivals,
            verdicts=incidents.current,
            announced=Counter(incidents.verdicts),
            straggler=of_this_node(stragglers.current, look),
            straggler_lost_s=stragglers.lost_s,
            straggler_measured_s=stragglers.measured_s,
            own=replace(self._own, failures=failures, lost=dict(self._news.losses)),
        )

    def _rank(self, page: RankPage, look: Look) -> RankState:
        rank = page.identity.rank
        labelled = [(self._labels.of(page, group), group) for group in page.groups if group.alive]
        waiting = look.waiting.get(rank)
        wait = None
        if waiting is not None:
            label = next((name for name, group in labelled if group.slot == waiting.slot), "")
            wait = WaitState(waiting.since_ns, waiting.op, label)
        return RankState(
            page=page,
            alive=rank in look.waiting,
            moved_ns=moved_ns(page),
            groups=tuple((label, group) for label, group in labelled if label),
            wait=wait,
            loop_period_s=self._rings.periods_s.get(rank),
        )

    async def _serve(self, host: str, wanted: int) -> None:
        port = self.port or wanted
        try:
            bind = partial(listen, host, port, self.collector)
            server = await in_thread(bind, timing.METRICS_BIND_S)
        except (OSError, UnicodeError) as error:
            shown = self._hello.config.metrics_addr
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            text = f"no metrics: cannot listen at {shown} ({why}); see --metrics-addr"
            self._news.lose("metrics", text)
            return
        self.port = server.port
        if server.port != wanted:
            self._news.debug(f"the metrics have port {server.port}: {wanted} is taken")
        server.start()
        try:
            target = await in_thread(lambda: server.target, timing.METRICS_BIND_S)
            self._targets.publish(target, self.collector.constant)
        except OSError as error:
            text = f"the metrics' address cannot be published: {error.strerror or error}"
            self._news.lose("metrics-targets", text, quiet=True)
            return
        if why := self._targets.refused:
            text = f"the metrics' address is published in {self._targets.path.parent} only: {why}"
            self._news.lose("metrics-targets", text, quiet=True)
        self._news.debug(f"metrics at http://{target}/metrics, in {self._targets.path}")

    def _read_torch_version(self, look: Look) -> None:
        """Have the version of torch read if it is not known yet."""
        pid = next((look.seen[rank].light.identity.pid for rank in look.waiting), 0)
        if self._loop and pid and not self._torch and look.now_ns >= self._torch_due_ns:
            self._torch_due_ns = look.now_ns + int(timing.TORCH_VERSION_EVERY_S * 1e9)
            self._tasks.start(self._learn_torch(pid))

    async def _learn_torch(self, pid: int) -> None:
        with suppress(TimeoutError):
            self._torch = await in_thread(lambda: torch_version(pid), timing.TORCH_VERSION_S)

    def _task_failed(self, error: BaseException) -> None:
        self._news.fault("metrics", f"metrics: {type(error).__name__}: {error}", error, quiet=True)

    def _scrape_failed(self, error: Exception) -> None:
        """Report it from the event loop: the server calls this in a thread of its own."""
        text = f"some metrics are missing ({type(error).__name__}: {error})"
        if self._loop is not None:
            report = partial(self._news.fault, "metrics-scrape", text, error)
            self._loop.call_soon_threadsafe(report)


class Furthest:
    """The furthest place of a member of each group LAG_S ago.

    Calls that C++ issues are counted by each rank for itself, a few times a second: the present
    counts of ranks in step would differ all the time.
    """

    def __init__(self) -> None:
        self._past: deque[tuple[int, dict[str, tuple[Members, int]]]] = deque()

    def of(
        self, now_ns: int, ranks: Iterable[RankState], members: Mapping[str, Members]
    ) -> dict[str, int]:
        """Note the present places; return those of LAG_S ago, of groups that still exist."""
        now: dict[str, tuple[Members, int]] = {}
        for rank in ranks:
            for label, group in rank.groups:
                _, place = now.get(label, (None, 0))
                now[label] = members[label], max(place, group.enqueued)
        self._past.append((now_ns, now))
        while len(self._past) > 1 and self._past[1][0] <= now_ns - timing.LAG_S * 1e9:
            self._past.popleft()
        at_ns, then = self._past[0]
        if at_ns > now_ns - timing.LAG_S * 1e9:
            return {}
        return {
            label: place for label, (local, place) in then.items() if members.get(label) == local
        }


def loop_of(rings: Iterable[Sequence[Issued]]) -> Loop:
    """Return the training loop by the ring of the rank that shows the longest turn."""
    loop = Loop()
    for ring in rings:
        passed_s = (ring[-1].at_ns - ring[0].at_ns) / 1e9 if ring else 0.0
        if passed_s > 0:
            # Where no line recurs so often, a turn takes longer.
            period_s = loop_period_s(ring)
            turn_s = period_s or passed_s / RECURRENCES
            known = period_s is not None
            loop = max(loop, Loop(turn_s, (len(ring) - 1) / passed_s, known))
    return loop


class Rings:
    """The calls in the rings of the ranks so far; read at a modest pace."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._counted = Arrivals()
        self._due_ns = 0
        self._moved = False
        self.arrivals: tuple[GroupArrivals, ...] = ()
        self.periods_s: dict[int, float] = {}
        self.loop = Loop()

    def read(self, look: Look, labels: GroupLabels) -> None:
        """Read them if that is due and some rank has moved."""
        self._moved = self._moved or look.moved
        began_ns = self._now_ns()
        if not self._moved or began_ns < self._due_ns:
            return
        self._moved = False
        periods: dict[int, float] = {}
        all_calls: list[list[Issued]] = []
        rings: dict[int, dict[str, list[Issued]]] = {}
        for rank, seen in look.seen.items():
            try:
                ring = issued(seen.page.ring())
            except PageError:
                continue
            all_calls.append(ring)
            if rank in look.waiting and (period_s := loop_period_s(ring)) is not None:
                periods[rank] = period_s
            page = seen.light
            names = {group.slot: labels.of(page, group) for group in page.groups if group.alive}
            groups = rings.setdefault(rank, {})
            for call in ring:
                if name := names.get(call.slot, ""):
                    groups.setdefault(name, []).append(call)
        self._counted.add(rings, labels.members)
        self.arrivals, self.periods_s = self._counted.groups(), periods
        self.loop = loop_of(all_calls)
        now_ns = self._now_ns()
        rest_ns = max(timing.RINGS_EVERY_S * 1e9, (now_ns - began_ns) / RINGS_SHARE)
        self._due_ns = now_ns + int(rest_ns)


def of_this_node(straggler: Straggler | None, look: Look) -> Straggler | None:
    """Return a straggler as far as its ranks are on this node: each has one that exports it."""
    if straggler is None:
        return None
    ranks = tuple(rank for rank in straggler.ranks if rank in look.seen)
    return replace(straggler, ranks=ranks)
