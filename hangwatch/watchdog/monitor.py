"""The loop of the watchdog: look, learn, judge; and what is to do at the end.

An iteration that fails is counted, said once and followed by the next. What has
been learnt and said is kept in the run directory, for the watchdog that takes
over should this one be killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from hangwatch.console import News
from hangwatch.evidence.exits import Exits
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import QUIET_S, Look, Looker
from hangwatch.evidence.processes import PROC, alive
from hangwatch.model.report import Note
from hangwatch.run.handshake import Hello
from hangwatch.run.test_hooks import Point, reach
from hangwatch.watchdog import state
from hangwatch.watchdog.cadence import Cadence
from hangwatch.watchdog.incident.incidents import Event, Stage
from hangwatch.watchdog.incident.judge import Judge
from hangwatch.watchdog.incident.progress import Progress
from hangwatch.watchdog.incident.schedule import Schedule
from hangwatch.watchdog.joining import Joining
from hangwatch.watchdog.notices.gpus import GpuWatch
from hangwatch.watchdog.notices.practice import Practice
from hangwatch.watchdog.notices.startup import Absence, Preflight
from hangwatch.watchdog.notices.stragglers import Agreement
from hangwatch.watchdog.telemetry import Telemetry

SAVE_S = 10.0
UNDER_WAY_S = 4.0
"""How long an iteration may go on once the command has ended."""
GONE_S = 2.0
"""How long ranks may take to end after their launcher."""


class Monitor:
    """Watches one run."""

    def __init__(  # noqa: PLR0913 (its parts, all by keyword)
        self,
        *,
        hello: Hello,
        news: News,
        pages: Pages,
        exits: Exits,
        judge: Judge,
        telemetry: Telemetry,
        gpus: GpuWatch,
        practice: Practice,
        proc: str = PROC,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._hello = hello
        self._news = news
        self._pages = pages
        self._exits = exits
        exits.on_exit = self._rank_ended
        self._judge = judge
        self._telemetry = telemetry
        self._gpus = gpus
        self._practice = practice
        self.notes: tuple[Note, ...] = ()
        """Costly mistakes of the ranks, known once the command has ended."""
        self.tells_notes = False
        """Whether it is this node that tells them, which is that of rank 0."""
        self._proc = proc
        self._now_ns = now_ns
        config = hello.config
        self._cadence = Cadence(config.suspect_after_s, config.hang_after_s)
        judge.hang_after_s = lambda: self._cadence.thresholds().hang_after_s
        judge.aborting.keep = self._save
        self._looker = Looker(pages, self._alive, now_ns)
        self._schedule = Schedule()
        self._absence = Absence(hello.commands, news, proc)
        self._preflight = Preflight(hello, news, proc)
        self._progress = Progress()
        self._agreement = Agreement()
        self._asked_incarnation = -1
        self._joining = Joining(
            judge.peers, judge.name, judge.node, hello, judge.answer, judge.heard, news
        )
        self._last_look: Look | None = None
        self._saved_ns = 0
        self._wake = asyncio.Event()
        self.failures = 0
        self._restore()

    async def watch(self, ended: asyncio.Future[int | None]) -> int | None:
        """Look again and again until the command has ended; its exit code.

        None if the supervisor is gone.
        """
        while not ended.done():
            work: asyncio.Future[Any] = asyncio.ensure_future(self._guarded())
            waited: set[asyncio.Future[Any]] = {work, ended}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=UNDER_WAY_S)
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await self._pause(ended)
        return ended.result()

    async def _pause(self, ended: asyncio.Future[int | None]) -> None:
        """Until the next look is due, a rank ends or the command has ended."""
        wake: asyncio.Future[Any] = asyncio.ensure_future(self._wake.wait())
        waited: set[asyncio.Future[Any]] = {wake, ended}
        await asyncio.wait(
            waited,
            timeout=self._hello.config.interval_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        wake.cancel()
        self._wake.clear()

    def asked_to_end(self, at_ns: int) -> None:
        """The command was sent a signal to end it, before it ended; 0: it was not."""
        self._exits.asked_to_end_ns = at_ns

    async def conclude(self, exit_code: int) -> None:
        """The command has ended: say why if that is news."""
        reach(Point.CONCLUDING)
        self._pages.command_ended()
        await self._judge.settle(UNDER_WAY_S)
        await self._judge.aborting.settle(UNDER_WAY_S)
        await self._ranks_gone()
        self._pages.all_ended()
        self._look()
        await self._preflight.conclude()
        while self._pages.superseded:
            await self._go_on_to_next()
        self._take_notes()
        if self._pages.any_ever:
            await self._judge.post_mortem(exit_code, self._cadence.thresholds())
        else:
            self._absence.ended()
        self._publish()
        self._save()

    def _take_notes(self) -> None:
        try:
            self.notes = self._practice.notes()
            self.tells_notes = 0 in self._pages.look()
        except Exception as error:  # noqa: BLE001 (why the job has ended is still to be told)
            self._news.fault("notes", "nothing is told of costly mistakes", error, quiet=True)

    async def close(self) -> None:
        """Let go of everything."""
        await self._joining.close()
        self._exits.close()
        self._pages.close()

    async def _guarded(self) -> None:
        try:
            await self._iterate()
        except Exception as error:  # noqa: BLE001 (the loop must outlive any one look)
            self.failures += 1
            what = f"{type(error).__name__}: {error}"
            self._news.fault("iteration", f"the watchdog met an error and goes on ({what})", error)
            self._news.debug(f"failed looks so far: {self.failures}; the last: {what}")
        self._publish()

    async def _iterate(self) -> None:
        look = self._look()
        if self._pages.superseded:
            await self._go_on_to_next()
            look = self._look()
        if not self._pages.any_ever:
            self._absence.look(look.now_ns / 1e9)
        thresholds = self._judge.in_turn(self._cadence.thresholds())
        age_s = look.longest_wait_s
        if age_s >= QUIET_S:
            self._suspect()
        self._joining.look(look)
        asking = self._judge.peers.can_be_asked
        if not self._joining.under_way(look.now_ns) and self._schedule.due(
            age_s, thresholds, moved=look.moved, asking=asking
        ):
            ask_flight = look.needs_flight() and self._schedule.flight_due(age_s)
            before = self._judge.incidents.stage
            if not await self._judge.evaluate(thresholds, ask_flight=ask_flight):
                self._schedule = Schedule()
            if self._judge.incidents.stage is not before:
                self._progress.begin(look)
                self._save()
        await self._notice_progress(look)
        self._judge.aborting.go_on(self._cadence.thresholds().hang_after_s)
        if self._agreement.look_due(look):
            await self._judge.compare()
        self._notice_revival(look)
        if self._now_ns() - self._saved_ns >= SAVE_S * 1e9:
            self._save()

    def _suspect(self) -> None:
        """Somebody waits for longer than a moment."""
        before = self._judge.incidents.stage
        self._judge.incidents.happen(Event.WAIT)
        if self._judge.incidents.stage is not before:
            reach(Point.SUSPECTED)

    def _look(self) -> Look:
        """Look at all pages, and take note of who is there and what is odd."""
        began_ns = self._now_ns()
        look = self._looker.look()
        for rank, seen in look.seen.items():
            light = seen.light
            self._exits.track(light.identity.pid, light.identity.start_ticks, light.heartbeat_ns)
            if light.recorder_reason:
                why = f"ranks are recorded by Python, a few times a second: {light.recorder_reason}"
                self._news.lose("recorder", why)
            if light.disarmed:
                why = f"rank {rank} records no more: {light.disarmed}"
                self._news.lose(f"disarmed:{light.identity.pid}", why)
        for note in self._pages.notes().values():
            self._news.lose(f"agent:{note}", f"a rank cannot be recorded: {note}")
        waits = {r: None if since is None else since / 1e9 for r, since in look.waits.items()}
        self._cadence.observe(look.now_ns / 1e9, moved=look.moved, waits=waits)
        self._gpus.look(look)
        self._preflight.look(look)
        self._last_look = look
        self._telemetry.looked(began_ns)
        self._publish()
        return look

    def _publish(self) -> None:
        """Let the metrics show the last look, and what has come of it."""
        if self._last_look is None:
            return
        incidents = self._judge.incidents
        try:
            self._telemetry.publish(self._last_look, self._cadence, incidents, self.failures)
        except Exception as error:  # noqa: BLE001 (the ranks are watched without metrics, too)
            self.failures += 1
            what = f"{type(error).__name__}: {error}"
            self._news.fault("metrics", f"the metrics stay as they were ({what})", error)

    async def _go_on_to_next(self) -> None:
        """The launcher has started the ranks anew: say why, and watch the new ones."""
        await self._judge.post_mortem(None, self._cadence.thresholds())
        self._pages.advance()
        self._exits.forget_ended()
        self._pages.look()
        self._judge.restarted(self._pages.restart)
        self._cadence.forget_waits()
        self._schedule = Schedule()
        self._agreement = Agreement()
        self._progress.forget()
        self._joining.leave()
        self._save()

    async def _notice_progress(self, look: Look) -> None:
        stage = self._judge.incidents.stage
        if stage is Stage.SUSPECTED:
            if look.longest_wait_s < QUIET_S:
                await self._judge.recovered("goes on")
        elif stage in (Stage.SLOW, Stage.HANG) or self._judge.failed_elsewhere:
            waited_s = self._progress.passed_after_s(look)
            if waited_s is not None:
                how = f"goes on after {waited_s:.1f} s"
                if self._judge.failed_elsewhere:
                    self._judge.belied(how)
                else:
                    await self._judge.recovered(how)
                self._progress.forget()
                self._save()

    def _notice_revival(self, look: Look) -> None:
        """After an abort the exit code is the job's own again once a restart works."""
        if not 0 <= self._judge.aborting.incarnation < self._pages.incarnation:
            return
        if any(group.enqueued for seen in look.seen.values() for group in seen.light.groups):
            self._judge.aborting.take_back()

    async def _ranks_gone(self) -> None:
        """Wait for the ranks to end, so that how they ended is known."""
        deadline = time.monotonic() + GONE_S
        while self._looker.look().waits and time.monotonic() < deadline:  # noqa: ASYNC110 (bounded)
            await asyncio.sleep(0.05)

    def _rank_ended(self, pid: int) -> None:
        """Look at once; and where it failed, have the others leave what they know.

        They may fail of it in turn, or be ended by the launcher a moment later.
        """
        self._news.debug(f"process {pid} has ended")
        self._wake.set()
        if self._exits.failed(pid) and self._asked_incarnation != self._pages.incarnation:
            self._asked_incarnation = self._pages.incarnation
            self._judge.gatherer.ask_in_passing()
            self._judge.rank_failed()

    def _alive(self, pid: int, start_ticks: int) -> bool:
        return pid not in self._exits.ended() and alive(pid, start_ticks, self._proc)

    def _save(self) -> None:
        self._saved_ns = self._now_ns()
        values: dict[str, Any] = {
            "cadence": self._cadence.export(),
            "reporter": self._judge.reporter.export(),
            "exits": self._exits.export(),
            "progress": self._progress.export(),
            "pages": self._pages.export(),
            "judge": self._judge.export(),
            "metrics": self._telemetry.export(),
            "gpus": self._gpus.gpus.export(),
            "said": list(self._news.said),
            "lost": self._news.lost,
            "losses": self._news.losses,
        }
        if not state.save(self._hello.run_dir, values):
            self._news.debug("the watchdog's state cannot be kept in the run directory")

    def _restore(self) -> None:
        values = state.load(self._hello.run_dir)
        if not values:
            return
        try:
            self._news.restore(values["said"], values["lost"], dict(values["losses"]))
            self._exits.restore(values["exits"])
            self._cadence.restore(values["cadence"])
            self._judge.reporter.restore(values["reporter"])
            self._progress.restore(values["progress"])
            self._pages.restore(values["pages"])
            self._judge.restore(values["judge"])
            self._telemetry.restore(values["metrics"])
            self._gpus.gpus.restore(values["gpus"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._news.debug(f"what the last watchdog left cannot be used: {error!r}")
