"""Reports on disk, with what each was made from.

An incident is ``incident-NNN/report.json``, a straggler ``straggler-NNN/straggler.json``.
"""

from __future__ import annotations

from pathlib import Path

from hangwatch.console import printable
from hangwatch.errors import ReportError
from hangwatch.model.profile import Profile
from hangwatch.model.report import Evidence, StragglerEvidence
from hangwatch.report.build import build_report
from hangwatch.report.directories import (
    Kind,
    add_page,
    as_json,
    create_file,
    latest,
    number_of,
    numbered,
    store,
)
from hangwatch.report.html import render_page, render_straggler
from hangwatch.report.runs import RUN
from hangwatch.report.schema import SCHEMA, Report, Stack
from hangwatch.report.straggler import build_straggler_report
from hangwatch.report.straggler_schema import STRAGGLER_SCHEMA, StragglerReport
from hangwatch.safety import untrusted
from hangwatch.safety.texts import readable_report

REPORT = "report.json"
STRAGGLER = "straggler.json"
MAX_BYTES = 128 << 20
"""Limit of a report.json; that of ten thousand ranks has some 20 MB."""
LOG = "watchdog.log"
"""Tracebacks of hangwatch's own faults."""


def write_incident(
    run_dir: Path,
    evidence: Evidence,
    *,
    report: Report | None = None,
    replaced: Path | None = None,
    lost: list[str] | None = None,
) -> Path:
    """Keep an incident and return its directory.

    report: the result of build_report(), where it is at hand. replaced: the directory of the
    same incident, reported before (``slow`` that has become a ``hang``). lost: gets the reason
    if the page cannot be written. Raises ReportError if the report cannot be written.
    """
    content = readable_report(report or build_report(evidence))
    path = store(run_dir, Kind.INCIDENT, lambda fresh: _fill(fresh, evidence, content), replaced)
    failure = add_page(path, lambda: render_page(content))
    if failure and lost is not None:
        lost.append(failure)
    return path


def _fill(path: Path, evidence: Evidence, report: Report) -> None:
    ras = evidence.ras
    for name, content in (
        ("stacks", {f"{key}.txt": _stack_text(stack) for key, stack in report["stacks"].items()}),
        ("flight", {_flight_file(rank, raw): raw for rank, raw in evidence.flights.items()}),
        ("pages", {f"rank-{rank}.page": raw for rank, raw in evidence.pages.items()}),
        ("nccl", {"ras.json" if ras.is_json else "ras.txt": ras.data} if ras else {}),
    ):
        if content:
            (path / name).mkdir(mode=0o700)
        for file, data in content.items():
            create_file(path / name / file, data)
    if evidence.log:
        create_file(path / LOG, evidence.log)
    create_file(path / REPORT, as_json(report))


def _flight_file(rank: int, raw: bytes) -> str:
    """The name of a dump: JSON, except for that of PyTorch 2.4, which has only the pickle."""
    from hangwatch.evidence.flight.pickled import is_pickle  # noqa: PLC0415 (every job would start later)

    return f"rank-{rank}.{'pickle' if is_pickle(raw) else 'json'}"


def _stack_text(stack: Stack) -> bytes:
    lines = [f"ranks {', '.join(map(str, stack['ranks']))}, innermost frame first"]
    for frame in stack["frames"]:
        lines.append(f"  {frame['file']}:{frame['line']} {frame['function']}")
        if frame["source"]:
            lines.append(f"      {frame['source']}")
    return "".join(f"{printable(line)}\n" for line in lines).encode("utf-8", "backslashreplace")


def write_straggler(
    run_dir: Path,
    evidence: StragglerEvidence,
    *,
    report: StragglerReport | None = None,
    replaced: Path | None = None,
    lost: list[str] | None = None,
) -> Path:
    """Keep the report of a straggler and return its directory.

    report: the result of build_straggler_report(), where it is at hand; the others as of
    write_incident(). Raises ReportError if it cannot be written.
    """
    content = readable_report(report or build_straggler_report(evidence))

    def fill(path: Path) -> None:
        if evidence.profiles:
            (path / "profiles").mkdir(mode=0o700)
        for profile in evidence.profiles:
            create_file(path / "profiles" / f"rank-{profile.rank}.folded", _folded(profile))
        create_file(path / STRAGGLER, as_json(content))

    path = store(run_dir, Kind.STRAGGLER, fill, replaced)
    failure = add_page(path, lambda: render_straggler(content))
    if failure and lost is not None:
        lost.append(failure)
    return path


def _folded(profile: Profile) -> bytes:
    """A profile as flame graphs are made of: a stack on each line, outermost first, and a count."""
    lines = []
    for one in profile.samples:
        frames = [f"{at.function} ({at.file}:{at.line})" for at in reversed(one.frames)]
        stack = (f"process {one.pid}", f"thread {one.tid} {one.thread}".rstrip(), *frames)
        lines.append(f"{';'.join(part.replace(';', ',') for part in stack)} {one.count}")
    return "".join(f"{printable(line)}\n" for line in lines).encode("utf-8", "backslashreplace")


def load(path: Path) -> tuple[Path, Report | StragglerReport]:
    """Find the newest report at path and return its directory and its content.

    path: report.json or straggler.json, the directory of one, a run's, or the report directory
    (its latest run). Of a run with incidents the newest of these, else its newest straggler.
    Raises ReportError, which names what is there instead.
    """
    file = _find(path)
    try:
        content = untrusted.read_json(file, MAX_BYTES, follow=file == path)
    except OSError as error:
        raise ReportError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ReportError(f"{file} is not JSON: name the report.json of an incident") from None
    found = content.get("schema") if isinstance(content, dict) else None
    if found not in {SCHEMA, STRAGGLER_SCHEMA}:
        raise ReportError(f"{file} is no report that this version reads: schema {found!r}")
    return file.parent, content


def load_incident(path: Path) -> tuple[Path, Report]:
    """Do the same for incidents alone."""
    where, content = load(path)
    if content["schema"] != SCHEMA:
        raise ReportError(f"{where} is a report of a straggler: name an incident")
    return where, content


def _find(path: Path) -> Path:
    if not path.exists():
        raise ReportError(f"{path} does not exist")
    if not path.is_dir():
        return path
    names = untrusted.names(path, follow=True)
    for kind, name in ((Kind.INCIDENT, REPORT), (Kind.STRAGGLER, STRAGGLER)):
        if name in names:
            return path / name
        if found := numbered(path, kind):
            return path / max(found, key=number_of) / name
    if run := latest(path):
        return _find(run)
    if RUN in names:
        raise ReportError(f"{path} holds no incident: nothing was found in that run")
    raise ReportError(f"{path} holds no report: name an incident, a run or a report directory")
