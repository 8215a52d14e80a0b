"""Finds stragglers: ranks that all others wait for again and again, although nothing hangs. Pure.

At many moments of a window it is known of each rank how many calls it has issued in each group, and
if it waits. A rank waits for the members of a group that have issued fewer calls than itself. The
ranks that do not wait are *active*. While all others wait for a few active ranks, directly or not,
the job loses time to these. What they would cost anyway, since some rank is always the last, is
known from how often the others are last among themselves:

    E[max(a + d, b)] - E[max(a, b)] = E[(a + d - b)+] - E[(a - b)+]

for the time a that the ranks in question usually take, their delay d, and the time b of the others.
No clocks are compared, and lateness that nobody waits for costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, exp, inf, log, sqrt
from statistics import median_low
from typing import TypeVar

_T = TypeVar("_T")

Ranks = frozenset[int]

LEAST_FRACTION = 0.05
"""Share of the time that is worth a word."""
BLOCKS = 20
"""Parts of a window, of which each is one observation."""
LEAST_CERTAINTY = 4.0
"""Standard errors by which a cost is above zero."""
MOST_BY_CHANCE = 1e-5
"""Chance at which one of the ranks would be waited for as often as the stragglers."""
MOST_RANKS = 64
"""Stragglers of one window, at most; where there are more it is the job that is slow."""
_WAITS = (1, 3, 10, 30)
"""Moments that a wait takes at least to be counted: short ones by chance are in any turn."""
_WORTH = 0.3
"""Share of the longest excess that a rank has to have to be one of them."""
_LEAST_EXCESS = 0.03
"""Share of the time by which a straggler is active for longer than others."""


@dataclass(frozen=True, slots=True)
class RankMoment:
    """A rank at one moment."""

    issued: Mapping[int, int]
    """Calls issued by then, by group."""
    idle: bool = False
    """The thread that issues calls waits, for whatever."""
    unfinished: bool = False
    """A call that it has issued is not complete."""
    peer: int = -1
    """The rank that it waits to send to or to receive from, -1 for none."""


Calls = list[tuple[int, int]]
"""As (group, number in it)."""


def awake_ranks(
    moment: Mapping[int, RankMoment], members: Mapping[int, Sequence[int]]
) -> tuple[Ranks, bool]:
    """Return the ranks that do not wait, and True if all others wait for these, directly or not.

    Others wait for data that are on their way. Groups that some of their members do not count are
    left out.
    """
    least = _least_issued(moment, members)
    waiting = {rank: _awaited(at, least) for rank, at in moment.items() if _waits(at, least)}
    awake = frozenset(moment.keys() - waiting.keys())
    # Those that wait for one that is awake, then those that wait for one of these, and so on.
    known = set(awake)
    reached: dict[int, int] = {}
    """By group, the fewest calls of the known ranks."""
    new = known
    while new:
        for rank in new:
            for group in least.keys() & moment[rank].issued.keys():
                count = moment[rank].issued[group]
                reached[group] = min(count, reached.get(group, count))
        new = {
            rank
            for rank in waiting.keys() - known
            if moment[rank].peer in known
            or any(reached.get(group, number) < number for group, number in waiting[rank])
        }
        known |= new
    return awake, len(known) == len(moment)


def _least_issued(
    moment: Mapping[int, RankMoment], members: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """By group, the calls that all members have issued, where all count them."""
    return {
        group: min(moment[rank].issued[group] for rank in ranks)
        for group, ranks in members.items()
        if all(rank in moment and group in moment[rank].issued for rank in ranks)
    }


def _waits(at: RankMoment, least: Mapping[int, int]) -> bool:
    """True if a rank waits in a call: for others, or for its data."""
    return at.idle and (at.peer >= 0 or at.unfinished or bool(_awaited(at, least)))


def _awaited(at: RankMoment, least: Mapping[int, int]) -> Calls:
    """The calls of a rank that others have not issued yet; none of a rank that waits for a peer."""
    if at.peer >= 0:
        return []
    return [(g, n) for g, n in at.issued.items() if g in least and n > least[g]]


@dataclass(frozen=True, slots=True)
class Window:
    """The active ranks at the moments of a window, in their order (``Observation``)."""

    members: Mapping[int, Ranks]
    """Of the groups of the job; one has all its ranks, or all are in one of them."""
    active: Sequence[Ranks]
    fronts: Sequence[int]
    """Calls issued by then by the rank that has issued the most."""
    apart: int = 1
    """Moments of a turn of the training loop, as far as that is known: what delays a rank in a turn
    may delay it in all calls of the turn."""

    @property
    def ranks(self) -> Ranks:
        """All ranks of the job."""
        return frozenset().union(*self.members.values())


def longest_wait(places: Sequence[int]) -> slice:
    """Return the moments of the longest standstill; none if it took no longer than one block.

    What happens once is no straggler, however long it takes. places: the calls that all ranks
    together had issued by each moment.
    """
    first = longest = at = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[at]:
            if end - at > longest:
                first, longest = at, end - at
            at = end
    return slice(first, first + longest) if longest > len(places) // BLOCKS else slice(0, 0)


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """Ranks that the others waited for, in one window."""

    ranks: tuple[int, ...]
    fraction: float
    """Share of the time that would be saved if they took as long as the others."""
    like: int
    """A rank that is active for as long as is typical."""


def stragglers_of(window: Window) -> SlowRanks | None:
    """Return the ranks that cost the job most together; None where none stands out for sure.

    Two ranks that are slow alike are both returned, though one of them alone would save nothing.
    A rank that is late because it has waited itself was active for no longer than others.
    """
    excess = _excess(window)
    ranks = outstanding(excess)
    if not ranks:
        return None
    cost = _cost(window, ranks, excess)
    if cost.mean < LEAST_FRACTION or not cost.is_sure or _may_be_chance(window, ranks):
        return None
    return SlowRanks(tuple(sorted(ranks)), cost.mean, typical_of(window.ranks - ranks, excess))


def cost_of(window: Window, ranks: Ranks) -> float:
    """Return what ranks of the job cost it, as SlowRanks.fraction; 0 where it is not known."""
    return _cost(window, ranks, _excess(window)).mean


def outstanding(excess: Mapping[int, Estimate]) -> Ranks:
    """Return the ranks that are active for longer than others for sure; none where many are."""
    most = max(one.mean for one in excess.values())
    ranks = frozenset(
        rank
        for rank, one in excess.items()
        if one.mean >= max(_WORTH * most, _LEAST_EXCESS) and one.is_sure
    )
    return ranks if len(ranks) <= min(len(excess) // 2, MOST_RANKS) else frozenset()


def typical_of(ranks: Ranks, excess: Mapping[int, Estimate]) -> int:
    """Return the rank of some that is active for as long as is typical of them."""
    ordered = sorted(ranks, key=lambda rank: (excess[rank].mean, rank))
    return ordered[len(ordered) // 2]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of the blocks of a window, and its standard error."""

    mean: float
    error: float

    @property
    def is_sure(self) -> bool:
        """True if it is above zero for sure."""
        return self.mean > LEAST_CERTAINTY * self.error


