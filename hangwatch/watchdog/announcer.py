"""Announces stragglers, with what they do while the others wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hangwatch.console import News
from hangwatch.efficiency.straggler_watch import StragglerWatch
from hangwatch.errors import EvidenceError
from hangwatch.evidence.background import Tasks
from hangwatch.model.kinds import Reason
from hangwatch.model.page import RankPage
from hangwatch.model.profile import Profile
from hangwatch.model.report import Straggler, Why
from hangwatch.report.wording import slow_at
from hangwatch.run.handshake import Hello
from hangwatch.text import duration, the_ranks
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident.reporter import Reporter
from hangwatch.watchdog.peers.comparison import Talk
from hangwatch.watchdog.profiles import Profiled, Profiler

_HELD = 0.8
"""Share of the time of a profile for which the others have to wait if it is to show for what."""
_TRIES = 4
"""Profiles of a straggler that are taken until one shows why it is slow."""
_SENT = 100
"""Different stacks of a profile that are sent to another node, those seen most often."""


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A rank of this node. thread: native id of the one that trains."""

    page: RankPage
    thread: int


@dataclass(frozen=True, slots=True)
class SharedNews:
    """A straggler that all nodes know of: the host that has it, and their talk about it."""

    host: str
    talk: Talk


@dataclass(slots=True, kw_only=True)
class Announcer:
    """Announces what is news of a StragglerWatch, and explains it.

    Of several nodes the one that has the first of the ranks does; it tells the others why. If it
    has no rank that is not slow, another node sends it a profile of one of its own.
    """

    hello: Hello
    news: News
    reporter: Reporter
    node: str
    profiler: Profiler
    watch: StragglerWatch
    ranks: Mapping[int, LocalRank] = field(default_factory=dict)
    """Of this node, at the last look."""
    tasks: Tasks = field(init=False)
    _tries: int = 0
    """Profiles that may be taken yet to explain the current ones."""

    def __post_init__(self) -> None:
        self.tasks = Tasks(self._failed)

    def announce(self, straggler: Straggler, shared: SharedNews | None = None) -> None:
        """Say that there is a straggler, or that one is over."""
        self._tries = 0
        if straggler != self.watch.current:
            who, lost = the_ranks(straggler.ranks), duration(straggler.lost_s)
            self.news.say(f"the job no longer waits for {who}, which has cost it {lost}")
        elif straggler.ranks[0] in self.ranks:
            self.tasks.start(self._tell(straggler, shared))
        elif shared is not None:
            self.tasks.start(self._hear(straggler, shared))

    def look_again(self) -> None:
        """Look once more what a straggler does, if it is at it and nothing has shown it yet."""
        current = self.watch.current
        if current and self._tries and self.watch.held_s(current.ranks) >= timing.HELD_S:
            tries, self._tries = self._tries - 1, 0
            self.tasks.start(self._tell_later(current, tries))

    async def settle(self) -> None:
        """Wait until what was found is told: a profile ends with its processes."""
        await self.tasks.settle(timing.PROFILE_ENDS_S)
        self.tasks.cancel()

    def cancel(self) -> None:
        """Tell nothing of what was found."""
        self.tasks.cancel()

    async def _tell(self, straggler: Straggler, shared: SharedNews | None) -> None:
        """Announce a straggler of this node, with what it does while the others wait."""
        why = straggler.why
        if not self.watch.is_seldom:  # else it does the same as others just now
            try:
                if why.like in self.ranks:
                    waits = [self._waits(rank) for rank in _compared(straggler)]
                    why = await self._why(straggler, waits, straggler.fraction, timing.PROFILE_S)
                elif shared is not None:
                    why = await self._why_unlike(straggler, shared.talk)
            except EvidenceError as error:
                why = replace(why, missing=str(error))
        found = self.watch.explain(straggler.ranks, why) or replace(straggler, why=why)
        if why.reason is Reason.UNKNOWN and not why.missing and why.like in self.ranks:
            self._tries = _TRIES
        processes = {
            rank: f"process {one.page.identity.pid} on {self.node}"
            for rank, one in self.ranks.items()
        }
        self.reporter.straggler(found, processes)
        if shared is not None:
            await shared.talk.say("why", why)

    async def _tell_later(self, straggler: Straggler, tries: int) -> None:
        """Say why one is slow that is so but seldom, and has shown nothing else yet.

        tries: that are left if this one shows nothing either.
        """
        began_s = self.hello.elapsed_s()
        try:
            why = await self._why(straggler, (0.0, 1.0), 1.0, timing.HELD_PROFILE_S)
        except EvidenceError:
            return
        ended_s = self.hello.elapsed_s()
        await asyncio.sleep(timing.MOMENTS_KNOWN_S)
        held = self.watch.held_share(straggler.ranks, began_s, ended_s) >= _HELD
        if not held or why.reason is Reason.UNKNOWN:
            self._tries = tries
            return
        found = self.watch.explain(straggler.ranks, replace(why, held=True))
        if found is not None:
            for text in slow_at(straggler.ranks[0], found.why):
                self.news.say(text)

    async def _hear(self, straggler: Straggler, shared: SharedNews) -> None:
        """Announce a straggler of another node, in one line, once it is known what it does."""
        talk = shared.talk
        if straggler.why.like in self.ranks:
            try:
                like = self._profiled(straggler.why.like)
                profile = await self.profiler.take(like, timing.PROFILE_S)
                most = sorted(profile.samples, key=lambda one: -one.count)[:_SENT]
                await talk.say("like", replace(profile, samples=tuple(most)))
            except EvidenceError as error:
                self.news.debug(f"rank {straggler.why.like} is not profiled: {error}")
        why = await talk.hear("why", Why, timing.PROFILE_S, timing.WHY_S)
        found = self.watch.explain(straggler.ranks, why) if why is not None else None
        self.reporter.straggler_elsewhere(found or straggler, shared.host)

    async def _why(
        self, straggler: Straggler, waits: Sequence[float], cost: float, seconds: int
    ) -> Why:
        """Profile a straggler and the rank that it is compared with. Raises EvidenceError.

        waits: as Profile.waits, of both. cost: share of these seconds that it costs.
        """
        slow, like = (
            replace(self._profiled(rank), waits=share)
            for rank, share in zip(_compared(straggler), waits, strict=True)
        )
        return await self.profiler.why(slow, like, cost, seconds)

    async def _why_unlike(self, straggler: Straggler, talk: Talk) -> Why:
        """Compare a straggler with a rank of another node. Raises EvidenceError."""
        rank, other = _compared(straggler)
        slow = self._profiled(rank)
        profile = await self.profiler.take(slow, timing.PROFILE_S)
        like = await talk.hear("like", Profile, 0.0, timing.PROFILE_LATE_S)
        if like is None:
            raise EvidenceError(f"that of rank {other}, on another node, has not come")
        return await self.profiler.compare(slow.page, profile, like, straggler.fraction)

    def _profiled(self, rank: int) -> Profiled:
        one = self.ranks.get(rank)
        if one is None:
            raise EvidenceError(f"rank {rank} has ended")
        return Profiled(one.page, one.thread, self._waits(rank))

    def _waits(self, rank: int) -> float:
        return 1 - self.watch.active_share(rank)

    def _failed(self, error: BaseException) -> None:
        self.news.fault("stragglers", f"a straggler is not told: {error!r}", error, quiet=True)


def _compared(straggler: Straggler) -> tuple[int, int]:
    """The rank of a straggler that is profiled, and the one that it is compared with."""
    return straggler.ranks[0], straggler.why.like
