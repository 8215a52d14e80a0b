"""Jobs that are started in odd circumstances (circumstances.py)."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import oracle
from circumstances import ALL, Circumstance
from fault import Fault, Outcome, merged
from harness import read_reports
from job import PROGRAMS, QUICK, Job
from patience import USUAL_S, reported, until_told

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from job import Result

NAME = "start"
COUNT = 60
SECONDS = 10
FAULT = "bytes that are no UTF-8, odd directories, variables, limits, streams, signals, options"
MOMENT = "start"

REFUSED = 222
"""Exit code of programs/start.py where the machine does not allow it."""
STARTER = PROGRAMS / "start.py"


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """In which circumstances, and whether a rank stalls; each in half of them."""
    del dice
    return {"what": list(ALL)[number], "stall": bool((number + number // 2) % 2)}


def inject(fault: Fault, where: Path) -> Outcome:
    """Start it so, bare and watched, and compare."""
    what = fault.drawn["what"]
    stalls = fault.drawn["stall"]
    expected = oracle.bare(
        f"start {what}", lambda place: _run(ALL[what], place, watched=False, stalls=stalls)
    )
    if expected.exit_code == REFUSED:
        return Outcome(untried="no file system can be mounted here")
    if expected.exit_code != 0 or "out-0" not in expected.outputs:
        return Outcome(harmed=[f"the campaign's bare job fails: {expected.said[-500:]}"])
    result = _run(ALL[what], where, watched=True, stalls=stalls)
    # How busy the machine is, the bare job has just shown.
    outcomes = [oracle.unharmed(result, expected, extra_s=USUAL_S + 2 * expected.seconds)]
    if stalls:
        outcomes.append(oracle.named(result if ALL[what].may_lose else _sure(result), 1))
    else:
        outcomes.append(oracle.healthy(result))
    return merged(outcomes)


def _sure(result: Result) -> Result:
    """Without what was said to be lost: nothing that is needed to name a rank was missing."""
    told = re.compile(rf"^hangwatch: .*(?:{oracle.TELLS_LOSS}).*\n", re.MULTILINE)
    return replace(result, run=None, said=told.sub("", result.said))


def _run(odd: Circumstance, where: Path, *, watched: bool, stalls: bool) -> Result:
    where.mkdir(parents=True, exist_ok=True)
    _prepare(where)
    env = {name: _here(value, where) for name, value in odd.env.items()}
    env |= {"WORK": str(where), "STALL": "1" if stalls else "-1"}
    env["STEPS_PROGRAM"] = str(PROGRAMS / "steps.py")
    program = str(PROGRAMS / "elsewhere.py")
    if odd.program:
        program = str(where / odd.program)
        (where / odd.program).write_text((PROGRAMS / "elsewhere.py").read_text())
    start = dict(odd.start) | ({"python": odd.python} if watched else {})
    launcher = (sys.executable, str(PROGRAMS / "ranks.py"), "2", program, *odd.arguments)
    with Job(
        where,
        *QUICK,
        *(_here(option, where) for option in odd.options),
        watched=watched,
        command=("env", "-C", str(where), *launcher) if odd.returns else launcher,
        env=env,
        before=(sys.executable, "-I", "-S", str(STARTER), json.dumps(_here(start, where))),
    ) as job:
        job.until_ready()
        ready = time.monotonic()
        job.touch("gate")
        if stalls and watched:
            until_told(job, lambda: reported(where / _here(odd.reports, where)))
        held_s = time.monotonic() - ready
        job.touch("release")
        result = job.finish()
    result.seconds -= held_s
    with suppress(OSError):
        reports = _here(odd.reports, where)
        result.reports = read_reports(where / reports)
        for path in (where / reports).glob("[!l]*/run.json"):
            result.run = json.loads(path.read_bytes())
    return result


def _prepare(where: Path) -> None:
    """What the circumstances speak of."""
    (where / "aim").mkdir()
    (where / "link").symlink_to("aim")
    (where / "closed").mkdir(mode=0o555)
    for name in ("b", "t", "p"):
        (where / f"{name}\udcff\udcfe").mkdir()


def _here(value: Any, where: Path) -> Any:
    """A value with the directory of the run for ``~``."""
    if isinstance(value, str):
        return f"{where}{value[1:]}" if value.startswith("~/") else value
    if isinstance(value, dict):
        return {_here(key, where): _here(one, where) for key, one in value.items()}
    return value
