"""How well stragglers are found: simulated jobs of which it is known what they lose, and to whom.

Each job is run with the ranks that are slow and without them, and watched with a window of 20 s. It
has ranks that are slow in each turn, by some time or by a factor, every few turns or seldom, from
some time on; or it has none, and steps that take longer by chance alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from random import Random
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "property"))

from slow_jobs import (
    Delays,
    Job,
    Late,
    averaging,
    compared,
    data_parallel,
    pipeline,
    run,
    sharded,
    tensor_parallel,
    watched,
)

WINDOW_S = 20.0
WORTH = 0.07
"""Share of the time that has to be told; hangwatch tells 5 %."""
NOTHING = 0.02
"""Share of the time that must not be told."""
CLOSE = 0.05
LENGTH_S = 8 * WINDOW_S
LEAST_TURNS = 60
KINDS: dict[str, Callable[[int, float], Job]] = {
    "data parallel": data_parallel,
    "fully sharded": sharded,
    "local SGD": averaging,
    "tensor and data parallel": lambda size, seconds: tensor_parallel(size, 2, seconds),
    "pipeline": lambda size, seconds: pipeline(size, 4, seconds),
}
RANKS = 8
"""Of a node, at most."""
LARGE = 1000
"""Ranks of a job whose turns are long, so that it does not take too long to simulate."""
OFTEN_S = 4.0
"""What is slow now and then is so at least once in this time."""
FAULTS = (
    "none",
    "delay",
    "factor",
    "two ranks",
    "a node",
    "for a while",
    "now and then",
    "seldom",
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A simulated job, and what is slow in it."""

    seed: int
    kind: str
    fault: str
    size: int
    within: int
    """Ranks of a node."""
    turn_s: float
    jitter: float
    by_turn: float
    transfer_s: float
    late: Late | None
    turns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    planted: Planted
    truth: float
    """Share of the time that was lost, while ranks were slow."""
    named: tuple[tuple[int, ...], ...]
    """Ranks of each straggler that was told."""
    told_s: float = 0.0
    """From when the first was slow to when it was told."""
    cost: float = 0.0
    hours: float = 0.0
    """What the job took."""

    @property
    def is_right(self) -> bool:
        """True if the ranks that are slow were named, and nobody else; nobody, if none are."""
        wanted = {self.planted.late.ranks} if self.planted.late else set()
        if not self.named:
            return self.truth < WORTH
        return set(self.named) == wanted and self.truth >= NOTHING


