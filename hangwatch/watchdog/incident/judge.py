"""Takes a wait from the first suspicion to an announced verdict."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hangwatch.console import News
from hangwatch.diagnosis import find_desync
from hangwatch.evidence.background import in_thread
from hangwatch.evidence.ras import interpret
from hangwatch.model import codec
from hangwatch.model.kinds import Certainty, Kind, State
from hangwatch.model.snapshot import JobSnapshot, ProcessState, Recording, Thresholds
from hangwatch.model.verdict import Verdict
from hangwatch.run.handshake import Hello
from hangwatch.run.test_hooks import Point, keep, reach
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident.abort import Aborting, SavedAborting
from hangwatch.watchdog.incident.evidence import Collected, Gatherer, Level, whole_job
from hangwatch.watchdog.incident.reporter import Account, Detection, Judged, Reporter
from hangwatch.watchdog.incident.stages import Announce, Event, Incidents, Stage, event_of
from hangwatch.watchdog.peers.connection import LastWords, Missing, Peers
from hangwatch.watchdog.peers.messages import Gathered, Local, Published

_PROVED_ONLY = Thresholds(math.inf, math.inf)
"""Nothing is slow or hangs by its age alone."""


@dataclass(frozen=True, slots=True)
class SavedJudge:
    """The part of a Judge that outlives its watchdog."""

    incidents: Incidents
    aborting: SavedAborting
    account: Detection
    told_elsewhere: bool


@dataclass(slots=True)
class Judge:
    """Judges the job and announces its incidents, one at a time, in the monitor's loop."""

    hello: Hello
    gatherer: Gatherer
    reporter: Reporter
    news: News
    diagnose: Callable[[JobSnapshot, Thresholds], tuple[Verdict, ...]]
    node: str
    incidents: Incidents = field(default_factory=Incidents)
    hang_after_s: Callable[[], float] = lambda: math.inf
    """Returns how long a hang takes in this job, as far as this node has learnt."""
    peers: Peers = field(init=False)
    aborting: Aborting = field(init=False)
    _account: Account = field(init=False)
    _announcing: asyncio.Task[None] | None = None
    _reported_elsewhere: bool = False
    _last_words: LastWords = field(init=False)
    _guessed: bool = False
    """This node has published which rank failed first; the report is its own, too."""

    def __post_init__(self) -> None:
        self._account = Account(self.hello.run)
        self.aborting = Aborting(self.hello, self.gatherer, self.news)
        self.peers = Peers(self.node, self.hello, self.answer, self.heard, self.news)
        self._last_words = LastWords(
            self._first_guess, lambda: not self.incidents.would_announce(Event.FAILED)
        )

    def in_turn(self, usual: Thresholds) -> Thresholds:
        """Return the thresholds, a little later if another node has the report of the incident."""
        late_s = timing.HEAD_START_S if self._reported_elsewhere else 0.0
        return Thresholds(usual.suspect_after_s + late_s, usual.hang_after_s + late_s)

    async def evaluate(self, thresholds: Thresholds, *, ask_flight: bool) -> bool:
        """Judge the job as it stands, and announce the verdict if it is news.

        A few counters are judged first; only a verdict that would be announced is worth the
        stacks, and is reached again with them. False if another node's watchdog came between,
        and this one may still have something to announce.
        """
        ours = self._account.is_open
        judged = await self._judge(Level.LIGHT, thresholds)
        if judged and ask_flight and not self._is_news(judged):
            await self._publish(judged)
            judged = await self._judge(Level.FLIGHT, thresholds)
        if judged and self._is_news(judged):
            ours = True
            await self._publish(judged)
            judged = await self._judge(Level.FULL, thresholds)
        if judged is None:
            return not ours or self._reported_elsewhere
        hung_before = self._is_hung()
        event = self._event(judged)
        announce = self._happen(event, judged.verdicts[0]) if event else None
        if self._is_hung() and not hung_before:
            proved = await self._proved_here(judged, thresholds)
            if self._is_hung():  # it may be over by now
                proved_ns = judged.read_ns if proved else 0
                self.aborting.begin(judged.verdicts[0], thresholds.hang_after_s, proved_ns)
        if announce is None:
            await self._publish(judged)
        else:
            reach(Point.JUDGED)
            _keep(announce, judged, thresholds)
            self._announcing = asyncio.ensure_future(self._announce(announce, judged))
            await asyncio.shield(self._announcing)
        return True

    async def compare(self) -> None:
        """Announce that ranks of this node are out of step, if they are.

        It has a report of its own: a hang that comes of it is another incident.
        """
        if not self.incidents.would_announce(Event.DESYNC):
            return
        incarnation = self.gatherer.incarnation
        light = find_desync(self._job(await self.gatherer.collect(Level.LIGHT)))
        if light is None or self.incidents.has_announced(Announce.DESYNC, light, incarnation):
            return
        collected = await self.gatherer.collect(Level.FULL)
        job = self._job(collected)
        judged = Judged((find_desync(job) or light,), job, collected)
        announce = self._happen(Event.DESYNC, judged.verdicts[0])
        # With less evidence it may look like something else, which is not news each time.
        self.incidents.remember(Announce.DESYNC, light, incarnation)
        if announce is None:
            return
        _keep(announce, judged, None)
        account = Account(self.hello.run)
        account.add(announce, judged.verdicts[0])
        evidence = account.evidence(judged, self.news.lost)
        await self.reporter.verdict(evidence, same_incident=False)

    async def settle(self, timeout_s: float) -> None:
        """Wait for an announcement that is under way."""
        if self._announcing is not None and not self._announcing.done():
            await asyncio.wait({self._announcing}, timeout=timeout_s)

    async def recovered(self, how: str) -> None:
        """End the incident: the ranks go on. how: "after 12.3 s", for people."""
        if self.failed_elsewhere:
            if self.incidents.happen(Event.RETRACTED) is Announce.RECOVERED:
                failure = "the failure reported by another node has cleared"
                self.news.say(f"the job recovered {how}; {failure}")
                self.reporter.elsewhere = None
            self._forget()
            reach(Point.CONTRADICTED)
            return
        if self.incidents.happen(Event.PROGRESS) is Announce.RECOVERED:
            spared = "; no rank will be aborted" if self.aborting.forget() else ""
            reach(Point.RECOVERED)
            await self.reporter.recovered(f"the job recovered {how}{spared}")
        self._forget()

    @property
    def failed_elsewhere(self) -> bool:
        """True if a failure is known by another node's report alone."""
        return self.incidents.stage is Stage.FAILED and self._reported_elsewhere

    def restarted(self, restart: int) -> None:
        """End the incident: the launcher has restarted the ranks."""
        if self.incidents.happen(Event.RESTART) is Announce.RESTARTED:
            self.news.say(f"the launcher has restarted the ranks (restart {restart})")
        reach(Point.RESTARTED)
        self._last_words.forget()
        self._guessed = False
        self._forget()

    def rank_failed(self) -> None:
        """Ask the other nodes while they are there: a rank of this node has failed."""
        exchange = self.peers.exchange
        if exchange is not None and exchange.joined and not self._is_hung():
            self._last_words.ask(exchange)

    async def _first_guess(self, gathered: Gathered) -> Published:
        """Return which rank failed first if that is sure already, else no verdicts."""
        job = self._job(await self.gatherer.collect(Level.LIGHT), gathered)
        verdicts = await self._diagnosed(replace(job, ended=True), _PROVED_ONLY)
        sure = verdicts[0].state is State.FAILED
        sure = sure and verdicts[0].certainty is not Certainty.POSSIBLE
        self._guessed = sure and self.incidents.would_announce(Event.FAILED)
        return Published(self.node, verdicts if self._guessed else ())

    async def post_mortem(self, exit_code: int | None, thresholds: Thresholds) -> None:
        """Announce why the ranks have ended, if that is known and news.

        exit_code: of the command, None if it has restarted the ranks.
        """
        if exit_code == 0:
            # It may have gone on so shortly before that this was not sure yet.
            await self.recovered("and ended well")
            return
        if self._is_hung():
            if exit_code is not None:
                self.incidents.happen(Event.FAILED)
                self.news.say(f"the job has ended with exit code {exit_code} after the hang above")
            return
        gathered = await self._last_words.heard(timing.LAST_WORDS_S)
        collected, missing = await asyncio.gather(
            self.gatherer.collect(Level.FULL, timing.POST_MORTEM_STACKS_S),
            self.peers.missing(gathered),
        )
        if not collected.ranks or self.gatherer.incarnation == self.aborting.incarnation:
            return
        if exit_code is None and not any(_failed(rank.process) for rank in collected.ranks):
            return  # they were ended since nodes joined or left, or ended by themselves
        job = self._job(collected, gathered, missing)
        job = replace(job, ended=True, exit_code=exit_code)
        judged = Judged(await self._diagnosed(job, thresholds), job, collected)
        if not judged.verdicts or judged.verdicts[0].state is State.OK:
            return
        announce = self._happen(Event.FAILED, judged.verdicts[0])
        if announce is not None:
            _keep(announce, judged, thresholds)
            await self._announce(announce, judged)

    async def answer(self, full: bool) -> Local:  # noqa: FBT001 (the exchange's callback)
        """Return this node's evidence for another node's incident."""
        collected = await self.gatherer.collect(Level.FULL if full else Level.LIGHT)
        return Local(collected.ranks, collected.sources)

    def heard(self, published: Published) -> None:
        """Take in the conclusion of the watchdog that owns the incident."""
        if not published.verdicts:
            return
        main = published.verdicts[0]
        event = event_of(main)
        if event is Event.FAILED and (self._guessed or self._is_hung()):
            return  # this node reports it, or has reported what came before it
        hung_before = self._is_hung()
        is_news = event is not None and self._happen(event, main) is not None
        if self._is_hung() and not hung_before:
            # By its word no rank is ended: that takes what the pages of this node show.
            self.aborting.begin(main, self.hang_after_s())
            self.aborting.keep()
        if is_news:
            self.reporter.remote(published)
            self._reported_elsewhere = not self._account.is_open
        reach(Point.HEARD)

    def export(self) -> SavedJudge:
        """Return the state for restore()."""
        return SavedJudge(
            self.incidents.saved(),
            self.aborting.export(),
            self._account.detection,
            self._reported_elsewhere,
        )

    def restore(self, saved: SavedJudge) -> None:
        """Take over the incident at hand."""
        self.incidents = saved.incidents
        self.aborting.restore(saved.aborting)
        self._account.detection = saved.account
        self._reported_elsewhere = saved.told_elsewhere

    async def _diagnosed(self, job: JobSnapshot, thresholds: Thresholds) -> tuple[Verdict, ...]:
        """Return the verdicts on a job, found outside the event loop: it may take seconds."""
        return await in_thread(lambda: self.diagnose(job, thresholds), timing.DIAGNOSIS_S)

    async def _judge(self, level: Level, thresholds: Thresholds) -> Judged | None:
        """Return a diagnosis; None if another node's watchdog makes it."""
        gathered = await self.peers.ask(full=level is Level.FULL)
        if gathered is not None and not gathered.owner:
            return None
        read_ns = time.monotonic_ns()
        if level is Level.FULL:
            collected, missing, ras = await asyncio.gather(
                self.gatherer.collect(level), self.peers.missing(gathered), self.gatherer.ras()
            )
            reach(Point.GATHERED)
        else:
            collected, missing, ras = await self.gatherer.collect(level), Missing(), None
        job = self._job(collected, gathered, missing)
        verdicts = await self._diagnosed(job, thresholds)
        ras = interpret(ras, job) if ras is not None else None
        return Judged(verdicts, job, collected, gathered.round if gathered else 0, ras, read_ns)

    def _job(
        self,
        collected: Collected,
        gathered: Gathered | None = None,
        missing: Missing | None = None,
    ) -> JobSnapshot:
        why_unknown = "no watchdog has found a page or a process of theirs"
        exchange = self.peers.exchange
        here = len(collected.ranks) >= collected.local_size
        if gathered is None and (
            exchange is not None or (here and collected.local_size < collected.world_size)
        ):
            why_not = f" ({exchange.why_not})" if exchange is not None else ""
            why_unknown = f"the watchdogs of other nodes could not be asked{why_not}"
        return whole_job(collected, gathered, missing or Missing(), why_unknown)

    def _is_news(self, judged: Judged) -> bool:
        event = self._event(judged)
        return event is not None and self.incidents.would_announce(event)

    def _event(self, judged: Judged) -> Event | None:
        event = event_of(judged.verdicts[0]) if judged.verdicts else None
        if event is Event.FAILED and self._is_hung():
            # How a hung job falls apart is not what hung it: its report stays as it is.
            return None
        return event

    def _happen(self, event: Event, verdict: Verdict) -> Announce | None:
        return self.incidents.happen(event, verdict, self.gatherer.incarnation)

    async def _announce(self, announce: Announce, judged: Judged) -> None:
        follows = self._account.is_open
        self._account.add(announce, judged.verdicts[0])
        evidence = self._account.evidence(judged, self.news.lost)
        await self.reporter.verdict(evidence, same_incident=follows)
        await self._publish(judged, judged.verdicts)
        self.aborting.keep()
        reach(Point.ANNOUNCED)

    async def _publish(self, judged: Judged, verdicts: tuple[Verdict, ...] = ()) -> None:
        """Publish verdicts that were announced; none if there was nothing to announce."""
        exchange = self.peers.exchange
        if exchange is not None and judged.round:
            report = str(self.reporter.report or "") if verdicts else ""
            await exchange.publish(judged.round, Published(self.node, verdicts, report))

    async def _proved_here(self, judged: Judged, thresholds: Thresholds) -> bool:
        """Return True if the evidence of this node proves the hang by itself, too.

        If a rank has died it is its launcher that ends the others, and may be at it.
        """
        main = judged.verdicts[0]
        if main.certainty_of_hang is not Certainty.PROVED or main.kind is Kind.DIED:
            return False
        verdicts = await self._diagnosed(self._job(judged.collected), thresholds)
        return (
            bool(verdicts)
            and verdicts[0].state is State.HANG
            and verdicts[0].certainty_of_hang is Certainty.PROVED
            and verdicts[0].culprits == main.culprits
        )

    def _is_hung(self) -> bool:
        return self.incidents.stage is Stage.HANG

    def _forget(self) -> None:
        """Forget the incident, which is over; the next one has a report of its own."""
        self._account = Account(self.hello.run)
        self.gatherer.forget_recorders()
        self.aborting.forget()
        self._reported_elsewhere = False


def _keep(announce: Announce, judged: Judged, thresholds: Thresholds | None) -> None:
    """Keep the evidence of an announced verdict if a test wants it."""
    keep("evidence", lambda: codec.dumps(Recording(announce.value, judged.job, thresholds)))


def _failed(process: ProcessState) -> bool:
    """Return True if a rank ended neither well nor by order."""
    if process.signal is not None:
        return process.signal != signal.SIGTERM and not process.terminated_by_launcher
    return not process.alive and process.exit_code != 0
