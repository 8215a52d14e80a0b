"""Finds stragglers of a job on several nodes, without comparing their clocks. Pure.

Each node knows at moments of its own which of its ranks do not wait (*awake*), and tells how often
each set of them was awake in parts of the last minutes. While ranks hold up the job, nobody else is
awake on any node. So what they cost is at most the share of time in which that is so, on the node
where it is the least; less the share in which they wait themselves, which all ranks do while data
are on their way. Of many nodes that is too much where turns vary much: it contains what the last of
many nodes usually costs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise, product
from math import comb

from hangwatch.efficiency.leads import Ranks
from hangwatch.efficiency.straggler_watch import LONGER
from hangwatch.efficiency.stragglers import (
    BLOCKS,
    LEAST_FRACTION,
    MOST_BY_CHANCE,
    Estimate,
    chance,
    estimate,
    excess_of,
    is_steady,
    longest_wait,
    outstanding,
    typical_of,
)

SHIFTS = range(0, BLOCKS // 2 + 1, 2)
"""Parts by which a window may have ended earlier, and has to show the same ranks."""
KEPT = LONGER[-1] * BLOCKS + SHIFTS[-1]
"""Parts that a node tells of."""
MOST_RANKS = 63
"""Of a node; a set of them is one integer."""
MOST_GROUPS = 256
"""That a node tells of; and pairs of ranks that send each other something."""
_TURNS = (1, 2, 4)
"""Turns that are counted as one: of a short one there are few moments, of long ones few turns."""
_MISSING = "the moments of some of the last minutes are missing"
_LEFT_OUT = 20
"""One in so many nodes may be awake for another reason."""

Part = tuple[int, ...]
"""Sets of awake ranks, as the bits of their places among the ranks of the node, each followed by
the number of moments at which these were awake."""


@dataclass(frozen=True, slots=True)
class NodeMoments:
    """What a node tells of its last minutes."""

    host: str
    ranks: tuple[int, ...]
    part_s: float
    """The length of a part."""
    parts: tuple[Part, ...] = ()
    """The newest first, all as long; empty where nothing was known."""
    still: tuple[int, ...] = ()
    """Parts in which its ranks issued no call."""
    turn_parts: int = 1
    """Parts that a turn of the training loop takes, as far as that is known."""
    unknown: str = ""
    """Why nothing is known of the last moments, for people."""
    groups: tuple[int, ...] = ()
    """Process groups that have all their ranks here, as sets of a part."""
    peers: tuple[tuple[int, int], ...] = ()
    """Ranks that have waited for a message, each with one that it was to come from or go to."""

    def bits(self, ranks: Ranks) -> int:
        """Some ranks as a set of a part; those of other nodes are left out."""
        return sum(1 << place for place, rank in enumerate(self.ranks) if rank in ranks)

    def among(self, bits: int) -> Ranks:
        """The ranks of a set of a part."""
        return frozenset(rank for place, rank in enumerate(self.ranks) if bits >> place & 1)


@dataclass(frozen=True, slots=True)
class SlowNodes:
    """Ranks that make a job on several nodes slow."""

    ranks: tuple[int, ...] = ()
    """None where none do for sure."""
    fraction: float = 0.0
    """Share of the time that would be saved if they took as long as the others."""
    like: int = 0
    """A rank that is awake for as long as is typical, on the node of the first if there is one."""
    host: str = ""
    """Where the first of them is."""
    since_s: float = 0.0
    """For how long they have done so."""
    window_s: float = 0.0
    """The window that shows it."""
    suspected: bool = False
    """Some ranks may do; a longer time will tell."""
    unknown: str = ""
    """Why it is not known, for people."""


def find_slow(
    nodes: Sequence[NodeMoments], current: Sequence[int] = (), window_s: float = 0.0
) -> SlowNodes:
    """Return the ranks that cost the job most together.

    nodes: all nodes of the job; several. current: ranks that did so before, found by a window of
    so long. They are suspected until they cost next to nothing in such a one.
    """
    unknown = [f"on {node.host}, {node.unknown}" for node in nodes if node.unknown]
    if len({node.part_s for node in nodes}) > 1:
        unknown.append("the nodes look at different windows (--straggler-window)")
    if unknown:
        return SlowNodes(unknown=unknown[0])
    job = _Job(nodes)
    if not current:
        return _find(job)
    window = job.window(0, max(round(window_s / nodes[0].part_s / BLOCKS), 1))
    if window is None:
        return SlowNodes(unknown=_MISSING)
    if not window.is_short and window.cost(frozenset(current)).mean < LEAST_FRACTION / 2:
        return SlowNodes()
    found = _find(job)
    return found if found.ranks or found.unknown else SlowNodes(suspected=True)


def _find(job: _Job) -> SlowNodes:
    suspected = False
    for factor in LONGER:
        found = _found_by(job, factor)
        if found is None:
            return SlowNodes(suspected=suspected, unknown=_MISSING if factor == LONGER[0] else "")
        if found.ranks:
            return found
        suspected = suspected or found.suspected
    return SlowNodes(suspected=suspected)


def _found_by(job: _Job, factor: int) -> SlowNodes | None:
    """What the last windows of a length show that agree; None where they are not known."""
    window = job.window(SHIFTS[0], factor)
    if window is None:
        return None
    found = window.slow()
    if not found.ranks:
        return found
    parts = 0.0
    for shift in SHIFTS[1:]:
        window = job.window(shift, factor)
        earlier = window.slow() if window else SlowNodes()
        if earlier.ranks != found.ranks:
            return SlowNodes(suspected=True)
        # The first window that shows it had it in a part only, if the cost has grown since.
        parts = shift + factor * BLOCKS * min(earlier.fraction / found.fraction, 1.0)
    part_s = job.nodes[0].part_s
    return replace(found, since_s=parts * part_s, window_s=factor * BLOCKS * part_s)


@dataclass(frozen=True, slots=True)
class _Job:
    """All nodes of a job."""

    nodes: Sequence[NodeMoments]
    counted: Callable[[Part, int], tuple[int, ...]] = field(default_factory=lambda: cache(_counted))
    """_counted(), which is asked for the same part again and again."""
    _parts: dict[Ranks, list[tuple[Ranks, int]]] = field(default_factory=dict)
    """What parts_with() has returned."""

    def window(self, shift: int, factor: int) -> _Window | None:
        """Return a window that ended some parts ago; None where not all is known of it."""
        needed = length = factor * BLOCKS
        known = min(len(node.parts) for node in self.nodes) - shift
        if known < needed:
            return None
        turn = max(node.turn_parts for node in self.nodes)
        still = frozenset.intersection(*(frozenset(node.still) for node in self.nodes))
        moved = [at + shift not in still for at in range(known)]
        kept = _without_longest_wait(moved[:length])
        # Older parts take the place of those that are left out.
        while len(kept) < needed and length < known:
            length = min(length + needed - len(kept), known)
            kept = _without_longest_wait(moved[:length])
        told = [[node.parts[at + shift] for at in kept] for node in self.nodes]
        if not all(all(one) for one in told):
            return None
        return _Window(self, told, turn, {new for new, at in enumerate(kept) if not moved[at]})

    def parts_with(self, ranks: Ranks) -> Sequence[tuple[Ranks, int]]:
        """What ranks hold the others up with, each with the size of the groups that it is made of.

        These are the ranks themselves, or the groups that they are in: the members of a tensor
        group are late together, since they wait for each other in each layer. So are the stages
        of a pipeline. Of groups with ranks on several nodes nothing is known here.
        """
        if ranks in self._parts:
            return self._parts[ranks]
        parts = self._parts[ranks] = [(ranks, 1)]
        groups = {node.among(group) for node in self.nodes for group in node.groups}
        peers = [frozenset(pair) for node in self.nodes for pair in node.peers]
        most = sum(len(node.ranks) for node in self.nodes) // 2
        for size in (1, *sorted({len(group) for group in groups if group & ranks})):
            own = [group for group in groups if len(group) == size]
            alone = ranks.union(*(group for group in own if group & ranks))
            for part, made_of in ((alone, size), (_closure(ranks, [*own, *peers]), 0)):
                if len(part) <= most and part not in dict(parts):
                    parts.append((part, made_of))
        return parts


@dataclass(frozen=True, slots=True)
class _Window:
    """The same time of all nodes."""

    job: _Job
    parts: Sequence[Sequence[Part]]
    """Of each node, without the longest standstill: what happens once makes no straggler."""
    turn: int
    """Parts of a turn."""
    still: Container[int]
    """Those in which no node issued a call."""

    @property
    def is_short(self) -> bool:
        """True if too little is left without the longest standstill."""
        return len(self._blocks()) < BLOCKS

    def slow(self) -> SlowNodes:
        """The ranks that cost the most in this window."""
        if self.is_short:
            return SlowNodes(suspected=True)
        shares = [self._awake(block) for block in self._blocks()]
        excess = excess_of(shares, frozenset(shares[0]))
        ranks = outstanding(excess)
        if not ranks:
            perhaps = outstanding(excess, for_sure=False)
            worth = bool(perhaps) and self.cost(perhaps).mean >= LEAST_FRACTION
            return SlowNodes(suspected=worth)
        cost = self.cost(ranks)
        fraction = min(cost.mean, sum(excess[rank].mean for rank in ranks))
        if fraction < LEAST_FRACTION or not cost.is_sure:
            return SlowNodes(suspected=cost.mean >= LEAST_FRACTION)
        if self._may_be_chance(ranks, excess):
            return SlowNodes(suspected=True)
        slow = tuple(sorted(ranks))
        node = next(node for node in self.job.nodes if slow[0] in node.ranks)
        others = (frozenset(node.ranks) - ranks) or (frozenset(excess) - ranks)
        return SlowNodes(slow, fraction, typical_of(others, excess), node.host)

    def cost(self, ranks: Ranks) -> Estimate:
        """What some ranks cost, as SlowNodes.fraction."""
        costs = [self._cost(part) for part, _ in self.job.parts_with(ranks)]
        return max(costs, key=lambda one: one.mean)

    def _cost(self, ranks: Ranks) -> Estimate:
        held, waits = [], []
        blocks = self._blocks()
        for node, parts in zip(self.job.nodes, self.parts, strict=True):
            own, rest = node.bits(ranks), node.bits(frozenset(node.ranks) - ranks)
            held.append([_within(parts[block], own) for block in blocks])
            if own:
                waits.append([_within(parts[block], rest) for block in blocks])
        held.sort(key=sum)
        least_held, least_waits = held[len(held) // _LEFT_OUT], min(waits, key=sum)
        return estimate([at - usual for at, usual in zip(least_held, least_waits, strict=True)])

    def _blocks(self) -> list[slice]:
        ends = [len(self.parts[0]) * at // BLOCKS for at in range(BLOCKS + 1)]
        return [slice(first, end) for first, end in pairwise(ends) if first < end]

    def _awake(self, block: slice) -> dict[int, float]:
        """By rank, the share of a block for which it was awake."""
        shares: dict[int, float] = {}
        for node, parts in zip(self.job.nodes, self.parts, strict=True):
            counts = [self.job.counted(part, len(node.ranks)) for part in parts[block]]
            total, *awake = map(sum, zip(*counts, strict=True))
            shares |= {rank: count / total for rank, count in zip(node.ranks, awake, strict=True)}
        return shares

    def _may_be_chance(self, ranks: Ranks, excess: Mapping[int, Estimate]) -> bool:
        """True if others could have been the last as often, and it does not show in all blocks."""
        turns = _units(len(self.parts[0]), self.turn, self.still)
        if len(turns) >= 2 * BLOCKS and is_steady(excess, ranks):
            return False
        for (part, size), together in product(self.job.parts_with(ranks), _TURNS):
            units = _units(len(self.parts[0]), together * self.turn, self.still)
            of_nodes = self._own_nodes_by_chance(part, units)
            likely = [of_nodes, *self._own_ranks_by_chance(part, size, units)]
            if max(likely) <= MOST_BY_CHANCE / len(_TURNS):
                return False
        return True

    def _own_nodes_by_chance(self, ranks: Ranks, units: Sequence[slice]) -> float:
        """How likely it is that some nodes wait the least as often as those of the ranks."""
        is_own = [bool(node.bits(ranks)) for node in self.job.nodes]
        count, others = sum(is_own), len(is_own) - sum(is_own)
        if not others:
            return 0.0
        left_out = others // _LEFT_OUT
        won = 0
        for unit in units:
            waits = [
                (_within(parts[unit], 0), own)
                for parts, own in zip(self.parts, is_own, strict=True)
            ]
            rest = sorted(share for share, own in waits if not own)
            won += max(share for share, own in waits if own) < rest[left_out]
        usual = (1 + left_out) / (1 + others)
        return chance(won, len(units), usual, comb(len(is_own), count))

    def _own_ranks_by_chance(
        self, ranks: Ranks, size: int, units: Sequence[slice]
    ) -> Iterator[float]:
        """The same of the ranks of each of their nodes that has others.

        size: of the groups that these are made of, 0 if they are made of none.
        """
        for node, parts in zip(self.job.nodes, self.parts, strict=True):
            own, rest = node.bits(ranks), node.bits(frozenset(node.ranks) - ranks)
            if not own or not rest:
                continue
            alike = [1 << at for at in range(len(node.ranks))] if size == 1 else node.groups
            others = [one for one in alike if one.bit_count() == size and not one & own]
            count = max(own.bit_count() // size, 1) if others else 1
            others = others or [rest]
            won = sum(_wins(parts[unit], own, others, count) for unit in units)
            usual = count * (count + 1) / 2  # each, and any two of them
            sets = comb(count + len(others), count)
            yield chance(won, len(units), usual / (usual + len(others)), sets)


def _closure(ranks: Ranks, sets: Sequence[Ranks]) -> Ranks:
    """Add to ranks those that are in a set with one of them, and so on."""
    known, rest = ranks, list(sets)
    while near := [one for one in rest if one & known]:
        known = known.union(*near)
        rest = [one for one in rest if not one <= known]
    return known


def _wins(parts: Sequence[Part], own: int, others: Sequence[int], count: int) -> bool:
    """True if own alone are awake for longer than as many others (stragglers.py)."""
    none = _within(parts, 0)
    most = sum(sorted(_within(parts, one) - none for one in others)[-count:])
    return _within(parts, own) - none > most * (count + 1) / 2


def _without_longest_wait(moved: Sequence[bool]) -> list[int]:
    """The places of parts that are not in the longest standstill; the newest part is the first.

    moved: a part has a call in it. One without lies in the same standstill as the one before it.
    """
    left_out = longest_wait(list(accumulate(reversed(moved)))[::-1])
    return [at for at in range(len(moved)) if not left_out.start <= at < left_out.stop]


def _units(length: int, turn: int, still: Container[int]) -> list[slice]:
    """Cut parts into such of a turn; one without a call belongs to the turn in which it began."""
    units = []
    first = 0
    for end in range(1, length + 1):
        if end - first >= turn and end - 1 not in still:
            units.append(slice(first, end))
            first = end
    return units


def pairs(part: Part) -> Iterator[tuple[int, int]]:
    """Return the (awake ranks, moments) of a part."""
    return zip(part[::2], part[1::2], strict=True)


def _counted(part: Part, size: int) -> tuple[int, ...]:
    """The moments of a part, and those at which each of so many ranks was awake."""
    counts = [0] * (size + 1)
    for ranks, count in pairs(part):
        counts[0] += count
        for place in range(size):
            if ranks >> place & 1:
                counts[place + 1] += count
    return tuple(counts)


def _within(parts: Sequence[Part], ranks: int) -> float:
    """The share of moments at which no ranks but these were awake."""
    total = within = 0
    for part in parts:
        for awake, count in pairs(part):
            total += count
            if not awake & ~ranks:
                within += count
    return within / total
