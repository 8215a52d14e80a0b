"""``hangwatch inspect``: finds the ranks, takes their stacks, and prints where they are."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from hangwatch.commands import Arguments, print_lines
from hangwatch.commands.inspection import processes
from hangwatch.commands.inspection.look import JobStacks, PageFacts, look, read_pages
from hangwatch.commands.inspection.processes import Process
from hangwatch.commands.inspection.summary import SNAPSHOT, Member, by_stack, named, sentences
from hangwatch.commands.runs import describe, find
from hangwatch.console import printable
from hangwatch.errors import UsageError
from hangwatch.model.frames import is_user_frame, line_of, main_thread
from hangwatch.model.snapshot import Frame
from hangwatch.report.terminal import Style
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
