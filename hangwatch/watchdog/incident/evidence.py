"""Gathers the evidence that this node has of its ranks, and joins that of other nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Any

from hangwatch.console import News
from hangwatch.efficiency.habits import MAX_BYTES as MAX_FACTS_BYTES
from hangwatch.efficiency.habits import Finding, RankFacts, find_costs, note_of, parse_facts
from hangwatch.errors import EvidenceError, FlightError, PageError
from hangwatch.evidence import ras, sources
from hangwatch.evidence.background import in_thread
from hangwatch.evidence.exits import Exits
from hangwatch.evidence.flight import parse_dump, request
from hangwatch.evidence.flight.entries import FlightDump
from hangwatch.evidence.pages.finder import Pages, Seen
from hangwatch.evidence.pages.look import RankStatus, rank_statuses
from hangwatch.evidence.pages.reader import extra_groups
from hangwatch.evidence.processes import (
    PROC,
    LaunchedRank,
    Tree,
    alive,
    command_line,
    environment,
    process_state,
)
from hangwatch.evidence.snapshot import launched_snapshot, rank_snapshot, waits_itself, with_process
from hangwatch.evidence.stacks import NoStacksError, PySpy
from hangwatch.model.codec import CodecError
from hangwatch.model.frames import know_trainers
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import Phase
from hangwatch.model.page import MAX_WORLD, RankPage
from hangwatch.model.report import Note, RasAnswer
from hangwatch.model.snapshot import Child, JobSnapshot, ProcessState, RankSnapshot, ThreadStack
from hangwatch.run.test_hooks import Point, reach
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner
from hangwatch.text import fold_ranks
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers.connection import Missing
from hangwatch.watchdog.peers.messages import Gathered

MAX_CHILDREN = 32
PRACTICE = ".practice"
"""Suffix of the file with facts that a rank leaves next to its page."""
_LATE = "it was not read in time"
_STOPPED = frozenset("Tt")
_ASKED = frozenset({Phase.RUNNING, Phase.FINALIZING})


class Level(IntEnum):
    """Amount of evidence; each level includes those before it."""

    LIGHT = 0
    """Pages and /proc."""
    FLIGHT = 1
    """The Flight Recorder of each rank."""
    FULL = 2
    """Stacks of the ranks and of their children, sources, raw pages, GPUs."""


@dataclass(slots=True)
class _RankEvidence:
    """The evidence of one rank, except for its page."""

    pid: int
    process: ProcessState
    threads: tuple[ThreadStack, ...] | None = None
    children: dict[int, Child] = field(default_factory=dict)
    processors: float | None = None
    flight: FlightDump | None = None
    raw_flight: bytes = b""
    missing: list[str] = field(default_factory=list)

    def added_to(self, rank: RankSnapshot) -> RankSnapshot:
        """Return the rank with this evidence, except for its recorder."""
        children = self.children.values()
        return with_process(rank, self.threads, children, self.processors, self.missing)


@dataclass(frozen=True, slots=True)
class _Job:
    """The gathering of one kind of evidence of one rank.

    kind, late: what is missing if it fails, and why if it is not done in time; a kind that is
    empty may fail without a note.
    """

    evidence: _RankEvidence
    work: Coroutine[Any, Any, None]
    kind: str = ""
    late: str = ""


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
    """The number of ranks that this node should have, as far as they know; 0 if unknown."""


@dataclass(slots=True, kw_only=True)
class Gatherer:
    """Gathers the evidence of this node."""

    pages: Pages
    exits: Exits
    py_spy: PySpy
    news: News
    node: str
    commands: Callable[[], Sequence[int]]
    gpus: Callable[[], Mapping[int, GpuState]] = dict
    on_gpus: Callable[[], tuple[Finding, ...]] = tuple
    """Returns the costly mistakes that the GPUs of the ranks show."""
    proc: str = PROC
    now_ns: Callable[[], int] = time.monotonic_ns
    _tree: Tree | None = None
    """The last look at processes."""

    @property
    def incarnation(self) -> int:
        """Number of the incarnation of the job that is watched."""
        return self.pages.incarnation

    def standings(self) -> dict[int, RankStatus]:
        """Return the present position of each rank of this node that lives, by its page."""
        seen = self.pages.look()
        ranks = rank_statuses(seen, self._launched_without_page(seen))
        return {rank: at for rank, at in ranks.items() if alive(*at.process, self.proc)}

    def request_recorders(self) -> None:
        """Have each rank that lives leave its Flight Recorder next to its page."""
        for seen in self.pages.look().values():
            if seen.light.phase in _ASKED and self._state(seen).alive:
                request.ask_in_passing(seen.page.path)

    def forget_recorders(self) -> None:
        """Free the Flight Recorders that the ranks that live have left."""
        for seen in self.pages.look().values():
            if self._state(seen).alive:
                request.forget(seen.page.path)

    async def ras(self) -> RasAnswer | None:
        """Ask NCCL's RAS service on this node about the whole job; None without one."""
        pids = [seen.light.identity.pid for seen in self.pages.look().values()]
        variables = environment(pids[0] if pids else 0, ras.is_variable, self.proc)
        try:
            return await ras.ask(pids, variables, timing.RAS_S, self.proc)
        except EvidenceError as error:
            self.news.lose("ras", str(error))
            return None

    def notes(self) -> tuple[Note, ...]:
        """Return the costly mistakes of the ranks of the incarnation that is watched.

        None of their habits if one of them has left no facts (agent/habits.py).
        """
        ranks = []
        try:
            for rank, seen in self.pages.look().items():
                left = seen.page.path.with_name(seen.page.path.name + PRACTICE)
                facts = parse_facts(untrusted.read(left, MAX_FACTS_BYTES, Owner.DIRECTORY))
                ranks.append(RankFacts(rank, seen.page.read(events=False), facts))
        except (OSError, PageError, CodecError):
            ranks = []
        return tuple(note_of(finding) for finding in (*self.on_gpus(), *find_costs(ranks)))

    async def collect(self, level: Level, budget_s: float | None = None) -> Collected:
        """Gather the evidence of the ranks of this node; what takes too long is missing."""
        seen = self.pages.look()
        launched = self._launched_without_page(seen)
        gathered = {
            rank: _RankEvidence(s.light.identity.pid, self._state(s)) for rank, s in seen.items()
        }
        pageless = [
            _RankEvidence(rank.pid, process_state(rank.pid, rank.start_ticks, self.proc))
            for rank in launched
        ]
        full = level is Level.FULL
        jobs: list[_Job] = []
        if full:
            reach(Point.GATHERING)
        if level >= Level.FLIGHT:
            jobs += [
                _Job(evidence, self._flight(seen[rank], evidence), "no Flight Recorder", _LATE)
                for rank, evidence in gathered.items()
            ]
        if full:
            tree = Tree(self.proc)
            for rank, evidence in gathered.items():
                jobs += self._stack_jobs(evidence, tree, self._page(seen[rank], evidence))
            for evidence in pageless:
                jobs += self._stack_jobs(evidence, tree, None)
        await self._run(jobs, timing.EVIDENCE_S if budget_s is None else budget_s)
        if full:
            self._processors([*gathered.values(), *pageless], tree)
        # The pages last: they are then no older than the stack of their rank.
        now_ns = self.now_ns()
        ranks = []
        for rank, evidence in gathered.items():
            if (page := self._page(seen[rank], evidence)) is not None:
                ranks += self._snapshots(page, evidence, now_ns, replaced=seen[rank].replaced)
        ranks += [
            evidence.added_to(launched_snapshot(rank, evidence.process, self.node))
            for rank, evidence in zip(launched, pageless, strict=True)
        ]
        gpus = self.gpus() if full else {}
        sizes = [s.light.identity.world_size for s in seen.values()]
        return Collected(
            restart=self.pages.restart,
            world_size=max(sizes, default=0)
            or max((rank.world_size for rank in launched), default=0),
            ranks=tuple(
                replace(rank, gpu=gpus.get(rank.rank))
                for rank in sorted(ranks, key=lambda rank: rank.rank)
            ),
            sources=await self._sources(ranks, seen) if full else {},
            pages=dict(_raw_pages(seen)) if full else {},
            flights={rank: raw for rank, of in gathered.items() if (raw := of.raw_flight)},
            notes=self.notes() if full else (),
            local_size=_expected(seen),
        )

    async def _run(self, jobs: Sequence[_Job], budget_s: float) -> None:
        """Do all jobs at once for at most budget_s; those not done by then are cancelled.

        A job that fails costs its rank that evidence, and no other rank anything.
        """
        if not jobs:
            return
        tasks = [asyncio.ensure_future(job.work) for job in jobs]
        _, late = await asyncio.wait(tasks, timeout=budget_s)
        for task in late:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for job, task, result in zip(jobs, tasks, results, strict=True):
            if isinstance(result, EvidenceError | FlightError):
                reason = str(result)
            elif isinstance(result, Exception):
                self._lose(job.evidence, result)
                continue
            else:
                reason = job.late if task in late else ""
            if job.kind and reason:
                job.evidence.missing.append(f"{job.kind}: {reason}")

    def _lose(self, evidence: _RankEvidence, error: Exception) -> None:
        """Report evidence of a rank that is lost by an error of ours."""
        note = f"evidence: {type(error).__name__} while it was gathered"
        if note not in evidence.missing:
            evidence.missing.append(note)
        self.news.fault("evidence", f"evidence of process {evidence.pid} is lost", error)

    def _state(self, seen: Seen) -> ProcessState:
        identity = seen.light.identity
        return self.exits.state(identity.pid, identity.start_ticks)

    def _page(self, seen: Seen, evidence: _RankEvidence) -> RankPage | None:
        """Return the whole page of a rank, without its calls if they cannot be read."""
        try:
            page = seen.page.read(events=True)
            if page.groups_left_out:
                page = replace(page, groups=(*page.groups, *extra_groups(seen.page.path)))
        except PageError:
            return None
        except Exception as error:  # noqa: BLE001 (the other ranks are not to be lost)
            self._lose(evidence, error)
            return seen.light
        return page

    def _snapshots(
        self, page: RankPage, evidence: _RankEvidence, now_ns: int, *, replaced: bool
    ) -> list[RankSnapshot]:
        """Return the rank, without its calls if they cannot be used; none if more cannot."""
        for _ in range(2):
            try:
                process = self.exits.state(page.identity.pid, page.identity.start_ticks)
                snapshot = rank_snapshot(
                    page,
                    replace(process, replaced=replaced),
                    self.node,
                    now_ns,
                    clock_offset_ns=time.time_ns() - time.monotonic_ns(),
                    flight=evidence.flight,
                )
            except Exception as error:  # noqa: BLE001 (the other ranks are not to be lost)
                self._lose(evidence, error)
                page, evidence.flight = replace(page, events=(), new_groups=()), None
            else:
                return [evidence.added_to(snapshot)]
        return []

    def _launched_without_page(self, seen: Mapping[int, Seen]) -> list[LaunchedRank]:
        """Return the ranks of this node that a launcher started and that have no page."""
        if seen and len(seen) >= _expected(seen):
            return []
        tree = Tree(self.proc)
        ranks = [rank for pid in self.commands() for rank in tree.launched_ranks(pid)]
        # One with a page is of another job below the same command.
        return [rank for rank in ranks if rank.rank not in seen and rank.pid not in self.pages.pids]

    async def _flight(self, seen: Seen, evidence: _RankEvidence) -> None:
        process, light = evidence.process, seen.light
        if process.alive and (process.state in _STOPPED or light.phase not in _ASKED):
            return
        evidence.raw_flight = await request.recorder_of(
            seen.page.path, light, lambda: self._state(seen), self.now_ns()
        )
        # Of tens of megabytes it takes seconds.
        parse = partial(parse_dump, evidence.raw_flight)
        evidence.flight = await in_thread(parse, timing.EVIDENCE_S)

    def _stack_jobs(self, evidence: _RankEvidence, tree: Tree, page: RankPage | None) -> list[_Job]:
        """Return the dumps to make of one rank: its own, and its children's if they may matter."""
        if not evidence.process.alive:
            return []
        evidence.threads = ()
        jobs = [
            _Job(evidence, self._own_stack(evidence), "no stack", "py-spy was not done in time")
        ]
        for stat in islice(tree.descendants(evidence.pid), MAX_CHILDREN):
            state = process_state(stat.pid, stat.start_ticks, self.proc)
            command = command_line(stat.pid, self.proc) or stat.comm
            evidence.children[stat.pid] = Child(stat.pid, command, state)
            if page is None or not waits_itself(page):
                jobs.append(_Job(evidence, self._child_stack(stat.pid, evidence)))
        return jobs

    def _processors(self, ranks: Iterable[_RankEvidence], before: Tree) -> None:
        """Note how much each rank has worked since then, or since the last look.

        On a busy machine a rank may not get a processor for as long as one look takes; children
        that have ended since the last look are counted by this one alone.
        """
        tree, moments = Tree(self.proc), [before]
        if self._tree is not None:
            moments.append(self._tree)
        for evidence in ranks:
            evidence.processors = max(tree.processors(evidence.pid, moment) for moment in moments)
        self._tree = tree

    async def _own_stack(self, evidence: _RankEvidence) -> None:
        try:
            evidence.threads = await self.py_spy.dump(evidence.pid)
        except NoStacksError as error:
            self.news.lose("stacks", f"no stacks: {error}")
            raise

    async def _child_stack(self, pid: int, evidence: _RankEvidence) -> None:
        threads = await self.py_spy.dump(pid)  # fails of a child that is no Python process
        evidence.children[pid] = replace(evidence.children[pid], threads=threads)

    async def _sources(
        self, ranks: Sequence[RankSnapshot], seen: Mapping[int, Seen]
    ) -> dict[str, str]:
        created_ns = min((page.light.created_ns for page in seen.values()), default=0)
        age_s = (self.now_ns() - created_ns) / 1e9 if created_ns else 0.0
        started_at = time.time() - age_s
        texts, whole = await sources.read_in_time(
            sources.files_of(ranks), started_at, timing.SOURCES_S, self.proc
        )
        if not whole:
            self.news.lose("sources", "source files could not be read in time", quiet=True)
        return texts


