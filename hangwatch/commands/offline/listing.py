"""Lists the runs of a report directory, and what was found in each."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hangwatch.commands.top.view import seconds
from hangwatch.console import fold_command, printable
from hangwatch.errors import ReportError
from hangwatch.report.files import LATEST, load, read_run
from hangwatch.report.terminal import PLAIN, Style
from hangwatch.safety import untrusted

_INCIDENT = re.compile(r"incident-\d{3,}")
_RUN = re.compile(r"run(?:-.+)?\.json")
_COLOURS = {"hang": "1;31", "failed": "1;31", "slow": "1;33", "desync": "1;33", "ok": "1;32"}
_ODD = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_FIRST_COLUMNS = 14
"""Of the name of an incident."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident of a run; ``odd`` says why it cannot be read."""

    name: str
    state: str = ""
    certainty: str = ""
    headline: str = ""
    at: datetime | None = None
    odd: str = ""


@dataclass(frozen=True, slots=True)
class Watch:
    """What one node's watchdog has left at the end of a run (run.json)."""

    node: str
    exit_code: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """The directory of a run."""

    path: Path
    command: tuple[str, ...]
    began: datetime | None
    watches: tuple[Watch, ...]
    """Of each node; none where the run goes on, or its supervisor was killed."""
    incidents: tuple[Incident, ...]


def is_report_directory(path: Path) -> bool:
    """Whether it holds runs."""
    return not _is_run(path) and any(_is_run(below) for below in _directories(path))


def read(path: Path) -> list[Run]:
    """The runs of a report directory, or the one run, newest first.

    Raises ReportError where there is none.
    """
    if not path.is_dir():  # by the operator's word, a link or not
        raise ReportError(f"{path} is no directory: name one with reports")
    found = [path] if _is_run(path) else [below for below in _directories(path) if _is_run(below)]
    if not found:
        raise ReportError(f"{path} holds no runs: name a report directory")
    earliest = datetime.min.replace(tzinfo=UTC)
    return sorted(map(_run, found), key=lambda run: run.began or earliest, reverse=True)


def format_runs(runs: Sequence[Run], style: Style = PLAIN) -> Iterator[str]:
    """The lines of the list: a run, then its incidents."""
    for number, run in enumerate(runs):
        if number:
            yield ""
        began = f"  {_local(run.began)}" if run.began else ""
        yield f"{style.paint(printable(run.path.name), '1')}{began}  {_outcome(run)}"
        if run.command:
            yield f"  {style.paint(fold_command(run.command), '2')}"
        for incident in run.incidents:
            yield from _incident_lines(incident, run, style)


def _outcome(run: Run) -> str:
    if not run.watches:
        return "not ended, or its supervisor was killed"
    codes = sorted({watch.exit_code for watch in run.watches})
    lasted = f"{seconds(max(watch.duration_s for watch in run.watches))}"
    nodes = f", {len(run.watches)} nodes" if len(run.watches) > 1 else ""
    left = "" if run.incidents else ", no incident"
    return f"{lasted}, exit code {', '.join(map(str, codes))}{nodes}{left}"


def _incident_lines(incident: Incident, run: Run, style: Style) -> Iterator[str]:
    name = f"  {incident.name:{_FIRST_COLUMNS}}"
    if incident.odd:
        yield f"{name}{style.paint('unreadable', '1;33')}  {printable(incident.odd)}"
        return
    state = printable(incident.state.upper())
    when = ""
    if incident.at:
        after_s = (incident.at - run.began).total_seconds() if run.began else -1.0
        when = f"  {incident.at.astimezone():%H:%M:%S}"
        when += f", {seconds(after_s)} after the start" if after_s >= 0 else ""
    word = style.paint(state, _COLOURS.get(incident.state, "1"))
    yield f"{name}{word} ({printable(incident.certainty)}){when}"
    width = style.columns - 4
    yield from (
        f"    {line}"
        for line in textwrap.wrap(printable(incident.headline), width, break_on_hyphens=False)
    )


def _directories(path: Path) -> list[Path]:
    return [
        path / name
        for name in untrusted.names(path, follow=True)
        if not name.startswith(".") and name != LATEST and untrusted.is_directory(path / name)
    ]


def _is_run(path: Path) -> bool:
    with suppress(OSError):
        names = untrusted.names(path, follow=True)
        return any(_RUN.fullmatch(name) or _INCIDENT.fullmatch(name) for name in names)
    return False


def _run(path: Path) -> Run:
    names = sorted(untrusted.names(path, follow=True))
    told: list[dict[str, Any]] = []
    for name in filter(_RUN.fullmatch, names):
        with suppress(OSError, *_ODD):
            told.append(dict(read_run(path / name)))
    watches = []
    for content in told:
        with suppress(*_ODD):
            code, lasted_s = int(content["exit_code"]), float(content["duration_s"])
            watches.append(Watch(str(content["node"]), code, lasted_s))
    reports = [_report(path / name) for name in names if _INCIDENT.fullmatch(name)]
    # A run that has not ended is described by its incidents alone.
    about = [*told, *(content["run"] for _, content in reports if content)]
    return Run(
        path,
        _command(about),
        min((at for one in about if (at := _time(one.get("started_at")))), default=None),
        tuple(watches),
        tuple(incident for incident, _ in reports),
    )


def _report(path: Path) -> tuple[Incident, dict[str, Any]]:
    """An incident with its report, which is empty where it cannot be read."""
    try:
        _, content = load(path)
        verdict = content["verdict"]
        incident = Incident(
            path.name,
            str(verdict["state"]),
            str(verdict["certainty"]),
            str(verdict["headline"]),
            _time(verdict["detected_at"]),
        )
        return incident, {**content, "run": dict(content["run"])}
    except (ReportError, OSError) as error:
        return Incident(path.name, odd=str(error)), {}
    except _ODD as error:
        return Incident(path.name, odd=f"its report.json is damaged: {error!r}"), {}


def _command(about: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    for one in about:
        command = one.get("command")
        if isinstance(command, list) and command:
            return tuple(map(str, command))
    return ()


def _time(text: object) -> datetime | None:
    with suppress(*_ODD):
        at = datetime.fromisoformat(str(text))
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return None


def _local(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}"
