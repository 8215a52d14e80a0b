"""What one rank of a trial leaves for the doctor that started it: a JSON file.

Standard library only: it is written in the job's own interpreter.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

PATTERN = "outcome-*.json"
STEP_S = 20.0
"""For what the store is asked for, once all ranks are there."""
_LEAST_INIT_S = 15.0


def init_s(patience_s: float) -> float:
    """The timeout of the process group of a trial: thousands of ranks take their time."""
    return max(_LEAST_INIT_S, patience_s / 2)


def longest_s(patience_s: float) -> float:
    """When a rank of a trial ends by itself, whatever hangs."""
    return patience_s + 2 * init_s(patience_s) + 2 * STEP_S


class Stage(StrEnum):
    """How far a rank has come."""

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
    """What a rank has seen."""

    rank: int
    world_size: int
    stage: Stage = Stage.STORE
    error: str = ""
    backend: str = ""
    missing: list[int] = field(default_factory=list)
    """Ranks that have not come to the roll call."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """What each rank is, by rank: see rank.facts()."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Connections that did not come about: from, to, address, why."""
    times: dict[str, Any] = field(default_factory=dict)
    """See timing.py."""

    def leave(self, directory: str) -> None:
        """Write it for the doctor; whoever started it elsewhere has no such directory."""
        if not os.path.isdir(directory):  # noqa: PTH112 (as the other lines, without pathlib)
            return
        path = Path(directory, f"outcome-{self.rank}.json")
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(asdict(self)), "utf-8")
        fresh.replace(path)


def read(directory: Path) -> list[Outcome]:
    """What the ranks of this machine have left, by rank."""
    found = []
    for path in directory.glob(PATTERN):
        content = json.loads(path.read_bytes())
        found.append(Outcome(**{**content, "stage": Stage(content["stage"])}))
    return sorted(found, key=lambda outcome: outcome.rank)
