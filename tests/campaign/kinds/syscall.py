"""System calls of supervisor, watchdog, launcher and ranks that fail or stall, one by one.

Which call: ``which`` and ``nth`` are shares of what a dry run shows to exist, so that
nearly each fault strikes; one that does not is tried on the first such call instead.
"""

from __future__ import annotations

import errno
import itertools
import time
from typing import TYPE_CHECKING, Any

import nodes
import oracle
from fault import Fault, Outcome, merged
from job import QUICK, Job
from nodes import Nodes
from patience import MOST_S, USUAL_S, reported, until_told
from preload import Calls, Target, library, usual

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from job import Result

NAME = "syscall"
COUNT = 200
SECONDS = 14
FAULT = (
    "system calls that fail (ENOSPC, EMFILE, EACCES, EIO, ESTALE, EINTR, ...), fall short, stall"
)
MOMENT = "the n-th open, mmap, flock, rename, fork, connect, ... of agent, supervisor, watchdog"

GIVEN_UP_S = 8.0
"""A report that takes longer is left where it lies: nobody is made to wait for it."""
"""How long a verdict may take before the rank that stalls goes on."""
SHARES = {
    ("watchdog", "open"): 34,
    ("watchdog", "load"): 10,
    ("watchdog", "mmap"): 6,
    ("watchdog", "fork"): 8,
    ("watchdog", "write"): 20,
    ("watchdog", "connect"): 12,
    ("watchdog", "rename"): 14,
    ("watchdog", "mkdir"): 10,
    ("watchdog", "unlink"): 8,
    ("supervisor", "open"): 10,
    ("supervisor", "flock"): 5,
    ("supervisor", "fork"): 8,
    ("supervisor", "write"): 8,
    ("supervisor", "rename"): 6,
    ("supervisor", "mkdir"): 8,
    ("supervisor", "unlink"): 4,
    ("launcher", "load"): 8,
    ("rank0", "open"): 5,
    ("rank1", "open"): 4,
    ("rank1", "mmap"): 4,
    ("rank1", "allocate"): 4,
    ("rank0", "write"): 2,
    ("rank1", "rename"): 1,
    ("rank1", "unlink"): 1,
}
FAILURES = ("ENOSPC", "EMFILE", "EACCES", "EIO", "ESTALE", "EINTR", "stall")
HOW = {
    "load": ("EMFILE", "EIO", "ESTALE", "EACCES", "stall"),
    "mmap": ("ENOMEM", "EACCES", "ENODEV", "stall"),
    "connect": ("ECONNREFUSED", "ETIMEDOUT", "EACCES", "ENETUNREACH", "EINTR", "stall"),
    "flock": ("EINTR", "ENOLCK", "EWOULDBLOCK", "EIO", "stall"),
    "rename": ("ENOSPC", "EIO", "EACCES", "ESTALE", "stall"),
    "fork": ("EAGAIN", "ENOMEM", "stall", "EAGAIN"),
    "write": ("ENOSPC", "EIO", "short", "EINTR", "stall", "EPIPE"),
    "mkdir": ("ENOSPC", "EACCES", "EIO", "ESTALE", "stall"),
    "unlink": ("EACCES", "EIO", "ESTALE", "stall"),
    "allocate": ("ENOSPC", "EINTR", "EIO", "stall"),
}
ENDLESS = ("allocate",)
"""Calls that a timer which fires often can interrupt again and again."""
CONNECTIONS = 2
"""Of each watchdog to the store."""
STALLS_S = (3.0, 3.0, 4.0, 10.0)
GOLDEN = 0.6180339887
"""Its multiples spread shares evenly, whatever goes round beside them."""


