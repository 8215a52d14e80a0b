"""What a run is: a small file in its directory, for those who look at it from outside.

The supervisor writes it, ``hangwatch top`` and ``hangwatch inspect`` read it. The
watchdog does not need it, so a run without one is watched just as well.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "run.json"
SCHEMA = "hangwatch.run-facts/1"
MAX_BYTES = 1 << 20
_TAKEN = ("run_id", "command", "command_pid", "shared", "started_at", "report_dir", "watch")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run on this node."""

    run_id: str
    command: tuple[str, ...]
    command_pid: int
    supervisor_pid: int
    """Of the supervisor that started the watchdog."""
    shared: bool
    """Several supervisors, one for each rank, have put their commands into its directory."""
    started_at: str
    """UTC, ISO 8601."""
    node: str
    report_dir: Path | None
    """Directory of this run's reports, None where none can be written."""
    watch: str
    """By which run.json of the report directory tells this watch from others."""


def keep(run_dir: Path, greeting: Mapping[str, Any]) -> None:
    """Write what the watchdog is told of the run (launch/handshake.py). Raises OSError."""
    content = {name: greeting[name] for name in _TAKEN}
    content |= {"schema": SCHEMA, "supervisor_pid": os.getpid(), "node": socket.gethostname()}
    untrusted.replace(run_dir / FILE, json.dumps(content).encode())


def read(run_dir: Path) -> RunFacts | None:
    """What was kept, None where there is nothing that can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
        content = untrusted.read_json(run_dir / FILE, MAX_BYTES, Owner.DIRECTORY)
        if content["schema"] != SCHEMA:
            return None
        report_dir = content["report_dir"]
        return RunFacts(
            run_id=str(content["run_id"]),
            command=tuple(str(word) for word in content["command"]),
            command_pid=int(content["command_pid"]),
            supervisor_pid=int(content["supervisor_pid"]),
            shared=bool(content["shared"]),
            started_at=str(content["started_at"]),
            node=str(content["node"]),
            report_dir=Path(str(report_dir)) if report_dir else None,
            watch=str(content["watch"]),
        )
    return None
