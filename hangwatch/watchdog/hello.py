"""What the supervisor says on the watchdog's standard input: JSON lines.

The first says what to watch, the last ``{"ended": EXIT_CODE, ...}`` that the command
has ended. The end of the file without it: the supervisor is gone. Where several
supervisors share the run directory, their files there say both.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangwatch.model.report import RunInfo
from hangwatch.run import peers
from hangwatch.settings.config import Config

MAX_LINE_BYTES = 1 << 20
COMPANIONS_S = 0.25


@dataclass(frozen=True, slots=True)
class Hello:
    """What to watch, and how."""

    config: Config
    run: RunInfo
    run_dir: Path
    report_dir: Path | None
    """None where no report can be written."""
    command_pid: int
    shared: bool
    """Several supervisors have put their commands into the run directory."""
    watch: str
    """Tells this watch from those of other nodes, and of other commands."""
    self_started: bool = False
    """By a rank, on a node where nobody has wrapped the command (launch/standalone.py)."""
    started_ns: int = 0
    """When the run began, by time.monotonic_ns()."""
    lost: tuple[str, ...] = ()
    """What the supervisor could not do; it has said so."""

    def commands(self) -> list[int]:
        """The pids of the commands of this node."""
        if self.shared:
            return [command.pid for command in peers.commands(self.run_dir)]
        return [self.command_pid]


class Supervisor:
    """The supervisor's end of the pipe."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.asked_to_end_ns = 0
        """When the command that has ended was asked to, 0 if it was not."""

    async def hello(self) -> Hello | None:
        """The first line; None if the supervisor is gone.

        Raises KeyError, TypeError, ValueError or UsageError for one that makes no sense.
        """
        line = await self._reader.readline()
        return parse(json.loads(line)) if line else None  # orjson refuses what is no UTF-8

    async def ended(self) -> int | None:
        """The exit code of the command once it has ended; None if the supervisor is gone."""
        while line := await self._reader.readline():
            message = json.loads(line)
            if isinstance(message, dict) and "ended" in message:
                self.asked_to_end_ns = int(message.get("asked_to_end_ns", 0))
                return int(message["ended"])
        return None


async def all_ended(run_dir: Path) -> int | None:
    """The exit code of the job, once all commands of a shared run directory have ended.

    None if their supervisors are gone.
    """
    found = peers.commands(run_dir)
    while any(command.running for command in found):
        await asyncio.sleep(COMPANIONS_S)
        found = peers.commands(run_dir)
    return peers.overall_exit_code(found)


async def supervisor() -> Supervisor:
    """The pipe on standard input."""
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return Supervisor(reader)


def parse(message: dict[str, Any]) -> Hello:
    """The first line's content; raises as Supervisor.hello() does."""
    report_dir = message["report_dir"]
    return Hello(
        config=Config.from_dict(message["config"]),
        run=RunInfo(
            run_id=str(message["run_id"]),
            command=tuple(str(word) for word in message["command"]),
            started_at=str(message["started_at"]),
            versions={str(k): str(v) for k, v in message["versions"].items()},
        ),
        run_dir=Path(message["run_dir"]),
        report_dir=Path(report_dir) if report_dir else None,
        command_pid=int(message["command_pid"]),
        shared=bool(message["shared"]),
        watch=str(message["watch"]),
        self_started=bool(message.get("self_started")),
        started_ns=int(message["started_ns"]),
        lost=tuple(str(text) for text in message.get("lost", ())),
    )
