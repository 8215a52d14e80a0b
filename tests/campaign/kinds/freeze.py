"""Processes that are frozen, a wall clock that steps, and memory that runs short.

The wall clock's steps are simulated (native/clock.c): no test may set the machine's.
What is done to a job that stands still (``steady``) is followed by a stall in some
faults, so that it is seen whether a hang after it is still named.
"""

from __future__ import annotations

import itertools
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle
from cgroup import Cgroup, NoCgroupError
from fault import Fault, Outcome, merged
from job import VERDICT, Job
from patience import MOST_S, until_told
from preload import Clock, library

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from job import Result

NAME = "freeze"
COUNT = 80
SECONDS = 13
FAULT = "freezing (signals, control group), simulated steps of the wall clock, memory pressure"
MOMENT = "steady, slow, hang"

ACTS = (
    "stop-all",
    "freezer",
    "stop-ranks",
    "stop-one",
    "stop-ours",
    "clock-forward",
    "clock-back",
    "address-space",
    "memory-limit",
    "memory-hog",
)
MOMENTS = ("steady", "slow", "hang")
ROUNDS = list(itertools.product(ACTS, MOMENTS))
WHOLE = ("stop-all", "freezer")
SUSPECT_S, HANG_S = 1.0, 3.0
WAKES = 8
LOOK_S = 5.0
STEPS_S = (30.0, 3600.0, 7200.0, 86400.0, 400 * 86400.0)
HOG_BYTES = 192 << 20
HOG = "held = []\nwhile True:\n    held.append(bytearray(1 << 20))\n"
EXPENDABLE = "1000"
"""The oom_score_adj of who is to be killed first."""


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """What is done, when, for how long or by how much, and whether a rank stalls then."""
    act, moment = ROUNDS[number % len(ROUNDS)]
    drawn: dict[str, Any] = {"act": act, "moment": moment}
    drawn["stall"] = moment != "steady" or (number // len(ROUNDS)) % 2 == 1
    if act.startswith(("stop", "freezer")):
        drawn["seconds"] = dice.choice((3.5, 4.0, 6.0))
    if act == "stop-one":
        drawn["rank"] = dice.randrange(2)
    elif act.startswith("clock"):
        drawn["step"] = dice.choice(STEPS_S) * (1 if act == "clock-forward" else -1)
    elif act in ("address-space", "memory-limit"):
        drawn["mib"] = dice.choice((1, 4, 16, 64))
    if act in WHOLE and not drawn["stall"]:
        drawn["abort"] = bool(dice.randrange(2))
    return drawn


def inject(fault: Fault, where: Path) -> Outcome:
    """Do it to a job at the gate, or to one whose rank stalls."""
    with ExitStack() as stack:
        try:
            act = _Act(fault, where, stack)
        except (NoCgroupError, RuntimeError) as error:
            return Outcome(untried=str(error))
        result, before, held_s = act.run()
        outcomes = [_judged(fault, result, before)]
        if fault.drawn["act"].startswith("clock"):
            outcomes.append(_times(result, result.seconds + held_s))
        return merged(outcomes)


class _Act:
    """A fault under way. Raises NoCgroupError, or RuntimeError without a C compiler."""

    def __init__(self, fault: Fault, where: Path, stack: ExitStack) -> None:
        self._drawn = fault.drawn
        self._where = where
        self._stack = stack
        self._clock: Clock | None = None
        self._cgroup: Cgroup | None = None
        act = self._drawn["act"]
        if act.startswith("clock"):
            library()
            self._clock = Clock(where)
        elif act == "freezer" or act.startswith("memory"):
            controller = "freezer" if act == "freezer" else "memory"
            group = Cgroup(controller, f"campaign-{fault.name}")
            self._cgroup = stack.enter_context(group)

    def run(self) -> tuple[Result, str, float]:
        """How the job ended, what was said before the fault, and the seconds it was held up."""
        drawn = self._drawn
        options = ["--suspect-after", str(SUSPECT_S), "--hang-after", str(HANG_S)]
        options += [
            "--metrics-addr",
            "off",
            "--on-hang",
            "abort" if drawn.get("abort") else "report",
        ]
        env = {"STALL": "1" if drawn["stall"] else "-1"}
        if self._clock:
            env |= self._clock.environment()
        with Job(self._where, *options, env=env) as job:
            job.until_ready()
            ready = time.monotonic()
            job.until(job.watchdogs)
            if drawn["moment"] != "steady":
                job.touch("gate")
                words = ("SLOW", "HANG") if drawn["moment"] == "slow" else ("HANG",)
                job.until(lambda: _says(job, words), bound_s=MOST_S)
            else:
                job.until(lambda: _looked(job), bound_s=MOST_S)
            before = job.said()
            self._do(job)
            _let_look(job)
            seen = len(job.said())
            job.touch("gate")
            if drawn["moment"] == "steady" and drawn["stall"]:
                until_told(job, since=seen)
            held_s = time.monotonic() - ready
            job.touch("release")
            result = job.finish()
        result.seconds -= held_s
        return result, before, held_s

    def _do(self, job: Job) -> None:
        """What the fault is."""
        drawn = self._drawn
        act = drawn["act"]
        if self._clock:
            self._clock.step(drawn["step"])
        elif act == "freezer":
            assert self._cgroup
            self._cgroup.add(job.pids(""))
            self._cgroup.freeze(frozen=True)
            time.sleep(drawn["seconds"])
            self._cgroup.freeze(frozen=False)
        elif act.startswith("stop"):
            pids = _whom(job, drawn)
            job.signal(pids, signal.SIGSTOP)
            time.sleep(drawn["seconds"])
            if act == "stop-one":
                job.until(lambda: VERDICT.search(job.said()), bound_s=MOST_S)
            job.signal(pids, signal.SIGCONT)
        elif act == "address-space":
            for pid in (*job.watchdogs(), job.process.pid):
                _narrow(pid, drawn["mib"] << 20)
        elif act == "memory-limit":
            assert self._cgroup
            self._cgroup.limit(drawn["mib"] << 20)
            self._cgroup.add(job.watchdogs())
        else:
            self._hog(job)

    def _hog(self, job: Job) -> None:
        """Another process fills the memory that supervisor and watchdog may use as well."""
        assert self._cgroup
        self._cgroup.limit(HOG_BYTES)
        self._cgroup.add((*job.watchdogs(), job.process.pid))
        hog = subprocess.Popen(  # noqa: S603 (ours)
            [sys.executable, "-c", f"import sys\nsys.stdin.read(1)\n{HOG}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(hog.wait)
        self._stack.callback(hog.kill)
        Path(f"/proc/{hog.pid}/oom_score_adj").write_text(EXPENDABLE)
        self._cgroup.add([hog.pid])
        assert hog.stdin
        hog.stdin.write(b"x")
        hog.stdin.close()


def _says(job: Job, words: Sequence[str]) -> bool:
    return any(f"hangwatch: {word} (" in job.said() for word in words)


def _looked(job: Job) -> bool:
    """Whether the watchdog has seen the ranks: it keeps a state once it watches."""
    return any(job.base.glob("hangwatch-*/*/watchdog.json"))


def _let_look(job: Job) -> None:
    """Wait until the watchdog has woken up a few times, so that it has seen what was done."""
    for pid in job.watchdogs():
        enough = _wakes(pid) + WAKES
        job.until(partial(_woke, pid, enough), bound_s=LOOK_S)


def _woke(pid: int, enough: int) -> bool:
    return not 0 <= _wakes(pid) < enough


def _wakes(pid: int) -> int:
    """How often a process has waited for something, -1 where it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                return int(line.split()[1])
    return -1


def _whom(job: Job, drawn: dict[str, Any]) -> Sequence[int]:
    ours = [*job.watchdogs(), job.process.pid]
    ranks = job.rank_pids()
    return {
        "stop-all": [*ours, *(pid for pid in job.pids("") if pid not in ours)],
        "stop-ranks": list(ranks.values()),
        "stop-one": [pid for rank, pid in ranks.items() if rank == drawn.get("rank")],
        "stop-ours": ours,
    }[str(drawn["act"])]


def _narrow(pid: int, more_bytes: int) -> None:
    """Let a process have this much more address space than it has."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + more_bytes
        resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def _judged(fault: Fault, result: Result, before: str) -> Outcome:
    drawn = fault.drawn
    act, stalls = drawn["act"], drawn["stall"]
    expected = oracle.steps(stall=1 if stalls else -1)
    outcomes = [oracle.unharmed(result, expected, extra_s=2 * expected.seconds)]
    stopped = {"stop-one": {int(drawn.get("rank", -1))}, "stop-ranks": {0, 1}}.get(act, set())
    if stopped:
        outcomes.append(_named_among(result, stopped | {1} if stalls else stopped))
        if act == "stop-one" and not stalls:
            outcomes.append(oracle.named(result, drawn["rank"]))
    elif not stalls:
        outcomes.append(oracle.healthy(result))
        found = VERDICT.search(result.said)
        if found:
            outcomes.append(Outcome(harmed=[f"said: {result.said[found.start() :][:300]!r}"]))
    if stalls:
        named = oracle.named(result, 1)
        if stopped:
            named.harmed.clear()  # judged above: whoever is stopped is a culprit as well
        outcomes.append(named)
    if drawn["moment"] != "steady" and not VERDICT.search(before):
        outcomes.append(Outcome(harmed=["the campaign saw no verdict before its fault"]))
    return merged(outcomes)


def _named_among(result: Result, right: set[int]) -> Outcome:
    """Nobody is named but who was stopped, or stalls."""
    return Outcome(
        harmed=[
            f"ranks {report['verdict']['culprits']} are named: {report['verdict']['headline']}"
            for report in result.reports
            if not set(report["verdict"]["culprits"]) <= right
        ]
    )


def _times(result: Result, seconds: float) -> Outcome:
    """Durations are those that have passed, whatever the wall clock says."""
    wrong = []
    duration_s = float((result.run or {}).get("duration_s", 0.0))
    if not 0 <= duration_s <= seconds + 1:
        wrong.append(f"run.json tells of {duration_s:.1f} s in {seconds:.1f}")
    for report in result.reports:
        after_s = report["verdict"]["detected_after_s"]
        if after_s is not None and not 0 <= after_s <= seconds:
            wrong.append(f"a verdict after {after_s:.1f} s in a run of {seconds:.1f}")
    return Outcome(harmed=wrong)
