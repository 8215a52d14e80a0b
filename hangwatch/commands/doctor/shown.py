"""The findings as a list for people, and as JSON (schema ``hangwatch.doctor/1``)."""

from __future__ import annotations

import shutil
import socket
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from hangwatch import __version__
from hangwatch.console import printable
from hangwatch.preflight.finding import Finding, Grade

SCHEMA = "hangwatch.doctor/1"
_CHECK = 10
"""Characters of the longest name of a check."""
_INDENT = 6 + _CHECK + 1
_LEAST, _MOST = 60, 110
"""Columns; a path or a command that is longer stays in one piece."""


def columns(stream: TextIO) -> int | None:
    """How wide a line may be; None where it is no terminal: a line stays one line in a log."""
    if not stream.isatty():
        return None
    return max(_LEAST, min(_MOST, shutil.get_terminal_size().columns))


def lines(finding: Finding, width: int | None) -> Iterator[str]:
    """A finding, and below it what to do."""
    yield from _folded(f"{finding.grade.word:4}  {finding.check:{_CHECK}} ", finding.what, width)
    if finding.remedy:
        yield from _folded(" " * _INDENT + "-> ", finding.remedy, width)


def worst(findings: Sequence[Finding]) -> Grade:
    """The worst grade; OK where nothing was found."""
    return max((finding.grade for finding in findings), default=Grade.OK)


def summary(findings: Sequence[Finding]) -> str:
    """How it stands, in one line."""
    fails = sum(finding.grade is Grade.FAIL for finding in findings)
    warns = sum(finding.grade is Grade.WARN for finding in findings)
    if not fails and not warns:
        return "all is well"
    parts = [f"{count} {word}" for count, word in ((fails, "fail"), (warns, "warn")) if count]
    return ", ".join(parts)


def as_json(findings: Sequence[Finding], trial: dict[str, Any] | None) -> dict[str, Any]:
    """The whole answer; trial is what a trial of a launcher's line measured."""
    return {
        "schema": SCHEMA,
        "hangwatch": __version__,
        "node": socket.gethostname(),
        "grade": worst(findings).word,
        "findings": [
            {
                "check": finding.check,
                "grade": finding.grade.word,
                "what": finding.what,
                "remedy": finding.remedy or None,
            }
            for finding in findings
        ],
        "trial": trial,
    }


def _folded(head: str, text: str, width: int | None) -> list[str]:
    if width is None:
        return [head + printable(text)]
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=head,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
