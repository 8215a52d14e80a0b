"""Judges the ranks that wait for nothing and that others wait for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import Enum, auto

from hangwatch.diagnosis.facts.endings import Cause, Ending, How
from hangwatch.diagnosis.facts.history import Call, call_of, next_of
from hangwatch.diagnosis.facts.job import is_half, is_majority
from hangwatch.diagnosis.facts.wait_points import Channel, Place, Setup, WaitPoint
from hangwatch.diagnosis.rules.absentees import (
    absent_ranks,
    frozen_setup,
    init_incomplete,
    living,
    lost,
    missing_peer,
    subset,
)
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.deaths import died, last_site
from hangwatch.diagnosis.rules.stores import judge_key
from hangwatch.diagnosis.text import reasons, wording
from hangwatch.diagnosis.text.phrases import Ranks, at_line, ended
from hangwatch.diagnosis.text.wording import Gone, Scene
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, Phase, Reason
from hangwatch.text import verb

_FOUND_A_DIFFERENCE = re.compile(r"same model across all ranks|mismatch between collectives")
"""torch/csrc/distributed/c10d: reducer.cpp, ProcessGroupWrapper.cpp."""
SHUTDOWN_S = 30.0
"""Launchers take a while to end all ranks; torchrun's grace period is 30 s."""


class Fate(Enum):
    """What became of a rank that others wait for."""

    ALIVE = auto()
    """It is busy, or was until the job was ended from outside."""
    FINISHED = auto()
    DIED = auto()
    ABSENT = auto()


def judge_terminals(case: Case, terminals: Iterable[int]) -> Iterator[Finding]:
    """One finding for each wait point and each way in which ranks are missing from it."""
    ranks = _without_followers(case, terminals)
    wait_points = {rank: _main_wait_point(case, rank) for rank in ranks}
    ends = {rank: case.ended[rank] for rank in ranks if rank in case.ended}
    gone = [rank for rank, end in ends.items() if end.how is How.LOST]
    if gone:
        yield lost(case, gone, [wait_points[rank] for rank in gone])
    # Who is merely not seen may wait for those in turn.
    explained = {wait_points[rank] for rank, end in ends.items() if end.how is not How.CLEAN}
    by_wait_point: dict[WaitPoint | None, list[int]] = defaultdict(list)
    for rank in ranks:
        seen = rank in case.job.ranks
        if rank not in gone and (seen or wait_points[rank] not in explained):
            by_wait_point[wait_points[rank]].append(rank)
    for wait_point, missing in by_wait_point.items():
        yield from _judge_wait_point(case, wait_point, missing)


def _without_followers(case: Case, terminals: Iterable[int]) -> list[int]:
    """Leave out ranks that were only ended because another one had ended."""
    ranks = sorted(terminals)
    causes = {rank: case.ended[rank].cause for rank in ranks if rank in case.ended}
    if Cause.OWN not in causes.values():
        return ranks
    return [rank for rank in ranks if causes.get(rank, Cause.OWN) is Cause.OWN]


def _main_wait_point(case: Case, rank: int) -> WaitPoint | None:
    """Of the wait points that wait for a rank the one that it should have come to first.

    What it used to do next tells; else the oldest, and among those of the same
    moment the one with most ranks in it.
    """

    def call(wait_point: WaitPoint) -> Call | None:
        record = next((w.record for w in case.graph.at[wait_point] if w.record is not None), None)
        if isinstance(wait_point, Place) and record is not None:
            return call_of(wait_point.gid, record)
        return None

    def weight(wait_point: WaitPoint) -> tuple[object, ...]:
        waits = case.graph.at[wait_point]
        oldest_s = max(wait.age_s for wait in waits)
        expected = calls.get(wait_point) in usual
        firm = not all(wait.vague for wait in waits)
        seq = wait_point.seq if isinstance(wait_point, Place) else 0
        kind = type(wait_point).__name__, seq, case.op_at(waits, wait_point)
        return firm, expected, round(oldest_s, 1), len(waits), kind

    wait_points = [
        wait_point
        for wait_point in case.graph.before().get(rank, ())
        if not isinstance(wait_point, int)
    ]
    calls = {
        wait_point: known for wait_point in wait_points if (known := call(wait_point)) is not None
    }
    usual = next_of(case.job, rank, {*calls.values()} if len(wait_points) > 1 else ())
    return max(wait_points, key=weight, default=None)


