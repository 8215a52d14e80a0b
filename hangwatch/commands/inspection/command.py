"""``hangwatch inspect``: finds the ranks, looks at them, and prints where they are."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from hangwatch.commands import Arguments
from hangwatch.commands.inspection import found
from hangwatch.commands.inspection.found import Process
from hangwatch.commands.inspection.look import Looked, Watched, look
from hangwatch.commands.inspection.summary import ONE_MOMENT, Stack, by_stack, named, sentences
from hangwatch.commands.top.view import counted
from hangwatch.console import printable
from hangwatch.errors import UsageError
from hangwatch.model.frames import is_user_frame, line_of, main_thread
from hangwatch.model.snapshot import Frame
from hangwatch.report.terminal import Style
from hangwatch.text import fold_ranks

DESCRIPTION = """\
Where the ranks of any torch job on this node are now, whether it was started with hangwatch
or not: their stacks (by py-spy, which reads and stops nothing), identical ones merged, what
they wait in where that can be known, and first who is not where the others are. Without PIDs
all ranks are found that you may look at: your own, as root everybody's."""
EXIT_REFUSED = 1
"""No stack could be taken at all."""
MAX_FRAMES = 40
MAX_PIDS = 8
MAX_NAME = 100
FOLDED_FROM = 4
"""So many frames in a row that are not the user's are folded."""


def inspect(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Look once and print it; the exit code. Raises UsageError where there is nothing to see."""
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
    watched = Watched(environ)
    try:
        processes, tree = found.find(given.pids, watched.pids)
        if not processes:
            raise UsageError(_nothing(given.pids))
        watched.add(process.run_dir for process in processes)
        style = Style.of(sys.stdout, environ)
        refused = ""
        for number, members in enumerate(found.jobs(processes)):
            looked = asyncio.run(look(members, tree, watched.pages, native=given.native))
            chosen = not {member.pid for member in members}.isdisjoint(given.pids)
            missing = () if chosen else found.absent(members)
            lines = _job_lines(members, looked, watched, style, full=given.native, missing=missing)
            sys.stdout.write("".join(f"{line}\n" for line in [*[""] * bool(number), *lines]))
            sys.stdout.flush()
            refused = refused or looked.refused
        caveat = textwrap.fill(ONE_MOMENT, style.columns)
        sys.stdout.write(f"\n{style.paint(caveat, '2')}\n")
    finally:
        watched.close()
    return EXIT_REFUSED if refused else 0


def _nothing(pids: Sequence[int]) -> str:
    if pids:
        return f"no such process: {', '.join(map(str, pids))}"
    return (
        "no rank of a torch job was found among the processes that you may look at: name the pid "
        "of one, or of torchrun; as root you see those of other users"
    )


def _job_lines(  # noqa: PLR0913 (what one job is made of)
    processes: Sequence[Process],
    looked: Looked,
    watched: Watched,
    style: Style,
    *,
    full: bool,
    missing: Sequence[int],
) -> Iterator[str]:
    yield style.paint(printable(_title(processes, watched)), "1")
    wide = style.columns
    for number, sentence in enumerate(sentences(looked.members)):
        lines = textwrap.wrap(printable(sentence), wide - 2, break_on_hyphens=False)
        yield from (f"  {style.paint(line, '' if number else '1')}" for line in lines)
    if missing:
        yield f"  {_absent(missing)}"
    if looked.refused:
        yield from (
            f"  {line}" for line in textwrap.wrap(f"No stacks: {looked.refused}.", wide - 2)
        )
    for stack in by_stack(looked.members):
        yield ""
        yield from _stack_lines(stack, looked, style, full=full)


def _absent(missing: Sequence[int]) -> str:
    ranks = fold_ranks(missing)
    if len(missing) == 1:
        return f"Local rank {ranks} has no process here: it has ended, or never began."
    return f"Local ranks {ranks} have no process here: they have ended, or never began."


def _title(processes: Sequence[Process], watched: Watched) -> str:
    size = max(process.world_size for process in processes)
    ranks = sum(1 for process in processes if process.rank >= 0)
    shown = counted(ranks, "rank") if ranks else f"{len(processes)} with torch"
    parts = [f"{shown} of {size} here" if size > ranks else shown, str(processes[0].job)]
    runs = {watched.pages[one.pid].run for one in processes if one.pid in watched.pages}
    parts += [f"watched: hangwatch top {name}" for name in sorted(runs)]
    return "Job: " + ", ".join(filter(None, parts))


def _stack_lines(stack: Stack, looked: Looked, style: Style, *, full: bool) -> Iterator[str]:
    members = stack.members
    pids = ", ".join(str(member.snapshot.pid) for member in members[:MAX_PIDS])
    more = ", ..." if len(members) > MAX_PIDS else ""
    does = members[0].doing.one if len(members) == 1 else members[0].doing.several
    who = style.paint(named(members), "1")
    yield f"{who} (pid {pids}{more}) {printable(does)}"
    main = stack.first.main
    if main is not None:
        yield from _frames(main.frames, looked.sources, style, full=full)
    for what in stack.first.snapshot.missing_evidence if not looked.refused else ():
        yield f"    {printable(what)}"
    for thread in stack.first.snapshot.threads or ():
        if thread.owns_gil and thread is not main and thread.frames:
            yield f"  thread {printable(thread.name)}, which holds the GIL:"
            yield from _frames(thread.frames, looked.sources, style, full=full)
    worker = stack.first.worker
    inside = main_thread(worker.threads, worker.pid) if worker else None
    if worker and inside:
        yield f"  its data worker, pid {worker.pid}:"
        yield from _frames(inside.frames, looked.sources, style, full=full)


def _frames(
    frames: Sequence[Frame], sources: Mapping[str, str], style: Style, *, full: bool
) -> Iterator[str]:
    """A stack, innermost first, each frame of the user's with its line."""
    for run in _runs(frames[:MAX_FRAMES] if not full else frames):
        inside = not is_user_frame(run[0])
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


def _runs(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Frames in a row that are the user's, or are not."""
    run: list[Frame] = []
    for frame in frames:
        if run and is_user_frame(frame) is not is_user_frame(run[-1]):
            yield run
            run = []
        run.append(frame)
    if run:
        yield run


def _short(file: str) -> str:
    """The path of a library's file from the package on."""
    for root in ("/site-packages/", "/dist-packages/"):
        with suppress(ValueError):
            return file[file.rindex(root) + len(root) :]
    return file
