"""Forks, programs, threads, interpreters, exits and groups around the calls that set a job up."""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import oracle
from fault import Fault, Outcome, merged
from job import PROGRAMS, Job

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from job import Result

NAME = "setup"
COUNT = 100
SECONDS = 11
FAULT = "fork, exec, threads, subinterpreters, exits, 1 to 200 groups"
MOMENT = "around each set-up call"

_MOMENTS = (
    "before-init",
    "after-init",
    "between-groups",
    "during-collective",
    "before-destroy",
    "after-destroy",
    "at-exit",
)
_ACTS = (
    "fork-exits",
    "fork-leaves",
    "fork-raises",
    "fork-lives",
    "worker:fork",
    "program",
    "subinterpreter",
)
_ENDS = ("sys.exit", "os._exit", "raise", "abort", "kill")
_LEAVING = ("fork-leaves", "fork-raises")
_LATE = ("after-destroy", "at-exit")
_RANKS = "ranks"
_PROCESSES = "processes"


def _cases() -> Iterator[tuple[str, str, str]]:
    """(act, moment, launcher): "ranks" forks them, "processes" are programs of their own."""
    yield from product(_ACTS, _MOMENTS, (_RANKS,))
    yield "fork-is-rank", "before-init", _RANKS
    early = ("fork-lives", "program", "subinterpreter", "thread-lingers")
    yield from product(early, ("before-import",), (_PROCESSES,))
    workers = ("worker:spawn", "worker:forkserver")
    yield from product(workers, ("before-init", "after-init", "before-destroy"), (_PROCESSES,))
    again = ("before-import", "after-import", "before-init")
    yield from product(("exec-itself",), again, (_PROCESSES,))
    yield "exec-another", "after-destroy", _PROCESSES
    yield from product(_ENDS, ("before-init", "after-init", "before-destroy", "at-exit"), (_RANKS,))
    yield from product(
        ("thread-leaves", "daemon-thread"), ("after-init", "before-destroy"), (_RANKS,)
    )
    yield "thread-lingers", "after-destroy", _RANKS
    yield "at-exit-dist", "at-exit", _PROCESSES
    yield from product((f"groups:{number}" for number in (1, 30, 64, 65, 200)), ("",), (_RANKS,))
    yield from product(("lives:2", "lives:4", "threads:use", "threads:make"), ("",), (_RANKS,))
    yield "daemon", "before-init", _RANKS


PATIENT = ("--suspect-after", "20", "--hang-after", "40", "--metrics-addr", "off")
"""A rank that imports torch twice comes late, and nobody is to be blamed for that."""
CASES = tuple(_cases())


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """What, when, and on which rank, -1 being each."""
    act, moment, launcher = CASES[number]
    who = dice.choice((0, 1)) if act in _ENDS else dice.choice((-1, 0, 1))
    return {"act": act, "when": moment, "who": who, "launcher": launcher}


def inject(fault: Fault, where: Path) -> Outcome:
    """Have it done in a job, bare and watched."""
    drawn = fault.drawn
    # What comes out depends on the moment only where the act ends the job, or a fork of it.
    when = drawn["when"] if drawn["act"] in (*_ENDS, *_LEAVING) else ""
    key = f"setup {drawn['act']} {drawn['launcher']} {drawn['who']} {when}"
    expected = oracle.bare(key, lambda directory: _run(directory, drawn, watched=False))
    result = _run(where, drawn, watched=True)
    return merged([oracle.unharmed(result, expected), _judged(fault, result)])


def _run(where: Path, drawn: dict[str, Any], *, watched: bool) -> Result:
    env = {"ACT": drawn["act"], "WHEN": drawn["when"], "WHO": str(drawn["who"])}
    launcher = PROGRAMS / f"{drawn['launcher']}.py"
    command = [sys.executable, str(launcher), "2", str(PROGRAMS / "setups.py")]
    with Job(where, *PATIENT, watched=watched, env=env, command=command) as job:
        return job.finish()


def _judged(fault: Fault, result: Result) -> Outcome:
    """Of a job that failed the rank that did may be named, of another one nobody.

    Where nobody saw which of two it was, both may be, as a possibility.
    """
    if fault.drawn["act"] not in _ENDS:
        return oracle.healthy(result)
    wrong = []
    for report in result.reports:
        verdict = report["verdict"]
        culprits = verdict["culprits"]
        perhaps = verdict["certainty"] == "possible" and fault.drawn["who"] in culprits
        if not perhaps and culprits not in ([], [fault.drawn["who"]]):
            wrong.append(f"ranks {culprits} are named: {verdict['headline']}")
    return Outcome(harmed=wrong)
