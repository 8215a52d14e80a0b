"""Finds the ranks that left the common sequence of calls, by comparing the calls of all ranks.

Ranks of one program make the same calls, by operation and line, in whatever groups, except for
calls that are not for all of them. So the calls that are for both of two ranks agree: one rank has
made a prefix of the calls of the other. If two ranks diverge, one of them left the sequence. The
fewest ranks that explain all divergences are taken to be the ranks that left it.

The record of a rank has gaps: rings wrap, and not every rank has a recorder. Two ranks are compared
from the point after which all calls of both are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, takewhile
from typing import NamedTuple

from hangwatch.diagnosis.facts.endings import Ending, How
from hangwatch.diagnosis.facts.history import Step, expected, step
from hangwatch.diagnosis.facts.job import NEW_GROUP, SETTING_UP, Job
from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.source.program import Line, Position, fork
from hangwatch.model.kinds import Phase
from hangwatch.model.snapshot import OpRecord, RankSnapshot

MOST_CALLS = 50_000
"""Most calls of all ranks together that are compared, the last ones of each."""
MOST_CLASSES = 48
"""Most sets of ranks that did the same. If there are more, each rank runs its own program."""
MOST_CONTEXT = 8
"""Calls before a divergence that show the usual next call."""
END = Step("the end of the program")
LEFT = "destroy_process_group"


class Made(NamedTuple):
    """A call of a rank, and its number among the calls of its group."""

    step: Step
    gid: int
    seq: int
    by_python: bool = True
    p2p: bool = False
    aside: bool = False
    """Another thread made it than the one that makes most calls of the rank."""


@dataclass(frozen=True)
class Past:
    """The calls of ranks that did the same, in a form that can be compared."""

    ranks: tuple[int, ...]
    calls: tuple[Made, ...]
    known: tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]
    """(kind of group, the call from which on all of that kind are known) pairs, then those
    for what Python made; -1 for all, a number beyond the last call for never."""
    groups: frozenset[int]
    left: frozenset[int]
    """The groups that it has destroyed."""
    recorded: bool
    """The calls that C++ issued are known too."""
    ended: bool
    kinds: frozenset[str]
    """The kinds of the groups that it is in."""
    part: tuple[object, ...]
    """Its position among the ranks that it exchanges messages with."""

    @cached_property
    def whole(self) -> bool:
        """Return True if all calls are known."""
        return all(since < 0 for _, since in self.known[0])

    @cached_property
    def steps(self) -> frozenset[Step]:
        """All steps that it made."""
        return frozenset(made.step for made in self.calls)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two ranks that made the same calls, and then did not."""

    ranks: tuple[int, int]
    ways: tuple[tuple[Made, ...], tuple[Made, ...]]
    """The calls of each from there on that are for both."""
    before: tuple[Step, ...]
    """The calls of both until then, as far as they are known."""
    last: tuple[Made | None, Made | None] = (None, None)
    """The last of that, as each of them did it."""
    pairs: int = 1
    """The number of pairs of ranks that diverge in the same way."""

    def seen_by(self, rank: int) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
        """The calls of a rank from there on, and the calls of the other rank."""
        one, other = self.ways
        return (one, other) if rank == self.ranks[0] else (other, one)


@dataclass(frozen=True, slots=True)
class Departures:
    """The ranks that left the common sequence; empty if none did, or if it is not known."""

    ranks: frozenset[int] = frozenset()
    by_habit: frozenset[int] = frozenset()
    """The ranks among them that only the earlier calls of all ranks show; that is no proof."""
    tied: frozenset[int] = frozenset()
    """Ranks of which some left it, and nothing shows which."""
    divergences: tuple[Divergence, ...] = ()


