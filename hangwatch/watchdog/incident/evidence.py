"""Gathers what this node knows of its ranks, as much as a moment calls for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any

from hangwatch.console import News
from hangwatch.errors import EvidenceError, FlightError, PageError
from hangwatch.evidence import flights, ras, sources
from hangwatch.evidence.exits import Exits
from hangwatch.evidence.flight import parse_dump
from hangwatch.evidence.flight.entries import FlightDump
from hangwatch.evidence.page import extra_groups
from hangwatch.evidence.pages.finder import Pages, Seen
from hangwatch.evidence.pages.rank_status import RankStatus, rank_statuses
from hangwatch.evidence.processes import (
    PROC,
    LaunchedRank,
    Tree,
    alive,
    command_line,
    environment,
    process_state,
)
from hangwatch.evidence.snapshot import launched_snapshot, rank_snapshot, waits_itself
from hangwatch.evidence.stacks import NoStacksError, PySpy
from hangwatch.evidence.threads import in_thread
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import Phase
from hangwatch.model.page import RankPage
from hangwatch.model.report import Note, RasAnswer
from hangwatch.model.snapshot import Child, ProcessState, RankSnapshot, ThreadStack
from hangwatch.run.test_hooks import Point, reach

BUDGET_S = 5.0
"""How long stacks and recorders may take together."""
RAS_S = 3.0
"""How long NCCL's RAS service may take."""
SOURCES_S = 1.0
"""How long reading source files may take: they may lie on a file system that hangs."""
MAX_CHILDREN = 32
_STOPPED = frozenset("Tt")
_ASKED = frozenset({Phase.RUNNING, Phase.FINALIZING})


class Level(IntEnum):
    """How much is gathered; each has all of those before it."""

    LIGHT = 0
    """Pages and /proc."""
    FLIGHT = 1
    """The Flight Recorder of each rank."""
    FULL = 2
    """Stacks of the ranks and of their children, sources, raw pages, GPUs."""


@dataclass(slots=True)
class _Found:
    """What was gathered of one rank beside its page."""

    pid: int
    process: ProcessState
    threads: tuple[ThreadStack, ...] | None = None
    children: dict[int, Child] = field(default_factory=dict)
    processors: float | None = None
    flight: FlightDump | None = None
    raw_flight: bytes = b""
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Collected:
    """The ranks of this node at one moment. ``pages`` and ``flights`` are raw, by rank."""

    restart: int
    world_size: int
    ranks: tuple[RankSnapshot, ...]
    sources: dict[str, str] = field(default_factory=dict)
    pages: dict[int, bytes] = field(default_factory=dict)
    flights: dict[int, bytes] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    """Costly mistakes of these ranks."""
    local_size: int = 0
    """How many ranks this node should have, as far as they know; 0 if unknown."""


_Job = tuple[_Found, Coroutine[Any, Any, None]]
"""What is done for a rank."""


