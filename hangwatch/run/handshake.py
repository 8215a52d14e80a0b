"""The message that starts a watchdog, and the part of it that is kept for other readers.

The supervisor (or launch/standalone.py) writes a Hello as one line of JSON to the watchdog's
standard input, and its RunFacts to ``run.json`` in the directory of the run, where ``hangwatch
top``, ``inspect`` and ``doctor`` read them. A run without that file is watched all the same.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hangwatch.errors import HangwatchError
from hangwatch.model.report import RunInfo
from hangwatch.run import shared_run
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner
from hangwatch.settings.config import Config

FILE = "run.json"
SCHEMA = "hangwatch.run-facts/1"
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run on this node, as its supervisor describes it."""

    run_id: str
    command: tuple[str, ...]
    """Without secrets, and without the arguments that would not fit into a pipe."""
    command_pid: int
    supervisor_pid: int
    """The supervisor that started the watchdog."""
    shared: bool
    """Several supervisors, one for each rank, have put their commands into the directory."""
    started_at: str
    """UTC, ISO 8601."""
    node: str
    report_dir: Path | None
    """Directory of this run's reports, None if none can be written."""
    watch: str
    """Name of this watch: unique among those of other nodes and other commands."""

    def keep(self, run_dir: Path) -> None:
        """Write them into the directory of the run. Raises OSError."""
        untrusted.replace(run_dir / FILE, _dumped({"schema": SCHEMA, **asdict(self)}))


@dataclass(frozen=True, slots=True)
class Hello:
    """Everything that a watchdog has to know when it starts."""

    facts: RunFacts
    run_dir: Path
    config: Config = Config()  # noqa: RUF009 (it is frozen)
    started_ns: int = 0
    """``facts.started_at`` by time.monotonic_ns(): the wall clock may be set meanwhile."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of hangwatch, Python and the kernel."""
    self_started: bool = False
    """By a rank, on a node without a supervisor (launch/standalone.py)."""
    lost: tuple[str, ...] = ()
    """Failures that the supervisor has already printed."""

    @property
    def run(self) -> RunInfo:
        """The run as reports name it."""
        facts = self.facts
        return RunInfo(facts.run_id, facts.command, facts.started_at, self.versions)

    def elapsed_s(self) -> float:
        """Return the seconds since the run started."""
        return (time.monotonic_ns() - self.started_ns) / 1e9

    def commands(self) -> list[int]:
        """Return the pids of the commands of this node."""
        if self.facts.shared:
            return [command.pid for command in shared_run.commands(self.run_dir)]
        return [self.facts.command_pid]

    def line(self) -> bytes:
        """Return the message as sent."""
        return _dumped(asdict(self)) + b"\n"


def parse(line: bytes) -> Hello:
    """Decode a message. Raises ValueError or HangwatchError."""
    from hangwatch.model.codec import decode  # noqa: PLC0415 (orjson slows a supervisor's start)

    hello: Hello = decode(Hello, json.loads(line))  # orjson refuses paths that are no UTF-8
    return hello


def read_facts(run_dir: Path) -> RunFacts | None:
    """Read the facts that a supervisor left in a directory, None if there are none."""
    from hangwatch.model.codec import decode  # noqa: PLC0415 (as above)

    with suppress(OSError, ValueError, HangwatchError):
        content = untrusted.read_json(run_dir / FILE, MAX_BYTES, Owner.DIRECTORY)
        if isinstance(content, dict) and content.get("schema") == SCHEMA:
            facts: RunFacts = decode(RunFacts, content, lenient=True)
            return facts
    return None


def to_other_nodes(config: Config, run_id: str, run_dir: Path) -> dict[str, Any]:
    """Return what launch/standalone.py gets on nodes without a supervisor, as plain values."""
    with suppress(OSError):  # it is relative, and the working directory is gone
        config = replace(config, report_dir=str(Path(config.report_dir).absolute()))
    return {"config": asdict(config), "run_id": run_id, "run_dir": str(run_dir)}


def _dumped(content: dict[str, object]) -> bytes:
    return json.dumps(content, default=os.fspath).encode()
