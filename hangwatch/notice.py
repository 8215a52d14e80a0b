"""What hangwatch says on standard error, which belongs to the job."""

from __future__ import annotations

import os
import select
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

from hangwatch.safety import redaction
from hangwatch.safety.texts import readable

SHOWN_COMMAND = 60
"""Characters of a command line that are shown."""

WAIT_S = 0.5
"""How long one message waits for room in a standard error that nobody reads."""


def say(text: str, *, version: str = "") -> None:
    """Write one line to standard error, without secrets; a closed or broken one is no error."""
    name = f"hangwatch {version}" if version else "hangwatch"
    line = f"{name}: {printable(redaction.text(text))}\n"
    with suppress(OSError, ValueError, AttributeError):
        encoding = sys.stderr.encoding or "ascii"
        data = line.encode(encoding, "backslashreplace")
        try:
            sys.stderr.flush()
            fd = sys.stderr.fileno()
        except (OSError, ValueError):  # it is no file: somebody has put his own there
            sys.stderr.write(data.decode(encoding))
        else:
            write(fd, data)


def write(fd: int, data: bytes) -> bool:
    """Write to a standard error that may be full, and whether all of it found room.

    A pipe or a terminal that nobody reads blocks a plain write(2) for ever, and the flag
    that prevents it is the job's as well. What poll(2) calls writable takes PIPE_BUF bytes
    at once (pipe(7)). Raises OSError where it is closed or broken.
    """
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    while data:
        if not poller.poll(WAIT_S * 1000):
            return False
        data = data[os.write(fd, data[: select.PIPE_BUF]) :]
    return True


def printable(text: str) -> str:
    """The text on one line, with control characters escaped as in Python source."""
    text = readable(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fold_command(command: Sequence[str]) -> str:
    """The command on one short line, for people; only its end may be left out, and secrets."""
    line = printable(shlex.join(redaction.command(command)))
    return line if len(line) <= SHOWN_COMMAND else f"{line[: SHOWN_COMMAND - 3]}..."
