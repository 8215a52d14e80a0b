"""``hangwatch report`` and ``hangwatch analyze``: prints what was stored, or judges it anew."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hangwatch.commands import Arguments
from hangwatch.commands.offline import listing
from hangwatch.console import say
from hangwatch.errors import ReportError
from hangwatch.report.build import build_report
from hangwatch.report.files import latest, load
from hangwatch.report.html import render_page
from hangwatch.report.terminal import Style, format_verdict
from hangwatch.settings.config import Config

REPORT = """\
Print the verdict of a stored incident: the newest of a run, or of the newest run of a
report directory. A report directory without `latest` is listed."""
ANALYZE = """\
Judge Flight Recorder dumps (pickle or JSON; any name that ends in the rank), rank pages, or
the incident of a report. The exit code is 0 whether or not there is a verdict."""
OWNER_ONLY = 0o600


def report(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show a stored incident, or list the runs of a directory. Raises UsageError, ReportError."""
    parser = Arguments("report", REPORT)
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="report.json, or the directory of an incident, of a run or of reports; by default "
        "HANGWATCH_REPORT_DIR, else hangwatch-reports",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="the runs and their incidents")
    form.add_argument("--json", action="store_true", help="report.json")
    form.add_argument("--html", action="store_true", help="the page: one file, no network")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there (--json, --html)")
    given = parser.parse_args(words)
    if given.output and not (given.json or given.html):
        parser.error("-o FILE goes with --json or --html")
    chosen = given.path or environ.get("HANGWATCH_REPORT_DIR") or Config().report_dir
    path = Path(chosen)
    if not path.exists() and not given.path:
        raise ReportError(
            f"there is no {chosen} here: name a report directory, a run or an incident"
        )
    style = Style.of(sys.stdout, environ)
    try:
        if given.list or _to_be_listed(path):
            _print_lines(listing.format_runs(listing.read(path), style))
            return 0
        where, content = load(path)
        if given.json:
            _put(json.dumps(content, indent=1) + "\n", given.output)
        elif given.html:
            _put(render_page(content), given.output)
        else:
            _print_lines(list(format_verdict(content, where, style)))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ReportError(f"{error.filename or path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise ReportError(f"{path}: the report is damaged ({error!r})") from None
    return 0


def analyze(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Judge what a job has left. Raises UsageError, and FlightError where nothing can be read."""
    from hangwatch.commands.offline.analyze import analyze as judge  # noqa: PLC0415 (a report needs none of it)

    parser = Arguments("analyze", ANALYZE)
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="file or directory")
    parser.add_argument("--json", action="store_true", help="print a report.json")
    given = parser.parse_args(words)
    evidence, unreadable = judge(given.paths)
    content = build_report(evidence)
    if given.json or content["verdict"]["state"] == "ok":  # else they are in what is printed
        for what in unreadable:
            say(what)
    if given.json:
        _put(json.dumps(content, indent=1) + "\n", None)
    else:
        style = Style.of(sys.stdout, environ)
        _print_lines(format_verdict(content, style=style, stored=False))
    return 0


def _to_be_listed(path: Path) -> bool:
    """Whether it is a report directory that does not say which of its runs is the newest."""
    return path.is_dir() and latest(path) is None and listing.is_report_directory(path)


def _put(text: str, file: str | None) -> None:
    """To standard output, or to a file that only its owner can read: it may hold secrets."""
    data = text.encode("utf-8", "backslashreplace")
    if file is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
    except OSError as error:
        raise ReportError(f"{file} cannot be written: {error.strerror}") from None


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
