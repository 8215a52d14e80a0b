"""Looks for stragglers among the ranks of this node (efficiency/stragglers.py)."""

from __future__ import annotations

import asyncio
import platform
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hangwatch.console import News
from hangwatch.efficiency.straggler_watch import Loop, Observation, SavedWatch, StragglerWatch
from hangwatch.efficiency.stragglers import RankMoment, Ranks, active_ranks
from hangwatch.errors import EvidenceError, PageError
from hangwatch.evidence.background import Tasks
from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import Look
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Reason
from hangwatch.model.page import PageGroup, PageMoment, RankPage
from hangwatch.model.report import Straggler, Stragglers, Why
from hangwatch.report.wording import slow_at
from hangwatch.run.handshake import Hello
from hangwatch.text import duration, the_ranks
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident.reporter import Reporter
from hangwatch.watchdog.profiles import Profiled, Profiler

_FUTEX = {"aarch64": 98}.get(platform.machine(), 202)
"""Number of futex(2), in which a thread sleeps that waits for another one of its process."""
_LEAST_CPU_NS = 1_000_000
"""A thread that trains uses more within ASLEEP_S."""
_HELD = 0.8
"""Share of the time of a profile for which the others have to wait if it is to show for what."""
_TRIES = 4
"""Profiles of a straggler that are taken until one shows why it is slow."""
_KEPT = 64
"""Moments that wait for those of other ranks; a page has as many (native/page.hpp)."""


@dataclass(slots=True)
class Moments:
    """Puts the moments together that the ranks of this node have noted, each for itself.

    A rank misses some while it gets no CPU, which is when the others may wait for it: one between
    two in which it is the same was as these.
    """

    _noted: dict[int, tuple[int, list[PageMoment]]] = field(default_factory=dict)
    """By rank its pid, and the moments from the last one on that was put together."""
    _done: int = 0
    """Number of the last that was put together."""

    def read(self, look: Look) -> list[dict[int, PageMoment]]:
        """Return the new moments that are known of all living ranks, oldest first."""
        ranks = [self._read(rank, look.seen[rank]) for rank in look.waiting]
        last = min((noted[-1].number if noted else 0 for noted in ranks), default=0)
        numbers = {one.number for noted in ranks for one in noted}
        known = []
        for number in sorted(n for n in numbers if self._done < n <= last):
            at = [_at(noted, number) for noted in ranks]
            whole = [one for one in at if one is not None]
            if len(whole) == len(ranks):
                known.append(dict(zip(look.waiting, whole, strict=True)))
        self._done = max(self._done, last)
        for noted in ranks:
            del noted[: max(bisect_right(noted, last, key=_number) - 1, len(noted) - _KEPT, 0)]
        return known

    def _read(self, rank: int, seen: Seen) -> list[PageMoment]:
        """The moments of a rank, with those that are new."""
        pid = seen.light.identity.pid
        before, noted = self._noted.get(rank, (pid, []))
        if before != pid:
            noted = []
        with suppress(PageError):
            noted += seen.page.moments(noted[-1].number if noted else 0)
        self._noted[rank] = pid, noted
        return noted


def _number(moment: PageMoment) -> int:
    return moment.number


def _at(noted: list[PageMoment], number: int) -> PageMoment | None:
    """A rank at a moment, None where that is not known."""
    index = bisect_left(noted, number, key=_number)
    if index == len(noted) or noted[index].number == number:
        return noted[index] if index < len(noted) else None
    before, after = noted[index - 1] if index else None, noted[index]
    same = before and (before.call, before.groups) == (after.call, after.groups)
    return after._replace(number=number) if same else None


def rank_moments(
    moment: Mapping[int, PageMoment], pages: Mapping[int, RankPage], groups: Mapping[GroupKey, int]
) -> dict[int, RankMoment]:
    """Return the ranks at a moment. groups: the number of each group."""
    ranks = {}
    for rank, at in moment.items():
        keys = {group.slot: groups.get(group.key) for group in pages[rank].groups}
        issued = {
            number: count for slot, count, _ in at.groups if (number := keys.get(slot)) is not None
        }
        blocked = at.blocked_slot >= 0
        ranks[rank] = RankMoment(
            issued,
            idle=at.call == _FUTEX or (blocked and at.call >= 0),
            unfinished=blocked or any(done < count for _, count, done in at.groups),
            peer=at.blocked_peer if blocked else -1,
        )
    return ranks


