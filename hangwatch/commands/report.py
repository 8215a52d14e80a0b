"""``hangwatch report``: prints a stored incident, or lists the runs of a report directory."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from hangwatch.commands import MALFORMED, Arguments, print_lines
from hangwatch.console import fold_command, printable
from hangwatch.errors import ReportError
from hangwatch.model.codec import CodecError, decode
from hangwatch.report.directories import LATEST, Kind, latest, numbered
from hangwatch.report.files import load
from hangwatch.report.html import render_page, render_straggler
from hangwatch.report.runs import read_run, run_files
from hangwatch.report.schema import SCHEMA, Report, Verdict
from hangwatch.report.straggler_schema import StragglerReport
from hangwatch.report.terminal import Style, colour_of, format_straggler, format_verdict
from hangwatch.safety import untrusted
from hangwatch.settings.config import Config
from hangwatch.text import duration, percent

DESCRIPTION = """\
Print the verdict of a stored incident: the newest of a run, or of the newest run of a
report directory; of a run without any, its newest straggler. A report directory without
`latest` is listed."""
OWNER_ONLY = 0o600
_NAME_COLUMNS = 14
"""Of the name of an incident."""


def report(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show a stored incident, or list the runs of a directory. Raises UsageError, ReportError."""
    parser = Arguments("report", DESCRIPTION)
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="report.json or straggler.json, or the directory of one, of a run or of reports; by "
        "default HANGWATCH_REPORT_DIR, else hangwatch-reports",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="the runs and their reports")
    form.add_argument("--json", action="store_true", help="the file itself")
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
        is_run = not path.is_dir() or latest(path) is not None or _is_run(path)
        if given.list or (not is_run and any(map(_is_run, _directories(path)))):
            print_lines(_list_lines(path, style))
            return 0
        where, content = load(path)
        if given.json:
            _write(json.dumps(content, indent=1) + "\n", given.output)
        elif given.html:
            _write(_page(content), given.output)
        elif content["schema"] == SCHEMA:
            print_lines(format_verdict(content, where, style))
        else:
            print_lines(format_straggler(content, where, style))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ReportError(f"{error.filename or path} cannot be read: {error.strerror}") from None
    except MALFORMED as error:
        raise ReportError(f"{path}: the report is damaged ({error!r})") from None
    return 0


def _page(content: Report | StragglerReport) -> str:
    return render_page(content) if content["schema"] == SCHEMA else render_straggler(content)


def _write(text: str, file: str | None) -> None:
    """Write to standard output, or to a file that only its owner can read: it may hold secrets."""
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


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """The end of a run on one node, from its run.json."""

    exit_code: int
    duration_s: float


def _directories(path: Path) -> list[Path]:
    return [
        path / name
        for name in untrusted.names(path, follow=True)
        if not name.startswith(".") and name != LATEST and untrusted.is_directory(path / name)
    ]


def _is_run(path: Path) -> bool:
    with suppress(OSError):
        return bool(run_files(path, follow=True) or _stored(path))
    return False


def _list_lines(path: Path, style: Style) -> Iterator[str]:
    """Yield the runs of a report directory, or the one run, newest first. Raises ReportError."""
    if not path.is_dir():
        raise ReportError(f"{path} is no directory: name one with reports")
    paths = [path] if _is_run(path) else [below for below in _directories(path) if _is_run(below)]
    if not paths:
        raise ReportError(f"{path} holds no runs: name a report directory")
    runs = [_run_lines(run, style) for run in paths]
    for number, (_, lines) in enumerate(sorted(runs, key=lambda run: run[0], reverse=True)):
        yield from [""] * bool(number)
        yield from lines


def _run_lines(path: Path, style: Style) -> tuple[datetime, list[str]]:
    """Return the start of a run, and its lines in the list: with those of its reports."""
    described: list[dict[str, Any]] = []
    for file in run_files(path, follow=True):
        with suppress(OSError, *MALFORMED):
            described.append(dict(read_run(file)))
    ends: list[NodeEnd] = []
    for content in described:
        with suppress(CodecError):
            ends.append(decode(NodeEnd, content, lenient=True))
    reports: dict[str, Report | StragglerReport | str] = {}
    for name in _stored(path):
        try:
            _, reports[name] = load(path / name)
        except (ReportError, OSError) as error:
            reports[name] = str(error)
    # A run that has not ended is described by its reports alone.
    for report in reports.values():
        with suppress(*MALFORMED):
            described.append(dict(cast("Report | StragglerReport", report)["run"]))
    commands = (run.get("command") for run in described)
    command = next((words for words in commands if isinstance(words, list) and words), [])
    starts = [at for run in described if (at := _time(run.get("started_at")))]
    began = min(starts, default=None)
    when = f"  {began.astimezone():%Y-%m-%d %H:%M}" if began else ""
    outcome = _outcome(ends) + ("" if reports or not ends else ", no incident")
    lines = [f"{style.paint(printable(path.name), '1')}{when}  {outcome}"]
    if command:
        lines.append(f"  {style.paint(fold_command([str(word) for word in command]), '2')}")
    for name, report in reports.items():
        lines += _report_lines(name, report, began, style)
    return began or datetime.min.replace(tzinfo=UTC), lines


def _outcome(ends: Sequence[NodeEnd]) -> str:
    if not ends:
        return "not ended, or its supervisor was killed"
    codes = ", ".join(map(str, sorted({end.exit_code for end in ends})))
    lasted = duration(max(end.duration_s for end in ends))
    return f"{lasted}, exit code {codes}" + (f", {len(ends)} nodes" if len(ends) > 1 else "")


def _stored(run: Path) -> list[str]:
    """The names of the reports in the directory of a run. Raises OSError."""
    return [name for kind in Kind for name in sorted(numbered(run, kind))]


def _report_lines(
    name: str, report: Report | StragglerReport | str, began: datetime | None, style: Style
) -> list[str]:
    """Return the lines of a report. report: it, or the reason why it cannot be read."""
    name = f"  {name:{_NAME_COLUMNS}}"
    damage = report
    if not isinstance(report, str):
        try:
            told: Verdict | StragglerReport
            if report["schema"] == SCHEMA:
                told = report["verdict"]
                state, about = str(told["state"]), printable(str(told["certainty"]))
            else:
                told = report
                share = percent(float(told["straggler"]["fraction"]))
                state, about = "straggler", f"{share} of the time"
            when = ""
            if at := _time(told["detected_at"]):
                after_s = (at - began).total_seconds() if began else -1.0
                when = f"  {at.astimezone():%H:%M:%S}"
                when += f", {duration(after_s)} after the start" if after_s >= 0 else ""
            word = style.paint(printable(state.upper()), colour_of(state))
            headline = printable(str(told["headline"]))
            lines = textwrap.wrap(headline, style.columns - 4, break_on_hyphens=False)
            return [f"{name}{word} ({about}){when}", *(f"    {line}" for line in lines)]
        except MALFORMED as error:
            damage = f"it is damaged: {error!r}"
    return [f"{name}{style.paint('unreadable', '1;33')}  {printable(str(damage))}"]


def _time(text: object) -> datetime | None:
    with suppress(*MALFORMED):
        at = datetime.fromisoformat(str(text))
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return None
