"""Simulated jobs with ranks that are slow, and the time that they really take.

All ranks of a stage make the same steps: compute for some seconds, issue a collective of one of
their groups, wait for it, send to the stage beside them, receive from it. A collective is complete
when all members have issued it and a transfer time has passed, a message so long after it was sent.
Ranks are simulated together, as arrays with a number for each: a job may have ten thousand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from hangwatch.efficiency.node_watch import NodeWatch
from hangwatch.efficiency.nodes import find_slow
from hangwatch.efficiency.straggler_watch import Loop, Observation, StragglerWatch
from hangwatch.efficiency.stragglers import RankMoment, who_waits
from hangwatch.model.report import Straggler

Floats: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
News: TypeAlias = list[tuple[float, Straggler]]
"""Each with when it came."""

MOMENTS_S = 0.05, 0.15
"""Between two moments at which the ranks of a node are looked at, at least and at most."""

KEPT = 16
"""Calls of a group that may be under way at a time."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the ranks of a stage do next."""

    kind: Literal["compute", "issue", "wait", "send", "receive"]
    seconds: float = 0.0
    """That it takes to compute."""
    slot: int = 0
    """Which of its groups a rank issues a call in, or waits for one of."""
    behind: int = 0
    """Calls in the group since the one that it waits for."""
    to: int = 0
    """How much higher the rank is that it sends to; -to is where it receives from."""
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job without its delays."""

    slots: Sequence[Ints]
    """By slot the group of each rank."""
    stages: Sequence[slice]
    """Their ranks."""
    turn: Sequence[Step]
    """In an order in which what a step waits for comes before it."""
    by_python: bool = True
    """Python issues the calls: a turn of the loop is known."""

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.slots[0])

    @property
    def members(self) -> dict[int, list[int]]:
        """The ranks of each group."""
        members: dict[int, list[int]] = defaultdict(list)
        for slot in self.slots:
            for rank, group in enumerate(slot.tolist()):
                members[group].append(rank)
        return dict(members)

    @property
    def calls(self) -> int:
        """Calls that a rank issues in a turn."""
        return sum(step.kind == "issue" and step.stage == 0 for step in self.turn)


@dataclass(frozen=True, slots=True)
class Late:
    """Ranks that take longer in some turns."""

    ranks: tuple[int, ...]
    factor: float = 1.0
    """By which their steps take longer."""
    extra_s: float = 0.0
    """What they do besides, at the beginning of a turn."""
    every: int = 1
    """Turns."""
    turns: range | None = None
    """In these alone."""

    def is_in(self, turn: int) -> bool:
        """True if they are slow in a turn."""
        return turn % self.every == 0 and (self.turns is None or turn in self.turns)


@dataclass(frozen=True, slots=True)
class Delays:
    """What makes the steps of a job take longer."""

    seed: int
    jitter: float = 0.1
    """Mean of what each step takes longer by chance, as a share of it."""
    by_turn: float = 0.0
    """The same of all steps of a rank in a turn together: its batch is larger than others."""
    alike: int = 1
    """Turns one after the other in which it is the same: they train on one batch."""
    late: Sequence[Late] = ()
    transfer_s: float = 0.001


@dataclass(frozen=True, slots=True)
class RankState:
    """A rank between two events."""

    issued: tuple[int, ...]
    """By slot."""
    idle: bool = False
    receives_from: int = 0
    """How much higher the rank is that it waits to receive from, 0 for none."""


@dataclass(frozen=True, slots=True)
class Past:
    """What the ranks of a job did."""

    job: Job
    turns: int
    times: Sequence[Floats]
    """By stage, the time of each event of each of its ranks."""
    states: Sequence[Sequence[RankState]]
    """By stage, what holds from each event on."""

    @property
    def end_s(self) -> float:
        """What the job took."""
        return max(float(times[:, -1].max()) for times in self.times)

    @property
    def loop(self) -> Loop:
        """What is known of the training loop."""
        if not self.job.by_python:
            return Loop()
        turn_s = self.end_s / self.turns
        return Loop(turn_s, self.job.calls / turn_s, known=True)

    def moments(self, ranks: Sequence[int], times: Floats) -> Iterator[dict[int, RankMoment]]:
        """Some ranks at each of some times."""
        of_ranks = [self._states(rank, times) for rank in ranks]
        for moment in zip(*of_ranks, strict=True):
            yield dict(zip(ranks, moment, strict=True))

    def _states(self, rank: int, times: Floats) -> Iterator[RankMoment]:
        stage = next(at for at, own in enumerate(self.job.stages) if own.start <= rank < own.stop)
        row = self.times[stage][rank - self.job.stages[stage].start]
        groups = [int(slot[rank]) for slot in self.job.slots]
        for event in np.searchsorted(row, times, side="right").tolist():
            state = self.states[stage][event - 1]
            peer = rank + state.receives_from if state.receives_from else -1
            issued = dict(zip(groups, state.issued, strict=True))
            yield RankMoment(issued, state.idle, state.idle, peer)


@dataclass(slots=True)
class _Stage:
    """How far the ranks of a stage have come."""

    issued: list[int]
    times: list[Floats] = field(default_factory=list)
    states: list[RankState] = field(default_factory=list)

    def note(self, now: Floats, *, idle: bool = False, receives_from: int = 0) -> None:
        self.times.append(now.copy())
        self.states.append(RankState(tuple(self.issued), idle, receives_from))


def _delayed(late: Sequence[Late], turn: int, now: Floats, batch: Floats) -> Floats:
    """By rank how much longer its steps take in a turn; what it does besides is added to now."""
    factor = batch.copy()
    for one in late:
        if one.is_in(turn):
            factor[list(one.ranks)] *= one.factor
            now[list(one.ranks)] += one.extra_s
    return factor


def run(job: Job, turns: int, delays: Delays) -> Past:
    """Simulate a job. What is by chance is the same whichever ranks are late."""
    chance, of_turns = (
        np.random.Generator(np.random.PCG64(seed))
        for seed in (delays.seed, delays.seed + (1 << 32))
    )
    now = np.zeros(job.size)
    stages = [_Stage([0] * len(job.slots)) for _ in job.stages]
    calls: dict[tuple[int, int], Floats] = defaultdict(lambda: np.zeros(job.size))
    sent: dict[int, Floats] = defaultdict(lambda: np.zeros(job.size))
    for own, stage in zip(job.stages, stages, strict=True):
        stage.note(now[own])
    for turn in range(turns):
        if turn % delays.alike == 0:
            batch = 1 + delays.by_turn * of_turns.standard_exponential(job.size)
        factor = _delayed(delays.late, turn, now, batch)
        for step in job.turn:
            own, stage = job.stages[step.stage], stages[step.stage]
            if step.kind == "compute":
                by_chance = delays.jitter * chance.standard_exponential(own.stop - own.start)
                now[own] += step.seconds * factor[own] * (1 + by_chance)
            elif step.kind == "issue":
                stage.issued[step.slot] += 1
                calls.pop((step.slot, stage.issued[step.slot] - KEPT), None)
                calls[step.slot, stage.issued[step.slot]][own] = now[own]
                stage.note(now[own])
            elif step.kind == "send":
                sent[step.to][own] = now[own]
            else:
                if step.kind == "wait":
                    number = stage.issued[step.slot] - step.behind
                    came_s = _latest(calls[step.slot, number], job.slots[step.slot])[own]
                    stage.note(now[own], idle=True)
                else:
                    came_s = sent[step.to][own.start - step.to : own.stop - step.to]
                    stage.note(now[own], idle=True, receives_from=-step.to)
                now[own] = np.maximum(now[own], came_s + delays.transfer_s)
                stage.note(now[own])
    times = [np.ascontiguousarray(np.stack(stage.times, axis=1)) for stage in stages]
    return Past(job, turns, times, [stage.states for stage in stages])


def _latest(times: Floats, groups: Ints) -> Floats:
    """By rank, the latest time in its group."""
    latest = np.zeros(groups.max() + 1)
    np.maximum.at(latest, groups, times)
    return latest[groups]


def watched(past: Past, window_s: float, seed: int = 0) -> tuple[StragglerWatch, News]:
    """Watch a job as the watchdog of a single node does."""
    watch = StragglerWatch(window_s, loop=past.loop)
    members = past.job.members
    groups = {group: frozenset(ranks) for group, ranks in members.items()}
    news = []
    times = _moments(past.end_s, seed)
    seen = past.moments(range(past.job.size), times)
    for at_s, moment in zip(times.tolist(), seen, strict=True):
        issued = [sum(one.issued.values()) for one in moment.values()]
        watch.add(Observation(at_s, who_waits(moment, members), sum(issued), max(issued)))
        straggler = watch.assess(at_s, groups)
        if straggler is not None:
            news.append((at_s, straggler))
    return watch, news


def _moments(end_s: float, seed: int) -> Floats:
    chance = np.random.Generator(np.random.PCG64(seed))
    times = np.cumsum(chance.uniform(*MOMENTS_S, int(end_s / MOMENTS_S[0])))
    return np.asarray(times[times < end_s], dtype=np.float64)


def _looks(
    past: Past, ranks: range, members: Mapping[int, Sequence[int]], watch: NodeWatch, seed: int
) -> Iterator[tuple[float, frozenset[int], int]]:
    """By moment of a node when it was, the awake ranks, and the calls that all had issued."""
    times = _moments(past.end_s, seed)
    for at_s, seen in zip(times.tolist(), past.moments(ranks, times), strict=True):
        awake = who_waits(seen, members).awake
        watch.peers |= {(rank, one.peer) for rank, one in seen.items() if one.peer >= 0}
        yield at_s, awake, sum(sum(one.issued.values()) for one in seen.values())


def compared(past: Past, within: int, window_s: float, seed: int = 0) -> tuple[News, int]:
    """Return the same news of nodes of so many ranks each, and how often they were asked.

    Each node has moments, and a clock, of its own.
    """
    nodes = [range(first, first + within) for first in range(0, past.job.size, within)]
    members = past.job.members
    within_node: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for group, own in members.items():
        if own[0] // within == own[-1] // within:
            within_node[own[0] // within][group] = own
    clocks = np.random.Generator(np.random.PCG64(seed)).uniform(0, 1000, len(nodes)).tolist()
    watches = [
        NodeWatch(window_s, groups=[frozenset(group) for group in within_node[node].values()])
        for node in range(len(nodes))
    ]
    looks = [
        _looks(past, ranks, within_node[node], watches[node], seed * len(nodes) + node)
        for node, ranks in enumerate(nodes)
    ]
    known = StragglerWatch(window_s)
    news: News = []
    asked, now_s = 0, 0.0
    following = [next(look, None) for look in looks]
    while (now_s := now_s + 0.5) < past.end_s:
        for node, (watch, ranks) in enumerate(zip(watches, nodes, strict=True)):
            while (look := following[node]) is not None and look[0] < now_s:
                at_s, awake, place = look
                watch.add(clocks[node] + at_s, ranks, awake, place)
                following[node] = next(looks[node], None)
        times = [clock + now_s for clock in clocks]
        if not any(one.wants(at) for one, at in zip(watches, times, strict=True)):
            continue
        asked += 1
        answers = []
        for number, (one, at) in enumerate(zip(watches, times, strict=True)):
            one.asked(at)
            answers.append(one.moments(f"node-{number}", past.loop.turn_s, ""))
        found = find_slow(answers, known.current_ranks, known.span_s)
        for one, at in zip(watches[1:], times[1:], strict=True):
            one.heard(found, replace(known), at)
        straggler = watches[0].heard(found, known, times[0])
        if straggler is not None:
            news.append((now_s, straggler))
    return news, asked


def data_parallel(size: int, seconds: float, buckets: int = 4) -> Job:
    """Forward, then backward that issues buckets as they come, and waits for the last."""
    bucket = [Step("compute", 2 * seconds / 3 / buckets), Step("issue")]
    turn = [Step("compute", seconds / 3), *buckets * bucket, Step("wait")]
    return Job([_together(size)], [slice(0, size)], turn, by_python=False)


def averaging(size: int, seconds: float, steps: int = 8) -> Job:
    """Steps that each rank makes on its own, then all average what they have (local SGD)."""
    own = [Step("compute", seconds / steps)] * steps
    return Job([_together(size)], [slice(0, size)], [*own, Step("issue"), Step("wait")])


def sharded(size: int, seconds: float, layers: int = 6) -> Job:
    """Fully sharded: a layer is gathered while the one before it is computed, and back again."""
    turn = [Step("issue")]
    for share, reduces in ((1 / 3, False), (2 / 3, True)):
        for layer in range(layers):
            last = reduces and layer == layers - 1
            turn += [] if last else [Step("issue")]
            turn.append(Step("wait", behind=0 if last else 1))
            turn.append(Step("compute", share * seconds / layers))
            turn += [Step("issue", slot=1)] if reduces else []
    return Job(
        [_together(size), _together(size) + 1], [slice(0, size)], [*turn, Step("wait", slot=1)]
    )


def tensor_parallel(size: int, within: int, seconds: float, layers: int = 4) -> Job:
    """Tensor groups of neighbours meet in each layer, data groups across them once a turn."""
    ranks = np.arange(size)
    slots = [ranks // within, size // within + ranks % within]
    layer = [Step("compute", seconds / layers), Step("issue"), Step("wait")]
    turn = [*layers * layer, Step("issue", slot=1), Step("wait", slot=1)]
    return Job(slots, [slice(0, size)], turn)


def pipeline(size: int, stages: int, seconds: float, batches: int = 4) -> Job:
    """All batches pass through the stages and back; then the replicas of a stage meet, and all."""
    width = size // stages
    turn = []
    for share, to in ((1 / 3, width), (2 / 3, -width)):
        for _ in range(batches):
            in_order = range(stages) if to > 0 else reversed(range(stages))
            for place, stage in enumerate(in_order):
                turn += [Step("receive", to=to, stage=stage)] if place else []
                turn.append(Step("compute", share * seconds / batches, stage=stage))
                turn += [Step("send", to=to, stage=stage)] if place < stages - 1 else []
    for slot in (0, 1):
        turn += [Step("issue", slot=slot, stage=stage) for stage in range(stages)]
        turn += [Step("wait", slot=slot, stage=stage) for stage in range(stages)]
    own = [slice(stage * width, (stage + 1) * width) for stage in range(stages)]
    return Job([1 + np.arange(size) // width, _together(size)], own, turn)


def _together(size: int) -> Ints:
    """All ranks in group 0."""
    return np.zeros(size, dtype=np.int64)
