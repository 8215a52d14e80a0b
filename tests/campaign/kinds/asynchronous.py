"""What comes from the side: exceptions, handlers that call torch.distributed, garbage that does.

The points of the agent are found by a run in which nothing strikes (programs/injector.py),
in the order of their names; each fault is given its share of them, so that all together
strike each. A point that is reached in several steps of the program is struck in the one
with the fewest points.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle
from fault import SEED, Fault, Outcome, merged
from job import PATIENCE_S, PROGRAMS, QUICK, VERDICT, Job, busy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from job import Result

NAME = "async"
COUNT = 300
SECONDS = 34
FAULT = "asynchronous exceptions, handlers that re-enter, garbage that destroys groups"
MOMENT = "every line of the agent, every crossing between Python and C"

RAISES = ("interrupt", "error", "exit", "timeout", "runtime", "import", "sent", "sent-interrupt")
CALLS = ("reenter", "collect", "allocate")
IN_THREAD = ("hold", "collect", "allocate")
FORMS = ("function", "method", "partial", "object")
_ONCE = ("arm", "init", "end", "exit", "thread")
_TRAINS = 4
_ROOM = {"arm": 4, "new_group": 6, "destroy": 5, "objects": 4, "train": _TRAINS}
"""Steps that are taken several times, and how many of them may be struck in a job."""
_ROOM_OTHERS = 3
_STALL_S = 6.0
"""Until a verdict is given, for which the job waits."""
_VERDICT_S = 20.0
_AGAIN = 4
"""Jobs that a fault may need."""
_NOTED = 2
"""Jobs that note what is reached."""
_RAISE = 0.6
_COMPOUND = ("objects", "batch", "train", "p2p")
"""Calls that cannot be repeated when something raised in the middle of them.

Of one to a peer, gloo gives up what has not arrived when its handle is lost.
"""
_OF_TRAINING = ("habits.py",)
"""Some of whose points are reached later than in the training, if there was one."""
_FILES = {
    "python": (
        "python_recorder.py",
        "python_page.py",
        "signature.py",
        "call_site.py",
    ),
    "plain": ("sitecustomize.py", "post_import.py"),
}
"""What only this way of starting reaches."""
SHARES = {"native": 216, "python": 56, "plain": 28}
"""Faults for each way in which the agent is at work; they cover COUNT."""

Step = dict[str, dict[str, int]]
_lock = threading.Lock()
_reached: dict[str, list[tuple[str, str, int]]] = {}


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Which way, which share of its points, on which rank, by which kind of handler."""
    for way, share in SHARES.items():
        if number < share:
            rank, form = number % 2, dice.choice(FORMS)
            return {"way": way, "share": f"{number}/{share}", "rank": rank, "form": form}
        number -= share
    raise ValueError("more faults than shares")


def inject(fault: Fault, where: Path) -> Outcome:
    """Strike at all points of the share, each in a step of its own; then a rank stalls."""
    way = fault.drawn["way"]
    if way == "plain":
        return _plain(fault, where)
    plan = _plan(fault)
    outcomes = []
    for attempt in range(_AGAIN):
        directory = where / str(attempt)
        directory.mkdir()
        outcomes.append(_strike(directory, plan, python=way == "python"))
        missed = _missed(directory, plan)
        if not missed:
            break
        if attempt == _AGAIN - 1:
            outcomes[-1].harmed.append(f"the campaign did not strike {missed[0]}")
            break
        # One that raised may have kept the program from where the next was to strike; and some
        # points are reached by chance.
        plan = {**plan, "faults": missed[:1] if attempt else missed, "thread": []}
    return merged(outcomes)


def _strike(where: Path, plan: Mapping[str, Any], *, python: bool) -> Outcome:
    trains = plan["trains"]
    nothing = {**_NOTHING, "trains": trains}
    expected = oracle.bare(
        f"interrupted {trains}", lambda directory: _run(directory, nothing, bare=True)
    )
    result = _run(where, plan, python=python)
    with suppress(FileNotFoundError):
        # Before that the machine may have been slow, and the job has gone on.
        ready = datetime.fromtimestamp((where / "ready-1").stat().st_mtime - 1.0, UTC)
        result.reports = [
            report
            for report in result.reports
            if datetime.fromisoformat(report["verdict"]["stuck_since"]) >= ready
        ]
    outcome = merged(
        [oracle.unharmed(result, expected, extra_s=_STALL_S + _TRACED_S), oracle.named(result, 1)]
    )
    if "Exception ignored in atexit callback" in result.said:
        # Bare, it would be ignored there as well.
        outcome.harmed = [line for line in outcome.harmed if "a traceback on" not in line]
    outcome.harmed += _account(where, plan)
    if _ASTRAY.search(result.said):
        return Outcome(untried="Python gave what was sent to a thread that was just starting")
    return outcome


