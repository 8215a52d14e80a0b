"""Which ranks left the common program: the calls of all ranks, held against each other.

Ranks of one program make the same calls, by operation and line, whatever their groups, but
for calls that are not for all of them. So of two ranks the calls that are for both are alike:
one has made the beginning of what the other has. Where two part, one of them has left the
program, and the fewest ranks that explain all partings are those that did.

Two ranks are compared from where all that they did since is known of both (facts/past.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, takewhile

from hangwatch.diagnosis.facts.endings import Ending
from hangwatch.diagnosis.facts.job import NEW_GROUP, SETTING_UP, Job
from hangwatch.diagnosis.facts.past import END, LEFT, Made, Past, Step, pasts
from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.source.program import Line, Position, fork

MOST_CLASSES = 48
"""Of ranks that did the same. Where there are more, each runs in its own way."""
MOST_CONTEXT = 8
"""Calls before a parting that tell what usually comes then."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Two ranks that made the same calls, and then did not."""

    ranks: tuple[int, int]
    ways: tuple[tuple[Made, ...], tuple[Made, ...]]
    """What each of them did from there on, of what is for both."""
    before: tuple[Step, ...]
    """What both did until then, as far as it is known."""
    last: tuple[Made | None, Made | None] = (None, None)
    """The last of that, as each of them did it."""
    pairs: int = 1
    """So many pairs of ranks part like them."""

    def seen_by(self, rank: int) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
        """What a rank did from there on, and what the other did."""
        one, other = self.ways
        return (one, other) if rank == self.ranks[0] else (other, one)


@dataclass(frozen=True, slots=True)
class Departures:
    """Who left the common program; empty where all follow it, or that is not known."""

    ranks: frozenset[int] = frozenset()
    by_habit: frozenset[int] = frozenset()
    """Those of them that are known only by what all did before; that is no proof."""
    tied: frozenset[int] = frozenset()
    """Of these some left it, and nothing tells which."""
    partings: tuple[Parting, ...] = ()


def departures(
    job: Job, ended: Mapping[int, Ending], source: Source, ranks: Iterable[int]
) -> Departures:
    """Compare ranks of a job, each with each."""
    known = pasts(job, ended, ranks)
    if len(known) > MOST_CLASSES:
        return Departures()
    partings = {
        (one, other): replace(parting, pairs=len(a.ranks) * len(b.ranks))
        for (one, a), (other, b) in combinations(enumerate(known), 2)
        if (parting := _parting(job, a, b)) is not None
    }
    covers = _covers(list(partings), [len(past.ranks) for past in known])
    if not covers:
        return Departures(partings=tuple(partings.values()))
    left = sure = frozenset.intersection(*covers)
    if len(covers) > 1:
        covers = _by_habit(covers, partings, source)
        left = frozenset.intersection(*covers)

    def of(classes: frozenset[int]) -> frozenset[int]:
        return frozenset(rank for at in classes for rank in known[at].ranks)

    tied = frozenset.union(*covers) - left
    return Departures(of(left), of(left - sure), of(tied), tuple(partings.values()))


# --- Where two ranks part -------------------------------------------------------------


def _parting(job: Job, one: Past, other: Past) -> Parting | None:
    """Where two part; None where one made the beginning of what the other did."""
    recorded = one.recorded and other.recorded
    found = _parting_of(job, one, other, python=False) if recorded else None
    if found is None and not (recorded and one.whole and other.whole):
        found = _parting_of(job, one, other, python=True)
    if found is None:
        found = _parting_in_a_group(one, other)
    if found is None and (turned := _parting_in_a_group(other, one)) is not None:
        found = replace(
            turned,
            ranks=(turned.ranks[1], turned.ranks[0]),
            ways=(turned.ways[1], turned.ways[0]),
            last=(turned.last[1], turned.last[0]),
        )
    return found


