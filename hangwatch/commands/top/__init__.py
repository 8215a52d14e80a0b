"""``hangwatch top``: chooses the run, and shows it until it ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from hangwatch.commands import Arguments, print_lines, timing
from hangwatch.commands.runs import UnclearError, choose
from hangwatch.commands.top.picture import RunView
from hangwatch.commands.top.screen import draw, line
from hangwatch.console import printable, say

DESCRIPTION = """\
A live view of the ranks of a watched run on this node: how fast they go, which are behind,
what each waits in, since when and at which line; at an incident also the ranks of the
other nodes, from its report. If the output is not a terminal, it prints a line every few
seconds. Nothing is written, and the job is not disturbed. It ends with the run; Ctrl-C
ends it earlier."""
EXIT_UNCLEAR = 2
PLAIN_WIDTH = 120
"""Columns of a picture that goes into a file."""


def top(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show a run until it ends; return the exit code. Raises UsageError."""
    parser = Arguments("top", DESCRIPTION)
    parser.add_argument(
        "run", metavar="RUN", nargs="?", default="", help="a run id, a run directory or a pid"
    )
    parser.add_argument("--once", action="store_true", help="show one picture and end")
    parser.add_argument("--interval", metavar="S", type=float, help="seconds between two looks")
    given = parser.parse_args(words)
    least_s, most_s = timing.TOP_LEAST_S, timing.TOP_MOST_S
    if given.interval is not None and not least_s <= given.interval <= most_s:
        parser.error(f"--interval {given.interval:g}: use {least_s:g} to {most_s:g} seconds")
    try:
        run = choose(given.run, environ)
    except UnclearError as error:
        say(str(error))
        for candidate in error.runs:
            sys.stderr.write(f"  {candidate}\n")
        return EXIT_UNCLEAR
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    with RunView(run) as view:
        if given.once:
            view.picture()
            time.sleep(timing.TOP_ONCE_S)
            console.print(draw(view.picture(), console.width, None))
        elif console.is_terminal:
            _live(view, console, given.interval or timing.TOP_LIVE_S)
        else:
            _lines(view, given.interval or timing.TOP_LINE_S)
    return 0


def _lines(view: RunView, interval_s: float) -> None:
    ending, due_s = "", 0.0
    view.picture()
    time.sleep(timing.TOP_ONCE_S)
    while not ending:
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + interval_s
            print_lines([line(view.picture())])
        time.sleep(min(timing.TOP_LIVE_S, interval_s))
        ending = view.ending()
    print_lines([printable(ending)])


def _live(view: RunView, console: Console, interval_s: float) -> None:
    """Draw until the run ends or Ctrl-C; the last picture stays on the terminal."""
    picture, ending = view.picture(), ""
    try:
        with _resizes() as resized, Live(console=console, screen=True, auto_refresh=False) as live:
            while not ending:
                width, height = console.size
                live.update(draw(picture, width, height), refresh=True)
                if select.select([resized], [], [], interval_s)[0]:
                    os.read(resized, 512)
                    continue
                ending, picture = view.ending(), view.picture()
    except KeyboardInterrupt:
        ending = "the run continues"
    console.print(draw(picture, *console.size))
    console.print(printable(ending))


@contextmanager
def _resizes() -> Iterator[int]:
    """Yield a file descriptor that becomes readable when the terminal is resized.

    SIGTERM still ends the process, but gives the terminal back first.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number)),
    }
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        os.close(reading)
        os.close(writing)
