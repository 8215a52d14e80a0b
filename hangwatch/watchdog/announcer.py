"""Announces stragglers, with what they do while the others wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hangwatch.console import News
from hangwatch.efficiency.straggler_watch import StragglerWatch
from hangwatch.errors import EvidenceError
from hangwatch.evidence import environment
from hangwatch.evidence.background import Tasks
from hangwatch.model.kinds import Reason
from hangwatch.model.page import RankPage
from hangwatch.model.profile import Profile
from hangwatch.model.report import Straggler, StragglerEvidence, Why
from hangwatch.run.handshake import Hello
from hangwatch.text import duration, the_ranks
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident.reporter import utc
from hangwatch.watchdog.peers.comparison import Talk
from hangwatch.watchdog.profiles import Explained, Profiled, Profiler
from hangwatch.watchdog.straggler_reporter import StragglerReporter

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
    reporter: StragglerReporter
    node: str
    profiler: Profiler
    watch: StragglerWatch
    ranks: Mapping[int, LocalRank] = field(default_factory=dict)
    """Of this node, at the last look."""
    tasks: Tasks = field(init=False)
    _versions: dict[str, str] = field(default_factory=dict)
    """Of the run, and of what the straggler has loaded."""
    _profiled_s: float = 0.0
    """When the last profile was taken."""
    _ends: asyncio.Event = field(default_factory=asyncio.Event)
    """The job ends: nothing more is known of its ranks."""
    _tries: int = 0
    """Profiles that may be taken yet to explain the current ones."""

    def __post_init__(self) -> None:
        self.tasks = Tasks(self._failed)

    def announce(self, straggler: Straggler, shared: SharedNews | None = None) -> None:
        """Say that there is a straggler, or that one is over."""
        self._tries = 0
        for over in self.watch.told[-1:]:  # this one, or that whose place it takes
            self.tasks.start(self.reporter.ended(over))
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
        self._ends.set()
        await self.tasks.settle(timing.PROFILE_ENDS_S)
        self.tasks.cancel()

    def cancel(self) -> None:
        """Tell nothing of what was found."""
        self.tasks.cancel()

    async def _tell(self, straggler: Straggler, shared: SharedNews | None) -> None:
        """Announce a straggler of this node, with what it does while the others wait."""
        found = Explained(straggler.why)
        if slow := self.ranks.get(straggler.ranks[0]):
            pid = slow.page.identity.pid
            self._versions = self.hello.run.versions | environment.versions(pid)
        if not self.watch.is_seldom:  # else it does the same as others just now
            try:
                if straggler.why.like in self.ranks:
                    found = await self._why(straggler, straggler.fraction, timing.PROFILE_S)
                elif shared is not None:
                    found = await self._why_unlike(straggler, shared.talk)
            except EvidenceError as error:
                found = Explained(replace(straggler.why, missing=str(error)))
        why = found.why
        if why.hidden and shared is None:
            self.watch.dismiss(straggler.ranks, self.hello.elapsed_s())
            return
        explained = self.watch.explain(straggler.ranks, why) or replace(straggler, why=why)
        # A directory that is slow must not keep the reason from the others.
        telling = [self.tasks.start(self.reporter.tell(self._evidence(explained, found)))]
        if shared is not None:
            telling.append(self.tasks.start(shared.talk.say("why", why)))
        await asyncio.wait(telling)
        if self.watch.current_ranks != straggler.ranks:
            return
        if why.reason is Reason.UNKNOWN and not why.missing and why.like in self.ranks:
            self._tries = _TRIES

    async def _tell_later(self, straggler: Straggler, tries: int) -> None:
        """Say why one is slow that is so but seldom, and has shown nothing else yet.

        tries: that are left if this one shows nothing either.
        """
        began_s = self.hello.elapsed_s()
        try:
            found = await self._why(straggler, 1.0, timing.HELD_PROFILE_S, held=True)
        except EvidenceError:
            return
        held = self.watch.held_share(straggler.ranks, began_s, self._profiled_s) >= _HELD
        if not held or found.why.reason is Reason.UNKNOWN:
            self._tries = tries
            return
        explained = self.watch.explain(straggler.ranks, replace(found.why, held=True))
        if explained is not None:
            await self.reporter.explain(self._evidence(explained, found))

    def _evidence(self, straggler: Straggler, found: Explained) -> StragglerEvidence:
        pages, loop = {rank: one.page for rank, one in sorted(self.ranks.items())}, self.watch.loop
        return StragglerEvidence(
            run=replace(self.hello.run, versions=self._versions),
            straggler=straggler,
            detected_at=utc(),
            world_size=max((page.identity.world_size for page in pages.values()), default=0),
            node=self.node,
            pids={rank: page.identity.pid for rank, page in pages.items()},
            period_s=loop.turn_s if loop.known else 0.0,
            waits=self.watch.waits(straggler.ranks, tuple(pages), timing.WAITS_SHOWN_S),
            threads=found.threads,
            profiles=found.profiles,
            sources=found.sources,
        )

    async def _hear(self, straggler: Straggler, shared: SharedNews) -> None:
        """Announce a straggler of another node, in one line, once it is known what it does."""
        talk = shared.talk
        if straggler.why.like in self.ranks:
            try:
                began_s = self.hello.elapsed_s()
                like = self._profiled(straggler.why.like)
                taken = await self.profiler.take(like, timing.PROFILE_S)
                (profile,) = await self._with_waits(began_s, taken)
                most = sorted(profile.samples, key=lambda one: -one.count)[:_SENT]
                await talk.say("like", replace(profile, samples=tuple(most)))
            except EvidenceError as error:
                self.news.debug(f"rank {straggler.why.like} is not profiled: {error}")
        why = await talk.hear("why", Why, timing.PROFILE_S, timing.WHY_S)
        found = self.watch.explain(straggler.ranks, why) if why is not None else None
        self.reporter.elsewhere(found or straggler, shared.host)

    async def _why(
        self, straggler: Straggler, cost: float, seconds: int, *, held: bool = False
    ) -> Explained:
        """Profile a straggler and the rank that it is compared with. Raises EvidenceError.

        cost: share of these seconds that it costs. held: the others wait for it in all of them.
        """
        began_s = self.hello.elapsed_s()
        slow, like = (self._profiled(rank) for rank in _compared(straggler))
        profiles = await self.profiler.take_both(slow, like, seconds)
        of_slow, of_like = await self._with_waits(began_s, *profiles)
        if held:
            of_slow, of_like = replace(of_slow, waits=0.0), replace(of_like, waits=1.0)
        return await self.profiler.explain(slow.page, of_slow, of_like, cost)

    async def _why_unlike(self, straggler: Straggler, talk: Talk) -> Explained:
        """Compare a straggler with a rank of another node. Raises EvidenceError."""
        rank, other = _compared(straggler)
        began_s = self.hello.elapsed_s()
        slow = self._profiled(rank)
        taken = await self.profiler.take(slow, timing.PROFILE_S)
        (profile,) = await self._with_waits(began_s, taken)
        like = await talk.hear("like", Profile, 0.0, timing.PROFILE_LATE_S)
        if like is None:
            raise EvidenceError(f"that of rank {other}, on another node, has not come")
        like = replace(like, rank=other)  # whatever it says
        return await self.profiler.compare(slow.page, profile, like, straggler.fraction)

    async def _with_waits(self, began_s: float, *profiles: Profile) -> list[Profile]:
        """Return profiles that were taken just now with what is known of the same seconds.

        began_s: when that began. It takes a moment until it is known.
        """
        self._profiled_s = self.hello.elapsed_s()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ends.wait(), timing.MOMENTS_KNOWN_S)
        return [
            replace(one, waits=self.watch.waiting_share(one.rank, began_s, self._profiled_s))
            for one in profiles
        ]

    def _profiled(self, rank: int) -> Profiled:
        one = self.ranks.get(rank)
        if one is None:
            raise EvidenceError(f"rank {rank} has ended")
        return Profiled(one.page, one.thread)

    def _failed(self, error: BaseException) -> None:
        self.news.fault("stragglers", f"a straggler is not told: {error!r}", error, quiet=True)


def _compared(straggler: Straggler) -> tuple[int, int]:
    """The rank of a straggler that is profiled, and the one that it is compared with."""
    return straggler.ranks[0], straggler.why.like
