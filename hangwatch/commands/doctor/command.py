"""``hangwatch doctor [--json] [--timeout S] [-- LAUNCHER...]``."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import sys
import textwrap
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from hangwatch import __version__
from hangwatch.commands import Arguments, print_lines, timing
from hangwatch.commands.doctor.findings import figures, trial_findings
from hangwatch.commands.doctor.machine import installation, surroundings, watched_jobs
from hangwatch.commands.doctor.trial import run
from hangwatch.console import printable
from hangwatch.errors import UsageError
from hangwatch.preflight import Finding, Grade
from hangwatch.preflight.job import job, parse_command

SCHEMA = "hangwatch.doctor/1"
EXIT_FAILS = 1
_CHECK = 10
"""Characters of the longest name of a check."""
_INDENT = 6 + _CHECK + 1
_LEAST, _MOST = 60, 110
"""Columns; a path or a command that is longer stays in one piece."""


def doctor(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print findings; return 1 if one of them fails, else 0. Raises UsageError."""
    own, command = list(words), []
    if "--" in own:
        at = own.index("--")
        own, command = own[:at], own[at + 1 :]
    arguments = _arguments().parse_args(own)
    line = parse_command(command)
    if command and line is None:
        raise UsageError(
            f"no Python script found in: {shlex.join(command)}; give the whole line, such as:"
            " hangwatch doctor -- torchrun --nproc-per-node=8 train.py"
        )
    expected = job(environ, command)
    findings: list[Finding] = []
    measured = None

    def add(more: Iterable[Finding]) -> None:
        for finding in more:
            findings.append(finding)
            if not arguments.json:
                print_lines(finding_lines(finding, columns(sys.stdout)))

    add(installation(environ))
    add(watched_jobs(environ))
    add(surroundings(environ, expected))
    if line:
        trial = run(line, environ, expected, arguments.timeout)
        add(trial_findings(trial, expected))
        measured = figures(trial)
    if arguments.json:
        print_lines([json.dumps(as_json(findings, measured), indent=2)])
    else:
        print_lines(["", summary(findings)])
    return EXIT_FAILS if _worst(findings) is Grade.FAIL else 0


def _arguments() -> Arguments:
    parser = Arguments("doctor", "Check this machine, or COMMAND, for causes of hangs.")
    parser.add_argument("--json", action="store_true", help="print JSON (hangwatch.doctor/1)")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        default=timing.TRIAL_PATIENCE_S,
        help=f"seconds until all ranks have to be there ({timing.TRIAL_PATIENCE_S:g})",
    )
    parser.usage = "hangwatch doctor [-h] [--json] [--timeout S] [-- COMMAND...]"
    parser.epilog = (
        "With the line that starts a job behind --, such as `-- torchrun --nproc-per-node=8"
        " train.py`, a small program runs in the place of the script: all ranks meet, connect and"
        " reduce, and that is timed. On several nodes run the same line on each."
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= timing.TRIAL_PATIENCE_MOST_S:
        raise ArgumentTypeError(f"{text}: use 1 to {timing.TRIAL_PATIENCE_MOST_S:g} seconds")
    return value


def columns(stream: TextIO) -> int | None:
    """Return the width of a line; None for no terminal: a line stays one line in a log."""
    if not stream.isatty():
        return None
    return max(_LEAST, min(_MOST, shutil.get_terminal_size().columns))


def finding_lines(finding: Finding, width: int | None) -> Iterator[str]:
    """Yield a finding, and below it its remedy."""
    yield from _folded(f"{finding.grade.word:4}  {finding.check:{_CHECK}} ", finding.what, width)
    if finding.remedy:
        yield from _folded(" " * _INDENT + "-> ", finding.remedy, width)


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


def _worst(findings: Sequence[Finding]) -> Grade:
    return max((finding.grade for finding in findings), default=Grade.OK)


def summary(findings: Sequence[Finding]) -> str:
    """Return the number of failures and warnings, in one line."""
    grades = [finding.grade for finding in findings]
    counts = {grade.word: grades.count(grade) for grade in (Grade.FAIL, Grade.WARN)}
    return ", ".join(f"{n} {word}" for word, n in counts.items() if n) or "all is well"


def as_json(findings: Sequence[Finding], trial: dict[str, Any] | None) -> dict[str, Any]:
    """Return the whole answer; trial: measured by a trial of a launcher's line."""
    return {
        "schema": SCHEMA,
        "hangwatch": __version__,
        "node": socket.gethostname(),
        "grade": _worst(findings).word,
        "findings": [
            {**asdict(finding), "grade": finding.grade.word, "remedy": finding.remedy or None}
            for finding in findings
        ],
        "trial": trial,
    }