def estimate(blocks: Sequence[float]) -> Estimate:
    """Return what blocks show together; of too few it is not sure."""
    if len(blocks) < BLOCKS:
        return Estimate(0.0, inf)
    mean, count = _mean(blocks), len(blocks)
    # statistics.stdev() is exact, and takes thirty times as long.
    variance = sum((at - mean) ** 2 for at in blocks) / (count - 1)
    return Estimate(mean, sqrt(variance / count))


def _excess(window: Window) -> dict[int, Estimate]:
    parts = [part for part in _parts(window.active, BLOCKS) if part]
    return excess_of([_active_shares(part) for part in parts], window.ranks)


def excess_of(shares: Sequence[Mapping[int, float]], ranks: Ranks) -> dict[int, Estimate]:
    """Return the share of the time by which each rank is active for longer than a typical one.

    shares: by rank the share of each block for which it is active; 0 of those that are missing.
    """
    typical = [median_low(share.get(rank, 0.0) for rank in ranks) for share in shares]
    return {
        rank: estimate(
            [share.get(rank, 0.0) - at for share, at in zip(shares, typical, strict=True)]
        )
        for rank in ranks
    }


def _cost(window: Window, ranks: Ranks, excess: Mapping[int, Estimate]) -> Estimate:
    costs = [
        estimate([_mean(part) for part in _parts(_costs(window, unit, units), BLOCKS) if part])
        for unit, units in _units(window, ranks)
    ]
    cost = max(costs, key=lambda one: one.mean)
    return replace(cost, mean=min(cost.mean, sum(excess[rank].mean for rank in ranks)))


