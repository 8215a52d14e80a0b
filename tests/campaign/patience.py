"""How long a rank stalls in a fault: until that was told, or the loss, or for a bound."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from job import VERDICT
from oracle import TELLS_LOSS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from job import Job

USUAL_S = 9.0
"""Within which a verdict comes on a machine that does nothing else."""
MOST_S = 40.0


def until_told(
    job: Job, told: Callable[[], object] | None = None, *, stall_s: float = 0.0, since: int = 0
) -> None:
    """Wait for a verdict, for ``told``, or for a loss that was said and nothing after it.

    stall_s: that the fault itself takes. since: characters of standard error that are older.
    """
    began = time.monotonic()

    def over() -> bool:
        said = job.said()[since:]
        if VERDICT.search(said) or (told is not None and told()):
            return True
        lines = [line for line in said.splitlines() if line.startswith("hangwatch: ")]
        waited_s = time.monotonic() - began
        return waited_s > USUAL_S + stall_s and any(re.search(TELLS_LOSS, line) for line in lines)

    job.until(over, bound_s=MOST_S + stall_s)


def reported(reports: Path) -> bool:
    """Whether a report lies below a report directory, whatever was said."""
    with suppress(OSError):
        return any(reports.glob("[!l]*/incident-*/report.json"))
    return False
