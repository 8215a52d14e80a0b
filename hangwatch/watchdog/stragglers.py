"""Looks for stragglers among the ranks of this node, or with the other nodes (efficiency/)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hangwatch.console import News
from hangwatch.efficiency.leads import Ranks
from hangwatch.efficiency.node_watch import NodeWatch
from hangwatch.efficiency.nodes import NodeMoments, SlowNodes, find_slow
from hangwatch.efficiency.straggler_watch import Loop, Observation, SavedWatch, StragglerWatch
from hangwatch.efficiency.stragglers import who_waits
from hangwatch.evidence.pages.look import Look
from hangwatch.model.report import Stragglers
from hangwatch.run.handshake import Hello
from hangwatch.text import duration, the_ranks
from hangwatch.watchdog import timing
from hangwatch.watchdog.announcer import Announcer, LocalRank, SharedNews
from hangwatch.watchdog.moments import Moments, Sleep, known_groups, rank_moments, why_unknown
from hangwatch.watchdog.peers.comparison import Talk


@dataclass(slots=True, kw_only=True)
class StragglerLook:
    """Reads the moments at each look of the monitor, and announces stragglers."""

    hello: Hello
    news: News
    announcer: Announcer
    compare: Callable[[], Awaitable[str]]
    """Has the moments of all nodes compared; returns why that cannot be (Peers.compare)."""
    unknown: str = "the ranks have noted no moments; the native recorder does"
    """Why nothing is known of the last moments."""
    nodes: NodeWatch = field(init=False)
    _needed_s: float = field(init=False)
    """For how long it has to be known who waits."""
    _unknown_elsewhere: str = ""
    """Why the nodes could not be compared."""
    _failure: str = ""
    """The same, of the last time."""
    _asking: asyncio.Task[None] | None = None
    _members: Mapping[int, Ranks] = field(default_factory=dict)
    """Of the groups of a job on this node alone."""
    _moments: Moments = field(default_factory=Moments)
    _sleep: Sleep = field(default_factory=Sleep)

    def __post_init__(self) -> None:
        self.nodes = NodeWatch(self.hello.config.straggler_window_s)
        self._needed_s = self.hello.config.straggler_window_s

    @property
    def watch(self) -> StragglerWatch:
        """What is known of the stragglers of the run."""
        return self.announcer.watch

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
        self.announcer.cancel()
        self.watch.forget()
        self.nodes.forget()
        self._moments = Moments()
        self._sleep = Sleep()

    async def settle(self) -> None:
        """Wait until what was found is told: a profile ends with its processes."""
        if self._asking is not None:
            self._asking.cancel()
        await self.announcer.settle()

    def conclude(self) -> Stragglers:
        """Return those of the whole run, which is over."""
        perhaps = self.watch.perhaps(self._members) if self._members else frozenset[int]()
        self.watch.forget()
        unknown = self._unknown_elsewhere
        if not self.hello.config.stragglers:
            unknown = "--no-stragglers was given"
        elif self.watch.measured_s < self._needed_s:
            unknown = self.unknown or (
                f"which rank waits for which was known for {duration(self.watch.measured_s)}, and "
                f"{duration(self._needed_s)} are needed (--straggler-window)"
            )
        elif perhaps:
            unknown = (
                f"{the_ranks(sorted(perhaps))} may be slow, but the run was too short to be sure "
                "(--straggler-window)"
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
        size = max(page.identity.world_size for page in pages.values())
        self.unknown = (
            "the job has one rank" if size == 1 else why_unknown(look, pages, moments[-1])
        )
        if not self.unknown and self._sleep.all_sleep(moments[-1]):
            self.unknown = "the threads that train are not known: they issue no call from Python"
        if self.unknown:
            return
        threads = {rank: at.thread for rank, at in moments[-1].items()}
        self.announcer.ranks = {
            rank: LocalRank(page, threads.get(rank, 0)) for rank, page in pages.items()
        }
        alone = size == len(look.seen)
        self._needed_s = self.watch.window_s if alone else self.nodes.needed_s
        groups, members = known_groups(pages)
        members_of = {group: frozenset(ranks) for group, ranks in members.items()}
        self.nodes.groups = tuple(members_of.values())
        for moment in moments:
            at_s = (min(at.at_ns for at in moment.values()) - self.hello.started_ns) / 1e9
            ranks = rank_moments(moment, pages, groups)
            issued = [sum(count for _, count, _ in at.groups) for at in moment.values()]
            waiting = who_waits(ranks, members)
            if not alone:
                self.nodes.add(at_s, tuple(ranks), waiting.awake, sum(issued))
                self.nodes.peers |= {(rank, at.peer) for rank, at in ranks.items() if at.peer >= 0}
                # It is not known here whom the others wait for.
                waiting = replace(waiting, for_data=False)
            self.watch.add(Observation(at_s, waiting, sum(issued), max(issued)))
        if stuck:
            return
        if alone:
            self._members = members_of
            news = self.watch.assess(at_s, members_of)
            if news is not None:
                self.announcer.announce(news)
        else:
            self.watch.go_on(at_s)
            if self.nodes.wants(at_s) and (self._asking is None or self._asking.done()):
                self._asking = self.announcer.tasks.start(self._ask_nodes())
        self.announcer.look_again()

    async def _ask_nodes(self) -> None:
        """Have the nodes compared, unless another one has done so by then."""
        await asyncio.sleep(random.uniform(0, timing.SPREAD_S))  # noqa: S311 (no secret)
        if not self.nodes.wants(self.hello.elapsed_s()):
            return
        failure = await self.compare()
        if failure:
            self.nodes.asked(self.hello.elapsed_s())
            self.nodes.concluded(SlowNodes(unknown=failure))
            # The first time the job may be about to end, and its store with it.
            self._unknown_elsewhere, self._failure = self._failure, failure

    def tell(self) -> NodeMoments:
        """Return what this node tells the others, which a node asks for."""
        now_s = self.hello.elapsed_s()
        self.nodes.asked(now_s)
        unknown = self.unknown if self.hello.config.stragglers else "--no-stragglers was given"
        return self.nodes.moments(self.announcer.node, self.watch.meeting_s, unknown)

    def find(self, told: Sequence[NodeMoments]) -> SlowNodes:
        """Return what the moments of all nodes show."""
        return find_slow(told, self.watch.current_ranks, self.watch.span_s)

    def heard(self, found: SlowNodes, talk: Talk) -> None:
        """Take in what the moments of all nodes show. talk: with the others about it."""
        self._unknown_elsewhere, self._failure = found.unknown, ""
        news = self.nodes.heard(found, self.watch, self.hello.elapsed_s())
        if news is not None:
            self.announcer.announce(news, SharedNews(found.host, talk))
