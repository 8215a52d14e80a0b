"""The loop of the watchdog: it looks, learns and judges, and concludes at the end.

An iteration that fails is counted, reported once and followed by the next. What was learnt and
announced is saved in the run directory, for the next watchdog should this one be killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hangwatch.console import News
from hangwatch.efficiency.straggler_watch import SavedWatch
from hangwatch.evidence.exits import End, Exits
from hangwatch.evidence.gpu.reader import SavedErrors
from hangwatch.evidence.pages.finder import Incarnation, Pages
from hangwatch.evidence.pages.look import Look, Looker
from hangwatch.evidence.processes import PROC, alive
from hangwatch.evidence.timing import QUIET_S
from hangwatch.model import codec
from hangwatch.model.report import Note
from hangwatch.run.handshake import Hello
from hangwatch.run.test_hooks import Point, reach
from hangwatch.watchdog import state, timing
from hangwatch.watchdog.cadence import Agreement, Cadence, Learnt, Progress, Schedule
from hangwatch.watchdog.gpus import GpuWatch
from hangwatch.watchdog.incident.judge import Judge, SavedJudge
from hangwatch.watchdog.incident.reporter import SavedReporter
from hangwatch.watchdog.incident.stages import Event, Stage
from hangwatch.watchdog.startup import Absence, Preflight
from hangwatch.watchdog.stragglers import StragglerLook
from hangwatch.watchdog.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class State:
    """Everything that outlives a watchdog, by the part that it belongs to (state.py)."""

    cadence: Learnt
    reporter: SavedReporter
    exits: tuple[End, ...]
    progress: dict[int, int]
    pages: Incarnation
    judge: SavedJudge
    metrics: int
    gpus: dict[str, SavedErrors]
    said: tuple[str, ...]
    lost: tuple[str, ...]
    losses: dict[str, int]
    stragglers: SavedWatch = SavedWatch()  # noqa: RUF009 (it is frozen)


@dataclass(slots=True, kw_only=True)
class Monitor:
    """Watches one run."""

    hello: Hello
    news: News
    pages: Pages
    exits: Exits
    judge: Judge
    telemetry: Telemetry
    gpus: GpuWatch
    stragglers: StragglerLook
    proc: str = PROC
    now_ns: Callable[[], int] = time.monotonic_ns
    failures: int = 0
    notes: tuple[Note, ...] = ()
    """Costly mistakes of the ranks, known once the command has ended."""
    reports_notes: bool = False
    """True if this node reports them, since it has rank 0."""
    _cadence: Cadence = field(init=False)
    _looker: Looker = field(init=False)
    _absence: Absence = field(init=False)
    _preflight: Preflight = field(init=False)
    _schedule: Schedule = field(default_factory=Schedule)
    _progress: Progress = field(default_factory=Progress)
    _agreement: Agreement = field(default_factory=Agreement)
    _asked_incarnation: int = -1
    _last_look: Look | None = None
    _saved_ns: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        config = self.hello.config
        self._cadence = Cadence(config.suspect_after_s, config.hang_after_s)
        self._looker = Looker(self.pages, self._alive, self.now_ns)
        self._absence = Absence(self.hello.commands, self.news, self.proc)
        self._preflight = Preflight(self.hello, self.news, self.proc)
        self.exits.on_exit = self._rank_ended
        self.judge.hang_after_s = lambda: self._cadence.thresholds().hang_after_s
        self.judge.aborting.keep = self._save
        self._restore()

    async def watch(self, ended: asyncio.Future[int | None]) -> int | None:
        """Look until the command has ended; return its exit code.

        None if the supervisor is gone.
        """
        while not ended.done():
            work = asyncio.ensure_future(self._guarded())
            await _first_of(work, ended)
            if not work.done():
                await asyncio.wait({work}, timeout=timing.ITERATION_END_S)
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            # The next look is made in a while, or at once if a rank ends.
            wake = asyncio.ensure_future(self._wake.wait())
            await _first_of(wake, ended, timeout_s=self.hello.config.interval_s)
            wake.cancel()
            self._wake.clear()
        return ended.result()

    async def conclude(self, exit_code: int) -> None:
        """Announce why the command has ended, if that is news."""
        reach(Point.CONCLUDING)
        self.pages.command_ended()
        await self.judge.settle(timing.ITERATION_END_S)
        await self.judge.aborting.settle(timing.ITERATION_END_S)
        await self._ranks_gone()
        self.pages.all_ended()
        self._look()
        await self._preflight.conclude()
        while self.pages.superseded:
            await self._go_on_to_next()
        self._take_notes()
        if self.pages.any_ever:
            await self.judge.post_mortem(exit_code, self._cadence.thresholds())
        else:
            self._absence.ended()
        self._publish()
        self._save()

    def _take_notes(self) -> None:
        try:
            self.notes = self.judge.gatherer.notes()
            self.reports_notes = 0 in self.pages.look()
        except Exception as error:  # noqa: BLE001 (the post-mortem is still to come)
            self.news.fault("notes", "costly mistakes are not reported", error, quiet=True)

    async def close(self) -> None:
        """Release everything."""
        await self.judge.peers.close()
        self.exits.close()
        self.pages.close()

    async def _guarded(self) -> None:
        try:
            await self._iterate()
        except Exception as error:  # noqa: BLE001 (the loop must outlive any one look)
            self.failures += 1
            what = f"{type(error).__name__}: {error}"
            text = f"internal error in the watchdog, still watching ({what})"
            self.news.fault("iteration", text, error)
            self.news.debug(f"failed looks so far: {self.failures}; the last: {what}")
        self._publish()

    async def _iterate(self) -> None:
        look = self._look()
        if self.pages.superseded:
            await self._go_on_to_next()
            look = self._look()
        if not self.pages.any_ever:
            self._absence.look(look.now_ns / 1e9)
        thresholds = self.judge.in_turn(self._cadence.thresholds())
        age_s = look.longest_wait_s
        incidents, peers = self.judge.incidents, self.judge.peers
        if age_s >= QUIET_S and incidents.stage is Stage.HEALTHY:
            incidents.happen(Event.WAIT)
            reach(Point.SUSPECTED)
        peers.look(look)
        if not peers.under_way(look.now_ns) and self._schedule.due(
            age_s, thresholds, moved=look.moved, asking=peers.can_be_asked
        ):
            ask_flight = look.needs_flight() and self._schedule.flight_due(age_s)
            before = incidents.stage
            if not await self.judge.evaluate(thresholds, ask_flight=ask_flight):
                self._schedule = Schedule()
            if incidents.stage is not before:
                self._progress.begin(look)
                self._save()
        await self._notice_progress(look)
        self.judge.aborting.go_on(self._cadence.thresholds().hang_after_s)
        if self._agreement.look_due(look):
            await self.judge.compare()
        self._notice_revival(look)
        if self.now_ns() - self._saved_ns >= timing.STATE_SAVE_S * 1e9:
            self._save()

    def _look(self) -> Look:
        """Look at all pages, and report the ranks that are not recorded as they should be."""
        began_ns = self.now_ns()
        look = self._looker.look()
        for rank, seen in look.seen.items():
            light = seen.light
            self.exits.track(light.identity.pid, light.identity.start_ticks, light.heartbeat_ns)
            if light.recorder_reason:
                why = f"ranks are recorded by Python, a few times a second: {light.recorder_reason}"
                self.news.lose("recorder", why)
            if light.disarmed:
                why = f"rank {rank} is no longer recorded: {light.disarmed}"
                self.news.lose(f"disarmed:{light.identity.pid}", why)
        for note in self.pages.notes().values():
            self.news.lose(f"agent:{note}", f"cannot instrument a rank: {note}")
        waits = {r: None if since is None else since / 1e9 for r, since in look.waits.items()}
        self._cadence.observe(look.now_ns / 1e9, moved=look.moved, waits=waits)
        self.gpus.look(look)
        stage = self.judge.incidents.stage
        stuck = stage not in (Stage.HEALTHY, Stage.SUSPECTED)
        self.stragglers.look(look, stuck=stuck, loop=self.telemetry.loop)
        self._preflight.look(look)
        self._last_look = look
        self.telemetry.looked(began_ns)
        self._publish()
        return look

    def _publish(self) -> None:
        """Update the metrics."""
        if self._last_look is None:
            return
        incidents = self.judge.incidents
        try:
            self.telemetry.publish(
                self._last_look, self._cadence, incidents, self.stragglers.watch, self.failures
            )
        except Exception as error:  # noqa: BLE001 (the ranks are watched without metrics, too)
            self.failures += 1
            what = f"{type(error).__name__}: {error}"
            self.news.fault("metrics", f"the metrics are not updated ({what})", error)

    async def _go_on_to_next(self) -> None:
        """Announce why the launcher has restarted the ranks, and watch the new ones."""
        await self.judge.post_mortem(None, self._cadence.thresholds())
        self.pages.advance()
        self.exits.forget_ended()
        self.pages.look()
        self.judge.restarted(self.pages.restart)
        self._cadence.forget_waits()
        self._schedule = Schedule()
        self._agreement = Agreement()
        self._progress = Progress()
        self.judge.peers.leave()
        self.stragglers.restarted()
        self._save()

    async def _notice_progress(self, look: Look) -> None:
        stage = self.judge.incidents.stage
        if stage is Stage.SUSPECTED:
            if look.longest_wait_s < QUIET_S:
                await self.judge.recovered("")
        elif stage in (Stage.SLOW, Stage.HANG) or self.judge.failed_elsewhere:
            waited_s = self._progress.passed_after_s(look)
            if waited_s is not None:
                await self.judge.recovered(f"after {waited_s:.1f} s")
                self._progress = Progress()
                self._save()

    def _notice_revival(self, look: Look) -> None:
        """Give the job its own exit code again after an abort, once a restart works."""
        if not 0 <= self.judge.aborting.incarnation < self.pages.incarnation:
            return
        if any(group.enqueued for seen in look.seen.values() for group in seen.light.groups):
            self.judge.aborting.take_back()

    async def _ranks_gone(self) -> None:
        """Wait for the ranks to end, so that their exit status is known."""
        deadline = time.monotonic() + timing.RANKS_GONE_S
        while self._looker.look().waits and time.monotonic() < deadline:  # noqa: ASYNC110 (bounded)
            await asyncio.sleep(timing.POLL_S)

    def _rank_ended(self, pid: int) -> None:
        """Look at once; if the rank failed, ask for the evidence of the others.

        They may fail of it in turn, or be ended by the launcher a moment later.
        """
        self.news.debug(f"process {pid} has ended")
        self._wake.set()
        if self.exits.failed(pid) and self._asked_incarnation != self.pages.incarnation:
            self._asked_incarnation = self.pages.incarnation
            self.judge.gatherer.request_recorders()
            self.judge.rank_failed()

    def _alive(self, pid: int, start_ticks: int) -> bool:
        return pid not in self.exits.ended() and alive(pid, start_ticks, self.proc)

    def _save(self) -> None:
        self._saved_ns = self.now_ns()
        whole = State(
            cadence=self._cadence.learnt,
            reporter=self.judge.reporter.export(),
            exits=self.exits.export(),
            progress=self._progress.waited,
            pages=self.pages.export(),
            judge=self.judge.export(),
            metrics=self.telemetry.port,
            gpus=self.gpus.gpus.export(),
            said=self.news.said,
            lost=tuple(self.news.lost),
            losses=dict(self.news.losses),
            stragglers=self.stragglers.export(),
        )
        if not state.save(self.hello.run_dir, codec.plain(whole)):
            self.news.debug("the watchdog's state cannot be saved in the run directory")

    def _restore(self) -> None:
        """Continue from the state of an earlier watchdog: from all of it, or from none."""
        values = state.load(self.hello.run_dir)
        if not values:
            return
        try:
            whole: State = codec.decode(State, values, lenient=True)
        except codec.CodecError as error:
            self.news.debug(f"the state of the last watchdog cannot be used: {error}")
            return
        self.news.restore(whole.said, whole.lost, whole.losses)
        self.exits.restore(whole.exits)
        self._cadence.learnt = whole.cadence
        self.judge.reporter.restore(whole.reporter)
        self._progress.waited = whole.progress
        self.pages.restore(whole.pages)
        self.judge.restore(whole.judge)
        self.telemetry.port = whole.metrics
        self.gpus.gpus.restore(whole.gpus)
        self.stragglers.restore(whole.stragglers)


async def _first_of(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    await asyncio.wait(set(futures), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
