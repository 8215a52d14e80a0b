"""What each rank did: its calls, in a form that can be compared, and how far back all are known.

What is known of a rank has holes: rings wrap, and not every rank has a recorder.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from hangwatch.diagnosis.facts.endings import Ending, How
from hangwatch.diagnosis.facts.job import SETTING_UP, Job
from hangwatch.model.kinds import Phase
from hangwatch.model.snapshot import OpRecord

MOST_CALLS = 50_000
"""Of all ranks together; of each its last ones are compared."""


class Step(NamedTuple):
    """What makes a call recognisable when it comes again, on any rank."""

    wire: str
    file: str = ""
    line: int = 0
    size: str = ""
    """Where C++ issued it, and it has no line; of new_group the group that it makes."""
    kind: str = ""
    """Of its group: how it is described, else how large it is."""


END = Step("the end of the program")
LEFT = "destroy_process_group"


class Made(NamedTuple):
    """A call that a rank made, and its number among those of its group."""

    step: Step
    gid: int
    seq: int
    by_python: bool = True
    p2p: bool = False
    aside: bool = False
    """Another thread made it than the one that makes most calls of the rank."""


@dataclass(frozen=True)
class Past:
    """What ranks did that did the same."""

    ranks: tuple[int, ...]
    calls: tuple[Made, ...]
    known: tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]
    """(kind of group, the call from which on all of that kind are known) pairs, then those
    for what Python made; -1 for all, a number beyond the last call for never."""
    groups: frozenset[int]
    left: frozenset[int]
    """The groups that it has destroyed."""
    recorded: bool
    """What C++ issued is known, too."""
    ended: bool
    kinds: frozenset[str]
    """Of the groups that it is in."""
    part: tuple[object, ...]
    """Its position among those with whom it exchanges messages."""

    @cached_property
    def whole(self) -> bool:
        """Whether all calls are known."""
        return all(since < 0 for _, since in self.known[0])

    @cached_property
    def steps(self) -> frozenset[Step]:
        """What it did at all."""
        return frozenset(made.step for made in self.calls)


def pasts(job: Job, ended: Mapping[int, Ending], ranks: Iterable[int]) -> list[Past]:
    """What these ranks did, those together that did the same."""
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
    used = {(gid, record.p2p) for gid, record in ops}
    kinds = {(gid, p2p): _kind(job, gid, p2p=p2p) for gid, p2p in used}
    sizes = {gid: "" if job.keys[gid].desc else str(gid) for gid, _ in used}
    calls = tuple(
        _made(kinds[gid, record.p2p], gid, record, main, sizes[gid]) for gid, record in ops
    )
    together = job.gid(SETTING_UP)
    if job.reached[together]:
        groups_made = {call.number: str(job.gid(call.group)) for call in snapshot.new_groups}
        calls = tuple(
            made._replace(step=made.step._replace(size=groups_made[made.seq]))
            if made.gid == together
            else made
            for made in calls
        )
    return Past(
        (),
        calls,
        _known(job, rank, calls),
        frozenset(groups),
        frozenset(gid for gid, progress in groups.items() if not progress.alive),
        # Of what C++ issued nothing tells which thread it was.
        snapshot.flight and len(threads) <= 1,
        snapshot.phase is Phase.FINALIZING if end is None else end.how is How.CLEAN,
        frozenset(_kind(job, gid) for gid in groups),
        _part(job, rank, ops),
    )


def _has_thread(record: OpRecord) -> bool:
    """Whether it is known which thread made it: what a device does autograd runs in its own."""
    return record.source == "page" and not record.device and record.thread != 0


def _made(kind: str, gid: int, record: OpRecord, main: int, size: str) -> Made:
    site, by_python = record.site, record.source == "page"
    if site is not None:
        step = Step(record.wire, site.file, site.line, "", kind)
    else:  # by its size alone it is not known again in a group that is not described
        step = Step(record.wire, "", 0, f"{record.shape} {size}", kind)
    aside = _has_thread(record) and record.thread != main
    return Made(step, gid, record.seq, by_python, record.p2p, aside)


def _kind(job: Job, gid: int, *, p2p: bool = False) -> str:
    key = job.keys[gid]
    return (key.desc or f"of {len(key.ranks)}") + (" p2p" if p2p else "")


def _known(
    job: Job, rank: int, calls: Sequence[Made]
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Past.known. The rings of Python's calls and of c10d's do not hold as many."""
    every, pythons = _Streams(calls), _Streams(calls, python=True)
    # Nothing orders the calls of two threads in one group.
    aside = {made.gid for made in calls if made.aside}
    mixed = aside and aside & {made.gid for made in calls if not made.aside}
    groups = job.progress.get(rank, {})
    counts = {(gid, False): (one.enqueued, one.by_python) for gid, one in groups.items()}
    counts |= {(gid, True): (one.p2p, one.p2p) for gid, one in groups.items()}
    together = job.gid(SETTING_UP)
    if job.reached[together]:
        last = max((made.seq for made in calls if made.gid == together), default=0)
        # Who has made a group, and of which no such call is known, has made one.
        count = last or int(len(groups) > 1)
        counts[together, False] = count, count
    whole = all(pythons.count.get(stream, 0) >= own >= 0 for stream, (_, own) in counts.items())
    # Whether it was Python that made a call is known from the first one on that it did.
    origin = -1 if whole else sum(1 for _ in takewhile(lambda made: not made.by_python, calls))
    never = len(calls) + 1
    known: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for stream, (count, own) in counts.items():
        kind = _kind(job, stream[0], p2p=stream[1])
        since = [never, never]
        if stream[0] not in mixed:
            since[0] = max(origin, every.unbroken(stream, count, never))
            if own == count:
                since[1] = pythons.unbroken(stream, count, never)
            elif pythons.count.get(stream, 0) >= own >= 0:
                since[1] = -1
            else:
                since[1] = pythons.first.get(stream, never)
        for of, at, made_any in zip(known, since, (count, own), strict=True):
            if made_any:
                of[kind] = max(of.get(kind, -1), at)
    return tuple(sorted(known[0].items())), tuple(sorted(known[1].items()))


class _Streams:
    """The calls of each group that are known, collectives and messages apart.

    python: those that Python made.
    """

    def __init__(self, calls: Sequence[Made], *, python: bool = False) -> None:
        first: dict[tuple[int, bool], int] = {}
        count: dict[tuple[int, bool], int] = {}
        last: dict[tuple[int, bool], int] = {}
        after_hole: dict[tuple[int, bool], int] = {}
        for number, (_, gid, seq, by_python, p2p, _) in enumerate(calls):
            if python and not by_python:
                continue
            stream = gid, p2p
            before = last.get(stream)
            if before is None:
                first[stream] = number
                count[stream] = before = 0
            if seq != before + 1:
                after_hole[stream] = number
            count[stream] += 1
            last[stream] = seq
        self.first, self.count = first, count
        self._last, self._after_hole = last, after_hole

    def unbroken(self, stream: tuple[int, bool], count: int, never: int) -> int:
        """The call from which on none is missing, of so many; -1 where none is at all."""
        if self._last.get(stream, 0) < count:
            return never
        return self._after_hole.get(stream, -1)


def _part(job: Job, rank: int, ops: Iterable[tuple[int, OpRecord]]) -> tuple[object, ...]:
    """Which part it has in the exchange of messages: the stages of a pipeline differ."""
    places = {
        (_kind(job, gid), job.keys[gid].ranks.index(rank))
        for gid, record in ops
        if record.p2p and rank in job.keys[gid].ranks
    }
    return tuple(sorted(places))