def _places() -> list[tuple[str, str, int]]:
    each = ([(*key, k) for k in range(share)] for key, share in SHARES.items())
    return list(itertools.chain.from_iterable(each))


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Whose call, which one, and what comes of it."""
    role, call, k = _places()[number]
    how = HOW.get(call, FAILURES)
    drawn: dict[str, Any] = {
        "role": role,
        "call": call,
        "how": how[k % len(how)],
        "which": round((k * GOLDEN + 0.1) % 1, 3),
        "nth": round(dice.random() ** 2, 3),
        "lasting": dice.random() < 1 / 3,
    }
    if drawn["how"] == "EINTR" and call not in ENDLESS:
        drawn["lasting"] = False
    if drawn["how"] == "stall":
        drawn |= {"seconds": dice.choice(STALLS_S), "lasting": False}
    return drawn


def inject(fault: Fault, where: Path) -> Outcome:
    """Let a rank stall while a call fails, and let it go on after the verdict."""
    try:
        library()
    except RuntimeError as error:
        return Outcome(untried=str(error))
    drawn = fault.drawn
    if drawn["call"] == "connect":
        return _to_the_store(fault, where)
    paths = usual().get((drawn["role"], drawn["call"]))
    if not paths:
        return Outcome(harmed=[f"the campaign knows no {drawn['call']} of the {drawn['role']}"])
    path = sorted(paths)[int(drawn["which"] * len(paths))]
    call = "open" if drawn["call"] == "load" else str(drawn["call"])
    last = max(1, int(0.7 * paths[path]))
    target = Target(drawn["role"], call, path, 1 + int(drawn["nth"] * last))
    for tried, aimed in enumerate((target, target._replace(nth=1), target._replace(path="*"))):
        outcome, struck = _run(fault, where / str(tried), aimed)
        if struck:
            break
    else:
        outcome.harmed.append("the campaign's fault did not strike")
    outcome.harmed = [f"{' '.join(map(str, aimed))}: {what}" for what in outcome.harmed]
    outcome.lost = [f"{' '.join(map(str, aimed))}: {what}" for what in outcome.lost]
    return outcome


def _to_the_store(fault: Fault, where: Path) -> Outcome:
    """The same where a watchdog connects, which it does where there are several nodes."""
    target = Target("watchdog", "connect", "-", 1 + int(fault.drawn["nth"] * CONNECTIONS))
    for tried, aimed in enumerate((target, target._replace(nth=1))):
        calls = Calls(where / str(tried))
        with Nodes(
            calls.where, *QUICK, env={"STALL": "1", **_variables(fault, calls, aimed)}
        ) as job:
            job.until_ready()
            job.touch("gate")
            job.until(lambda: job.said("Rank 1 "), bound_s=MOST_S)
            job.touch("release")
            results = job.finish()
        if calls.struck():
            break
    else:
        return Outcome(harmed=["the campaign's fault did not strike"])
    extra_s = float(fault.drawn.get("seconds", 0.0)) + USUAL_S
    return merged([nodes.unharmed(results, 1, extra_s=extra_s), nodes.named(results, 1)])


def _variables(fault: Fault, calls: Calls, target: Target) -> dict[str, str]:
    how = fault.drawn["how"]
    return calls.environment(
        target,
        error=getattr(errno, how, 0),
        stall_s=float(fault.drawn.get("seconds", 0.0)),
        short=how == "short",
        lasting=fault.drawn["lasting"],
    )


def _run(fault: Fault, where: Path, target: Target) -> tuple[Outcome, bool]:
    stall_s = float(fault.drawn.get("seconds", 0.0))
    calls = Calls(where)
    env = _variables(fault, calls, target)
    expected = oracle.steps(stall=1)
    with Job(where, *QUICK, env={"STALL": "1", **env}) as job:
        job.until_ready()
        ready = time.monotonic()
        job.touch("gate")
        until_told(job, lambda: reported(where / "hangwatch-reports"), stall_s=stall_s)
        held_s = time.monotonic() - ready
        job.touch("release")
        result = job.finish()
    result.seconds -= held_s
    struck = calls.struck()
    if target.role == "supervisor" and target.call == "fork" and not result.outputs:
        return _refused(result), bool(struck)
    # What can be removed no more, or is still at work when nobody waits any longer, stays.
    leaves = target.call == "unlink" or fault.drawn["lasting"] or stall_s >= GIVEN_UP_S
    outcome = merged(
        [
            oracle.unharmed(
                result,
                expected,
                extra_s=stall_s * len(struck) + USUAL_S + 2 * expected.seconds,
                may_leave=leaves,
            ),
            oracle.named(result, 1),
        ]
    )
    outcome.harmed += [f"changed what is not ours, {what}" for what in calls.strangers()]
    foreign = calls.changed_by_ranks() - _changed_bare()
    outcome.harmed += [f"a rank changed what is not ours: {what}" for what in sorted(foreign)]
    if not leaves:
        drafts = where.glob("hangwatch-reports/*/.*")
        outcome.harmed += [f"left behind: {path.name}" for path in drafts]
    return outcome, bool(struck)


def _refused(result: Result) -> Outcome:
    """COMMAND itself could not be started: that is said, and nothing is left."""
    harmed = []
    if not result.exit_code:
        harmed.append(f"COMMAND was not started, and the exit code is {result.exit_code}")
    if "cannot be started" not in result.said or "Traceback" in result.said:
        harmed.append(f"COMMAND was not started, and it is said {result.said!r}")
    harmed += [f"left running: {line[:200]}" for line in result.survivors]
    harmed += [f"left behind: {path}" for path in result.left]
    return Outcome(harmed=harmed)


def _changed_bare() -> set[str]:
    """What ranks change without hangwatch."""

    def run(where: Path) -> Result:
        calls = Calls(where)
        env = {"STALL": "1", **calls.environment()}
        with Job(where, watched=False, env=env) as job:
            job.until_ready()
            job.touch("gate")
            job.touch("release")
            result = job.finish()
        result.printed = "\n".join(sorted(calls.changed_by_ranks()))
        return result

    return set(oracle.bare("what steps change", run).printed.splitlines())