class Gatherer:
    """Knows where the evidence of this node is."""

    def __init__(  # noqa: PLR0913 (what it draws on, all by keyword)
        self,
        *,
        pages: Pages,
        exits: Exits,
        py_spy: PySpy,
        news: News,
        node: str,
        commands: Callable[[], Sequence[int]],
        gpus: Callable[[], Mapping[int, GpuState]] = dict,
        notes: Callable[[], tuple[Note, ...]] = tuple,
        proc: str = PROC,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._pages = pages
        self._exits = exits
        self._py_spy = py_spy
        self._news = news
        self._node = node
        self._commands = commands
        self._gpus = gpus
        self._notes = notes
        self._proc = proc
        self._now_ns = now_ns
        self._tree: Tree | None = None
        """Of the last look at processes."""

    @property
    def incarnation(self) -> int:
        """Number of the incarnation of the job that is watched."""
        return self._pages.incarnation

    def standing(self) -> dict[int, RankStatus]:
        """Where each rank of this node that lives stands at this moment, by its page."""
        seen = self._pages.look()
        found = rank_statuses(seen, self._launched_without_page(seen))
        return {rank: one for rank, one in found.items() if alive(*one.process, self._proc)}

    def ask_in_passing(self) -> None:
        """Have each rank that lives leave its Flight Recorder beside its page."""
        for one in self._pages.look().values():
            if one.light.phase in _ASKED and self._state(one).alive:
                flights.ask_in_passing(one.page.path)

    def forget_recorders(self) -> None:
        """Free what the ranks that live have left of their Flight Recorders."""
        for one in self._pages.look().values():
            if self._state(one).alive:
                flights.forget(one.page.path)

    async def ras(self) -> RasAnswer | None:
        """What NCCL's RAS service on this node says of the whole job, None without one."""
        pids = {rank: one.light.identity.pid for rank, one in self._pages.look().items()}
        variables = environment(next(iter(pids.values()), 0), ras.is_variable, self._proc)
        try:
            return await ras.ask(list(pids.values()), variables, RAS_S, self._proc)
        except EvidenceError as error:
            self._news.lose("ras", str(error))
            return None

    async def collect(self, level: Level, budget_s: float = BUDGET_S) -> Collected:
        """What is known of the ranks of this node; what took too long is missing."""
        seen = self._pages.look()
        launched = self._launched_without_page(seen)
        found = {
            rank: _Found(one.light.identity.pid, self._state(one)) for rank, one in seen.items()
        }
        lone = {
            one.rank: _Found(one.pid, process_state(one.pid, one.start_ticks, self._proc))
            for one in launched
        }
        tree: Tree | None = None
        jobs: list[_Job] = []
        if level >= Level.FULL:
            reach(Point.GATHERING)
        if level >= Level.FLIGHT:
            jobs += [(found[rank], self._flight(seen[rank], found[rank])) for rank in seen]
        if level >= Level.FULL:
            tree = Tree(self._proc)
            for rank, one in seen.items():
                jobs += self._stacks(found[rank], tree, _page(one))
            for lost in lone.values():
                jobs += self._stacks(lost, tree, None)
        await self._within(budget_s, jobs)
        if tree is not None:
            self._processors([*found.values(), *lone.values()], tree)
        # The pages last: what is said of a rank is then no older than its stack.
        now_ns = self._now_ns()
        ranks = []
        for rank, one in seen.items():
            page = _page(one)
            if page is not None:
                ranks += self._snapshots(page, found[rank], now_ns, heir=one.replaced)
        ranks += [
            launched_snapshot(
                one,
                lone[one.rank].process,
                self._node,
                threads=lone[one.rank].threads,
                children=tuple(lone[one.rank].children.values()),
                processors=lone[one.rank].processors,
                missing=tuple(lone[one.rank].missing),
            )
            for one in launched
        ]
        gpus = self._gpus() if level >= Level.FULL else {}
        return Collected(
            restart=self._pages.restart,
            world_size=max((one.light.identity.world_size for one in seen.values()), default=0)
            or max((one.world_size for one in launched), default=0),
            ranks=tuple(
                replace(one, gpu=gpus.get(one.rank))
                for one in sorted(ranks, key=lambda one: one.rank)
            ),
            sources=await self._sources(ranks, seen) if level >= Level.FULL else {},
            pages=dict(_raw_pages(seen)) if level >= Level.FULL else {},
            flights={rank: one.raw_flight for rank, one in found.items() if one.raw_flight},
            notes=self._notes() if level >= Level.FULL else (),
            local_size=_expected(seen),
        )

    async def _within(self, budget_s: float, jobs: Sequence[_Job]) -> None:
        """Run all at once for at most so long; what is not done by then is cancelled.

        What goes wrong with one rank is missing of that rank, and of no other.
        """
        if not jobs:
            return
        tasks = [asyncio.ensure_future(job) for _, job in jobs]
        _, late = await asyncio.wait(tasks, timeout=budget_s)
        for task in late:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for (found, _), result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                self._lose(found, result)

    def _lose(self, found: _Found, error: Exception) -> None:
        """Say that evidence of a rank could not be had, by an error that is ours."""
        found.missing.append(f"evidence: {type(error).__name__} while it was gathered")
        self._news.fault("evidence", f"evidence of process {found.pid} is lost", error)

    def _state(self, seen: Seen) -> ProcessState:
        identity = seen.light.identity
        return self._exits.state(identity.pid, identity.start_ticks)

    def _snapshots(
        self, page: RankPage, found: _Found, now_ns: int, *, heir: bool
    ) -> list[RankSnapshot]:
        """The rank, without its calls where something is wrong with them; none if with more."""
        for _ in range(2):
            try:
                return [self._snapshot(page, found, now_ns, heir=heir)]
            except Exception as error:  # noqa: BLE001 (the other ranks are as they are)
                self._lose(found, error)
                page, found.flight = replace(page, events=(), new_groups=()), None
        return []

    def _snapshot(self, page: RankPage, found: _Found, now_ns: int, *, heir: bool) -> RankSnapshot:
        process = self._exits.state(page.identity.pid, page.identity.start_ticks)
        return rank_snapshot(
            page,
            replace(process, replaced=heir),
            self._node,
            now_ns,
            clock_offset_ns=time.time_ns() - time.monotonic_ns(),
            flight=found.flight,
            threads=found.threads,
            children=tuple(found.children.values()),
            processors=found.processors,
            missing=tuple(found.missing),
        )

    def _launched_without_page(self, seen: dict[int, Seen]) -> list[LaunchedRank]:
        """Ranks of this node that a launcher started and that have no page."""
        if seen and len(seen) >= _expected(seen):
            return []
        tree = Tree(self._proc)
        ranks = [one for pid in self._commands() for one in tree.launched_ranks(pid)]
        # One with a page is of another job below the same command.
        return [one for one in ranks if one.rank not in seen and one.pid not in self._pages.pids]

    async def _flight(self, seen: Seen, found: _Found) -> None:
        process, light, path = found.process, seen.light, seen.page.path
        if process.alive and (process.state in _STOPPED or light.phase not in _ASKED):
            return
        found.missing.append(note := "no Flight Recorder: it was not read in time")
        try:
            found.raw_flight = await flights.recorder_of(
                path, light, lambda: self._state(seen), self._now_ns()
            )
            found.flight = parse_dump(found.raw_flight)
        except (EvidenceError, FlightError) as error:
            found.missing.append(f"no Flight Recorder: {error}")
        found.missing.remove(note)

    def _stacks(self, found: _Found, tree: Tree, page: RankPage | None) -> list[_Job]:
        """Dumps to be made for one rank: its own, and its children's where they may matter."""
        if not found.process.alive:
            return []
        jobs = [(found, self._own_stack(found))]
        children = [stat for stat, _ in zip(tree.descendants(found.pid), range(MAX_CHILDREN))]  # noqa: B905 (the shorter decides)
        for stat in children:
            state = process_state(stat.pid, stat.start_ticks, self._proc)
            command = command_line(stat.pid, self._proc) or stat.comm
            found.children[stat.pid] = Child(stat.pid, command, state)
            if page is None or not waits_itself(page):
                jobs.append((found, self._child_stack(stat.pid, found)))
        return jobs

    def _processors(self, ranks: Iterable[_Found], before: Tree) -> None:
        """Note how much each rank has worked since then, or since the last look.

        On a busy machine a rank may not get a processor for as long as one look takes; of what
        has ended since the last look, only this one tells.
        """
        tree, moments = Tree(self._proc), [before]
        if self._tree is not None:
            moments.append(self._tree)
        for found in ranks:
            found.processors = max(tree.processors(found.pid, moment) for moment in moments)
        self._tree = tree

    async def _own_stack(self, found: _Found) -> None:
        found.threads = ()
        found.missing.append(note := "no stack: py-spy was not done in time")
        try:
            found.threads = await self._py_spy.dump(found.pid)
        except NoStacksError as error:
            self._news.lose("stacks", f"no stacks: {error}")
            found.missing.append(f"no stack: {error}")
        except EvidenceError as error:
            found.missing.append(f"no stack: {error}")
        found.missing.remove(note)

    async def _child_stack(self, pid: int, found: _Found) -> None:
        child = found.children[pid]
        try:
            threads = await self._py_spy.dump(pid)
        except EvidenceError:
            return  # many a child is no Python process
        found.children[pid] = Child(child.pid, child.command, child.process, threads)

    async def _sources(self, ranks: list[RankSnapshot], seen: dict[int, Seen]) -> dict[str, str]:
        created_ns = min((one.light.created_ns for one in seen.values()), default=0)
        age_s = (self._now_ns() - created_ns) / 1e9 if created_ns else 0.0
        files, started_at = sources.files_of(ranks), time.time() - age_s
        texts: dict[str, str] = {}
        try:
            read = partial(sources.read, files, started_at, self._proc, into=texts)
            await in_thread(read, SOURCES_S)
        except TimeoutError:
            self._news.lose("sources", "source files could not be read in time", quiet=True)
        return dict(texts)


def local_size(light: RankPage) -> int:
    """How many ranks this node has as far as one of them knows."""
    identity = light.identity
    return identity.local_world_size if identity.local_world_size > 0 else identity.world_size


def _expected(seen: Mapping[int, Seen]) -> int:
    """How many ranks this node should have, as far as those that were seen know; 0 if unknown."""
    return max((local_size(one.light) for one in seen.values()), default=0)


def _page(seen: Seen) -> RankPage | None:
    try:
        page = seen.page.read(events=True)
    except PageError:
        return None
    if not page.groups_left_out:
        return page
    return replace(page, groups=(*page.groups, *extra_groups(seen.page.path)))


def _raw_pages(seen: dict[int, Seen]) -> list[tuple[int, bytes]]:
    raw = []
    for rank, one in seen.items():
        try:
            raw.append((rank, one.page.raw()))
        except PageError:
            continue
    return raw