def _parting_of(job: Job, one: Past, other: Past, *, python: bool) -> Parting | None:
    for kinds, starts in _knowledge(one, other, python=python):
        mine, theirs = (
            [
                made
                for made in past.calls[max(0, start) :]
                if made.step.kind in kinds
                and (made.by_python or not python)
                and not made.aside
                and _is_for(job, past, made, rival)
            ]
            for past, rival, start in ((one, other, starts[0]), (other, one, starts[1]))
        )
        if max(starts) >= 0:
            mine, theirs = _from_a_place_of_both(mine, theirs)
            if not mine:
                continue
        mine += [Made(END, -1, 0)] * one.ended
        theirs += [Made(END, -1, 0)] * other.ended
        for number, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a.step != b.step and not _is_one_call(one, other, a, b):
                return Parting(
                    (one.ranks[0], other.ranks[0]),
                    (tuple(mine[number:]), tuple(theirs[number:])),
                    tuple(made.step for made in mine[:number]),
                    (mine[number - 1], theirs[number - 1]) if number else (None, None),
                )
    return None


def _knowledge(
    one: Past, other: Past, *, python: bool
) -> Iterator[tuple[frozenset[str], tuple[int, int]]]:
    """(kinds of groups, the calls of each of two from which on all of these kinds are known).

    First of all kinds that are known at all, then without those that are known least far back.
    """
    mine, theirs = dict(one.known[python]), dict(other.known[python])
    unknown = {kind for kind, since in mine.items() if since > len(one.calls)}
    unknown |= {kind for kind, since in theirs.items() if since > len(other.calls)}
    kinds = sorted(
        {*mine, *theirs} - unknown,
        key=lambda kind: (max(mine.get(kind, -1), theirs.get(kind, -1)), kind),
    )
    before = None
    for count in range(len(kinds), 0, -1):
        some = frozenset(kinds[:count])
        starts = (
            max(mine.get(kind, -1) for kind in some),
            max(theirs.get(kind, -1) for kind in some),
        )
        if starts != before:
            yield some, starts
        before = starts


def _is_for(job: Job, past: Past, made: Made, rival: Past) -> bool:
    """Whether a call of one rank is for another rank, too."""
    if (made.gid in rival.groups and not made.p2p) or job.keys[made.gid] is SETTING_UP:
        return True
    if past.part != rival.part:
        return False
    return made.step in rival.steps or job.keys[made.gid].desc in rival.kinds


def _from_a_place_of_both(mine: list[Made], theirs: list[Made]) -> tuple[list[Made], list[Made]]:
    """Both from the first place on that both have been at; nothing where there is none."""
    at = {(made.gid, made.seq): number for number, made in enumerate(theirs) if not made.p2p}
    for number, made in enumerate(mine):
        there = None if made.p2p else at.get((made.gid, made.seq))
        if there is not None:
            return mine[number:], theirs[there:]
    return [], []


def _is_one_call(one: Past, other: Past, mine: Made, theirs: Made) -> bool:
    """Whether two ranks make a collective together from two lines, each from its own alone."""
    return (
        not mine.p2p
        and (mine.gid, mine.seq) == (theirs.gid, theirs.seq)
        and mine.step.wire == theirs.step.wire
        and (mine.step.wire != NEW_GROUP or mine.step.size == theirs.step.size)
        and mine.step not in other.steps
        and theirs.step not in one.steps
    )


def _parting_in_a_group(leaver: Past, other: Past) -> Parting | None:
    """Where one of two has destroyed a group in which the other goes on."""
    for gid in sorted(leaver.left & other.groups - other.left):
        own = [made for made in leaver.calls if made.gid == gid and not made.p2p]
        more = [made for made in other.calls if made.gid == gid and not made.p2p][len(own) :]
        if own and own[0].seq == 1 and own[-1].seq == len(own) and more:
            end = Made(Step(LEFT, kind=own[0].step.kind), gid, 0)
            ranks = leaver.ranks[0], other.ranks[0]
            return Parting(ranks, ((end,), tuple(more)), _until_the_end_of(leaver, gid))
    return None