def drawn(seed: int, sizes: Sequence[int], least_s: float | None = None) -> Planted:
    """Draw a job. least_s: what a turn takes at least; by default it takes 0.05 to 2 s."""
    chance = Random(f"stragglers {seed}")  # noqa: S311 (chance that can be repeated)
    size = chance.choice(sizes)
    kind = chance.choice(list(KINDS)[: 3 if size % 4 else None])
    fault = chance.choice(FAULTS)
    turn_s = 0.05 * 40 ** chance.random() if size < LARGE else chance.uniform(1.0, 2.0)
    if least_s is not None:
        turn_s = least_s * 10 ** chance.random()
    within = min(size, RANKS) if size > 4 else chance.choice((size, size // 2))
    if within == size and fault == "a node":
        fault = "delay"
    if within < size and fault == "seldom":
        fault = "now and then"
    extra_s = turn_s * (0.08 + chance.random())
    slow = tuple(sorted(chance.sample(range(size), 2 if fault == "two ranks" and size > 3 else 1)))
    first = within * chance.randrange(size // within)
    often = max(int(OFTEN_S / turn_s), 2)
    period = ceil(chance.uniform(10.0, 20.0) / turn_s)
    turns = max(ceil(LENGTH_S / turn_s), LEAST_TURNS)
    late = {
        "none": None,
        "factor": Late(slow, factor=1.15 + chance.random()),
        "two ranks": Late(slow, extra_s=extra_s),
        "a node": Late(tuple(range(first, first + within)), extra_s=extra_s),
        "for a while": Late(slow, extra_s=extra_s, turns=range(turns // 4, turns)),
        "now and then": Late(slow, extra_s=often * extra_s / 2, every=chance.randint(2, often)),
        "seldom": Late(slow, extra_s=chance.uniform(2.0, 8.0), every=period),
    }.get(fault, Late(slow, extra_s=extra_s))
    if late:
        turns = max(turns, late.every * (40 if fault == "seldom" else LEAST_TURNS))
    return Planted(
        seed=seed,
        kind=kind,
        fault=fault,
        size=size,
        within=within,
        turn_s=turn_s,
        jitter=0.01 * 30 ** chance.random(),
        by_turn=chance.choice((0.0, 0.01 * 30 ** chance.random())),
        transfer_s=turn_s * 0.001 * 50 ** chance.random(),
        late=late,
        turns=turns,
    )


def outcome(planted: Planted) -> Outcome:
    """Run a job, with what is slow in it and without, and watch it."""
    job = KINDS[planted.kind](planted.size, planted.turn_s)
    delays = Delays(planted.seed, planted.jitter, planted.by_turn, transfer_s=planted.transfer_s)
    late = planted.late
    past = run(job, planted.turns, replace(delays, late=[late] if late else []))
    if planted.within < planted.size:
        news, _ = compared(past, planted.within, WINDOW_S, planted.seed)
    else:
        _, news = watched(past, WINDOW_S, planted.seed)
    truth = began_s = 0.0
    if late:
        usual_s = run(job, planted.turns, delays).end_s
        if late.turns is not None:
            began_s = usual_s * late.turns.start / planted.turns
        truth = 1 - (usual_s - began_s) / (past.end_s - began_s)
    named = tuple(dict.fromkeys(straggler.ranks for _, straggler in news))
    at_s, first = news[0] if news else (began_s, None)
    cost = first.fraction if first else 0.0
    return Outcome(planted, truth, named, at_s - began_s, cost, past.end_s / 3600)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="seed of the first job")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 4, 6, 8, 16, 64])
    parser.add_argument("--turn", type=float, help="seconds of a turn at least, up to ten times")
    parser.add_argument("--fault", choices=FAULTS, help="of one kind alone")
    parser.add_argument("--wrong", action="store_true", help="print what was wrong")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.jobs)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = [drawn(seed, given.sizes, given.turn) for seed in seeds]
        jobs = [job for job in jobs if given.fault in (None, job.fault)]
        outcomes = list(pool.map(outcome, jobs, chunksize=1))
    by: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        nodes = "several nodes" if one.planted.within < one.planted.size else "one node"
        for name in ("all", one.planted.kind, one.planted.fault, nodes):
            by[name].append(one)
    print(f"{'':25} jobs  right  others  nobody  told after s (95 %)  cost within 5 points")
    for name, several in by.items():
        print(_line(name, several))
    healthy = [one for one in outcomes if one.planted.late is None]
    hours, named = sum(one.hours for one in healthy), sum(bool(one.named) for one in healthy)
    print(f"{hours:.1f} hours of jobs without any: somebody was named in {named}")
    if given.wrong:
        for one in outcomes:
            if not one.is_right:
                print(f"{one.planted}\n   {one.truth:.3f} {one.named} {one.cost:.3f} {one.told_s}")


def _line(name: str, outcomes: Sequence[Outcome]) -> str:
    right = [one for one in outcomes if one.is_right]
    others = [one for one in outcomes if not one.is_right and one.named]
    found = [one for one in right if one.truth >= WORTH]
    line = (
        f"{name:25} {len(outcomes):4} {len(right) / len(outcomes):6.1%} {len(others):7} "
        f"{len(outcomes) - len(right) - len(others):7}"
    )
    if not found:
        return line
    told = sorted(one.told_s for one in found)
    close = sum(abs(one.cost - one.truth) <= CLOSE for one in found)
    return (
        f"{line} {median(told):12.0f} {told[int(0.95 * len(told))]:7.0f} {close / len(found):21.1%}"
    )


if __name__ == "__main__":
    main()
