"""The outcome of one rank of a trial: a JSON file for the doctor that started it.

Standard library only: it is written in the job's own interpreter.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hangwatch.commands import timing

PATTERN = "outcome-*.json"


def init_s(patience_s: float) -> float:
    """Return the timeout of a trial's process group: thousands of ranks take their time."""
    return max(timing.TRIAL_INIT_LEAST_S, patience_s / 2)


def longest_s(patience_s: float) -> float:
    """Return the time after which a rank of a trial ends by itself, whatever hangs."""
    return patience_s + 2 * init_s(patience_s) + 2 * timing.TRIAL_STEP_S


class Stage(StrEnum):
    """The stage that a rank has reached."""

    STORE = "store"
    """It connects to the store at MASTER_ADDR and MASTER_PORT."""
    ROLL_CALL = "roll_call"
    """It waits until all ranks are there."""
    CONNECTIONS = "connections"
    """The nodes connect to each other, each with each."""
    INIT = "init"
    """It is in init_process_group or the first collective."""
    TIMING = "timing"
    DONE = "done"


@dataclass(slots=True)
class Outcome:
    """Everything that a rank has seen."""

    rank: int
    world_size: int
    stage: Stage = Stage.STORE
    error: str = ""
    backend: str = ""
    missing: list[int] = field(default_factory=list)
    """Ranks that were not at the roll call."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """The facts of each rank, by rank: see rank.facts()."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Connections that failed: from, to, address, why."""
    times: dict[str, Any] = field(default_factory=dict)
    """See rank.measure()."""

    def leave(self, directory: str) -> None:
        """Write it for the doctor; a node without the doctor has no such directory."""
        if not os.path.isdir(directory):  # noqa: PTH112 (as the other lines, without pathlib)
            return
        path = Path(directory, f"outcome-{self.rank}.json")
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(asdict(self)), "utf-8")
        fresh.replace(path)


def read(directory: Path) -> list[Outcome]:
    """Return the outcomes of the ranks of this machine, by rank."""
    contents = [json.loads(path.read_bytes()) for path in directory.glob(PATTERN)]
    outcomes = [Outcome(**{**content, "stage": Stage(content["stage"])}) for content in contents]
    return sorted(outcomes, key=lambda outcome: outcome.rank)
