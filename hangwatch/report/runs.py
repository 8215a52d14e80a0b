"""The file of a run on disk: ``<report-dir>/<run-id>/run.json``, of each node its own."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hangwatch.errors import ReportError
from hangwatch.model.report import Note, RunInfo, Stragglers
from hangwatch.report.build import notes_content
from hangwatch.report.directories import Kind, as_json, create_file, numbered, replace_file
from hangwatch.report.schema import RUN_SCHEMA, RunReport
from hangwatch.report.straggler import straggler_content
from hangwatch.safety import untrusted
from hangwatch.safety.texts import readable_report

RUN = "run.json"
_RUN = re.compile(r"run(?:-.+)?\.json")
MAX_RUN_BYTES = 4 << 20
_MOST_WATCHES = 100
"""Of one node, which write to one directory."""


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
        "straggler_reports": [],
        "straggler_watch": {
            "measured_s": round(stragglers.measured_s, 1),
            "unknown": stragglers.unknown or None,
        },
    }
    try:
        with untrusted.held_directory(run_dir) as held:
            content["incidents"] = sorted(numbered(held, Kind.INCIDENT))
            content["straggler_reports"] = sorted(numbered(held, Kind.STRAGGLER))
            fresh = held / f".{RUN}-{secrets.token_hex(8)}"
            try:
                create_file(fresh, as_json(readable_report(content)))
                return run_dir / _place_run(fresh, held, node, watch).name
            finally:
                fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{run_dir / RUN} cannot be written: {error.strerror}") from None


def write_log(run_dir: Path, data: bytes) -> None:
    """Keep the tracebacks of this node's faults next to run.json. Raises ReportError."""
    node = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    path = run_dir / f"watchdog-{node}.log"
    try:
        replace_file(path, data)
    except OSError as error:
        raise ReportError(f"{path} cannot be kept: {error.strerror}") from None


def _place_run(fresh: Path, run_dir: Path, node: str, watch: str) -> Path:
    """Give run.json the first name that no other watch has taken."""
    numbered = (f"run-{node}-{number}.json" for number in range(2, _MOST_WATCHES))
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


def run_files(run_dir: Path, *, follow: bool = False) -> list[Path]:
    """The run.json of each node; none where the directory cannot be read."""
    with suppress(OSError):
        names = sorted(untrusted.names(run_dir, follow=follow))
        return [run_dir / name for name in names if _RUN.fullmatch(name)]
    return []


def read_run(path: Path) -> Any:
    """The content of a run.json. Raises OSError, ValueError."""
    return untrusted.read_json(path, MAX_RUN_BYTES)
