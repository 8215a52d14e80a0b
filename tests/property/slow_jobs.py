"""Simulated jobs with ranks that are slow, and the time that they really cost.

A rank is a program of steps: compute for some seconds, issue a collective of a group, wait for it.
A collective is complete when all members have issued it, and a transfer time has passed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from hangwatch.efficiency.node_watch import NodeWatch
from hangwatch.efficiency.nodes import find_slow
from hangwatch.efficiency.straggler_watch import Observation, StragglerWatch
from hangwatch.efficiency.stragglers import RankMoment, awake_ranks
from hangwatch.model.report import Straggler

Step = tuple[str, float]
"""("compute", seconds), ("issue", group) or ("wait", group): for its last call in the group."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job without its delays: what a rank does in a turn."""

    members: Mapping[int, Sequence[int]]
    """Of the groups."""
    turn: Callable[[int, Callable[[float], float]], Sequence[Step]]
    """(rank, seconds that something takes -> seconds that it takes this time) -> its steps."""

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(1 + max(max(ranks) for ranks in self.members.values()))


@dataclass(slots=True)
class Timeline:
    """What a rank had issued, whether it waited and had unfinished calls, from each time on."""

    times: list[float] = field(default_factory=lambda: [0.0])
    states: list[tuple[dict[int, int], bool, bool]] = field(
        default_factory=lambda: [({}, False, False)]
    )

    def at(self, time: float) -> RankMoment:
        """The rank at a time."""
        issued, idle, unfinished = self.states[bisect_right(self.times, time) - 1]
        return RankMoment(issued, idle, unfinished)


@dataclass(frozen=True, slots=True)
class Delays:
    """What makes the steps of a job take longer."""

    seed: int
    jitter: float = 0.1
    """Mean of what each step takes longer by chance, as a share of it."""
    slow: Callable[[int, int, Random], tuple[float, float]] = lambda *_: (1.0, 0.0)
    """(rank, turn, random) -> factor of its steps, and seconds before them, in that turn."""
    transfer_s: float = 0.001

    def random(self, what: object) -> Random:
        """Return the source of chance for something."""
        return Random(f"{self.seed} {what}")  # noqa: S311 (chance that can be repeated)


def run(job: Job, turns: int, delays: Delays) -> tuple[float, dict[int, Timeline]]:
    """Return the seconds that the job takes, and what its ranks did."""
    programs = {rank: _program(job, rank, turns, delays) for rank in job.ranks}
    lines = {rank: Timeline() for rank in job.ranks}
    now = dict.fromkeys(job.ranks, 0.0)
    counts: dict[int, dict[int, int]] = {rank: defaultdict(int) for rank in job.ranks}
    issued: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    waits: dict[int, tuple[int, int]] = {}
    sleepers: dict[tuple[int, int], list[int]] = defaultdict(list)
    ready = list(job.ranks)
    while ready:
        rank = ready.pop()
        line = lines[rank]

        def note(*, idle: bool, rank: int = rank, line: Timeline = line) -> None:
            open_ = any(
                len(issued[group, number]) < len(job.members[group])
                for group, number in counts[rank].items()
            )
            line.times.append(now[rank])
            line.states.append((dict(counts[rank]), idle, idle or open_))

        if rank in waits:
            key = waits.pop(rank)
            now[rank] = max(now[rank], max(issued[key].values()) + delays.transfer_s)
            note(idle=False)
        for kind, value in programs[rank]:
            if kind == "compute":
                now[rank] += value
                continue
            group = int(value)
            if kind == "issue":
                counts[rank][group] += 1
                key = group, counts[rank][group]
                issued[key][rank] = now[rank]
                note(idle=False)
                if len(issued[key]) == len(job.members[group]):
                    ready += sleepers.pop(key, [])
                continue
            key = group, counts[rank][group]
            note(idle=True)
            waits[rank] = key
            if len(issued[key]) < len(job.members[group]):
                sleepers[key].append(rank)
            else:
                ready.append(rank)
            break
    assert not sleepers
    return max(now.values()), lines


def _program(job: Job, rank: int, turns: int, delays: Delays) -> Iterator[Step]:
    chance, late = delays.random(rank), delays.random(f"{rank} late")
    for turn in range(turns):
        factor, extra_s = delays.slow(rank, turn, late)

        def takes(seconds: float, factor: float = factor) -> float:
            return seconds * factor * (1 + delays.jitter * chance.expovariate(1.0))

        if extra_s:
            yield "compute", extra_s
        yield from job.turn(rank, takes)


