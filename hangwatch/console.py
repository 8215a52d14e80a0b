"""Prints lines of hangwatch on standard error, which belongs to the job."""

from __future__ import annotations

import os
import select
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hangwatch.safety import redaction
from hangwatch.safety.faultlog import log_fault
from hangwatch.safety.texts import readable

SHOWN_COMMAND = 60
"""Most characters of a command line that are shown."""

WAIT_S = 0.5
"""Longest wait of one message for room in a standard error that no one reads."""


def say(text: str, *, version: str = "") -> None:
    """Print one line on standard error, without secrets; a closed one is no error."""
    line = _line(text, version)
    with suppress(OSError, ValueError, AttributeError):
        encoding = sys.stderr.encoding or "ascii"
        data = line.encode(encoding, "backslashreplace")
        try:
            sys.stderr.flush()
            fd = sys.stderr.fileno()
        except (OSError, ValueError):  # the program has replaced it by an object that is no file
            sys.stderr.write(data.decode(encoding))
        else:
            write(fd, data)


def _line(text: str, version: str = "") -> str:
    name = f"hangwatch {version}" if version else "hangwatch"
    return f"{name}: {printable(redaction.text(text))}\n"


def write(fd: int, data: bytes) -> bool:
    """Write to a standard error that may be full; True if all of it found room.

    A pipe or a terminal that no one reads blocks a plain write(2) for ever, and the flag
    that prevents it is the job's as well. A descriptor that poll(2) calls writable takes
    PIPE_BUF bytes at once (pipe(7)). Raises OSError if it is closed or broken.
    """
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    while data:
        if not poller.poll(WAIT_S * 1000):
            return False
        data = data[os.write(fd, data[: select.PIPE_BUF]) :]
    return True


def printable(text: str) -> str:
    """Return the text on one line, with control characters escaped as in Python source."""
    text = readable(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, limit: int) -> str:
    """Return the text on one line of printable characters, cut at a limit."""
    shown = printable(text)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def fold_command(command: Sequence[str]) -> str:
    """Return the beginning of a command on one line for people, without secrets."""
    return cut(shlex.join(redaction.command(command)), SHOWN_COMMAND)


UNREAD = "standard error is full and no one reads it: some lines are missing there"


class News:
    """Writes lines to a file descriptor and remembers what was lost.

    ``lost`` ends up in every report: the things that hangwatch could not do, and why. A
    standard error that is gone or full is no reason to fail.
    """

    def __init__(self, fd: int, *, verbose: bool = False) -> None:
        self._fd = fd
        self._verbose = verbose
        self._said: dict[str, None] = {}
        self.lost: list[str] = []
        self.losses: Counter[str] = Counter()
        """Number of losses of each sort, which is the part of a key before its colon."""
        self.run_dir: Path | None = None
        """The place for tracebacks, None while it is unknown."""

    @property
    def said(self) -> tuple[str, ...]:
        """Keys of the lines printed once, for a watchdog that takes over from this one."""
        return tuple(self._said)

    def restore(self, said: Iterable[str], lost: Iterable[str], losses: Mapping[str, int]) -> None:
        """Take over the state of a watchdog that was killed, or the losses of the supervisor."""
        self._said.update(dict.fromkeys(said))
        self.lost.extend(text for text in lost if text not in self.lost)
        self.losses = Counter({**self.losses, **losses})

    def say(self, text: str) -> None:
        """Print one line of news, without secrets."""
        self.write(_line(text))

    def once(self, key: str, text: str) -> None:
        """Print one line of news unless one of this key was printed before."""
        if key not in self._said:
            self._said[key] = None
            self.say(text)

    def lose(self, key: str, text: str, *, quiet: bool = False) -> None:
        """Print once what could not be done, and put it into every later report.

        quiet: print it with -v only; for losses on which most operators need not act.
        """
        if key in self._said:
            return
        self._said[key] = None
        self.lost.append(redaction.text(text))
        self.losses[key.partition(":")[0]] += 1
        if self._verbose or not quiet:
            self.say(text)

    def fault(self, key: str, text: str, error: BaseException, *, quiet: bool = False) -> None:
        """Record a loss by a fault of our own, and keep its traceback each time it happens."""
        where = log_fault(self.run_dir, text, error)
        self.lose(key, f"{text} ({where})" if where else text, quiet=quiet)

    def debug(self, text: str) -> None:
        """Print one line with -v only."""
        if self._verbose:
            self.say(text)

    def write(self, text: str) -> None:
        """Print as is; if a full standard error loses a part, reports say so."""
        whole = True
        with suppress(OSError):
            whole = write(self._fd, text.encode("utf-8", "backslashreplace"))
        if not whole and UNREAD not in self.lost:
            self.lost.append(UNREAD)
