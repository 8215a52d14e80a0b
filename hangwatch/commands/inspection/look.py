"""What the pages of watched runs say of their ranks: which they are, and what they wait in."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hangwatch.commands.inspection.found import Process
from hangwatch.commands.inspection.summary import Member, doing
from hangwatch.commands.top import runs
from hangwatch.commands.top.ranks import Call, Processes, waited_in
from hangwatch.console import News
from hangwatch.diagnosis.facts.activity import activity
from hangwatch.errors import EvidenceError
from hangwatch.evidence import sources
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import QUIET_S, Looker
from hangwatch.evidence.processes import PROC, Tree, command_line, process_state
from hangwatch.evidence.stacks import NoStacksError, PySpy
from hangwatch.evidence.threads import in_thread
from hangwatch.model.frames import know_trainers
from hangwatch.model.kinds import Phase, Reason
from hangwatch.model.snapshot import Child, ProcessState, RankSnapshot, ThreadStack
from hangwatch.settings.config import Stacks


@dataclass(frozen=True, slots=True)
class Known:
    """What the page of a rank says. ``call``: what it waits in, None where it does not."""

    run: str
    rank: int
    call: Call | None
    waits_s: float


class Watched:
    """The ranks of all watched runs on this node, by pid. ``close`` it at the end."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self.pages: dict[int, Known] = {}
        """By pid."""
        self._known: set[str] = set()
        for run in runs.find(environ):
            self._read(run)

    def add(self, directories: Iterable[str]) -> None:
        """Read the pages of further runs, which their ranks have named."""
        for directory in set(directories) - self._known - {""}:
            run = runs.describe(Path(directory))
            if run.facts:
                self._read(run)

    @property
    def pids(self) -> frozenset[int]:
        """The processes that have a page and still run."""
        return frozenset(self.pages)

    def close(self) -> None:
        """Let go of everything."""
        os.close(self._nowhere)

    def _read(self, run: runs.Run) -> None:
        self._known.add(str(run.path))
        processes = Processes()
        pages = Pages(run.path, News(self._nowhere), alive=processes.alive)
        try:
            look = Looker(pages, processes.alive, time.monotonic_ns).look()
            for rank, since_ns in look.waits.items():
                seen = look.seen[rank]
                age_s = 0.0 if since_ns is None else (look.now_ns - since_ns) / 1e9
                call = waited_in(seen) if age_s >= QUIET_S else None
                self.pages[seen.light.identity.pid] = Known(run.name, rank, call, age_s)
        finally:
            pages.close()


MAX_CHILDREN = 32
SOURCES_S = 2.0
"""How long reading source files may take: they may lie on a file system that hangs."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Looked:
    """The ranks of one job at one moment."""

    members: tuple[Member, ...]
    sources: Mapping[str, str]
    refused: str = ""
    """Why no stack could be taken at all, and what would help; empty where some could."""


async def look(
    processes: Sequence[Process],
    tree: Tree,
    pages: Mapping[int, Known],
    *,
    native: bool = False,
    proc: str = PROC,
) -> Looked:
    """Take the stacks of ranks and of their children.

    pages: what they say of watched processes, by pid.
    """
    py_spy = PySpy(Stacks.NATIVE if native else Stacks.PYTHON, proc=proc)
    seen = await asyncio.gather(
        *(_snapshot(one, tree, py_spy, pages.get(one.pid), proc) for one in processes)
    )
    snapshots = know_trainers(snapshot for snapshot, _ in seen)
    refusals = {refusal for _, refusal in seen}
    texts = await _sources(snapshots, processes, proc)
    members = []
    for snapshot in snapshots:
        known = pages.get(snapshot.pid)
        call = known.call if known else None
        waits_s = known.waits_s if known and call else 0.0
        members.append(Member(snapshot, doing(snapshot, call, texts), waits_s))
    return Looked(tuple(members), texts, next(iter(refusals)) if "" not in refusals else "")


async def _snapshot(
    process: Process,
    tree: Tree,
    py_spy: PySpy,
    known: Known | None,
    proc: str,
) -> tuple[RankSnapshot, str]:
    """One rank; why no stack of it could be taken where that is not its own fault."""
    missing, refused = "", ""
    threads: tuple[ThreadStack, ...] | None = None
    state = process_state(process.pid, process.start_ticks, proc)
    try:
        threads = await py_spy.dump(process.pid)
    except NoStacksError as error:
        missing = refused = str(error)
    except EvidenceError as error:
        missing = str(error)
    snapshot = RankSnapshot(
        rank=process.rank if process.rank >= 0 or known is None else known.rank,
        node=socket.gethostname(),
        pid=process.pid,
        phase=Phase.RUNNING,
        process=state,
        threads=threads,
        missing_evidence=(f"no stack: {missing}",) if missing else (),
    )
    if activity(snapshot, {}).reason is not Reason.DATA_LOADING:
        return snapshot, refused
    stats = [stat for stat, _ in zip(tree.descendants(process.pid), range(MAX_CHILDREN))]  # noqa: B905 (the shorter decides)
    states = [process_state(stat.pid, stat.start_ticks, proc) for stat in stats]
    workers = await asyncio.gather(
        *(_child(one.pid, at, py_spy, proc) for one, at in zip(stats, states, strict=True))
    )
    return replace(snapshot, children=tuple(workers)), refused


async def _child(pid: int, state: ProcessState, py_spy: PySpy, proc: str) -> Child:
    child = Child(pid, command_line(pid, proc), state)
    try:
        return replace(child, threads=await py_spy.dump(pid))
    except EvidenceError:
        return child  # many a child is no Python process


async def _sources(
    snapshots: Sequence[RankSnapshot], processes: Sequence[Process], proc: str
) -> dict[str, str]:
    """The text of the user's files that have not changed since the first rank was started."""
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    oldest = min((one.start_ticks for one in processes), default=0)
    started_at = time.time() - (uptime_s - oldest / _TICKS)
    files = sources.files_of(snapshots)
    texts: dict[str, str] = {}
    with suppress(TimeoutError):
        await in_thread(partial(sources.read, files, started_at, proc, into=texts), SOURCES_S)
    return dict(texts)
