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
from dataclasses import dataclass, field, replace
from math import comb, exp, inf, log, sqrt
from statistics import median_low
from typing import TypeVar

from hangwatch.efficiency.leads import Leads, Ranks

_T = TypeVar("_T")

LEAST_FRACTION = 0.05
"""Share of the time that is worth a word."""
BLOCKS = 20
"""Parts of a window, of which each is one observation."""
LEAST_CERTAINTY = 4.0
"""Standard errors by which a cost is above zero."""
_PERHAPS = 2.5
"""The same of one that may be."""
MOST_BY_CHANCE = 1e-5
"""Chance at which one of the ranks would be waited for as often as the stragglers."""
MOST_RANKS = 64
"""Stragglers of one window, at most; where there are more it is the job that is slow."""
_WAITS = (1, 3, 10, 30)
"""Moments that a wait takes at least to be counted: short ones by chance are in any turn."""
_STEADY = 8.0
"""Standard errors by which what is so in all blocks alike is above zero."""
_TOGETHER = (1, 4, 16)
"""Turns that are counted as one."""
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits for whom at one moment."""

    awake: Ranks
    """Those that do not wait."""
    awaited: tuple[tuple[Ranks, Ranks], ...] = ()
    """Those that wait for others: as (awake ranks that all of these wait for, directly or not, and
    for no other; these)."""
    for_data: bool = False
    """Some wait for no others: their data are on the way."""

    @property
    def active(self) -> Ranks:
        """The ranks that all others wait for; all ranks where none waits, none ``for_data``."""
        return frozenset() if self.for_data else self.awake


def who_waits(moment: Mapping[int, RankMoment], members: Mapping[int, Sequence[int]]) -> Waiting:
    """Return who waits for whom. Groups that some of their members do not count are left out."""
    least = _least_issued(moment, members)
    waiting: dict[tuple[int, tuple[tuple[int, int], ...]], list[int]] = {}
    """The ranks that wait, by the peer and the calls that they wait for."""
    for rank, at in moment.items():
        if _waits(at, least):
            waiting.setdefault((at.peer, tuple(_awaited(at, least))), []).append(rank)
    direct = {
        wait: {wait[0]} & moment.keys()
        | {rank for g, n in wait[1] for rank in members[g] if moment[rank].issued[g] < n}
        for wait in waiting
    }
    wait_of = {rank: wait for wait, ranks in waiting.items() for rank in ranks}
    awake = frozenset(moment.keys() - wait_of.keys())
    awaited = {wait: ranks & awake for wait, ranks in direct.items()}
    # Those that wait for one that waits wait for whom it waits for.
    changed = True
    while changed:
        changed = False
        for wait, ranks in direct.items():
            more = [awaited[wait_of[rank]] for rank in ranks - awake]
            known = awaited[wait].union(*more)
            changed, awaited[wait] = changed or known != awaited[wait], known
    by_awaited: dict[Ranks, list[int]] = {}
    for wait, known in awaited.items():
        by_awaited.setdefault(frozenset(known), []).extend(waiting[wait])
    for_data = by_awaited.pop(frozenset(), None) is not None
    return Waiting(awake, tuple((on, frozenset(own)) for on, own in by_awaited.items()), for_data)


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
    """The moments of a window, in their order (``Observation``)."""

    members: Mapping[int, Ranks]
    """Of the groups of the job; one has all its ranks, or all are in one of them."""
    waiting: Sequence[Waiting]
    fronts: Sequence[int]
    """Calls issued by then by the rank that has issued the most."""
    apart: int = 1
    """Moments of a turn of the training loop, as far as that is known: what delays a rank in a turn
    may delay it in all calls of the turn."""
    leads: Leads = field(default_factory=Leads)
    """Those of this window and before: what delays a rank in one is no chance of each turn."""

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
    if cost.mean < LEAST_FRACTION or not cost.is_sure or _may_be_chance(window, ranks, excess):
        return None
    return SlowRanks(tuple(sorted(ranks)), cost.mean, typical_of(window.ranks - ranks, excess))


def perhaps_slow(window: Window) -> Ranks:
    """Return ranks that seem to cost the job time, if a longer window might show it for sure."""
    excess = _excess(window)
    ranks = outstanding(excess, for_sure=False)
    if not ranks:
        return ranks
    cost = _cost(window, ranks, excess)
    likely = cost.mean >= LEAST_FRACTION and cost.mean > _PERHAPS * cost.error
    return ranks if likely else frozenset()


def cost_of(window: Window, ranks: Ranks) -> float:
    """Return what ranks of the job cost it, as SlowRanks.fraction; 0 where it is not known."""
    return _cost(window, ranks, _excess(window)).mean


def outstanding(excess: Mapping[int, Estimate], *, for_sure: bool = True) -> Ranks:
    """Return the ranks that are active for longer than others; none where many are."""
    most = max(one.mean for one in excess.values())
    ranks = frozenset(
        rank
        for rank, one in excess.items()
        if one.mean >= max(_WORTH * most, _LEAST_EXCESS) and (one.is_sure or not for_sure)
    )
    return ranks if len(ranks) <= min(len(excess) // 2, MOST_RANKS) else frozenset()


def is_steady(excess: Mapping[int, Estimate], ranks: Ranks) -> bool:
    """True if ranks are active for longer in all blocks alike."""
    return all(excess[rank].mean > _STEADY * excess[rank].error for rank in ranks)


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
    active = [moment.active for moment in window.waiting]
    parts = [part for part in _parts(active, BLOCKS) if part]
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
    costs: list[Estimate] = []
    for unit, others in _units(window, ranks):
        lost = []
        for shares in _held_up(window, unit, others):
            mine = shares.get(unit, 0.0)
            theirs = sum(shares.values()) - mine
            lost.append(mine - theirs / (len(others) + 1))
        costs.append(estimate([_mean(part) for part in _parts(lost, BLOCKS) if part]))
    cost = max(costs, key=lambda one: one.mean)
    return replace(cost, mean=min(cost.mean, sum(excess[rank].mean for rank in ranks)))


def chance(count: int, of: int, share: float, sets: int = 1) -> float:
    """Return at most how likely at least ``count`` of so many are, if each is by ``share``.

    By Chernoff's bound; it is exact where all are. sets: how many others it could have been, of
    which one is enough.
    """
    part = count / of if of else 0.0
    if part <= share:
        return 1.0
    rest = (1 - part) * log((1 - part) / (1 - share)) if part < 1 else 0.0
    # Of a thousand nodes there are more sets than a float can tell.
    return exp(min(log(sets) - of * (part * log(part / share) + rest), 0.0))


def _may_be_chance(window: Window, ranks: Ranks, excess: Mapping[int, Estimate]) -> bool:
    """True if others could be waited for as often. Blocks that are shorter than turns do not show.

    By chance each part would be waited for in as many turns, also if only long waits are counted,
    or the waits of several turns as one: a short turn has few moments. In a pipeline the others
    always wait for some stages, and more than for a slow one: that it is active for longer has to
    show in all blocks alike then, and each has several turns.
    """
    steady = is_steady(excess, ranks)
    apart = max(window.apart, window.leads.usual(ranks))
    for unit, others in _units(window, ranks):
        parts = len(unit) // len(others[0])
        sets = comb(parts + len(others), parts)
        own = parts * (parts + 1) / 2  # each, and any two of them
        turns = _waits_by_turn(window, unit, others, apart)
        if steady and len(turns) >= 2 * BLOCKS:
            return False
        for together in _TOGETHER:
            waits = _compared(turns, unit, together)
            total = sum(mine for mine, theirs in waits if mine > theirs)
            for least in _WAITS:
                long = [(mine, theirs) for mine, theirs in waits if max(mine, theirs) >= least]
                won = [mine for mine, theirs in long if mine > theirs]
                likely = chance(len(won), len(long), own / (own + len(others)), sets)
                if 2 * sum(won) >= total and likely <= MOST_BY_CHANCE / len(_TOGETHER):
                    return False
    return True


def _waits_by_turn(
    window: Window, unit: Ranks, others: Sequence[Ranks], apart: int
) -> list[Mapping[Ranks, float]]:
    """Moments of each turn at which all waited for a part of the job. apart: moments of a turn.

    A time without progress counts to the turn in which it began, however long it takes.
    """
    waits: dict[int, Counter[Ranks]] = {}
    last, turn = None, 0
    held_up = _held_up(window, unit, others)
    for number, (front, shares) in enumerate(zip(window.fronts, held_up, strict=True)):
        if not shares:
            continue
        most = max(shares, key=lambda part: shares[part])
        if (front, most) != last:
            last, turn = (front, most), number // apart
        waits.setdefault(turn, Counter()).update(shares)
    return list(waits.values())


def _compared(
    turns: Sequence[Mapping[Ranks, float]], unit: Ranks, together: int
) -> list[tuple[float, float]]:
    """Of so many turns each the moments at which all waited for the unit, and for its equal.

    The equal of a unit of several parts are as many others, those that were waited for the most.
    """
    waits = []
    for first in range(0, len(turns), together):
        sums: Counter[Ranks] = Counter()
        for turn in turns[first : first + together]:
            sums.update(turn)
        mine = sums.pop(unit, 0.0)
        parts = len(unit) // len(next(iter(sums), unit))
        most = sum(sorted(sums.values())[-parts:])
        waits.append((mine, most * (parts + 1) / 2))
    return waits


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


def _held_up(
    window: Window, unit: Ranks, others: Sequence[Ranks]
) -> Iterator[Mapping[Ranks, float]]:
    """At each moment, the share of the other ranks that wait for the unit, or another part, alone.

    Where there are several others, these are waited for alone if they would be without the unit.
    """
    size = len(window.ranks)
    without = unit if len(others) > 1 else frozenset[int]()
    known: dict[tuple[tuple[Ranks, Ranks], ...], dict[Ranks, float]] = {}
    for moment in window.waiting:
        if moment.awaited not in known:
            shares = known[moment.awaited] = dict[Ranks, float]()
            for awaited, waiting in moment.awaited:
                if awaited <= unit:
                    part, own = unit, unit
                else:
                    part = next((one for one in others if awaited - without <= one), frozenset())
                    own = part | without
                if part and waiting - own:
                    more = len(waiting - own) / (size - len(own))
                    shares[part] = shares.get(part, 0.0) + more
        yield known[moment.awaited]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _parts(values: Sequence[_T], count: int) -> list[Sequence[_T]]:
    """Values cut into parts of nearly equal length."""
    return [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
