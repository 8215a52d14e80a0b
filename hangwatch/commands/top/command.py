"""``hangwatch top``: chooses the run, and looks at it until it ends."""

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

from hangwatch.commands import Arguments
from hangwatch.commands.top.runs import UnclearError, choose
from hangwatch.commands.top.screen import draw, line
from hangwatch.commands.top.source import Source
from hangwatch.console import printable, say

DESCRIPTION = """\
A live view of the ranks of a watched run on this node: how fast they go, who is behind,
what each waits in, since when and at which line; at an incident also the ranks of the
other nodes, as its report has them. Where the output is no terminal: a line each few
seconds. Nothing is written, and the job is not disturbed. It ends with the run; Ctrl-C
ends it earlier."""
EXIT_UNCLEAR = 2
LIVE_S = 1.0
LINE_S = 5.0
ONCE_S = 1.0
"""Between the first look and one that can be printed: a rate is seen between two."""
PLAIN_WIDTH = 120
"""Of a picture that goes into a file."""


def top(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show a run until it ends; the exit code. Raises UsageError."""
    parser = Arguments("top", DESCRIPTION)
    parser.add_argument(
        "run", metavar="RUN", nargs="?", default="", help="a run id, a run directory or a pid"
    )
    parser.add_argument("--once", action="store_true", help="show one picture and end")
    parser.add_argument("--interval", metavar="S", type=float, help="seconds between two looks")
    given = parser.parse_args(words)
    if given.interval is not None and not 0.1 <= given.interval <= 3600:  # noqa: PLR2004 (as said)
        parser.error(f"--interval {given.interval:g}: use 0.1 to 3600 seconds")
    try:
        source = Source(choose(given.run, environ))
    except UnclearError as error:
        say(str(error))
        for run in error.runs:
            sys.stderr.write(f"  {run}\n")
        return EXIT_UNCLEAR
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=PLAIN_WIDTH)
    try:
        if given.once:
            _once(source, console)
        elif console.is_terminal:
            _live(source, console, given.interval or LIVE_S)
        else:
            _lines(source, given.interval or LINE_S)
    finally:
        source.close()
    return 0


def _once(source: Source, console: Console) -> None:
    source.picture()
    time.sleep(ONCE_S)
    console.print(draw(source.picture(), console.width, None))


def _lines(source: Source, interval_s: float) -> None:
    over, due_s = "", 0.0
    source.picture()
    time.sleep(ONCE_S)
    while not over:
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + interval_s
            _say(line(source.picture()))
        time.sleep(min(LIVE_S, interval_s))
        over = source.over()
    _say(over)


def _live(source: Source, console: Console, interval_s: float) -> None:
    """Until the run ends or Ctrl-C; the last picture stays on the terminal."""
    picture, over = source.picture(), ""
    try:
        with _resizes() as resized, Live(console=console, screen=True, auto_refresh=False) as live:
            while not over:
                width, height = console.size
                live.update(draw(picture, width, height), refresh=True)
                if select.select([resized], [], [], interval_s)[0]:
                    os.read(resized, 512)
                    continue
                over, picture = source.over(), source.picture()
    except KeyboardInterrupt:
        over = "the run goes on"
    console.print(draw(picture, *console.size))
    console.print(printable(over))


@contextmanager
def _resizes() -> Iterator[int]:
    """A file descriptor that can be read once the terminal has another size.

    SIGTERM ends the process as ever, but gives the terminal back first.
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


def _say(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()
