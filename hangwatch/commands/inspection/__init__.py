"""``hangwatch inspect``: finds the ranks, takes their stacks, and prints where they are.

Of watched ranks it shows the call that they wait in, by their pages.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from hangwatch.commands import Arguments, print_lines, timing
from hangwatch.commands.inspection import processes
from hangwatch.commands.inspection.processes import Process
from hangwatch.commands.inspection.summary import (
    SNAPSHOT,
    Member,
    by_stack,
    doing,
    named,
    sentences,
)
from hangwatch.commands.runs import BlockingCall, Run, RunPages, blocking_call, describe, find
from hangwatch.console import printable
from hangwatch.diagnosis.facts.activity import activity
from hangwatch.errors import EvidenceError, UsageError
from hangwatch.evidence import sources
from hangwatch.evidence.processes import Tree, command_line, process_state
from hangwatch.evidence.stacks import NoStacksError, PySpy
from hangwatch.evidence.timing import QUIET_S
from hangwatch.model.frames import is_user_frame, know_trainers, line_of, main_thread
from hangwatch.model.kinds import Phase, Reason
from hangwatch.model.snapshot import Child, Frame, ProcessState, RankSnapshot, ThreadStack
from hangwatch.report.terminal import Style
from hangwatch.settings.config import Stacks
from hangwatch.text import counted, fold_ranks

DESCRIPTION = """\
Where the ranks of any torch job on this node are now, whether it was started with hangwatch
or not: their stacks (by py-spy, which only reads and stops nothing), identical ones merged,
what they wait in if that is known, and first the ranks that are not where the others are.
Without PIDs it finds all ranks that you may read: your own, as root those of all users."""
EXIT_REFUSED = 1
"""No stack could be taken at all."""
MAX_FRAMES = 40
MAX_PIDS = 8
MAX_NAME = 100
FOLDED_FROM = 4
"""Folded are so many library frames in a row."""
MAX_CHILDREN = 32
_TICKS = os.sysconf("SC_CLK_TCK")


def inspect(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print where the ranks are; return the exit code. Raises UsageError if there are none."""
    parser = Arguments("inspect", DESCRIPTION)
    parser.add_argument(
        "pids", metavar="PID", nargs="*", type=int, help="of a rank, of torchrun, of any process"
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="C and C++ frames too, and all frames; this stops each process for a moment",
    )
    given = parser.parse_args(words)
    runs = find(environ)
    pages = read_pages(runs)
    members, tree = processes.find(given.pids, pages.keys())
    if not members:
        raise UsageError(_nothing(given.pids))
    # Runs that only their ranks know: in a directory of their own.
    named_runs = {process.run_dir for process in members} - {str(run.path) for run in runs} - {""}
    others = (describe(Path(directory)) for directory in named_runs)
    pages |= read_pages(run for run in others if run.facts)
    style = Style.of(sys.stdout, environ)
    refused = False
    for number, job in enumerate(processes.jobs(members)):
        stacks = asyncio.run(look(job, tree, pages, native=given.native))
        chosen = not {process.pid for process in job}.isdisjoint(given.pids)
        missing = () if chosen else processes.absent(job)
        header = [*[""] * bool(number), style.paint(printable(_title(job, pages)), "1")]
        print_lines([*header, *_job_lines(stacks, missing, style, full=given.native)])
        refused = refused or bool(stacks.refused)
    print_lines(["", style.paint(textwrap.fill(SNAPSHOT, style.columns), "2")])
    return EXIT_REFUSED if refused else 0


def _nothing(pids: Sequence[int]) -> str:
    if pids:
        return f"no such process: {', '.join(map(str, pids))}"
    return (
        "no rank of a torch job was found among the processes that you may read: name the pid "
        "of one, or of torchrun; root sees those of all users"
    )


