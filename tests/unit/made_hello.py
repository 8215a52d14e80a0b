"""What a supervisor says of a run, made up for tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hangwatch.run.handshake import Hello, RunFacts
from hangwatch.settings.config import Config

if TYPE_CHECKING:
    from pathlib import Path


def facts(run_id: str = "r", **changes: Any) -> RunFacts:
    """A run of torchrun that this process supervises."""
    known = {
        "command": ("torchrun", "train.py"),
        "command_pid": 1 << 22,
        "supervisor_pid": os.getpid(),
        "shared": False,
        "started_at": "2026-01-02T03:04:05.000+00:00",
        "node": "node-a",
        "report_dir": None,
        "watch": f"node:{run_id}",
    }
    return RunFacts(run_id=run_id, **{**known, **changes})


def hello(run_dir: Path, config: Config | None = None, **changes: Any) -> Hello:
    """The first message to the watchdog of such a run."""
    return Hello(facts(**changes), run_dir, config or Config())