def _until_the_end_of(past: Past, gid: int) -> tuple[Step, ...]:
    """What it did in groups of one kind, with their ends, up to the last call in one of them."""
    last = max(number for number, made in enumerate(past.calls) if made.gid == gid and not made.p2p)
    kind = past.calls[last].step.kind
    steps: list[Step] = []
    before = -1
    for made in past.calls[: last + 1]:
        if made.step.kind != kind:
            continue
        if before != made.gid and before in past.left:
            steps.append(Step(LEFT, kind=kind))
        steps.append(made.step)
        before = made.gid
    return tuple(steps)


# --- Who explains all partings --------------------------------------------------------


def _covers(edges: Sequence[tuple[int, int]], weights: Sequence[int]) -> list[frozenset[int]]:
    """The sets of the fewest ranks of which each edge has one; none where it takes most ranks."""
    best: list[frozenset[int]] = []
    least = sum(weights) // 2

    def search(left: Sequence[tuple[int, int]], taken: frozenset[int], weight: int) -> None:
        nonlocal best, least
        if weight > least:
            return
        if not left:
            best = [*best, taken] if weight == least else [taken]
            least = weight
            return
        degrees = Counter(at for edge in left for at in edge)
        hub = max(degrees, key=lambda at: (degrees[at], -weights[at], -at))
        # Either the hub, or all that it parts from.
        search([e for e in left if hub not in e], taken | {hub}, weight + weights[hub])
        around = {at for edge in left if hub in edge for at in edge} - {hub}
        search(
            [e for e in left if not around & {*e}],
            taken | around,
            weight + sum(weights[at] for at in around),
        )

    if edges:
        search(edges, frozenset(), 0)
    return list(dict.fromkeys(best))


def _by_habit(
    covers: Sequence[frozenset[int]], partings: Mapping[tuple[int, int], Parting], source: Source
) -> list[frozenset[int]]:
    """Those covers that have most of the ranks that did what they never did before."""
    strange = [
        pair[side]
        for pair, parting in partings.items()
        if (side := strange_side(parting, source)) is not None
    ]
    scores = [sum(at in cover for at in strange) for cover in covers]
    return [cover for cover, score in zip(covers, scores, strict=True) if score == max(scores)]


def strange_side(parting: Parting, source: Source) -> int | None:
    """Which of two ranks did what they never did at this point.

    A call that is new to both may come after a loop: it is strange only where the source shows
    that none ends between their lines.
    """
    found = _strange(parting, lambda step: step, new=False)
    return odd_side(parting) if found is None and _in_one_loop(parting, source) else found


def odd_side(parting: Parting) -> int | None:
    """The same of two that are known to be in the same loops, so that no call is new by chance."""
    return _strange(parting, lambda step: step._replace(file="", line=0), new=True)


def _strange(parting: Parting, read: Callable[[Step], Step], *, new: bool) -> int | None:
    """The same. read: what is compared of a call; new: a call that neither knows is strange."""
    before, known = parting.before, [read(step) for step in parting.before]
    alike = sum(1 for _ in takewhile(lambda step: step == before[-1], reversed(before)))
    # One of several equal calls in a row tells nothing: it takes all of them, and one before.
    # Unless the source shows that it is no loop that ends with them.
    least = alike if alike > 1 and not new else 0
    for length in range(min(MOST_CONTEXT, len(before)), least, -1):
        context = before[-length:]
        usual = {
            before[at] for at in range(length, len(before)) if before[at - length : at] == context
        }
        if usual:
            expected = {read(step) for step in usual}
            ways = [[read(made.step) for made in way] for way in parting.ways]
            odd = [side for side, way in enumerate(ways) if way[0] not in expected]
            if len(odd) != 1 or not (new or ways[odd[0]][0] in known):
                return None
            if parting.ways[1 - odd[0]][0].step not in usual:
                return None  # the same operation, and another call
            # What it does again and again from then on is a part of the program.
            again = (known[-1], ways[odd[0]][0]) in pairwise(ways[odd[0]])
            return None if again else odd[0]
    return None


def _in_one_loop(parting: Parting, source: Source) -> bool:
    """Whether the source shows that neither is past a loop that the other is in."""
    here, there = (Position((Line(way[0].step.file, way[0].step.line),)) for way in parting.ways)
    found = fork(source.program, here, there)
    return found is not None and not found.left and not found.back.left