def departures(
    job: Job, ended: Mapping[int, Ending], source: Source, ranks: Iterable[int]
) -> Departures:
    """Compare ranks of a job, each with each."""
    known = _pasts(job, ended, ranks)
    if len(known) > MOST_CLASSES:
        return Departures()
    divergences = {
        (one, other): replace(divergence, pairs=len(a.ranks) * len(b.ranks))
        for (one, a), (other, b) in combinations(enumerate(known), 2)
        if (divergence := _divergence(job, a, b)) is not None
    }
    covers = _covers(list(divergences), [len(past.ranks) for past in known])
    if not covers:
        return Departures(divergences=tuple(divergences.values()))
    left = sure = frozenset.intersection(*covers)
    if len(covers) > 1:
        covers = _by_habit(covers, divergences, source)
        left = frozenset.intersection(*covers)

    def of(classes: frozenset[int]) -> frozenset[int]:
        return frozenset(rank for at in classes for rank in known[at].ranks)

    tied = frozenset.union(*covers) - left
    return Departures(of(left), of(left - sure), of(tied), tuple(divergences.values()))


# --- The calls of each rank, and how far back all are known ---------------------------


def _pasts(job: Job, ended: Mapping[int, Ending], ranks: Iterable[int]) -> list[Past]:
    """The calls of these ranks, one entry for all ranks that did the same."""
    alike: dict[Past, list[int]] = defaultdict(list)
    several = list(ranks)
    most = MOST_CALLS // max(1, len(several))
    for rank in several:
        alike[_past(job, rank, ended.get(rank), most)].append(rank)
    return [replace(past, ranks=tuple(same)) for past, same in alike.items()]


def _past(job: Job, rank: int, end: Ending | None, most: int) -> Past:
    snapshot, ops = job.ranks[rank], job.ops.get(rank, [])[-most:]
    threads = Counter(record.thread for _, record in ops if _has_thread(record))
    pid = snapshot.pid  # the native id of the main thread as well
    main = max(threads, key=lambda thread: (threads[thread], thread == pid, thread), default=0)
    groups = job.progress.get(rank, {})
    calls = tuple(_calls(job, snapshot, ops, main))
    # The stages of a pipeline differ in the part that they have in the exchange of messages.
    part = {
        (_kind(job, gid), job.keys[gid].ranks.index(rank))
        for gid, record in ops
        if record.p2p and rank in job.keys[gid].ranks
    }
    return Past(
        (),
        calls,
        _known(job, rank, calls),
        frozenset(groups),
        frozenset(gid for gid, progress in groups.items() if not progress.alive),
        # The thread of a call that C++ issued is not known.
        snapshot.flight and len(threads) <= 1,
        snapshot.phase is Phase.FINALIZING if end is None else end.how is How.CLEAN,
        frozenset(_kind(job, gid) for gid in groups),
        tuple(sorted(part)),
    )


def _has_thread(record: OpRecord) -> bool:
    """Return True if the thread that made a call is known, which autograd's for devices is not."""
    return record.source == "page" and not record.device and record.thread != 0


def _calls(
    job: Job, rank: RankSnapshot, ops: Sequence[tuple[int, OpRecord]], main: int
) -> Iterator[Made]:
    used = {(gid, record.p2p) for gid, record in ops}
    kinds = {(gid, p2p): _kind(job, gid, p2p=p2p) for gid, p2p in used}
    # By its size alone a call is not known again in a group that is not described.
    groups = {gid: " " if job.keys[gid].desc else f" {gid}" for gid, _ in used}
    together = job.gid(SETTING_UP)
    new_groups = rank.new_groups if job.reached[together] else ()
    groups_made = {call.number: str(job.gid(call.group)) for call in new_groups}
    for gid, record in ops:
        aside = record.thread != main and _has_thread(record)
        made = step(record, kinds[gid, record.p2p], groups[gid])
        if gid == together:
            made = made._replace(size=groups_made[record.seq])
        yield Made(made, gid, record.seq, record.source == "page", record.p2p, aside)


def _kind(job: Job, gid: int, *, p2p: bool = False) -> str:
    key = job.keys[gid]
    return (key.desc or f"of {len(key.ranks)}") + (" p2p" if p2p else "")


