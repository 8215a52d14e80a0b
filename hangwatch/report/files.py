"""Reports on disk: ``<report-dir>/<run-id>/incident-NNN/report.json``.

Files are 0600 in 0700 directories. An incident's directory appears whole or not
at all: it is written under another name and renamed; only the page is added after
that. Several nodes may write to one directory, if they share a run id and a report
directory: no node replaces what another has written, and rename(2) and link(2),
which a network file system has too, decide which node was first.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from hangwatch.console import printable
from hangwatch.errors import ReportError
from hangwatch.model.report import Evidence, Note, RunInfo, Stragglers
from hangwatch.report.build import build_report, notes_content, straggler_content
from hangwatch.report.html import render_page
from hangwatch.report.schema import RUN_SCHEMA, SCHEMA, Report, RunReport, Stack
from hangwatch.safety import untrusted
from hangwatch.safety.texts import readable_report

LATEST = "latest"
REPORT = "report.json"
PAGE = "index.html"
RUN = "run.json"
_INCIDENT = re.compile(r"incident-(\d{3,18})")
_RUN = re.compile(r"run(?:-.+)?\.json")
MAX_BYTES = 128 << 20
"""Limit of a report.json; that of ten thousand ranks has some 20 MB."""
MAX_RUN_BYTES = 4 << 20
LOG = "watchdog.log"
"""Tracebacks of hangwatch's own faults."""
MANY = 64
"""A list of more entries has each on one line."""
_DISCARD_TRIES = 3
_TRIES = 100
"""Numbers tried where watchdogs of several nodes write to a shared directory."""
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}
"""Errors of rename(2) of a directory to a name that is taken."""


def open_run(root: Path, run_id: str) -> Path:
    """Make the directory of a run, point ``latest`` to it, and return its absolute path.

    Raises ReportError if nothing can be written there.
    """
    path = root / run_id
    try:
        root = root.absolute()
        path = root / run_id
        root.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with untrusted.held_directory(path):
            pass
    except OSError as error:
        raise ReportError(f"reports cannot be written to {path}: {error.strerror}") from None
    link = root / LATEST
    with suppress(OSError):
        if link.is_symlink() or not os.path.lexists(link):  # anything else is the user's
            fresh = root / f".{LATEST}-{secrets.token_hex(8)}"
            fresh.symlink_to(run_id)
            fresh.replace(link)
    return path


def write_incident(
    run_dir: Path,
    evidence: Evidence,
    *,
    report: Report | None = None,
    replace: Path | None = None,
    lost: list[str] | None = None,
) -> Path:
    """Keep an incident and return its directory.

    report: the result of build_report(), where it is at hand. replace: the directory of the
    same incident, reported before (``slow`` that has become a ``hang``). lost: gets the reason
    if the page cannot be written. Raises ReportError if the report cannot be written.
    """
    report = readable_report(report or build_report(evidence))
    try:
        with untrusted.held_directory(run_dir) as held:
            fresh = Path(tempfile.mkdtemp(prefix=".incident-", dir=held))
            try:
                _fill(fresh, evidence, report)
                path = _swap(fresh, held / replace.name) if replace else _place(fresh, held)
            finally:
                _discard(fresh)
            try:
                _replace(path / PAGE, render_page(report).encode())
            except Exception as error:  # noqa: BLE001 (a fault of ours must not cost the report)
                why = error.strerror if isinstance(error, OSError) else error
                if lost is not None:
                    lost.append(f"{run_dir / path.name / PAGE} could not be written: {why}")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"the report cannot be written to {run_dir}: {reason}") from None
    return run_dir / path.name


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
            _write(path / name / file, data)
    if evidence.log:
        _write(path / LOG, evidence.log)
    _write(path / REPORT, _json(report))


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


def _json(content: Mapping[str, Any]) -> bytes:
    """Indented for people, except for the entries of long lists.

    json.dumps() without indent uses the encoder in C, which is ten times as fast.
    """
    fields = []
    for key, value in content.items():
        if isinstance(value, list) and len(value) > MANY:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        else:
            text = json.dumps(value, indent=1).replace("\n", "\n ")
        fields.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _write(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in place of one of that name."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        _write(fresh, data)
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _place(fresh: Path, run_dir: Path) -> Path:
    """Give a new incident the next free number."""
    first = max(map(_number, incidents(run_dir)), default=0) + 1
    for number in range(first, first + _TRIES):
        path = run_dir / f"incident-{number:03d}"
        if not os.path.lexists(path) and _renamed(fresh, path):
            return path
    raise OSError("no free incident number")


def _renamed(fresh: Path, path: Path) -> bool:
    """Rename a directory; return False if the name is taken."""
    try:
        fresh.rename(path)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _swap(fresh: Path, path: Path) -> Path:
    """Replace path by fresh; a reader sees one of the two, or briefly none.

    If another node takes the number in that moment, fresh gets the next one.
    """
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=path.parent))
    try:
        with suppress(FileNotFoundError):
            path.rename(old / path.name)
        return path if _renamed(fresh, path) else _place(fresh, path.parent)
    finally:
        _discard(old)


