"""Ranks that are gone, and not by coming to their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hangwatch.diagnosis.facts.endings import How, Library, aborted_by, last_call
from hangwatch.diagnosis.facts.job import is_majority
from hangwatch.diagnosis.facts.wait_points import Place, WaitPoint
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.gradients import differs_in_no_sync
from hangwatch.diagnosis.rules.mismatch import judge_aborted
from hangwatch.diagnosis.rules.unrecorded import judge_unrecorded
from hangwatch.diagnosis.text import wording
from hangwatch.diagnosis.text.phrases import Ranks
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, OpState


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
    wait_point = wait_point or _last_place(case, first)
    failed = bool(waits) and all(wait.over for wait in waits)
    # One that has just raised out of it neither waits any more nor has ended yet.
    leaving = {rank for rank in _raised_out_of(case, wait_point) if rank not in culprits}
    victims = tuple(sorted({*case.victims_of(culprits), *leaving}))
    waiting = {rank for rank in case.direct(wait_point) if rank not in culprits}
    direct = tuple(sorted(waiting | leaving))
    site = with_source(end.exception.site, case.texts) if end.exception else None
    scene = Scene(
        culprits,
        direct,
        case.where(wait_point),
        site or last_site(case, first),
        case.victims_site(waits),
    )
    # A library may have ended it, and it need not be the one at fault.
    aborted = aborted_by(case.job, first, end)
    mismatch = _mismatch(case, wait_point, first) if aborted else None
    if mismatch is not None:
        return mismatch
    vague = aborted is not None or end.how is How.GONE or end.contested
    peers = _rivals(case, wait_point, culprits, direct) if aborted else ()
    if aborted is Library.NCCL:
        peers = tuple(rank for rank in peers if _is_behind(case, rank, first))
    if peers and differs_in_no_sync(case, wait_point, culprits):
        peers = ()
    # Of several nobody saw the end of, one may have failed and taken the others along.
    several = len(culprits) > 1 and end.how is How.GONE
    runs_at = next(filter(None, map(case.runs_on_at, culprits)), None)
    vague = vague or runs_at is not None
    return Finding(
        kind=Kind.DIED,
        reason=end.reason,
        certainty=(
            Certainty.POSSIBLE if peers or several else Certainty.LIKELY if vague else certainty
        ),
        culprits=tuple(sorted({*culprits, *peers})),
        victims=tuple(rank for rank in victims if rank not in peers),
        text=wording.died(
            scene, end, failed=failed, aborted=aborted, rivals=peers, runs_at=runs_at
        ),
        final=runs_at is None,
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
        ended=culprits,
    )


def _mismatch(case: Case, wait_point: WaitPoint | None, aborted: int) -> Finding | None:
    """What gloo aborted a rank for, where it is known enough of what all entered there."""
    places = [one for one in (wait_point, _last_recorded(case, aborted)) if isinstance(one, Place)]
    for place in places:
        found = judge_aborted(case, place)
        if found is not None:
            return found
        members = case.job.members(place.gid)
        known = sum(case.job.record(rank, place) is not None for rank in members)
        # A few pages tell of a call of Python's; most, who are there as well, had one of C++'s.
        if 2 * known >= len(members) or not all(case.job.arrived(rank, place) for rank in members):
            continue
        found = judge_unrecorded(case, place)
        if found is not None and found.certainty is not Certainty.POSSIBLE:
            victims = tuple(rank for rank in members if rank not in found.culprits)
            return replace(found, victims=victims, final=True)
    return None


def _is_behind(case: Case, rank: int, aborted: int) -> bool:
    """Whether a rank has issued less than one that was aborted, which may have waited for it."""
    return any(
        reached[rank] < reached[aborted]
        for reached in case.job.reached
        if rank in reached and aborted in reached
    )


def _rivals(case: Case, wait_point: WaitPoint | None, aborted: Ranks, others: Ranks) -> Ranks:
    """Who may be at fault instead of ranks that were aborted where others were.

    Where it is known what those did, and nobody is known to have done otherwise: who is
    there as well, and what for nothing tells. If nobody is, and most did as they, those that
    nothing is known of: counters may be half a second old. Else whoever waits there, but nobody
    where most of the group's members made one and the same call.
    """
    place = _last_recorded(case, aborted[0])
    if isinstance(wait_point, Place):
        # The others wait by counters that may be half a second old: it may have gone on since.
        later = place is not None and place.gid == wait_point.gid and place.seq > wait_point.seq
        place = place if later else wait_point
    if place is None:
        return ()
    records = case.job.places(place.gid).get(place.seq, {})
    members = case.job.members(place.gid)
    if all(rank in records for rank in aborted):
        unknown = tuple(rank for rank in members if rank not in records)
        there = tuple(rank for rank in unknown if case.job.arrived(rank, place))
        return there or (unknown if is_majority(records, members) else ())
    alike = Counter((records[r].wire, records[r].shape) for r in others if r in records)
    return () if 2 * max(alike.values(), default=0) > len(members) else others


def _last_recorded(case: Case, rank: int) -> Place | None:
    """The last collective that a rank is known to have made."""
    calls = reversed(case.job.ops.get(rank, ()))
    return next((Place(gid, call.seq) for gid, call in calls if not call.p2p and call.seq), None)


def _raised_out_of(case: Case, wait_point: WaitPoint | None) -> Iterator[int]:
    """Living ranks whose last call was at a place, and failed."""
    if not isinstance(wait_point, Place):
        return
    for rank in case.job.members(wait_point.gid):
        if rank in case.job.ranks and rank not in case.ended:
            last = last_call(case.job, rank)
            if (
                last is not None
                and last.state is OpState.FAILED
                and (case.job.gid(last.group), last.seq) == (wait_point.gid, wait_point.seq)
            ):
                yield rank


def _last_place(case: Case, rank: int) -> Place | None:
    """The collective that a rank was in when it ended."""
    call = last_call(case.job, rank)
    if call is None or call.p2p or call.seq < 1:
        return None
    return Place(case.job.gid(call.group), call.seq)


def last_site(case: Case, rank: int) -> Site | None:
    """The line of the last call that a rank made, where it is known."""
    for _, record in reversed(case.job.ops.get(rank, [])):
        gid = case.job.gid(record.group)
        went_on = not record.p2p and case.job.reached[gid].get(rank, 0) > record.seq
        if record.site is not None or record.source == "flight":
            return None if went_on else with_source(record.site, case.texts)
    return None
