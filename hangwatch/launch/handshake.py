"""What the supervisor tells the watchdog first: what to watch, and how."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hangwatch import __version__
from hangwatch.run.rundir import RunDir
from hangwatch.safety import redaction
from hangwatch.safety.texts import readable
from hangwatch.settings.config import Config

TOLD_BYTES = 32 << 10
"""The watchdog is told this much of a command line, so that no pipe ever fills."""


def greeting(  # noqa: PLR0913 (the keys of one JSON object, all by keyword)
    settings: Config,
    held: RunDir,
    *,
    report_dir: Path | None,
    run_id: str,
    command: Sequence[str],
    command_pid: int,
    started_at: str,
    started_ns: int,
    lost: list[str],
) -> dict[str, Any]:
    """The first line, as watchdog/hello.py reads it.

    report_dir is None where none can be written, started_at UTC in ISO 8601,
    started_ns the same moment by time.monotonic_ns(): the wall clock may be set meanwhile.
    """
    return {
        "config": settings.to_dict(),
        "run_dir": str(held.path),
        "watch": watch_name(held),
        "report_dir": str(report_dir) if report_dir else None,
        "run_id": run_id,
        "command": shortened(redaction.command(command)),
        "command_pid": command_pid,
        "shared": held.shared,
        "started_at": started_at,
        "started_ns": started_ns,
        "versions": {
            "hangwatch": __version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "lost": lost,
    }


def to_other_nodes(settings: Config, held: RunDir, run_id: str) -> dict[str, Any]:
    """What standalone.py is to know on nodes where nobody has wrapped the command."""
    with suppress(OSError):  # it is relative, and the working directory is gone
        report_dir = str(Path(settings.report_dir).absolute())
        settings = replace(settings, report_dir=report_dir)
    config = settings.to_dict()
    return {"config": config, "run_id": run_id, "run_dir": str(held.path)}


def watch_name(held: RunDir | None) -> str:
    """What tells this watch from those of other nodes, and of other commands."""
    return f"{readable(socket.gethostname())}:{held.path.name if held else os.getpid()}"


def shortened(command: Sequence[str]) -> list[str]:
    """The command for people, less the arguments that do not fit into TOLD_BYTES of JSON."""
    told: list[str] = []
    size = 0
    for word in map(readable, command):
        size += 6 * len(word) + 4  # 6: a character as \\uXXXX
        if size > TOLD_BYTES:
            return [*told, "..."]
        told.append(word)
    return told
