"""Processes that are killed, stopped for a while, or crash, at each stage of an incident."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oracle
from fault import Fault, Outcome, merged
from job import QUICK, Job, stop_and_go

if TYPE_CHECKING:
    import random
    from pathlib import Path

NAME = "kill"
COUNT = 160
FAULT = "KILL, STOP and CONT, a crash"
MOMENT = "each process at each stage of an incident"


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Who, what and when."""
    return {"act": ("kill", "stop", "crash")[number % 3], "seconds": dice.choice((1.0, 3.0))}


def inject(fault: Fault, where: Path) -> Outcome:
    """Stop the watchdog while a rank stalls."""
    expected = oracle.steps(stall=1)
    with Job(where, *QUICK, env={"STALL": "1"}) as job:
        job.until_ready()
        job.touch("gate")
        stop_and_go(job, job.watchdogs(), fault.drawn["seconds"])
        job.until_verdict()
        job.touch("release")
        result = job.finish()
    return merged([oracle.unharmed(result, expected), oracle.named(result, 1)])
