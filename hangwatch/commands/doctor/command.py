"""The command: ``hangwatch doctor [--json] [--timeout S] [-- LAUNCHER...]``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence

from hangwatch.commands import Arguments
from hangwatch.commands.doctor import shown
from hangwatch.commands.doctor.jobs import jobs
from hangwatch.commands.doctor.judgement import figures, judge
from hangwatch.commands.doctor.surroundings import installation, surroundings
from hangwatch.commands.doctor.trial import PATIENCE_S, no_script, run
from hangwatch.errors import UsageError
from hangwatch.preflight.finding import Finding, Grade
from hangwatch.preflight.job import job
from hangwatch.preflight.launchers import read

EXIT_FAILS = 1
LONGEST_S = 3600.0


def doctor(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Look, say what was found, and return 1 if something fails, else 0. Raises UsageError."""
    own, command = _split(words)
    arguments = _arguments().parse_args(own)
    if command and read(command) is None:
        raise UsageError(no_script(command))
    told = job(environ, command)
    findings: list[Finding] = []
    measured = None

    def note(found: Iterable[Finding]) -> None:
        for finding in found:
            findings.append(finding)
            if not arguments.json:
                _print(shown.lines(finding, shown.columns(sys.stdout)))

    note(installation(environ))
    note(jobs(environ))
    note(surroundings(environ, told))
    if command:
        trial = run(command, environ, told, arguments.timeout)
        note(judge(trial, told))
        measured = figures(trial)
    if arguments.json:
        _print([json.dumps(shown.as_json(findings, measured), indent=2)])
    else:
        _print(["", shown.summary(findings)])
    return EXIT_FAILS if shown.worst(findings) is Grade.FAIL else 0


def _arguments() -> Arguments:
    parser = Arguments("doctor", "Say what on this machine would make a job hang, or would help.")
    parser.add_argument("--json", action="store_true", help="print JSON (hangwatch.doctor/1)")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        default=PATIENCE_S,
        help=f"seconds until all ranks have to be there ({PATIENCE_S:g})",
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
    if not 1 <= value <= LONGEST_S:
        raise ArgumentTypeError(f"{text}: use 1 to {LONGEST_S:g} seconds")
    return value


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for the doctor, and the launcher's line after ``--``."""
    own = list(words)
    if "--" not in own:
        return own, []
    place = own.index("--")
    return own[:place], own[place + 1 :]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
