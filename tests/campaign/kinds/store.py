"""The job's store fails, lies or is written to by strangers: two nodes, a proxy between."""

from __future__ import annotations

import random
import re
import time
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import hostile
import nodes
from fault import Fault, Outcome, merged
from job import PATIENCE_S, QUICK, busy
from nodes import Nodes
from storeproxy import Tampering

if TYPE_CHECKING:
    from pathlib import Path

    from job import Result

NAME = "store"
COUNT = 160
SECONDS = 19
FAULT = "drop, delay, cut, replay, forge, oversize, a stranger writes"
MOMENT = "each query in each round"

JOINING = (
    *("validate", "add joined", "delete roster", "set node", "add ranks", "check node"),
    *("multi_get node", "set roster", "add rounds", "wait incident", "check roster", "get roster"),
)
ONCE = frozenset({"check node", "multi_get node", "set roster"})
"""Asked by the last that joins alone."""
INCIDENT = (
    *("compare_set incident", "set incident", "add rounds", "add joined", "check node"),
    *("multi_get node", "wait answer", "multi_get answer", "check incident", "get incident"),
    *("wait incident", "set answer", "set verdict", "wait verdict", "check verdict"),
    "get verdict",
)
FULL = ("check blob", "set blob", "multi_get blob", "cancel")
"""In a round with stacks, of which there is one before the verdict."""
TARGETS = (
    *(("joining", name) for name in JOINING),
    *(("incident", name) for name in INCIDENT),
    *(("incident", name) for name in FULL),
)
ACTIONS = (
    *("drop-query", "drop-answer", "delay-query", "delay-answer", "reset-query", "reset-answer"),
    *("close-query", "close-answer", "replay", "twice", "noise", "lie", "overlong", "flood"),
)
LASTING = ("drop-answer", "delay-answer", "reset-query", "close-query")
SUDDEN = ("reset", "close", "noise", "lie", "overlong", "flood")
TAMPERED, LASTED, STRUCK = 96, 12, 18
"""So many of each; the others are strangers."""
PATIENT = (
    *("--suspect-after", "8", "--hang-after", "12", "--metrics-addr", "off"),
    *("--on-hang", "abort"),
)
"""Options with which no pause of a busy machine is called slow."""
FORGED = {"noise": hostile.noise, "lie": hostile.lie, "overlong": hostile.overlong}
PREFIX = "/hangwatch/job/2/"
"""Of the keys of watchdogs, as anybody can guess it."""
JOINED_S = 4.0
"""How long watchdogs may take to join that the fault kept from it, before a rank stalls."""
VERDICT_S = 45.0
NOT_REACHED_S = 8.0
_CLAIM = re.compile(r"^hangwatch: (?:SLOW|HANG|FAILED|DESYNC) [^(]")
_OF_OTHERS = re.compile(r"\bnodes?\b|\bon \S+:")
_PASSED = re.compile(r"the job recovered")


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Which query of which round, or who writes what when."""
    seconds = round(dice.choice((0.5, 1.0, 2.0, 4.0, 8.0)), 1)
    if number < TAMPERED:
        again, which = divmod(number, len(TARGETS))
        phase, name = TARGETS[which]
        action = ACTIONS[(5 * which + 4 * again) % len(ACTIONS)]
        rounds = 1 if name in (ONCE if phase == "joining" else FULL) else 3
        nth = dice.randint(1, min(rounds, 2 if phase == "joining" else 3))
        drawn = {"how": "query", "moment": phase, "query": name, "nth": nth, "action": action}
    elif (rest := number - TAMPERED) < LASTED:
        moment = ("joining", "incident", "end")[rest // len(LASTING)]
        seconds = dice.choice((0.2, 0.5))
        drawn = {"how": "all", "moment": moment, "action": LASTING[rest % len(LASTING)]}
    elif (rest := rest - LASTED) < STRUCK:
        moment = ("steady", "incident", "end")[rest // len(SUDDEN)]
        drawn = {"how": "sudden", "moment": moment, "action": SUDDEN[rest % len(SUDDEN)]}
    else:
        rest -= STRUCK
        moment = ("steady", "incident", "joining")[rest // len(hostile.DEEDS)]
        deed = hostile.DEEDS[rest % len(hostile.DEEDS)].__name__
        drawn = {"how": "stranger", "moment": moment, "action": deed}
    return {**drawn, "seconds": seconds, "seed": dice.randrange(1 << 30)}


def inject(fault: Fault, where: Path) -> Outcome:
    """Run the job on two nodes with it, and judge both."""
    drawn = fault.drawn
    stalls = drawn["moment"] == "incident" or (
        drawn["moment"] == "joining" and drawn["how"] != "stranger"
    )
    stall = 1 if stalls else -1
    nodes.bare(stall)
    began = time.monotonic()
    tampering = _tampering(drawn)
    options = QUICK if stalls else PATIENT
    with Nodes(where, *options, tampering=tampering, env={"STALL": str(stall)}) as job:
        untried = _to_the_gate(job, drawn, tampering)
        job.touch("gate")
        if stalls and not untried:
            untried = _through_the_stall(job, drawn, tampering)
        # Up to here we held it up, but for its start, which a busy machine may make long.
        held_s = time.monotonic() - began
        job.touch("release")
        results = job.finish()
    outcome = nodes.unharmed(results, stall, extra_s=held_s)
    if untried:
        outcome.untried = untried
    elif stalls:
        lies = drawn["how"] == "stranger" or drawn["action"] in ("lie", "noise", "replay")
        outcome = merged([outcome, nodes.named(results, 1, may_mislead=lies)])
    else:
        outcome = merged([outcome, *map(_not_called, results)])
    return outcome


def _to_the_gate(job: Nodes, drawn: dict[str, Any], tampering: Tampering | None) -> str:
    """Strike where that is before the gate; why it could not be done, or empty."""
    if drawn["moment"] == "joining":
        if tampering is not None:
            tampering.armed.set()
        elif job.until(lambda: job.proxy.store_port() is not None, bound_s=PATIENCE_S * busy()):
            _strike(job, drawn)
    if not job.until_ready():
        return "its ranks never came to the gate"
    joined = job.until(lambda: _joined(job, tampering), bound_s=60.0 * busy())
    if drawn["moment"] == "joining":
        return ""
    if drawn["moment"] == "steady" or (drawn["moment"] == "end" and tampering is None):
        _strike(job, drawn)
    if drawn["moment"] == "steady":
        _until_heeded(job)
    if tampering is not None:
        tampering.armed.set()
    return "" if joined else "the watchdogs never joined each other"


def _tampering(drawn: dict[str, Any]) -> Tampering | None:
    if drawn["how"] not in ("query", "all"):
        return None
    action, name = drawn["action"], drawn.get("query", "any")
    if name.startswith(("set", "validate")):  # they are not answered
        action = {"drop-answer": "drop-query", "delay-answer": "delay-query"}.get(action, action)
    forge = partial(FORGED.get(action, hostile.noise), dice=_dice(drawn))
    return Tampering(
        name,
        drawn.get("nth", 1),
        "forge" if action in FORGED else action,
        drawn["seconds"],
        forge,
        lasting=drawn["how"] == "all",
    )


def _through_the_stall(job: Nodes, drawn: dict[str, Any], tampering: Tampering | None) -> str:
    """Strike while a rank stalls, and wait for the verdict; why it did not strike, or empty."""
    if tampering is None:
        job.until(lambda: job.proxy.count("compare_set incident"), bound_s=NOT_REACHED_S * busy())
        _strike(job, drawn)
    job.until(lambda: job.said("hangwatch: HANG "), bound_s=VERDICT_S * busy())
    if tampering is not None and not job.until(
        tampering.done.is_set, bound_s=NOT_REACHED_S * busy()
    ):
        return f"{tampering.name} was not asked for the {tampering.nth}th time"
    return ""


def _joined(job: Nodes, tampering: Tampering | None) -> bool:
    """Whether the watchdogs know each other, or are not to be waited for."""
    if job.proxy.count("get roster") >= nodes.NODES:
        return True
    now = time.monotonic()
    if tampering is None or not tampering.done.is_set():
        return False
    tampering.done_at = tampering.done_at or now
    return now - tampering.done_at > JOINED_S


def _strike(job: Nodes, drawn: dict[str, Any]) -> None:
    """Do what is done at one moment to all connections, or by a stranger."""
    dice = _dice(drawn)
    if drawn["how"] == "sudden":
        job.proxy.strike(drawn["action"], FORGED.get(drawn["action"]), dice)
        return
    deed = next(one for one in hostile.DEEDS if one.__name__ == drawn["action"])
    with suppress(OSError), closing(_stranger(job)) as stranger:
        deed(stranger, dice)


def _stranger(job: Nodes) -> hostile.Stranger:
    return hostile.Stranger(job.proxy.store_port() or 0, job.proxy.prefix or PREFIX)


def _until_heeded(job: Nodes) -> None:
    """Give the watchdogs of a healthy job the time to be misled."""
    job.until(lambda: job.said("hangwatch: HANG "), bound_s=4.0 * busy())
    if job.said("hangwatch: HANG "):
        job.until(lambda: job.said("hangwatch: ended "), bound_s=4.0 * busy())


def _not_called(result: Result) -> Outcome:
    """No verdict on a healthy job; what another node is said to have found must pass."""
    harmed = [f"called: {report['verdict']['headline'][:200]}" for report in result.reports]
    claims = [number for number, line in enumerate(result.news) if _CLAIM.match(line)]
    harmed += [
        f"said as if it were our own: {result.news[number][:200]!r}"
        for number in claims
        if not _OF_OTHERS.search(result.news[number])
    ]
    if claims and not any(_PASSED.search(line) for line in result.news[claims[-1] :]):
        harmed.append(f"never taken back: {result.news[claims[-1]][:200]!r}")
    return Outcome(harmed=harmed)


def _dice(drawn: dict[str, Any]) -> random.Random:
    return random.Random(drawn["seed"])  # noqa: S311 (no secret)