@dataclass(slots=True, kw_only=True)
class StragglerLook:
    """Reads the moments at each look of the monitor, and announces stragglers."""

    hello: Hello
    news: News
    reporter: Reporter
    node: str
    profiler: Profiler
    unknown: str = "the ranks have noted no moments; the native recorder does"
    """Why nothing is known of the last moments."""
    watch: StragglerWatch = field(init=False)
    _moments: Moments = field(default_factory=Moments)
    _telling: Tasks = field(init=False)
    _tries: int = 0
    """Profiles that may be taken yet to explain the current ones."""
    _threads: dict[int, int] = field(default_factory=dict)
    """By rank the thread that trains, as of the last moment."""
    _before: dict[int, PageMoment] = field(default_factory=dict)
    """By rank a moment that its use of the CPU is compared with."""
    _asleep: dict[int, bool] = field(default_factory=dict)
    """By rank, if the thread that issues calls had used no CPU between two of these."""

    def __post_init__(self) -> None:
        self.watch = StragglerWatch(self.hello.config.straggler_window_s)
        self._telling = Tasks(self._failed)

    def look(self, look: Look, *, stuck: bool, loop: Loop = Loop()) -> None:  # noqa: B008 (it is frozen)
        """Read what is new. Never raises.

        stuck: a verdict says why the job makes no progress. loop: what is known of its loop.
        """
        self.watch.loop = loop
        if not self.hello.config.stragglers:
            return
        try:
            self._look(look, stuck=stuck)
        except Exception as error:  # noqa: BLE001 (hangs are looked for without it)
            self.unknown = f"the search has failed: {error!r}"
            self.news.fault("stragglers", f"no search for stragglers: {error!r}", error, quiet=True)

    def restarted(self) -> None:
        """Forget the ranks, which the launcher has replaced."""
        self._telling.cancel()
        self.watch.forget()
        self._moments = Moments()
        self._before.clear()
        self._asleep.clear()

    async def settle(self) -> None:
        """Wait until what was found is told: a profile ends with its processes."""
        await self._telling.settle(timing.PROFILE_ENDS_S)
        self._telling.cancel()

    def conclude(self) -> Stragglers:
        """Return those of the whole run, which is over."""
        self.watch.forget()
        unknown = ""
        if not self.hello.config.stragglers:
            unknown = "--no-stragglers was given"
        elif self.watch.measured_s < self.watch.window_s:
            unknown = self.unknown or (
                f"which rank waits for which was known for {duration(self.watch.measured_s)}, and "
                f"{duration(self.watch.window_s)} are needed (--straggler-window)"
            )
        return Stragglers(tuple(self.watch.told), self.watch.measured_s, unknown)

    def export(self) -> SavedWatch:
        """Return the state for restore()."""
        return self.watch.export()

    def restore(self, saved: SavedWatch) -> None:
        """Continue for a watchdog that was killed."""
        self.watch.restore(saved)

    def _look(self, look: Look, *, stuck: bool) -> None:
        pages = {rank: look.seen[rank].light for rank in look.waiting}
        moments = self._moments.read(look)
        if not moments:
            return
        self.unknown = self._not_comparable(look, pages, moments[-1])
        if self.unknown:
            return
        self._threads = {rank: at.thread for rank, at in moments[-1].items()}
        groups, members = _groups(pages)
        for moment in moments:
            at_s = (min(at.at_ns for at in moment.values()) - self.hello.started_ns) / 1e9
            ranks = rank_moments(moment, pages, groups)
            issued = [sum(at.issued.values()) for at in ranks.values()]
            active = active_ranks(ranks, members)
            self.watch.add(Observation(at_s, active, sum(issued), max(issued)))
        if not stuck:
            self._assess(pages, at_s, {group: frozenset(ranks) for group, ranks in members.items()})

    def _assess(
        self, pages: Mapping[int, RankPage], at_s: float, members: Mapping[int, Ranks]
    ) -> None:
        straggler = self.watch.assess(at_s, members)
        current = self.watch.current
        if straggler is None:
            if current and self._tries and self.watch.held_s(current.ranks) >= timing.HELD_S:
                tries, self._tries = self._tries - 1, 0
                self._telling.start(self._tell_later(current, dict(pages), tries))
            return
        self._tries = 0
        if straggler == current:
            self._telling.start(self._tell(straggler, dict(pages)))
            return
        who = the_ranks(straggler.ranks)
        lost = duration(straggler.lost_s)
        self.news.say(f"the job no longer waits for {who}, which has cost it {lost}")

    async def _tell(self, straggler: Straggler, pages: Mapping[int, RankPage]) -> None:
        """Announce a straggler, with what it does while the others wait."""
        why = straggler.why
        if not self.watch.is_seldom:  # else it does the same as others just now
            waits = [1 - self.watch.active_share(rank) for rank in _compared(straggler)]
            try:
                why = await self._why(straggler, pages, waits, straggler.fraction, timing.PROFILE_S)
            except EvidenceError as error:
                why = replace(why, missing=str(error))
        found = self.watch.explain(straggler.ranks, why) or replace(straggler, why=why)
        if why.reason is Reason.UNKNOWN and not why.missing:
            self._tries = _TRIES
        processes = {
            rank: f"process {page.identity.pid} on {self.node}" for rank, page in pages.items()
        }
        self.reporter.straggler(found, processes)

    async def _tell_later(
        self, straggler: Straggler, pages: Mapping[int, RankPage], tries: int
    ) -> None:
        """Say why one is slow that is so but seldom, and has shown nothing else yet.

        tries: that are left if this one shows nothing either.
        """
        began_s = self.hello.elapsed_s()
        try:
            why = await self._why(straggler, pages, (0.0, 1.0), 1.0, timing.HELD_PROFILE_S)
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

    async def _why(
        self,
        straggler: Straggler,
        pages: Mapping[int, RankPage],
        waits: Sequence[float],
        cost: float,
        seconds: int,
    ) -> Why:
        """Profile a straggler and the rank that it is compared with. Raises EvidenceError.

        waits: as Profile.waits, of both. cost: share of these seconds that it costs.
        """
        slow, like = (
            Profiled(pages[rank], self._threads.get(rank, 0), share)
            for rank, share in zip(_compared(straggler), waits, strict=True)
        )
        return await self.profiler.why(slow, like, cost, seconds)

    def _failed(self, error: BaseException) -> None:
        self.news.fault("stragglers", f"a straggler is not told: {error!r}", error, quiet=True)

    def _not_comparable(
        self, look: Look, pages: Mapping[int, RankPage], moment: Mapping[int, PageMoment]
    ) -> str:
        """Say why it cannot be known which rank waits for which; empty if it can."""
        size = max(page.identity.world_size for page in pages.values())
        if size < 2:  # noqa: PLR2004 (nobody waits)
            return "the job has one rank"
        if len(look.seen) < size:
            return "ranks of several nodes are not compared"
        if len(pages) < size:
            return "some ranks have ended"
        for rank, page in pages.items():
            counted = {slot for slot, _, _ in moment[rank].groups}
            in_use = {group.slot for group in page.groups if _is_in_use(group, look.now_ns)}
            if not in_use <= counted:
                return _not_counted(page)
        if self._are_asleep(moment):
            return "the threads that train are not known: they issue no call from Python"
        return ""

    def _are_asleep(self, moment: Mapping[int, PageMoment]) -> bool:
        """True if the threads that are taken for those that train use no CPU on any rank."""
        for rank, at in moment.items():
            before = self._before.get(rank)
            if before is None or before.thread != at.thread:
                self._before[rank] = at
            elif at.at_ns - before.at_ns >= timing.ASLEEP_S * 1e9:
                self._before[rank] = at
                self._asleep[rank] = at.cpu_ns - before.cpu_ns < _LEAST_CPU_NS
        return all(self._asleep.get(rank, False) for rank in moment)


