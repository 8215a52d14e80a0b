"""A look at the ranks of one job: their stacks, and what their pages show if it is watched."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from hangwatch.commands.inspection.processes import Process
from hangwatch.commands.inspection.summary import Member, doing
from hangwatch.commands.runs import BlockingCall, Run, RunPages, blocking_call
from hangwatch.diagnosis.facts.activity import activity
from hangwatch.errors import EvidenceError
from hangwatch.evidence import sources
from hangwatch.evidence.pages.look import QUIET_S
from hangwatch.evidence.processes import Tree, command_line, process_state
from hangwatch.evidence.stacks import NoStacksError, PySpy
from hangwatch.evidence.threads import in_thread
from hangwatch.model.frames import know_trainers
from hangwatch.model.kinds import Phase, Reason
from hangwatch.model.snapshot import Child, ProcessState, RankSnapshot, ThreadStack
from hangwatch.settings.config import Stacks

MAX_CHILDREN = 32
SOURCES_S = 2.0
"""Time for reading source files: they may lie on a file system that hangs."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PageFacts:
    """A rank as its page shows it."""

    run: str
    rank: int
    call: BlockingCall | None
    """The call that it waits in, None if it does not wait."""
    waits_s: float


def read_pages(runs: Iterable[Run]) -> dict[int, PageFacts]:
    """Return what the pages of runs show of the ranks that still run, by pid."""
    facts = {}
    for run in runs:
        with RunPages(run.path) as pages:
            look = pages.look()
            for rank, since_ns in look.waits.items():
                seen = look.seen[rank]
                age_s = 0.0 if since_ns is None else (look.now_ns - since_ns) / 1e9
                call = blocking_call(seen) if age_s >= QUIET_S else None
                facts[seen.light.identity.pid] = PageFacts(run.name, rank, call, age_s)
    return facts


@dataclass(frozen=True, slots=True)
class JobStacks:
    """The ranks of one job at one moment."""

    members: tuple[Member, ...]
    sources: Mapping[str, str]
    refused: str = ""
    """The reason why no stack could be taken at all; empty if some could."""


async def look(
    processes: Sequence[Process], tree: Tree, pages: Mapping[int, PageFacts], *, native: bool
) -> JobStacks:
    """Take the stacks of ranks and of their children."""
    py_spy = PySpy(Stacks.NATIVE if native else Stacks.PYTHON)
    taken = await asyncio.gather(
        *(_snapshot(process, tree, py_spy, pages.get(process.pid)) for process in processes)
    )
    snapshots = know_trainers(snapshot for snapshot, _ in taken)
    refusals = {refusal for _, refusal in taken}
    texts = await _sources(snapshots, processes)
    members = []
    for snapshot in snapshots:
        known = pages.get(snapshot.pid)
        call = known.call if known else None
        waits_s = known.waits_s if known and call else 0.0
        members.append(Member(snapshot, doing(snapshot, call, texts), waits_s))
    return JobStacks(tuple(members), texts, next(iter(refusals)) if "" not in refusals else "")


async def _snapshot(
    process: Process, tree: Tree, py_spy: PySpy, known: PageFacts | None
) -> tuple[RankSnapshot, str]:
    """Return one rank, and why py-spy may take no stacks; empty if that is the rank's own fault."""
    missing, refused = "", ""
    threads: tuple[ThreadStack, ...] | None = None
    state = process_state(process.pid, process.start_ticks)
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
    states = [process_state(stat.pid, stat.start_ticks) for stat in stats]
    workers = await asyncio.gather(
        *(_child(stat.pid, at, py_spy) for stat, at in zip(stats, states, strict=True))
    )
    return replace(snapshot, children=tuple(workers)), refused


async def _child(pid: int, state: ProcessState, py_spy: PySpy) -> Child:
    child = Child(pid, command_line(pid), state)
    with suppress(EvidenceError):  # many a child is no Python process
        return replace(child, threads=await py_spy.dump(pid))
    return child


async def _sources(
    snapshots: Sequence[RankSnapshot], processes: Sequence[Process]
) -> dict[str, str]:
    """Return the text of the user's files, unless changed since the first rank started."""
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    oldest = min((process.start_ticks for process in processes), default=0)
    started_at = time.time() - (uptime_s - oldest / _TICKS)
    files = sources.files_of(snapshots)
    texts: dict[str, str] = {}
    with suppress(TimeoutError):
        await in_thread(partial(sources.read, files, started_at, into=texts), SOURCES_S)
    return dict(texts)