def _job_lines(
    stacks: JobStacks, missing: Sequence[int], style: Style, *, full: bool
) -> Iterator[str]:
    width = style.columns - 2
    for number, sentence in enumerate(sentences(stacks.members)):
        lines = textwrap.wrap(printable(sentence), width, break_on_hyphens=False)
        yield from (f"  {style.paint(line, '' if number else '1')}" for line in lines)
    if len(missing) == 1:
        yield f"  Local rank {missing[0]} has no process here: it has ended, or never began."
    elif missing:
        ranks = fold_ranks(missing)
        yield f"  Local ranks {ranks} have no process here: they have ended, or never began."
    if stacks.refused:
        yield from (f"  {line}" for line in textwrap.wrap(f"No stacks: {stacks.refused}.", width))
    for members in by_stack(stacks.members):
        yield ""
        yield from _stack_lines(members, stacks, style, full=full)


def _title(job: Sequence[Process], pages: Mapping[int, PageFacts]) -> str:
    size = max(process.world_size for process in job)
    ranks = sum(1 for process in job if process.rank >= 0)
    shown = counted(ranks, "rank") if ranks else f"{len(job)} with torch"
    parts = [f"{shown} of {size} here" if size > ranks else shown, str(job[0].job)]
    runs = {pages[process.pid].run for process in job if process.pid in pages}
    parts += [f"watched: hangwatch top {name}" for name in sorted(runs)]
    return "Job: " + ", ".join(filter(None, parts))


def _stack_lines(
    members: Sequence[Member], stacks: JobStacks, style: Style, *, full: bool
) -> Iterator[str]:
    """Yield a stack under the names of the members that share it."""
    first = members[0]
    pids = ", ".join(str(member.snapshot.pid) for member in members[:MAX_PIDS])
    more = ", ..." if len(members) > MAX_PIDS else ""
    does = first.doing.one if len(members) == 1 else first.doing.several
    yield f"{style.paint(named(members), '1')} (pid {pids}{more}) {printable(does)}"
    main = first.main
    if main is not None:
        yield from _frames(main.frames, stacks.sources, style, full=full)
    for what in first.snapshot.missing_evidence if not stacks.refused else ():
        yield f"    {printable(what)}"
    for thread in first.snapshot.threads or ():
        if thread.owns_gil and thread is not main and thread.frames:
            yield f"  thread {printable(thread.name)}, which holds the GIL:"
            yield from _frames(thread.frames, stacks.sources, style, full=full)
    worker = first.worker
    inside = main_thread(worker.threads, worker.pid) if worker else None
    if worker and inside:
        yield f"  its data worker, pid {worker.pid}:"
        yield from _frames(inside.frames, stacks.sources, style, full=full)


def _frames(
    frames: Sequence[Frame], sources: Mapping[str, str], style: Style, *, full: bool
) -> Iterator[str]:
    """Yield a stack, innermost frame first, each of the user's with its line."""
    for user, same in groupby(frames if full else frames[:MAX_FRAMES], is_user_frame):
        run, inside = list(same), not user
        shown = run[:2] if inside and len(run) >= FOLDED_FROM and not full else run
        for frame in shown:
            where = f"{_short(frame.file) if inside else frame.file}:{frame.line}"
            function = frame.function
            if len(function) > MAX_NAME:  # of a C++ template
                function = f"{function[: MAX_NAME - 3]}..."
            text = printable(f"    {function}  {where if frame.line else _short(frame.file)}")
            yield style.paint(text, "2") if inside else text
            source = line_of(sources, frame.file, frame.line)
            if source:
                yield style.paint(printable(f"        {source}"), "36")
        if len(shown) < len(run):
            yield style.paint(f"    ... {len(run) - len(shown)} more inside libraries", "2")
    if not full and len(frames) > MAX_FRAMES:
        yield f"    ... {len(frames) - MAX_FRAMES} more"


def _short(file: str) -> str:
    """Return the path of a library's file from the package on."""
    for root in ("/site-packages/", "/dist-packages/"):
        with suppress(ValueError):
            return file[file.rindex(root) + len(root) :]
    return file


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
    texts, _ = await sources.read_in_time(
        sources.files_of(snapshots), started_at, timing.INSPECT_SOURCES_S
    )
    return texts