def _missed(where: Path, plan: Mapping[str, Any]) -> list[list[Any]]:
    """The faults of a plan that its job never came to."""
    try:
        log = json.loads((where / f"log-{plan['rank']}").read_text())
    except FileNotFoundError:
        return []
    struck = [one[:4] for one in log["struck"]]
    return [one for one in plan["faults"] if one not in struck] if log.get("finished") else []


_TRACED_S = 15.0
"""What it costs to trace our code, which the bare job has none of."""
_ASTRAY = re.compile(
    r"Exception ignored in thread started by: <bound method .*\nTraceback .*\n"
    r"  File .*\n +def .*\s+(?:\S*\.)?(?:Struck|KeyboardInterrupt)\b"
)
"""What was sent strikes a thread, perhaps ours, in its first line.

Where it is just starting it still has the identity of the one that starts it.
"""

_NOTHING: dict[str, Any] = {
    "note": False,
    "rank": 0,
    "form": FORMS[0],
    "faults": [],
    "thread": [],
    "trains": 0,
}


def _run(
    where: Path, plan: Mapping[str, Any], *, bare: bool = False, python: bool = False
) -> Result:
    (where / "plan.json").write_text(json.dumps(plan))
    env = {"PYTHONFAULTHANDLER": "1"} | ({} if bare else {"WATCHED": "1"})
    if python:
        env["HANGWATCH_RECORDER"] = "python"
    program = [sys.executable, str(PROGRAMS / "ranks.py"), "2", str(PROGRAMS / "interrupted.py")]
    # The launcher itself is not armed: each rank imports the agent anew, by agent.arm().
    command = ["env", "HANGWATCH=0", *program]
    with Job(where, *QUICK, watched=not bare, env=env, command=command) as job:
        job.until((where / "ready-1").exists, bound_s=PATIENCE_S * busy())
        if not bare and not plan["note"]:
            # Of a slow start there may be one already.
            before = len(VERDICT.findall(job.said()))
            bound_s = _VERDICT_S * busy()
            job.until(lambda: len(VERDICT.findall(job.said())) > before, bound_s=bound_s)
        job.touch("release")
        return job.finish()