def local_size(light: RankPage) -> int:
    """Return the number of ranks of this node as far as one of them knows."""
    identity = light.identity
    return identity.local_world_size if identity.local_world_size > 0 else identity.world_size


def _expected(seen: Mapping[int, Seen]) -> int:
    """Return the number of ranks that this node should have, by those seen; 0 if unknown."""
    return max((local_size(page.light) for page in seen.values()), default=0)


def _raw_pages(seen: Mapping[int, Seen]) -> Iterator[tuple[int, bytes]]:
    for rank, one in seen.items():
        with suppress(PageError):
            yield rank, one.page.raw()


def whole_job(
    collected: Collected, gathered: Gathered | None, missing: Missing, why_unknown: str
) -> JobSnapshot:
    """Return the snapshot of all ranks, with those of lost nodes as far as they are known.

    gathered: None if no other node was asked. why_unknown: why a rank may be unknown.
    """
    others = gathered.others if gathered else ()
    world_size = min(collected.world_size, MAX_WORLD)
    ranks = {
        rank: RankSnapshot(
            rank, node.host, 0, Phase.RUNNING, ProcessState(alive=False), recorder=""
        )
        for node in missing.lost
        for rank in node.ranks
        if rank < world_size
    }
    ranks |= {rank.rank: rank for local in others for rank in local.ranks}
    ranks |= {rank.rank: rank for rank in collected.ranks}
    sources = {file: text for local in others for file, text in local.sources.items()}
    unseen = [*(gathered.unseen if gathered else ()), *(n for o in others for n in o.unseen)]
    unseen += missing.notes
    unknown = set(range(world_size)) - ranks.keys()
    if unknown:
        which = f"rank{'s' if len(unknown) > 1 else ''} {fold_ranks(unknown)}"
        unseen.append(f"{which}: {why_unknown}")
    return JobSnapshot(
        world_size=collected.world_size,
        ranks=know_trainers(ranks[rank] for rank in sorted(ranks)),
        restart=collected.restart,
        lost_nodes=tuple(sorted({node.host for node in missing.lost})),
        cut_off=missing.cut_off,
        unseen=tuple(unseen),
        sources={**sources, **collected.sources},
    )