def _compared(straggler: Straggler) -> tuple[int, int]:
    """The rank of a straggler that is profiled, and the one that it is compared with."""
    return straggler.ranks[0], straggler.why.like


def _not_counted(page: RankPage) -> str:
    """Say why the rank of a page notes no calls of its groups (native/moments.cpp)."""
    groups = [group for group in page.groups if group.alive]
    names = {one.rpartition(":")[2] for group in groups for one in group.backend.split(",")}
    if names - {"gloo"}:
        return f"there are groups of {', '.join(sorted(names - {'gloo'}))}; only gloo's are counted"
    if any(group.enqueued == 0 for group in groups):
        return "some process groups have not been used yet: calls are counted once all have"
    return "c10d does not say how many calls it has issued; it does from torch 2.8 on"


def _is_in_use(group: PageGroup, now_ns: int) -> bool:
    """True for a group of several ranks in which something was issued of late."""
    of_several = group.alive and len(group.key.ranks) > 1
    return of_several and group.enqueued > 0 and now_ns - group.changed_ns < timing.IN_USE_S * 1e9


def _groups(
    pages: Mapping[int, RankPage],
) -> tuple[dict[GroupKey, int], dict[int, tuple[int, ...]]]:
    """(number of each group, members by number) of the groups of several ranks."""
    keys = dict.fromkeys(
        group.key
        for page in pages.values()
        for group in page.groups
        if group.alive and len(group.key.ranks) > 1 and pages.keys() >= set(group.key.ranks)
    )
    numbers = {key: number for number, key in enumerate(keys)}
    return numbers, {number: key.ranks for key, number in numbers.items()}