def chance(count: int, of: int, share: float) -> float:
    """Return at most how likely at least ``count`` of so many are, if each is by ``share``.

    By Chernoff's bound; it is exact where all are.
    """
    part = count / of if of else 0.0
    if part <= share:
        return 1.0
    rest = (1 - part) * log((1 - part) / (1 - share)) if part < 1 else 0.0
    return exp(-of * (part * log(part / share) + rest))


def _may_be_chance(window: Window, ranks: Ranks) -> bool:
    """True if others could be waited for as often. Blocks that are shorter than turns do not show.

    By chance each part would be waited for in as many turns, also if only long waits are counted.
    """
    for unit, others in _units(window, ranks):
        parts = len(unit) // len(others[0])
        sets = comb(parts + len(others), parts)
        own = parts * (parts + 1) / 2  # each, and any two of them
        waits = _waits_by_turn(window, unit, others)
        total = sum(mine for mine, theirs in waits if mine > theirs)
        for least in _WAITS:
            long = [(mine, theirs) for mine, theirs in waits if max(mine, theirs) >= least]
            won = [mine for mine, theirs in long if mine > theirs]
            likely = sets * chance(len(won), len(long), own / (own + len(others)))
            if 2 * sum(won) >= total and likely <= MOST_BY_CHANCE:
                return False
    return True


def _waits_by_turn(window: Window, unit: Ranks, others: Sequence[Ranks]) -> list[tuple[int, int]]:
    """Moments of each turn at which all waited for a part of the job, and for another such part.

    A time without progress counts to the turn in which it began, however long it takes.
    """
    waits: dict[int, list[int]] = {}
    last, turn = (0, False), 0
    costs = _costs(window, unit, others)
    for number, (front, cost) in enumerate(zip(window.fronts, costs, strict=True)):
        if not cost:
            continue
        if (front, cost > 0) != last:
            last, turn = (front, cost > 0), number // window.apart
        waits.setdefault(turn, [0, 0])[cost < 0] += 1
    return [(mine, theirs) for mine, theirs in waits.values()]


def _active_shares(moments: Sequence[Ranks]) -> dict[int, float]:
    """The share of moments at which each rank was active."""
    counts = Counter(rank for active in moments for rank in active)
    return {rank: count / len(moments) for rank, count in counts.items()}


def _units(window: Window, ranks: Ranks) -> Iterator[tuple[Ranks, list[Ranks]]]:
    """The parts of the job that ranks hold up, each with all parts of its kind.

    These are the ranks themselves, and the groups that they are in: the members of a tensor group
    are late together, since they wait for each other in each layer.
    """
    size = len(window.ranks)
    yield ranks, [frozenset({rank}) for rank in window.ranks - ranks]
    groups = {group for group in window.members.values() if 1 < len(group) < size}
    for own in {group for group in groups if group & ranks}:
        kind = [own, *(one for one in groups if len(one) == len(own) and not one & own)]
        unit = frozenset().union(*(group for group in kind if group & ranks))
        others = [group for group in kind if not group & ranks]
        if ranks <= unit and len(unit) <= size // 2 and others:
            yield unit, others


def _costs(window: Window, unit: Ranks, others: Sequence[Ranks]) -> list[float]:
    """The cost at each moment: 1 where all wait for the unit, less what is usual."""
    share = len(others) / (len(others) + 1)
    costs = []
    for active in window.active:
        cost = 0.0
        if active:
            rest = active if len(others) == 1 else active - unit
            if active <= unit:
                cost = 1.0
            elif any(rest <= other for other in others):
                cost = -share / len(others)
        costs.append(cost)
    return costs


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _parts(values: Sequence[_T], count: int) -> list[Sequence[_T]]:
    """Values cut into parts of nearly equal length."""
    return [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