def _judge_wait_point(
    case: Case, wait_point: WaitPoint | None, missing: list[int]
) -> Iterator[Finding]:
    frozen = frozen_setup(case, wait_point) if isinstance(wait_point, Setup) else None
    if frozen is not None:
        yield frozen
        return
    parts: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in missing:
        parts[_fate(case, wait_point, rank)].append(rank)
    for (fate, *_), ranks in parts.items():
        if isinstance(wait_point, Setup) and wait_point.keys and fate is not Fate.DIED:
            yield judge_key(case, wait_point)
            continue
        if fate is Fate.DIED:
            yield _deserted(case, wait_point, tuple(ranks)) or died(case, wait_point, tuple(ranks))
        elif wait_point is not None:
            yield _JUDGES[fate](case, wait_point, tuple(ranks))


def _fate(case: Case, wait_point: WaitPoint | None, rank: int) -> tuple[object, ...]:
    """What became of a rank; those whose tuples are equal share one finding."""
    end = case.ended.get(rank)
    if end is not None and end.how is How.CLEAN:
        return (Fate.FINISHED,)
    if end is not None and (end.cause is Cause.OWN or left_behind(case, end)):
        site = end.exception.site if end.exception else None
        name = end.exception.type if end.exception else ""
        return Fate.DIED, end.how, end.signal, name, site and (site.file, site.line)
    if rank not in case.job.ranks:
        return (Fate.ABSENT,)
    if _has_finished(case, rank, wait_point):
        return (Fate.FINISHED,)
    return Fate.ALIVE, end is None, case.activity(rank).reason


def _deserted(case: Case, wait_point: WaitPoint | None, dead: Ranks) -> Finding | None:
    """Most ranks raised because a few were in another collective than they.

    DDP's constructor compares the model across ranks; the collectives of those
    few answer it. Only the source can tell it from a model that does differ.
    """
    if not isinstance(wait_point, Place) or not is_half(dead, case.job.members(wait_point.gid)):
        return None
    end = case.ended[dead[0]]
    if end.exception is None or not _FOUND_A_DIFFERENCE.search(end.exception.story):
        return None
    return subset(case, wait_point, dead, f"went on without it, and {ended(end)}", final=True)


def left_behind(case: Case, end: Ending) -> bool:
    """Whether others live on long after it was ended: nobody is ending the job."""
    return len(case.ended) < len(case.job.ranks) and end.age_s >= SHUTDOWN_S


def _has_finished(case: Case, rank: int, wait_point: WaitPoint | None) -> bool:
    if isinstance(wait_point, Setup):
        return False
    # To be at destroying one of its groups is not to leave the others.
    leaving = case.job.ranks[rank].phase is Phase.FINALIZING or case.has_returned(rank)
    if not isinstance(wait_point, Place | Channel):
        return leaving
    if wait_point.gid not in case.job.progress[rank]:
        return False  # what it leaves, or has left, is another: it may come to this one yet
    return leaving or case.job.has_left(rank, wait_point.gid)