def _known(
    job: Job, rank: int, calls: Sequence[Made]
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Past.known. The rings of Python's calls and of c10d's do not hold as many."""
    every, pythons = _streams(calls), _streams(calls, python=True)
    # Nothing orders the calls of two threads in one group.
    aside = {made.gid for made in calls if made.aside}
    mixed = aside and aside & {made.gid for made in calls if not made.aside}
    groups = job.progress.get(rank, {})
    counts = {(gid, False): (one.enqueued, one.by_python) for gid, one in groups.items()}
    counts |= {(gid, True): (one.p2p, one.p2p) for gid, one in groups.items()}
    together = job.gid(SETTING_UP)
    if job.reached[together]:
        last = max((made.seq for made in calls if made.gid == together), default=0)
        # A rank that made a group without a known call of new_group has made one.
        count = last or int(len(groups) > 1)
        counts[together, False] = count, count
    never = len(calls) + 1
    none = _Stream(never)
    whole = all(pythons.get(key, none).count >= own >= 0 for key, (_, own) in counts.items())
    # Calls of Python are known to be Python's from the first one on.
    origin = -1 if whole else sum(1 for _ in takewhile(lambda made: not made.by_python, calls))
    known: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for (gid, p2p), (count, own) in counts.items():
        kind = _kind(job, gid, p2p=p2p)
        since = [never, never]
        if gid not in mixed:
            since[0] = max(origin, every.get((gid, p2p), none).unbroken_since(count, never))
            python = pythons.get((gid, p2p), none)
            if own == count:
                since[1] = python.unbroken_since(count, never)
            else:
                since[1] = -1 if python.count >= own >= 0 else python.first
        for of, at, made_any in zip(known, since, (count, own), strict=True):
            if made_any:
                of[kind] = max(of.get(kind, -1), at)
    return tuple(sorted(known[0].items())), tuple(sorted(known[1].items()))


@dataclass(slots=True)
class _Stream:
    """The known calls of a group: its collectives, or its messages."""

    first: int
    count: int = 0
    last: int = 0
    after_hole: int = -1

    def unbroken_since(self, count: int, never: int) -> int:
        """The call from which on none is missing, of so many; -1 where none is at all."""
        return never if self.last < count else self.after_hole


def _streams(calls: Iterable[Made], *, python: bool = False) -> dict[tuple[int, bool], _Stream]:
    """The calls by group, and collectives or messages. python: only Python's."""
    found: dict[tuple[int, bool], _Stream] = {}
    for number, (_, gid, seq, by_python, p2p, _) in enumerate(calls):
        if python and not by_python:
            continue
        stream = found.get((gid, p2p))
        if stream is None:
            stream = found[gid, p2p] = _Stream(number)
        if seq != stream.last + 1:
            stream.after_hole = number
        stream.count += 1
        stream.last = seq
    return found


# --- The point at which two ranks part ------------------------------------------------


def _divergence(job: Job, one: Past, other: Past) -> Divergence | None:
    """The point at which two diverge; None if one made a prefix of the calls of the other."""
    recorded = one.recorded and other.recorded
    found = _divergence_of(job, one, other, python=False) if recorded else None
    if found is None and not (recorded and one.whole and other.whole):
        found = _divergence_of(job, one, other, python=True)
    return found or _divergence_in_a_group(one, other)


def _divergence_of(job: Job, one: Past, other: Past, *, python: bool) -> Divergence | None:
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
                return Divergence(
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

    First for all known kinds, then without the kinds that are known least far back.
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
    """Return True if a call of one rank is for another rank too."""
    if (made.gid in rival.groups and not made.p2p) or job.keys[made.gid] is SETTING_UP:
        return True
    if past.part != rival.part:
        return False
    return made.step in rival.steps or job.keys[made.gid].desc in rival.kinds


def _from_a_place_of_both(mine: list[Made], theirs: list[Made]) -> tuple[list[Made], list[Made]]:
    """Both, from the first point on that both have passed; nothing if there is none."""
    at = {(made.gid, made.seq): number for number, made in enumerate(theirs) if not made.p2p}
    for number, made in enumerate(mine):
        there = None if made.p2p else at.get((made.gid, made.seq))
        if there is not None:
            return mine[number:], theirs[there:]
    return [], []


def _is_one_call(one: Past, other: Past, mine: Made, theirs: Made) -> bool:
    """Return True if two ranks make one collective from two lines, each from its own alone."""
    return (
        not mine.p2p
        and (mine.gid, mine.seq) == (theirs.gid, theirs.seq)
        and mine.step.wire == theirs.step.wire
        and (mine.step.wire != NEW_GROUP or mine.step.size == theirs.step.size)
        and mine.step not in other.steps
        and theirs.step not in one.steps
    )


def _divergence_in_a_group(one: Past, other: Past) -> Divergence | None:
    """The point at which one of two destroyed a group that the other still uses."""
    for leaver, rival in ((one, other), (other, one)):
        for gid in sorted(leaver.left & rival.groups - rival.left):
            own = [made for made in leaver.calls if made.gid == gid and not made.p2p]
            more = [made for made in rival.calls if made.gid == gid and not made.p2p][len(own) :]
            if own and own[0].seq == 1 and own[-1].seq == len(own) and more:
                end = Made(Step(LEFT, kind=own[0].step.kind), gid, 0)
                ways = (end,), tuple(more)
                return Divergence(
                    (one.ranks[0], other.ranks[0]),
                    ways if leaver is one else ways[::-1],
                    _until_the_end_of(leaver, gid),
                )
    return None


def _until_the_end_of(past: Past, gid: int) -> tuple[Step, ...]:
    """The steps in groups of one kind, with their ends, up to the last call in one of them."""
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


# --- The ranks that explain all divergences ----------------------------------------------


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
    covers: Sequence[frozenset[int]],
    divergences: Mapping[tuple[int, int], Divergence],
    source: Source,
) -> list[frozenset[int]]:
    """The covers with the most ranks that did something that they never did before."""
    strange = [
        pair[side]
        for pair, divergence in divergences.items()
        if (side := strange_side(divergence, source)) is not None
    ]
    scores = [sum(at in cover for at in strange) for cover in covers]
    return [cover for cover, score in zip(covers, scores, strict=True) if score == max(scores)]


def strange_side(divergence: Divergence, source: Source) -> int | None:
    """The one of two ranks that made a call which it never made at this point, as 0 or 1.

    A call that is new to both may come after a loop: it is strange only where the source shows
    that none ends between their lines.
    """
    found = _strange(divergence, lambda step: step, new=False)
    return odd_side(divergence) if found is None and _in_one_loop(divergence, source) else found


def odd_side(divergence: Divergence) -> int | None:
    """The same of two that are known to be in the same loops, so that no call is new by chance."""
    return _strange(divergence, lambda step: step._replace(file="", line=0), new=True)


def _strange(divergence: Divergence, read: Callable[[Step], Step], *, new: bool) -> int | None:
    """The same. read: the compared part of a call; new: a call that neither knows is strange."""
    before, known = divergence.before, [read(step) for step in divergence.before]
    alike = sum(1 for _ in takewhile(lambda step: step == before[-1], reversed(before)))
    # One of several equal calls in a row shows nothing: it takes all of them, and one before.
    # Unless the source shows that it is no loop that ends with them.
    shortest = alike + 1 if alike > 1 and not new else 1
    usual = expected(before, shortest=shortest, longest=MOST_CONTEXT)
    if usual is None:
        return None
    ways = [[read(made.step) for made in way] for way in divergence.ways]
    odd = [side for side, way in enumerate(ways) if way[0] not in {*map(read, usual)}]
    if len(odd) != 1 or not (new or ways[odd[0]][0] in known):
        return None
    if divergence.ways[1 - odd[0]][0].step not in usual:
        return None  # the same operation, and another call
    # A call that it makes again and again from then on is a part of the program.
    again = (known[-1], ways[odd[0]][0]) in pairwise(ways[odd[0]])
    return None if again else odd[0]


def _in_one_loop(divergence: Divergence, source: Source) -> bool:
    """Return True if the source shows that neither is past a loop that the other is in."""
    here, there = (Position((Line(way[0].step.file, way[0].step.line),)) for way in divergence.ways)
    forked = fork(source.program, here, there)
    return forked is not None and not forked.left and not forked.back.left