def _plan(fault: Fault) -> dict[str, Any]:
    way, form, rank = fault.drawn["way"], fault.drawn["form"], fault.drawn["rank"]
    share, shares = map(int, fault.drawn["share"].split("/"))
    dice = random.Random(f"{SEED}/{fault.name}/actions")  # noqa: S311 (no secret)
    by_step: dict[str, list[tuple[str, int]]] = {}
    for step, point, hits in points(way):
        by_step.setdefault(step, []).append((point, hits))
    faults: list[list[Any]] = []
    thread: list[Any] = []
    for step, found in sorted(by_step.items()):
        own = found[share::shares] or [found[share % len(found)]]
        if step == "train":  # in few jobs, since it is costly
            own = found[share :: shares // _TRAINS] if share < shares // _TRAINS else []
        for point, hits in own:
            raises = step not in _COMPOUND and (step == "arm" or dice.random() < _RAISE)
            actions = IN_THREAD if step == "thread" else RAISES if raises else CALLS
            hit = dice.choice((1, 1, 1, min(hits, 2))) if step not in _ONCE else 1
            struck = [step, point, hit, dice.choice(actions)]
            if step == "thread":
                thread = thread or struck[1:]
            elif sum(one[0] == step for one in faults) < _room(step):
                faults.append(struck)
    trains = _TRAINS if any(one[0] == "train" for one in faults) else 0
    if any(one[1].partition(":")[0] in _OF_TRAINING for one in faults):
        trains = max(1, trains)
    return {
        "note": False,
        "rank": rank,
        "form": form,
        "faults": faults,
        "thread": thread,
        "trains": trains,
    }


def _room(step: str) -> int:
    return _ROOM.get(step, 1 if step in _ONCE else _ROOM_OTHERS)


def points(way: str) -> list[tuple[str, str, int]]:
    """(step, point, how often it was reached) of each point, by runs in which nothing strikes."""
    with _lock:
        if way not in _reached:
            _reached[way] = _assigned(_usual(way), way)
        return _reached[way]


def _usual(way: str) -> Step:
    """What is reached in each of several jobs, and how often at least."""
    found = []
    for _ in range(_NOTED):
        with tempfile.TemporaryDirectory(prefix="campaign-points-") as name:
            found.append(_noted(Path(name), way))
    first, *others = found
    return {
        step: {
            point: min(hits, *(other[step][point] for other in others))
            for point, hits in reached.items()
            if all(point in other.get(step, ()) for other in others)
        }
        for step, reached in first.items()
    }


def _noted(where: Path, way: str) -> Step:
    if way == "plain":
        result = _run_processes(where, [{"form": FORMS[0], "note": True, "fault": None}])
    else:
        result = _run(where, {**_NOTHING, "note": True, "trains": 1}, python=way == "python")
    if result.exit_code != 0:
        raise RuntimeError(f"the run that notes points failed: {result.said}")
    found: Step = json.loads((where / "log-0").read_text())["reached"]
    return found


def _assigned(steps: Step, way: str) -> list[tuple[str, str, int]]:
    found = []
    taken: set[str] = set()
    # A step of which a job has but one has room for few; what others reach too is theirs.
    for step in sorted(steps, key=lambda step: (step in _ONCE, step == "arm", len(steps[step]))):
        for point, hits in steps[step].items():
            file = point.partition(":")[0]
            ours = way == "native" or file in _FILES[way]
            if ours and point not in taken and not (step == "arm" and _defines(point)):
                taken.add(point)
                found.append((step, point, hits))
    return found


def _defines(point: str) -> bool:
    """Whether it is a line of a module or a class where nothing is called: "line.py:f+3.-"."""
    return point.endswith("-") and ("<module>" in point or ":" not in point)


def _account(where: Path, plan: Mapping[str, Any]) -> list[str]:
    """What the struck rank, and the other one, say of their calls and exceptions."""
    harmed = []
    for rank in (0, 1):
        try:
            log = json.loads((where / f"log-{rank}").read_text())
        except FileNotFoundError:
            harmed.append(f"rank {rank} did not come as far as its first step")
            continue
        harmed += [f"rank {rank}: {line}" for line in log["trouble"]]
        if not log.get("finished"):
            harmed.append(f"rank {rank} did not finish: struck by {log['struck'][-1:]}")
        if rank != plan["rank"]:
            continue
        if log["blocked"]:
            harmed.append(f"the job waited for the agent's thread at {plan['thread'][0]}")
        for step, point, hit, action, raised, seen in log["struck"]:
            told = f"{action} at {point} (hit {hit}) in {step}"
            if raised != seen and step != "exit":
                harmed.append(f"seen {seen} times, raised {raised} times: {told}")
    return harmed


# A process that is struck before, or while, it imports torch.


def _plain(fault: Fault, where: Path) -> Outcome:
    share, shares = map(int, fault.drawn["share"].split("/"))
    form = fault.drawn["form"]
    dice = random.Random(f"{SEED}/{fault.name}/actions")  # noqa: S311 (no secret)
    plan = []
    for step, point, _ in points("plain")[share::shares]:
        # Before the program begins there is no handler but the one of Ctrl-C.
        actions = ("interrupt",) if step == "site" else (*RAISES, "collect", "allocate")
        plan.append({"form": form, "note": False, "fault": [step, point, 1, dice.choice(actions)]})
    result = _run_processes(where, plan)
    outcome = Outcome(harmed=[] if result.exit_code == 0 else [f"exit code {result.exit_code}"])
    outcome.harmed += [f"left running: {line[:200]}" for line in result.survivors]
    outcome.harmed += [f"left behind: {path}" for path in result.left]
    for number, process in enumerate(plan):
        step, point, _, action = process["fault"]
        told = f"{action} at {point} in {step}"
        log = json.loads((where / f"log-{number}").read_text())
        if not log["fired"]:
            outcome.harmed.append(f"the campaign did not strike: {told}")
        elif log["raised"] != log["seen"]:
            outcome.harmed.append(f"seen {log['seen']}, raised {log['raised']} times: {told}")
        code = 7 if log["raised"] else 0
        if f"process {number} ended with {code}" not in result.printed.splitlines():
            outcome.harmed.append(f"it ended otherwise than with {code}: {told}")
    worked = sum(1 for one in plan if one["fault"][0] == "import" and one["fault"][3] in CALLS)
    if result.printed.count("[0.0, 1.0, 2.0]") != worked:
        outcome.harmed.append(f"{worked} were to work: {result.printed!r}")
    return outcome


def _run_processes(where: Path, plan: Sequence[Mapping[str, Any]]) -> Result:
    (where / "plan.json").write_text(json.dumps(plan))
    with Job(where, *QUICK, command=[sys.executable, str(PROGRAMS / "imported.py")]) as job:
        return job.finish()