def finished(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """They have come to their end, or have left the group, and others wait for them."""
    how = _how_finished(case, culprits)
    if isinstance(wait_point, Channel):
        peerless = missing_peer(case, wait_point, culprits, how, Reason.EXITED)
        several = peerless.certainty is Certainty.POSSIBLE and len(culprits) > 1
        return _outlasted(case, wait_point, culprits, how) if several else peerless
    if isinstance(wait_point, Setup):
        early = init_incomplete(case, wait_point, culprits, how, Reason.EXITED)
        # Who is no member of a group is let through, and may have come to its end since.
        return replace(early, certainty=Certainty.POSSIBLE) if len(culprits) > 1 else early
    members = case.job.members(wait_point.gid)
    if is_half(culprits, members):
        found = subset(case, wait_point, culprits, f"went on without it: {how}", final=True)
        if found is not None:
            return found
    if is_majority(culprits, members) or _went_on_alone(case, wait_point, culprits):
        return _outlasted(case, wait_point, culprits, how)
    waits = case.waits_at(wait_point)
    scene = Scene(
        culprits,
        case.direct(wait_point),
        case.where(wait_point),
        _finished_site(case, culprits[0]),
        case.victims_site(waits),
        case.sites_now(case.direct(wait_point), waits),
    )
    # Counters alone do not say for sure that it is this group that has unfinished work.
    sure = any(not wait.vague for wait in waits)
    unsure = Certainty.POSSIBLE if all(wait.over for wait in waits) else Certainty.LIKELY
    lives_on = any(_lives_on(case, rank) for rank in culprits)
    # A thread that keeps the process may make calls yet.
    returned = any(map(case.has_returned, culprits))
    gone = Gone.RETURNED if returned else Gone.LEFT if lives_on else Gone.OVER
    # Of two ranks that both go on, nothing tells whether one made a call too few or the
    # other one too many.
    even = lives_on and is_half(culprits, members) and not is_majority(culprits, members)
    return Finding(
        kind=Kind.FINISHED_EARLY,
        reason=Reason.USER_CODE if lives_on else Reason.EXITED,
        certainty=Certainty.PROVED if sure and not even and not returned else unsure,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=wording.finished(scene, how, gone, failed=all(wait.over for wait in waits)),
        final=sure and not returned,
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
        ended=tuple(rank for rank in culprits if rank in case.ended),
    )


def _went_on_alone(case: Case, wait_point: Place, finished: Ranks) -> bool:
    """Whether what all ranks did shows that those who wait have left the common program."""
    waiting = case.direct(wait_point)
    alone = case.departures.ranks & {*waiting, *finished}
    return bool(alone) and alone == frozenset(waiting)


def _outlasted(case: Case, wait_point: Place | Channel, finished: Ranks, how: str) -> Finding:
    """Most members are finished, and a few still go on."""
    waits = case.waits_at(wait_point)
    firm = tuple(sorted({wait.rank for wait in waits if not wait.vague}))
    culprits = firm or case.direct(wait_point)
    # Whether one message was sent too little or awaited too much, nothing tells.
    sure = Certainty.PROVED if isinstance(wait_point, Place) else Certainty.LIKELY
    scene = Scene(
        culprits,
        finished,
        case.where(wait_point),
        case.victims_site(waits),
        _finished_site(case, finished[0]),
        case.sites_now(culprits, waits),
    )
    return Finding(
        kind=Kind.FINISHED_EARLY,
        reason=Reason.USER_CODE,
        certainty=sure if firm else Certainty.POSSIBLE,
        culprits=culprits,
        victims=tuple(sorted(set(case.victims_of(finished)) - set(culprits))),
        text=wording.outlasted(scene, how),
        final=bool(firm),
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
    )


def _lives_on(case: Case, rank: int) -> bool:
    """Whether it has left one group only, and not come to its end."""
    if rank in case.ended or case.has_returned(rank):
        return False
    return case.job.ranks[rank].phase is not Phase.FINALIZING


def _how_finished(case: Case, culprits: Ranks) -> str:
    end = case.ended.get(culprits[0])
    they = verb(culprits, "it", "they")
    if case.has_returned(culprits[0]):
        return reasons.returned(culprits, case.doing(culprits[0]).blocked)
    if end is None or end.how is not How.CLEAN:
        snapshot = case.job.ranks[culprits[0]]
        there = snapshot.in_call == "destroy_process_group"
        if _lives_on(case, culprits[0]):
            return f"{they} destroyed the group{at_line(snapshot.in_call_site) if there else ''}"
        return f"{they} called destroy_process_group{at_line(snapshot.in_call_site)}"
    return f"{they} {ended(end)}"


def _finished_site(case: Case, rank: int) -> Site | None:
    snapshot = case.job.ranks[rank]
    if rank not in case.ended:
        site = with_source(snapshot.in_call_site, case.texts) or case.waiting_site(rank)
        if site is not None:
            return site
    return last_site(case, rank)


_JUDGES: dict[object, Callable[[Case, WaitPoint, Ranks], Finding]] = {
    Fate.ALIVE: living,
    Fate.FINISHED: finished,
    Fate.ABSENT: absent_ranks,
}
