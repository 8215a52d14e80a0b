"""What hangwatch says on standard error, which belongs to the job."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from hangwatch import redaction
from hangwatch.texts import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN_COMMAND = 60
"""Characters of a command line that are shown."""


def say(text: str, *, version: str = "") -> None:
    """Write one line to standard error, without secrets; a closed or broken one is no error."""
    name = f"hangwatch {version}" if version else "hangwatch"
    with suppress(OSError, ValueError, AttributeError):
        encoding = sys.stderr.encoding or "ascii"
        line = f"{name}: {printable(redaction.text(text))}\n".encode(encoding, "backslashreplace")
        sys.stderr.write(line.decode(encoding))
        sys.stderr.flush()


def printable(text: str) -> str:
    """The text on one line, with control characters escaped as in Python source."""
    text = readable(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fold_command(command: Sequence[str]) -> str:
    """The command on one short line, for people; only its end may be left out, and secrets."""
    line = printable(shlex.join(redaction.command(command)))
    return line if len(line) <= SHOWN_COMMAND else f"{line[: SHOWN_COMMAND - 3]}..."
