"""Processes that are killed, stopped for a while, or crash, at each stage of an incident.

Rank 1 stalls. The watchdog, or the supervisor, is held at a named moment, then it is done
to one of the processes of the run, and all go on. The stall ends with the verdict, but
where the ranks are to be aborted.
"""

from __future__ import annotations

import signal
import time
from itertools import product
from typing import TYPE_CHECKING, Any

import oracle
from fault import Fault, Outcome, merged
from job import QUICK, Job, Result, busy

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

NAME = "kill"
COUNT = 160
SECONDS = 9
FAULT = "KILL, STOP and CONT, a crash"
MOMENT = "each process at each stage of an incident"

EARLY = ("suspected", "gathering", "gathered", "judged", "reported", "hook-started", "announced")
"""While the rank stalls."""
ALL = ("watching", *EARLY, "recovered", "concluding", "concluded")
ABORTING = ("before-abort", "before-term", "ended")
OF_SUPERVISOR = ("starting", "spawning", "spawned", "watching", "ended", "leaving")
CASES = (
    *product(("watchdog",), ("kill", "stop", "crash"), ALL),
    *product(("supervisor",), ("kill", "stop"), ALL),
    *product(
        ("supervisor",), ("kill", "stop", "crash"), [f"supervisor-{m}" for m in OF_SUPERVISOR]
    ),
    *product(("rank 0", "rank 1", "launcher"), ("kill", "stop", "segv"), EARLY),
    *product(("watchdog",), ("kill", "stop", "crash"), ABORTING),
    *product(("watchdog",), ("kill twice",), ("suspected", "gathered", "judged", "announced")),
    *product(
        ("watchdog and supervisor",), ("stop",), ("suspected", "judged", "announced", "concluding")
    ),
    *product(("rank 0 and rank 1",), ("stop",), ("suspected", "gathering", "judged", "announced")),
)
RESTART_S = 20.0
CRASH_S = 60.0
"""How long the job stalls where each watchdog crashes, until they are given up."""
NOTICES_S = 2.0
"""How long a rank takes to see that the one that it waits for has died."""
NUMBERS = {
    "kill": signal.SIGKILL,
    "kill twice": signal.SIGKILL,
    "segv": signal.SIGSEGV,
    "term": signal.SIGTERM,
}
EXIT_ABORTED = 75


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Who, what and when."""
    who, act, moment = CASES[number % len(CASES)]
    return {"who": who, "act": act, "moment": moment, "seconds": dice.choice((0.5, 1.0, 3.0))}


def inject(fault: Fault, where: Path) -> Outcome:
    """Do it, and see that the job is as without us and rank 1 is named."""
    who, act, moment = (fault.drawn[key] for key in ("who", "act", "moment"))
    aborts = moment in ABORTING
    points = where / "moments"
    points.mkdir()
    hold = points / f"{moment}.{'crash' if act == 'crash' else 'hold'}"
    hold.touch()
    options = (*QUICK, "--hook", "true", *(("--on-hang", "abort") if aborts else ()))
    env = {"STALL": "1", "HANGWATCH_TEST_HOOKS": str(points)}
    with Job(where, *options, env=env) as job:
        job.touch("gate")
        if moment in ("recovered", "concluding", "concluded", *_LATE):
            job.until_verdict()
            job.touch("release")
        job.until((points / moment).exists, bound_s=RESTART_S)
        if act == "crash":
            job.until_verdict(RESTART_S) if moment in EARLY else time.sleep(0.1)
        else:
            _strike(job, who, act, fault.drawn["seconds"])
        hold.unlink()
        if act == "kill twice":
            job.until(lambda: len(_came_by(points, moment)) > 1, bound_s=RESTART_S)
            _strike(job, who, act, 0)
        if not aborts:
            if "launcher" not in who or act == "stop":
                job.until_verdict()
            job.touch("release")
        result = job.finish()
    return _judged(fault, result, aborts=aborts)


_LATE = ("supervisor-ended", "supervisor-leaving")


def _came_by(points: Path, moment: str) -> set[str]:
    return set((points / moment).read_text().split())


def _strike(job: Job, who: str, act: str, seconds: float) -> None:
    """Do it to the process, or the processes, of that name."""
    pids = []
    for one in who.split(" and "):
        if one == "watchdog":
            pids += job.watchdogs()
        elif one == "supervisor":
            pids.append(job.process.pid)
        elif one == "launcher":
            # The supervisor's child that tells signals apart has the supervisor's command line.
            pids += job.pids("ranks.py", but=" -m hangwatch ")[:1]
        else:
            pids.append(int((job.where / f"pid-{one[-1]}").read_text()))
    if act == "stop":
        job.signal(pids, signal.SIGSTOP)
        time.sleep(seconds)
        job.signal(pids, signal.SIGCONT)
    else:
        job.signal(pids, NUMBERS[act])


def _judged(fault: Fault, result: Result, *, aborts: bool) -> Outcome:
    who, act, moment = (fault.drawn[key] for key in ("who", "act", "moment"))
    extra_s = fault.drawn["seconds"]
    if act == "crash":
        extra_s += CRASH_S
    elif moment in ("concluded", "recovered"):
        extra_s += RESTART_S
    if aborts:
        ended = _bare("rank 0", "term")
        codes = (EXIT_ABORTED,)
        seen = oracle.unharmed(result, ended, codes=codes, extra_s=extra_s)
    elif act in NUMBERS and who in ("rank 0", "rank 1", "launcher"):
        seen = _as_one_of(result, [_bare(who, act), _bare(who, act, late=True)], extra_s)
    elif act == "kill" and who == "supervisor":
        if moment in ("supervisor-starting", "supervisor-spawning"):
            return Outcome(harmed=[f"left running: {line}" for line in result.survivors])
        expected = oracle.steps(stall=1)
        # Nobody is left to tell, nor to tell of it.
        return oracle.unharmed(result, expected, codes=(-9,), extra_s=extra_s, may_leave=True)
    else:
        seen = oracle.unharmed(result, oracle.steps(stall=1), extra_s=extra_s)
    if "launcher" in who and act in NUMBERS and not result.reports:
        return seen  # the job ended of it before there was a verdict
    also = (0,) if who == "rank 0" else ()
    return merged([seen, oracle.named(result, 1, also=also)])


def _as_one_of(result: Result, bare: Sequence[Result], extra_s: float) -> Outcome:
    """Whether it went as one of the bare jobs did, to which the same was done."""
    seen = []
    for expected in bare:
        code = expected.exit_code or 0
        codes = (code if code >= 0 else 128 - code,)
        seen.append(oracle.unharmed(result, expected, codes=codes, extra_s=extra_s))
    return min(seen, key=lambda outcome: len(outcome.harmed))


def _bare(who: str, act: str, *, late: bool = False) -> Result:
    """The job without us, to which the same is done while rank 1 stalls.

    late: the launcher sees it only when the other rank has noticed, too, and may have
    failed of it: which of them comes first is chance.
    """

    def run(where: Path) -> Result:
        with Job(where, watched=False, env={"STALL": "1"}) as job:
            job.until_ready()
            job.touch("gate")
            job.until((where / "stalled").exists)
            launcher = job.pids("ranks.py")[:1]
            if late:
                job.signal(launcher, signal.SIGSTOP)
            _strike(job, who, act, 0)
            if late:
                time.sleep(NOTICES_S * busy())
                job.signal(launcher, signal.SIGCONT)
            job.touch("release")
            return job.finish()

    return oracle.bare(f"{who} {act} {late}", run)
