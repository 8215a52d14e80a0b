"""From a wait to a verdict that people are told."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hangwatch.console import News
from hangwatch.diagnosis import find_desync
from hangwatch.evidence.ras import interpret
from hangwatch.evidence.threads import in_thread
from hangwatch.model import codec
from hangwatch.model.kinds import Certainty, Kind, State
from hangwatch.model.snapshot import JobSnapshot, ProcessState, Recording, Thresholds
from hangwatch.model.verdict import Verdict
from hangwatch.run.test_hooks import Point, keep, reach
from hangwatch.watchdog.hello import Hello
from hangwatch.watchdog.incident.aborting import Aborting
from hangwatch.watchdog.incident.account import Account, Judged
from hangwatch.watchdog.incident.assembly import whole_job
from hangwatch.watchdog.incident.evidence import Collected, Gatherer, Level
from hangwatch.watchdog.incident.incidents import (
    Announce,
    Event,
    Incidents,
    Stage,
    event_of,
    restored,
)
from hangwatch.watchdog.incident.reporter import Reporter
from hangwatch.watchdog.peers.exchange import Gathered
from hangwatch.watchdog.peers.last_words import LastWords
from hangwatch.watchdog.peers.messages import Local, Published
from hangwatch.watchdog.peers.reach import Missing, Peers, missing

HEAD_START_S = 3.0
POST_MORTEM_S = 3.0
"""Budget for the stacks of ranks that outlive their launcher."""
LAST_WORDS_S = 2.0
DIAGNOSIS_S = 120.0
"""For one diagnosis; of 131,072 ranks it takes four."""
_NO_PATIENCE = Thresholds(math.inf, math.inf)
"""Nothing is told but what is certain, however long it takes."""


@dataclass(slots=True)
class Judge:
    """Holds the incident at hand. Methods run one at a time, in the monitor's loop."""

    hello: Hello
    gatherer: Gatherer
    reporter: Reporter
    news: News
    diagnose: Callable[[JobSnapshot, Thresholds], tuple[Verdict, ...]]
    node: str
    incidents: Incidents = field(default_factory=Incidents)
    hang_after_s: Callable[[], float] = lambda: math.inf
    """How long a hang takes in this job, as far as this node has learnt."""
    peers: Peers = field(default_factory=Peers)
    aborting: Aborting = field(init=False)
    _account: Account = field(init=False)
    _telling: asyncio.Task[None] | None = None
    _told_elsewhere: bool = False
    _last_words: LastWords = field(default_factory=LastWords)
    _guessed: bool = False
    """The others have been told by us who failed first; the report is ours, too."""

    def __post_init__(self) -> None:
        self._account = Account(self.hello.run)
        self.aborting = Aborting(self.hello, self.gatherer, self.news)

    @property
    def name(self) -> str:
        """What this watchdog is called among those of all nodes."""
        return f"{self.node}:{self.hello.run_dir.name}"

    def in_turn(self, usual: Thresholds) -> Thresholds:
        """When to speak: a little later where another node has the report and may go on with it."""
        late_s = HEAD_START_S if self._told_elsewhere else 0.0
        return Thresholds(usual.suspect_after_s + late_s, usual.hang_after_s + late_s)

    async def evaluate(self, thresholds: Thresholds, *, ask_flight: bool) -> bool:
        """Judge the job as it stands, and tell people if there is news.

        What a few counters show is judged first; only what would be announced is
        worth the stacks, and is judged again with them. False where another node's
        watchdog came between, and this one may still have something to tell.
        """
        ours = self._account.is_open
        judged = await self._judge(Level.LIGHT, thresholds)
        if judged and ask_flight and not self._is_news(judged):
            await self._publish(judged, told=False)
            judged = await self._judge(Level.FLIGHT, thresholds)
        if judged and self._is_news(judged):
            ours = True
            await self._publish(judged, told=False)
            judged = await self._judge(Level.FULL, thresholds)
        if judged is None:
            return not ours or self._told_elsewhere
        hung_before = self._is_hung()
        announce = self._happen(judged)
        if self._is_hung() and not hung_before:
            proved = await self._proved_here(judged, thresholds)
            if self._is_hung():  # nobody has belied it meanwhile
                proved_ns = judged.read_ns if proved else 0
                self.aborting.begin(judged.verdicts[0], thresholds.hang_after_s, proved_ns)
        if announce is None:
            await self._publish(judged, told=False)
        else:
            reach(Point.JUDGED)
            _keep(announce, judged, thresholds)
            self._telling = asyncio.ensure_future(self._tell(announce, judged))
            await asyncio.shield(self._telling)
        return True

    async def compare(self) -> None:
        """Ranks of this node do not issue the same: tell people if they are out of step.

        It has a report of its own: a hang that comes of it is another incident.
        """
        if not self.incidents.would_tell(Event.DESYNC):
            return
        incarnation = self.gatherer.incarnation
        collected = await self.gatherer.collect(Level.LIGHT)
        light = find_desync(self._job(collected))
        if light is None or self.incidents.knows(Announce.DESYNC, light, incarnation):
            return
        collected = await self.gatherer.collect(Level.FULL)
        job = self._job(collected)
        judged = Judged((find_desync(job) or light,), job, collected)
        told = self._happens(Event.DESYNC, judged.verdicts[0])
        # With less to see it may look like something else, which is not news each time.
        self.incidents.remember(Announce.DESYNC, light, incarnation)
        if told is None:
            return
        _keep(Announce.DESYNC, judged, None)
        account = Account(self.hello.run)
        account.add(Announce.DESYNC, judged.verdicts[0])
        evidence = account.evidence(judged, self.news.lost)
        await self.reporter.verdict(evidence, same_incident=False)

    async def settle(self, timeout_s: float) -> None:
        """Let an announcement that is under way come to its end."""
        if self._telling is not None and not self._telling.done():
            await asyncio.wait({self._telling}, timeout=timeout_s)

    async def recovered(self, how: str) -> None:
        """What was waited for has come; how is what the job does, for people."""
        if self.incidents.happen(Event.PROGRESS) is Announce.RECOVERED:
            spared = ", and no rank is ended" if self.aborting.forget() else ""
            what = f"the job {how}; what was reported has passed{spared}"
            reach(Point.RECOVERED)
            await self.reporter.follow_up(Announce.RECOVERED, what)
        self._forget()

    @property
    def failed_elsewhere(self) -> bool:
        """Whether all that is known of a failure is another node's word."""
        return self.incidents.stage is Stage.FAILED and self._told_elsewhere

    def belied(self, how: str) -> None:
        """The ranks of this node went on, whatever another one has told; how, for people."""
        if self.incidents.happen(Event.BELIED) is Announce.RECOVERED:
            self.news.say(f"the job {how}; what another node has told has passed")
            self.reporter.elsewhere = None
        self._forget()
        reach(Point.BELIED)

    def restarted(self, restart: int) -> None:
        """The launcher has started the ranks anew."""
        if self.incidents.happen(Event.RESTART) is Announce.RESTARTED:
            self.news.say(f"the launcher has started the ranks anew (restart {restart})")
        reach(Point.RESTARTED)
        self._last_words.forget()
        self._guessed = False
        self._forget()

    def rank_failed(self) -> None:
        """A rank of this node has failed: ask the others while they are there."""
        exchange = self.peers.exchange
        if exchange is not None and exchange.joined and not self._is_hung():
            self._last_words.ask(exchange, self._first_guess, self._is_told)

    def _is_told(self) -> bool:
        """Whether the failure has been told, here or elsewhere."""
        return not self.incidents.would_tell(Event.FAILED)

    async def _first_guess(self, gathered: Gathered) -> Published:
        """Who failed first, as far as that is sure already: no verdicts where it is not."""
        collected = await self.gatherer.collect(Level.LIGHT)
        job = replace(self._job(collected, gathered), ended=True)
        verdicts = await self._diagnosed(job, _NO_PATIENCE)
        sure = verdicts[0].state is State.FAILED
        sure = sure and verdicts[0].certainty is not Certainty.POSSIBLE
        self._guessed = sure and self.incidents.would_tell(Event.FAILED)
        return Published(self.node, verdicts if self._guessed else ())

    async def post_mortem(self, exit_code: int | None, thresholds: Thresholds) -> None:
        """The ranks have ended: say why, where that is known and no news yet.

        exit_code: of the command, None where it has started the ranks anew.
        """
        if exit_code == 0:
            # It may have gone on so shortly before that nobody was sure of it yet.
            how = "went on and ended well"
            if self.failed_elsewhere:
                self.belied(how)
            else:
                await self.recovered(how)
            return
        if self._is_hung():
            if exit_code is not None:
                self.incidents.happen(Event.FAILED)
                self.news.say(f"the job has ended with exit code {exit_code} after the hang above")
            return
        gathered = await self._last_words.heard(LAST_WORDS_S)
        collected, absent = await asyncio.gather(
            self.gatherer.collect(Level.FULL, POST_MORTEM_S), self._look_for(gathered)
        )
        if not collected.ranks or self.gatherer.incarnation == self.aborting.incarnation:
            return
        if exit_code is None and not any(_failed(rank.process) for rank in collected.ranks):
            return  # they were ended since nodes joined or left, or came to their end
        job = replace(self._job(collected, gathered, absent), ended=True, exit_code=exit_code)
        judged = Judged(await self._diagnosed(job, thresholds), job, collected)
        if not judged.verdicts or judged.verdicts[0].state is State.OK:
            return
        announce = self._happens(Event.FAILED, judged.verdicts[0])
        if announce is not None:
            _keep(announce, judged, thresholds)
            await self._tell(announce, judged)

    async def answer(self, full: bool) -> Local:  # noqa: FBT001 (the exchange's callback)
        """What this node has to say to another node's incident."""
        collected = await self.gatherer.collect(Level.FULL if full else Level.LIGHT)
        return Local(collected.ranks, collected.sources)

    def heard(self, published: Published) -> None:
        """The watchdog that has the incident has concluded."""
        if not published.verdicts:
            return
        main = published.verdicts[0]
        event = event_of(main)
        if event is Event.FAILED and (self._guessed or self._is_hung()):
            return  # this node tells, or has told what comes before it
        hung_before = self._is_hung()
        told = event is not None and self._happens(event, main) is not None
        if self._is_hung() and not hung_before:
            # By its word nobody is ended: that takes what the pages of this node show.
            self.aborting.begin(main, self.hang_after_s())
            self.aborting.keep()
        if told:
            self.reporter.remote(published)
            self._told_elsewhere = not self._account.is_open
        reach(Point.HEARD)

    def export(self) -> dict[str, Any]:
        """Plain values for restore()."""
        return {
            "incidents": self.incidents.export(),
            "aborting": self.aborting.export(),
            "account": self._account.export(),
            "told_elsewhere": self._told_elsewhere,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over the incident at hand.

        Raises KeyError, TypeError or ValueError for what export() never gives.
        """
        self.incidents = restored(values["incidents"])
        self.aborting.restore(values["aborting"])
        self._account.restore(values["account"])
        self._told_elsewhere = bool(values["told_elsewhere"])

    async def _diagnosed(self, job: JobSnapshot, thresholds: Thresholds) -> tuple[Verdict, ...]:
        """The verdicts on a job, found beside the event loop: of a large one it takes seconds."""
        return await in_thread(lambda: self.diagnose(job, thresholds), DIAGNOSIS_S)

    async def _judge(self, level: Level, thresholds: Thresholds) -> Judged | None:
        """A diagnosis; None where another node's watchdog makes it."""
        gathered = await self._ask(full=level is Level.FULL)
        if gathered is not None and not gathered.owner:
            return None
        read_ns = time.monotonic_ns()
        if level is Level.FULL:
            collected, absent, ras = await asyncio.gather(
                self.gatherer.collect(level), self._look_for(gathered), self.gatherer.ras()
            )
            reach(Point.GATHERED)
        else:
            collected, absent, ras = await self.gatherer.collect(level), None, None
        job = self._job(collected, gathered, absent)
        verdicts = await self._diagnosed(job, thresholds)
        ras = interpret(ras, job) if ras is not None else None
        asked = gathered.round if gathered else 0
        return Judged(verdicts, job, collected, asked, ras, read_ns)

    async def _ask(self, *, full: bool) -> Gathered | None:
        """The other nodes' evidence, None where there are none that could be asked."""
        exchange = self.peers.exchange
        if exchange is None or not exchange.joined:
            return None
        if full:
            self.news.debug("asks the other nodes for all that they know")
        return await exchange.ask(full=full)

    async def _look_for(self, gathered: Gathered | None) -> Missing:
        """Whether the nodes that were not heard are still there."""
        if self.peers.exchange is None:
            return Missing()
        roster = self.peers.exchange.roster
        own = next((node for node in roster if node.node == self.name), None)
        asked = gathered is not None and gathered.round > 0
        silent = gathered.silent if gathered is not None and asked else None
        return await missing(own, roster, silent, self.peers.store_address) if own else Missing()

    def _job(
        self,
        collected: Collected,
        gathered: Gathered | None = None,
        absent: Missing | None = None,
    ) -> JobSnapshot:
        why = self._why_unknown(collected, gathered)
        return whole_job(collected, gathered, absent or Missing(), why)

    def _why_unknown(self, collected: Collected, gathered: Gathered | None) -> str:
        """Why nothing is known of some ranks."""
        exchange = self.peers.exchange
        here = len(collected.ranks) >= collected.local_size
        if gathered is None and (
            exchange is not None or (here and collected.local_size < collected.world_size)
        ):
            why = f" ({exchange.why_not})" if exchange is not None else ""
            return f"the watchdogs of other nodes could not be asked{why}"
        return "no watchdog has found a page or a process of theirs"

    def _is_news(self, judged: Judged) -> bool:
        event = self._event(judged)
        return event is not None and self.incidents.would_tell(event)

    def _happen(self, judged: Judged) -> Announce | None:
        event = self._event(judged)
        if event is None:
            return None
        return self._happens(event, judged.verdicts[0])

    def _happens(self, event: Event, verdict: Verdict) -> Announce | None:
        return self.incidents.happen(event, verdict, self.gatherer.incarnation)

    def _event(self, judged: Judged) -> Event | None:
        event = event_of(judged.verdicts[0]) if judged.verdicts else None
        if event is Event.FAILED and self._is_hung():
            # How a hung job falls apart is not what hung it: its report stays as it is.
            return None
        return event

    async def _tell(self, announce: Announce, judged: Judged) -> None:
        follows = self._account.is_open
        self._account.add(announce, judged.verdicts[0])
        evidence = self._account.evidence(judged, self.news.lost)
        await self.reporter.verdict(evidence, same_incident=follows)
        await self._publish(judged, told=True)
        self.aborting.keep()
        reach(Point.TOLD)

    async def _publish(self, judged: Judged, *, told: bool) -> None:
        exchange = self.peers.exchange
        if exchange is not None and judged.round:
            report = str(self.reporter.report or "") if told else ""
            verdicts = judged.verdicts if told else ()
            await exchange.publish(judged.round, Published(self.node, verdicts, report))

    async def _proved_here(self, judged: Judged, thresholds: Thresholds) -> bool:
        """Whether a hang is proved also by what this node has seen itself, and by that alone.

        Where a rank has died it is its launcher that ends the others, and may be at it.
        """
        main = judged.verdicts[0]
        if main.certainty_of_hang is not Certainty.PROVED or main.kind is Kind.DIED:
            return False
        found = await self._diagnosed(self._job(judged.collected), thresholds)
        return (
            bool(found)
            and found[0].state is State.HANG
            and found[0].certainty_of_hang is Certainty.PROVED
            and found[0].culprits == main.culprits
        )

    def _is_hung(self) -> bool:
        return self.incidents.stage is Stage.HANG

    def _forget(self) -> None:
        """The incident is over; the next one has a report of its own."""
        self._account.forget()
        self.gatherer.forget_recorders()
        self.aborting.forget()
        self._told_elsewhere = False


def _keep(announce: Announce, judged: Judged, thresholds: Thresholds | None) -> None:
    """Keep what a verdict that is announced was made from, where a test wants it."""
    keep("evidence", lambda: codec.dumps(Recording(announce.value, judged.job, thresholds)))


def _failed(process: ProcessState) -> bool:
    """Whether a rank ended in another way than well, or by order."""
    if process.signal is not None:
        return process.signal != signal.SIGTERM and not process.terminated_by_launcher
    return not process.alive and process.exit_code != 0