def _discard(draft: Path) -> None:
    """Remove a directory, if it still exists; try again where the file system fails once."""
    for _ in range(_DISCARD_TRIES):
        shutil.rmtree(draft, ignore_errors=True)
        if not os.path.lexists(draft):
            return


def write_run(  # noqa: PLR0913 (the fields of run.json, by keyword)
    run_dir: Path,
    run: RunInfo,
    *,
    watch: str,
    duration_s: float,
    exit_code: int,
    lost: Iterable[str] = (),
    notes: Iterable[Note] = (),
    stragglers: Stragglers = Stragglers(),  # noqa: B008 (it is frozen)
) -> Path:
    """Write run.json, which every run leaves, and return its path. Raises ReportError.

    watch: the same for a supervisor and its watchdog, which may both write the file. Where
    another watch has written run.json, the name is ``run-<node>.json``. The incidents are
    those in run_dir.
    """
    node = socket.gethostname()
    content: RunReport = {
        "schema": RUN_SCHEMA,
        "id": run.run_id,
        "node": node,
        "watch": watch,
        "command": list(run.command),
        "started_at": run.started_at,
        "duration_s": round(duration_s, 3),
        "exit_code": exit_code,
        "incidents": [],
        "lost": list(lost),
        "notes": notes_content(notes),
        "stragglers": [straggler_content(one) for one in stragglers.found],
        "straggler_watch": {
            "measured_s": round(stragglers.measured_s, 1),
            "unknown": stragglers.unknown or None,
        },
    }
    try:
        with untrusted.held_directory(run_dir) as held:
            content["incidents"] = sorted(incidents(held))
            fresh = held / f".{RUN}-{secrets.token_hex(8)}"
            try:
                _write(fresh, _json(readable_report(content)))
                return run_dir / _place_run(fresh, held, node, watch).name
            finally:
                fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{run_dir / RUN} cannot be written: {error.strerror}") from None


def incidents(run_dir: Path) -> list[str]:
    """The names of incidents in a directory, whose path may be a link. Raises OSError."""
    return [n for n in untrusted.names(run_dir, follow=True) if _INCIDENT.fullmatch(n)]


def _number(incident: str) -> int:
    return int(incident.removeprefix("incident-"))


def write_log(run_dir: Path, data: bytes) -> None:
    """Keep the tracebacks of this node's faults next to run.json. Raises ReportError."""
    node = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    try:
        _replace(run_dir / f"watchdog-{node}.log", data)
    except OSError as error:
        raise ReportError(f"{LOG} cannot be kept in {run_dir}: {error.strerror}") from None


def _place_run(fresh: Path, run_dir: Path, node: str, watch: str) -> Path:
    """Give run.json the first name that no other watch has taken."""
    numbered = (f"run-{node}-{number}.json" for number in range(2, _TRIES))
    for name in (RUN, f"run-{node}.json", *numbered):
        path = run_dir / name
        with suppress(OSError):  # it exists, or the file system has no hard links
            os.link(fresh, path)
            return path
        ours = not os.path.lexists(path)
        with suppress(OSError, ValueError, KeyError, TypeError):
            ours = ours or read_run(path)["watch"] == watch
        if ours:
            fresh.replace(path)
            return path
    raise OSError("no free name")


def load(path: Path) -> tuple[Path, Report]:
    """Find the newest incident at path and return its directory and report.json.

    path: report.json, an incident's directory, a run's, or the report directory
    (its latest run). Raises ReportError, which names what is there instead.
    """
    file = _find(path)
    try:
        content = untrusted.read_json(file, MAX_BYTES, follow=file == path)
    except OSError as error:
        raise ReportError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ReportError(f"{file} is not JSON: name the report.json of an incident") from None
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        raise ReportError(f"{file} is no report that this version reads: schema {found!r}")
    return file.parent, cast("Report", content)


def latest(root: Path) -> Path | None:
    """The run that ``latest`` in a report directory points to, None if it is not one of its runs.

    Other users who may write there could have it point elsewhere.
    """
    with suppress(OSError):
        name = str((root / LATEST).readlink())
        if Path(name).name == name and untrusted.is_directory(root / name):
            return root / name
    return None


def run_files(run_dir: Path, *, follow: bool = False) -> list[Path]:
    """The run.json of each node; none where the directory cannot be read."""
    with suppress(OSError):
        names = sorted(untrusted.names(run_dir, follow=follow))
        return [run_dir / name for name in names if _RUN.fullmatch(name)]
    return []


def read_run(path: Path) -> Any:
    """The content of a run.json. Raises OSError, ValueError."""
    return untrusted.read_json(path, MAX_RUN_BYTES)


def _find(path: Path) -> Path:
    if not path.exists():
        raise ReportError(f"{path} does not exist")
    if not path.is_dir():
        return path
    names = untrusted.names(path, follow=True)
    if REPORT in names:
        return path / REPORT
    if found := incidents(path):
        return path / max(found, key=_number) / REPORT
    if run := latest(path):
        return _find(run)
    if RUN in names:
        raise ReportError(f"{path} holds no incident: nothing was found in that run")
    raise ReportError(f"{path} holds no report: name an incident, a run or a report directory")
