"""Judges the blocking ranks: they wait for nothing, and others wait for them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.facts.endings import Cause, Ending, How, aborted_by, last_call
from hangwatch.diagnosis.facts.error_texts import Library
from hangwatch.diagnosis.facts.history import Call, call_of, next_of
from hangwatch.diagnosis.facts.job import at_least_half, is_majority
from hangwatch.diagnosis.facts.wait_points import Channel, Setup, Slot, WaitPoint
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.gradients import differs_in_no_sync
from hangwatch.diagnosis.rules.mismatch import judge_aborted, judge_unrecorded
from hangwatch.diagnosis.rules.missing import (
    absent_ranks,
    frozen_setup,
    init_incomplete,
    judge_key,
    living,
    lost,
    missing_peer,
    subset,
)
from hangwatch.diagnosis.text import reasons, wording
from hangwatch.diagnosis.text.phrases import Ranks, at_line, ended
from hangwatch.diagnosis.text.wording import Gone, Scene
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, OpState, Phase, Reason
from hangwatch.text import verb

_FOUND_A_DIFFERENCE = re.compile(r"same model across all ranks|mismatch between collectives")
"""torch/csrc/distributed/c10d: reducer.cpp, ProcessGroupWrapper.cpp."""


_Judge = Callable[[Case, WaitPoint, Ranks], Finding]


def judge_blocking(case: Case, blocking: Iterable[int]) -> Iterator[Finding]:
    """One finding for each wait point and each reason for which ranks are missing from it."""
    ranks = _without_followers(case, blocking)
    wait_points = {rank: _main_wait_point(case, rank) for rank in ranks}
    ends = {rank: case.ended[rank] for rank in ranks if rank in case.ended}
    gone = [rank for rank, end in ends.items() if end.how is How.LOST]
    if gone:
        yield lost(case, gone, [wait_points[rank] for rank in gone])
    # Unobserved ranks may themselves wait for the ended ones.
    explained = {wait_points[rank] for rank, end in ends.items() if end.how is not How.CLEAN}
    by_wait_point: dict[WaitPoint | None, list[int]] = defaultdict(list)
    for rank in ranks:
        seen = rank in case.job.ranks
        if rank not in gone and (seen or wait_points[rank] not in explained):
            by_wait_point[wait_points[rank]].append(rank)
    for wait_point, missing in by_wait_point.items():
        yield from _judge_wait_point(case, wait_point, missing)


def _without_followers(case: Case, blocking: Iterable[int]) -> list[int]:
    """Leave out ranks that were only ended because another one had ended."""
    ranks = sorted(blocking)
    causes = {rank: case.ended[rank].cause for rank in ranks if rank in case.ended}
    if Cause.OWN not in causes.values():
        return ranks
    return [rank for rank in ranks if causes.get(rank, Cause.OWN) is Cause.OWN]


def _main_wait_point(case: Case, rank: int) -> WaitPoint | None:
    """The wait point that a rank should have reached first, among those that wait for it.

    By its usual next call; otherwise the oldest, and among wait points of the same moment the one
    with the most ranks in it.
    """
    nodes = case.graph.before().get(rank, ())
    wait_points = [node for node in nodes if not isinstance(node, int)]
    calls: dict[WaitPoint, Call] = {}
    for point in wait_points:
        records = (wait.record for wait in case.graph.at[point] if wait.record is not None)
        if isinstance(point, Slot) and (record := next(records, None)) is not None:
            calls[point] = call_of(point.gid, record)
    usual = next_of(case.job, rank, {*calls.values()} if len(wait_points) > 1 else ())

    def weight(wait_point: WaitPoint) -> tuple[object, ...]:
        waits = case.graph.at[wait_point]
        oldest_s = max(wait.age_s for wait in waits)
        expected = calls.get(wait_point) in usual
        is_seen = not all(wait.inferred for wait in waits)
        seq = wait_point.seq if isinstance(wait_point, Slot) else 0
        kind = type(wait_point).__name__, seq, case.op_at(waits, wait_point)
        return is_seen, expected, round(oldest_s, 1), len(waits), kind

    return max(wait_points, key=weight, default=None)


def _judge_wait_point(
    case: Case, wait_point: WaitPoint | None, missing: list[int]
) -> Iterator[Finding]:
    setup = wait_point if isinstance(wait_point, Setup) else None
    frozen = frozen_setup(case, setup, case.direct(setup)) if setup is not None else None
    if frozen is not None:
        yield frozen
        return
    parts: dict[tuple[_Judge | None, object], list[int]] = defaultdict(list)
    for rank in missing:
        parts[_judge_of(case, wait_point, rank)].append(rank)
    for (judge, _), part in parts.items():
        ranks = tuple(part)
        if judge is None:
            yield _deserted(case, wait_point, ranks) or died(case, wait_point, ranks)
        elif setup is not None and setup.keys:
            yield judge_key(case, setup)
        elif wait_point is not None:
            yield judge(case, wait_point, ranks)


def _judge_of(case: Case, wait_point: WaitPoint | None, rank: int) -> tuple[_Judge | None, object]:
    """The judge of a missing rank, None for a dead one; ranks of equal results share a finding."""
    end = case.ended.get(rank)
    if end is not None and end.how is How.CLEAN:
        return finished, None
    if end is not None and (end.cause is Cause.OWN or left_behind(case, end)):
        site = end.exception.site if end.exception else None
        name = end.exception.type if end.exception else ""
        return None, (end.how, end.signal, name, site and (site.file, site.line))
    if rank not in case.job.ranks:
        return absent_ranks, None
    if _has_finished(case, rank, wait_point):
        return finished, None
    return living, (end is None, case.activity(rank).reason)


def _deserted(case: Case, wait_point: WaitPoint | None, dead: Ranks) -> Finding | None:
    """Most ranks raised because a few were in another collective.

    DDP's constructor compares the model across ranks; the collectives of the few
    answer it. Only the source distinguishes it from a model that does differ.
    """
    if not isinstance(wait_point, Slot) or not at_least_half(
        dead, case.job.members(wait_point.gid)
    ):
        return None
    end = case.ended[dead[0]]
    if end.exception is None or not _FOUND_A_DIFFERENCE.search(end.exception.story):
        return None
    return subset(case, wait_point, dead, f"went on without it, and {ended(end)}", final=True)


def left_behind(case: Case, end: Ending) -> bool:
    """Return True if others live on long after it was ended: nothing is ending the job."""
    return len(case.ended) < len(case.job.ranks) and end.age_s >= timing.SHUTDOWN_S


def _has_finished(case: Case, rank: int, wait_point: WaitPoint | None) -> bool:
    if isinstance(wait_point, Setup):
        return False
    # To be at destroying one of its groups is not to leave the others.
    leaving = case.job.ranks[rank].phase is Phase.FINALIZING or case.has_returned(rank)
    if not isinstance(wait_point, Slot | Channel):
        return leaving
    if wait_point.gid not in case.job.progress[rank]:
        return False  # it leaves, or has left, another group, and may still enter this one
    return leaving or case.job.has_left(rank, wait_point.gid)


def finished(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """Ranks that have ended, or left the group, while others wait for them."""
    finding = _finished(case, wait_point, culprits)
    if not any(_is_exiting(case, rank) for rank in culprits):
        return finding
    # A function that runs at the exit may still make the call.
    unsure = finding.certainty.at_most(Certainty.LIKELY)
    return replace(finding, certainty=unsure, hang=None, final=False)


def _finished(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    how = _how_finished(case, culprits)
    if isinstance(wait_point, Channel):
        peerless = missing_peer(case, wait_point, culprits, how, Reason.EXITED)
        several = peerless.certainty is Certainty.POSSIBLE and len(culprits) > 1
        return _outlasted(case, wait_point, culprits, how) if several else peerless
    if isinstance(wait_point, Setup):
        early = init_incomplete(case, wait_point, culprits, how, Reason.EXITED)
        # A rank that is no member of a group does not wait there, and may have ended since.
        return replace(early, certainty=Certainty.POSSIBLE) if len(culprits) > 1 else early
    members = case.job.members(wait_point.gid)
    if at_least_half(culprits, members):
        few = subset(case, wait_point, culprits, f"went on without it: {how}", final=True)
        if few is not None:
            return few
    waits, waiting = case.waits_at(wait_point), {*case.direct(wait_point)}
    if is_majority(culprits, members) or (
        # Only the waiting ranks have left the common sequence of calls.
        waiting and case.departures.ranks & waiting.union(culprits) == waiting
    ):
        return _outlasted(case, wait_point, culprits, how)
    scene = case.scene(wait_point, culprits, _finished_site(case, culprits[0]))
    # Counters alone do not say for sure that it is this group that has unfinished work.
    sure = any(not wait.inferred for wait in waits)
    unsure = Certainty.POSSIBLE if all(wait.ended for wait in waits) else Certainty.LIKELY
    lives_on = any(_lives_on(case, rank) for rank in culprits)
    # A thread that keeps the process alive may still make calls, or a function at its exit.
    returned = any(case.has_returned(rank) or _is_exiting(case, rank) for rank in culprits)
    gone = Gone.RETURNED if returned else Gone.LEFT if lives_on else Gone.OVER
    # If two ranks both live on, one may have made too few calls or the other too many.
    even = lives_on and at_least_half(culprits, members) and not is_majority(culprits, members)
    return Finding(
        kind=Kind.FINISHED_EARLY,
        reason=Reason.USER_CODE if lives_on else Reason.EXITED,
        certainty=Certainty.PROVED if sure and not even and not returned else unsure,
        text=wording.finished(scene, how, gone, failed=all(wait.ended for wait in waits)),
        final=sure and not returned,
        ended=tuple(rank for rank in culprits if rank in case.ended),
        **case.about(wait_point, scene),
    )


def _outlasted(case: Case, wait_point: Slot | Channel, finished: Ranks, how: str) -> Finding:
    """Most members have finished, and a few still run."""
    waits = case.waits_at(wait_point)
    seen = tuple(sorted({wait.rank for wait in waits if not wait.inferred}))
    culprits = seen or case.direct(wait_point)
    # One message may have been sent too few, or one too many is awaited.
    sure = Certainty.PROVED if isinstance(wait_point, Slot) else Certainty.LIKELY
    site, other_site = case.victims_site(waits), _finished_site(case, finished[0])
    scene = case.scene(wait_point, culprits, site, finished, other_site)
    victims = tuple(sorted({*case.victims_of(finished)} - {*culprits}))
    return Finding(
        kind=Kind.FINISHED_EARLY,
        certainty=sure if seen else Certainty.POSSIBLE,
        text=wording.outlasted(scene, how),
        final=bool(seen),
        **case.about(wait_point, scene, victims),
    )


def _is_exiting(case: Case, rank: int) -> bool:
    """Return True if a rank has come to the end of its program, and its process lives."""
    snapshot = case.job.ranks.get(rank)
    return snapshot is not None and snapshot.process.alive and snapshot.phase is Phase.EXITED


def _lives_on(case: Case, rank: int) -> bool:
    """Return True if it has left one group only, and not ended."""
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
    return _last_site(case, rank)


# --- Ranks that are gone, and not by coming to their end ---------------------------------


def died(
    case: Case,
    wait_point: WaitPoint | None,
    culprits: Ranks,
    certainty: Certainty = Certainty.PROVED,
) -> Finding:
    """Ranks that are gone, and not by coming to their end."""
    first = max(culprits, key=lambda rank: case.ended[rank].age_s)
    end = case.ended[first]
    waits = case.waits_at(wait_point)
    wait_point = wait_point or _last_slot(case, first)
    # A library may have ended it, and it need not be the one at fault.
    aborted = aborted_by(case.job, first, end)
    mismatch = _mismatch(case, wait_point, first) if aborted else None
    if mismatch is not None:
        return mismatch
    # A rank that has just raised in it no longer waits, but has not ended.
    leaving = _raised_out_of(case, wait_point) - {*culprits}
    direct = tuple(sorted(({*case.direct(wait_point)} - {*culprits}) | leaving))
    site = with_source(end.exception.site, case.texts) if end.exception else None
    scene = Scene(
        culprits,
        direct,
        case.where(wait_point),
        site or _last_site(case, first),
        case.victims_site(waits),
    )
    unclear = aborted is not None or end.how is How.GONE or end.contested
    peers = _rivals(case, wait_point, culprits, direct) if aborted else ()
    if aborted is Library.NCCL:
        peers = tuple(rank for rank in peers if _is_behind(case, rank, first))
    if peers and differs_in_no_sync(case, wait_point, culprits):
        peers = ()
    # If the end of several was not seen, one may have failed and ended the others.
    several = len(culprits) > 1 and end.how is How.GONE
    running = (rank for rank in culprits if case.job.ranks[rank].process.alive)
    runs_at = next(filter(None, map(case.waiting_site, running)), None)
    if peers or several:
        certainty = Certainty.POSSIBLE
    elif unclear or runs_at is not None:
        certainty = Certainty.LIKELY
    text = wording.died(
        scene,
        end,
        failed=bool(waits) and all(wait.ended for wait in waits),
        aborted=aborted,
        rivals=peers,
        runs_at=runs_at,
    )
    everyone = replace(scene, culprits=tuple(sorted({*culprits, *peers})))
    victims = tuple(sorted({*case.victims_of(culprits), *leaving} - {*peers}))
    return Finding(
        kind=Kind.DIED,
        reason=end.reason,
        certainty=certainty,
        text=text,
        final=runs_at is None,
        ended=culprits,
        **case.about(wait_point, everyone, victims, waits),
    )


def _mismatch(case: Case, wait_point: WaitPoint | None, aborted: int) -> Finding | None:
    """The disagreement for which gloo aborted a rank, where enough is known of the calls there."""
    for slot in (wait_point, _last_recorded(case, aborted)):
        if not isinstance(slot, Slot):
            continue
        finding = judge_aborted(case, slot)
        if finding is not None:
            return finding
        members = case.job.members(slot.gid)
        known = [rank for rank in members if case.job.record(rank, slot) is not None]
        # A few pages have a call of Python's; most ranks, there as well, had one of C++'s.
        if at_least_half(known, members) or not all(
            case.job.arrived(rank, slot) for rank in members
        ):
            continue
        finding = judge_unrecorded(case, slot)
        if finding is not None and finding.certainty is not Certainty.POSSIBLE:
            victims = tuple(rank for rank in members if rank not in finding.culprits)
            return replace(finding, victims=victims, final=True)
    return None


def _is_behind(case: Case, rank: int, aborted: int) -> bool:
    """Return True if a rank issued fewer calls than an aborted one, which may have awaited it."""
    return any(
        reached[rank] < reached[aborted]
        for reached in case.job.reached
        if rank in reached and aborted in reached
    )


def _rivals(case: Case, wait_point: WaitPoint | None, aborted: Ranks, others: Ranks) -> Ranks:
    """The ranks that may be at fault instead of ranks that were aborted where others were.

    Where the calls of the aborted ranks are known, and no rank is known to have made another:
    the members that are there as well by a call that is not known. If there are none, and most
    made that call, the members without a known call: counters may be half a second old. All of
    these where gloo's own exception says that it was sent more than it expected. Else all
    that wait there, but none where most of the group's members made one and the same call.
    """
    slot = _last_recorded(case, aborted[0])
    if isinstance(wait_point, Slot):
        # The others wait by counters that may be half a second old: it may have gone on since.
        later = slot is not None and slot.gid == wait_point.gid and slot.seq > wait_point.seq
        slot = slot if later else wait_point
    if slot is None:
        return ()
    records = case.records_at(slot)
    members = case.job.members(slot.gid)
    if all(rank in records for rank in aborted):
        unknown = tuple(rank for rank in members if rank not in records)
        if all(case.ended[rank].abort for rank in aborted):
            return unknown  # one of these or the aborted made another call there, for sure
        there = tuple(rank for rank in unknown if case.job.arrived(rank, slot))
        return there or (unknown if is_majority(records, members) else ())
    alike = Counter((records[r].wire, records[r].shape) for r in others if r in records)
    return () if 2 * max(alike.values(), default=0) > len(members) else others


def _last_recorded(case: Case, rank: int) -> Slot | None:
    """The last collective that a rank is known to have made."""
    calls = reversed(case.job.ops.get(rank, ()))
    return next((Slot(gid, call.seq) for gid, call in calls if not call.p2p and call.seq), None)


def _raised_out_of(case: Case, wait_point: WaitPoint | None) -> set[int]:
    """Living ranks whose last call was at a slot, and failed."""
    if not isinstance(wait_point, Slot):
        return set()
    living = {*case.job.members(wait_point.gid)} & case.job.ranks.keys() - case.ended.keys()
    return {
        rank
        for rank in living
        if (last := last_call(case.job, rank)) is not None
        and last.state is OpState.FAILED
        and (case.job.gid(last.group), last.seq) == wait_point
    }


def _last_slot(case: Case, rank: int) -> Slot | None:
    """The collective that a rank was in when it ended."""
    call = last_call(case.job, rank)
    if call is None or call.p2p or call.seq < 1:
        return None
    return Slot(case.job.gid(call.group), call.seq)


def _last_site(case: Case, rank: int) -> Site | None:
    """The line of the last call that a rank made, where it is known."""
    for _, record in reversed(case.job.ops.get(rank, [])):
        gid = case.job.gid(record.group)
        went_on = not record.p2p and case.job.reached[gid].get(rank, 0) > record.seq
        if record.site is not None or record.source == "flight":
            return None if went_on else with_source(record.site, case.texts)
    return None