def watched(
    job: Job, lines: Mapping[int, Timeline], end_s: float, window_s: float, seed: int = 0
) -> tuple[StragglerWatch, list[tuple[float, Straggler]]]:
    """Watch a job at ten random moments a second; return the news, and when each came."""
    chance = Delays(seed).random("moments")
    watch = StragglerWatch(window_s)
    members = {group: frozenset(ranks) for group, ranks in job.members.items()}
    news = []
    at_s = 0.0
    while (at_s := at_s + chance.uniform(0.05, 0.15)) < end_s:
        seen = {rank: line.at(at_s) for rank, line in lines.items()}
        issued = [sum(one.issued.values()) for one in seen.values()]
        awake, for_these = awake_ranks(seen, job.members)
        watch.add(Observation(at_s, awake, sum(issued), max(issued), for_these))
        straggler = watch.assess(at_s, members)
        if straggler is not None:
            news.append((at_s, straggler))
    return watch, news


@dataclass(frozen=True, slots=True)
class Compared:
    """How nodes are compared. turn_s: what they know of the length of a turn."""

    window_s: float
    turn_s: float = 0.0
    seed: int = 0


def compared(
    job: Job, lines: Mapping[int, Timeline], end_s: float, within: int, look: Compared
) -> tuple[list[tuple[float, Straggler]], int]:
    """Return the same news of nodes of so many ranks each, and how often they were asked.

    Each node has moments, and a clock, of its own.
    """
    window_s, seed = look.window_s, look.seed
    nodes = [range(first, first + within) for first in job.ranks[::within]]
    chance = [Delays(seed).random(f"moments of {at}") for at in range(len(nodes))]
    clocks = [one.uniform(0, 1000) for one in chance]
    watches = [NodeWatch(window_s) for _ in nodes]
    at_s = [0.0] * len(nodes)
    known = StragglerWatch(window_s)
    news: list[tuple[float, Straggler]] = []
    asked, now_s = 0, 0.0
    while (now_s := now_s + 0.5) < end_s:
        for node, ranks in enumerate(nodes):
            members = {g: m for g, m in job.members.items() if set(m) <= set(ranks)}
            while at_s[node] < now_s:
                seen = {rank: lines[rank].at(at_s[node]) for rank in ranks}
                place = sum(sum(one.issued.values()) for one in seen.values())
                awake, _ = awake_ranks(seen, members)
                watches[node].add(clocks[node] + at_s[node], ranks, awake, place)
                at_s[node] += chance[node].uniform(0.05, 0.15)
        times = [clock + now_s for clock in clocks]
        if not any(one.wants(at) for one, at in zip(watches, times, strict=True)):
            continue
        asked += 1
        answers = []
        for number, (one, at) in enumerate(zip(watches, times, strict=True)):
            one.asked(at)
            answers.append(one.moments(f"node-{number}", look.turn_s, ""))
        found = find_slow(answers, known.current_ranks, known.span_s)
        for one, at in zip(watches[1:], times[1:], strict=True):
            one.heard(found, replace(known), at)
        straggler = watches[0].heard(found, known, times[0])
        if straggler is not None:
            news.append((now_s, straggler))
    return news, asked


def data_parallel(size: int, seconds: float, buckets: int = 4) -> Job:
    """Forward, then backward that issues buckets as they come, and waits for the last."""

    def turn(_rank: int, takes: Callable[[float], float]) -> Sequence[Step]:
        steps: list[Step] = [("compute", takes(seconds / 3))]
        for _ in range(buckets):
            steps += [("compute", takes(2 * seconds / 3 / buckets)), ("issue", 0)]
        return [*steps, ("wait", 0)]

    return Job({0: range(size)}, turn)


def tensor_parallel(size: int, within: int, seconds: float, layers: int = 4) -> Job:
    """Tensor groups of neighbours meet in each layer, data groups across them once a turn."""
    groups = size // within
    members: dict[int, Sequence[int]] = {
        g: range(g * within, (g + 1) * within) for g in range(groups)
    }
    members |= {groups + place: range(place, size, within) for place in range(within)}

    def turn(rank: int, takes: Callable[[float], float]) -> Sequence[Step]:
        steps: list[Step] = []
        for _ in range(layers):
            steps += [("compute", takes(seconds / layers)), ("issue", rank // within)]
            steps.append(("wait", rank // within))
        return [*steps, ("issue", groups + rank % within), ("wait", groups + rank % within)]

    return Job(members, turn)
