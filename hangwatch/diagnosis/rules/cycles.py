"""Judges what is stuck without a rank to wait for: cycles, and places that are full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangwatch.diagnosis.facts.activity import Activity
from hangwatch.diagnosis.facts.channels import is_guessed, senders, sending
from hangwatch.diagnosis.facts.devices import are_untimed
from hangwatch.diagnosis.facts.endings import Cause
from hangwatch.diagnosis.facts.history import has_history
from hangwatch.diagnosis.facts.job import NEW_GROUP
from hangwatch.diagnosis.facts.stores import longest_owed
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Place, Setup, Wait, WaitPoint
from hangwatch.diagnosis.graph.wait_for import Root
from hangwatch.diagnosis.rules.absentees import frozen_setup, init_incomplete
from hangwatch.diagnosis.rules.beside import unless_beside
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.deaths import died
from hangwatch.diagnosis.rules.divergence import Divergence, divergence
from hangwatch.diagnosis.rules.messages import (
    channel_in_cycle,
    for_messages,
    judge_messages,
    peers_of,
    tells,
    wait_of,
)
from hangwatch.diagnosis.rules.mismatch import judge_lines
from hangwatch.diagnosis.rules.naming import judge_names
from hangwatch.diagnosis.rules.stores import judge_key
from hangwatch.diagnosis.rules.terminals import finished, left_behind
from hangwatch.diagnosis.rules.unrecorded import judge_unrecorded
from hangwatch.diagnosis.text import wording
from hangwatch.diagnosis.text.phrases import at_line, group_text, now
from hangwatch.diagnosis.text.wording import Scene, Text
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Certainty, Kind, Reason
from hangwatch.text import verb

Ranks = tuple[int, ...]


def judge_stuck(case: Case, wait_point: WaitPoint) -> Finding:
    """A wait point that everyone has reached and that does not complete."""
    if isinstance(wait_point, Setup):
        return _stuck_setup(case, wait_point)
    waits = case.waits_at(wait_point)
    members = (
        case.job.members(wait_point.gid)
        if isinstance(wait_point, Place)
        else _both_ends(case, wait_point)
    )
    broken = any(_raised(case, wait.rank) for wait in waits)
    gone = tuple(sorted({wait.rank for wait in waits if _gone_before(case, wait.rank)}))
    if gone and len(gone) < len(members):
        return died(case, wait_point, gone, Certainty.LIKELY)
    found = None
    if isinstance(wait_point, Place):
        found = judge_names(case, wait_point)
        if found is None and not broken:
            found = judge_unrecorded(case, wait_point) or judge_lines(case, wait_point)
    return (
        found
        or _of_a_device(case, wait_point, members, broken=broken)
        or _of_nobody(case, wait_point, members, broken=broken)
    )


def _of_a_device(
    case: Case, wait_point: Place | Channel, members: Ranks, *, broken: bool
) -> Finding | None:
    """What is known of a member that does not run, or of its GPU."""
    frozen = tuple(sorted(r for r in members if case.is_frozen(r)))
    if frozen:
        return _frozen(case, wait_point, frozen, case.activity(frozen[0]))
    faults = {rank: fault for rank in members if (fault := case.fault(rank)) is not None}
    if faults:
        sure = any(fault.sure for fault in faults.values())
        faulty = tuple(sorted(rank for rank, fault in faults.items() if fault.sure is sure))
        doing = Activity(Reason.GPU_FAULT, fault=faults[faulty[0]].what, sure=sure)
        return replace(_frozen(case, wait_point, faulty, doing), final=broken)
    waits = case.waits_at(wait_point)
    if isinstance(wait_point, Place) and all(wait.record and wait.record.device for wait in waits):
        past = tuple(rank for rank in members if case.job.passed(rank, wait_point))
        return _stuck_beside(case, wait_point, past) if past else None
    return None


def _of_nobody(case: Case, wait_point: Place | Channel, members: Ranks, *, broken: bool) -> Finding:
    """Nothing tells one member from the others."""
    waits = case.waits_at(wait_point)
    place = wait_point if isinstance(wait_point, Place) else None
    alike = place is not None and _is_alike(case, place)
    before = _is_before(waits)
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=Reason.NETWORK if broken else Reason.GPU_KERNEL if before else Reason.UNKNOWN,
        certainty=Certainty.LIKELY if alike else Certainty.POSSIBLE,
        culprits=(),
        victims=case.victims_of((), [wait_point]),
        text=_text_of_nobody(case, wait_point, members, alike=alike),
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        victim_site=case.victims_site(waits),
        final=broken,
        waits=waits,
    )


def _text_of_nobody(
    case: Case, wait_point: Place | Channel, members: Ranks, *, alike: bool
) -> Text:
    waits, where = case.waits_at(wait_point), case.where(wait_point)
    site = case.victims_site(waits)
    if _is_before(waits):
        return wording.all_before(members, where, site, alike=alike)
    if isinstance(wait_point, Channel) and all(wait.connects for wait in waits):
        return wording.connecting(members, where, site)
    first = isinstance(wait_point, Place) and _connects(case, wait_point)
    untimed = are_untimed(waits)
    return wording.stuck(members, where, site, alike=alike, untimed=untimed, first=first)


def _all_connect(case: Case, root: Root) -> Finding | None:
    """Ranks that wait for each other in calls of NCCL's which none of them has returned from.

    What each posts next is not known: nothing shows that it is not what the others need.
    """
    waits = tuple(
        wait
        for point in root.wait_points
        for wait in case.waits_at(point)
        if wait.rank in root.ranks
    )
    if not waits or not all(wait.connects for wait in waits):
        return None
    point, site = waits[0].wait_point, case.victims_site(waits)
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=Reason.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprits=(),
        victims=case.victims_of((), root.wait_points),
        text=wording.connecting(root.ranks, waits[0].op, site),
        wait_point=point,
        collective=case.collective(point, waits),
        victim_site=site,
        waits=waits,
    )


def _connects(case: Case, place: Place) -> bool:
    """Whether NCCL connects the ranks of a group in a call: its first."""
    groups = (case.job.progress.get(rank, {}).get(place.gid) for rank in case.direct(place))
    return place.seq == 1 and any(group is not None and group.in_order for group in groups)


def _is_alike(case: Case, place: Place) -> bool:
    """Whether it is known of all members that they made the same call there."""
    known = case.job.places(place.gid).get(place.seq, {})
    return len(known) == len(case.job.members(place.gid))


def _is_before(waits: Sequence[Wait]) -> bool:
    """Whether no device has come to what it is to run."""
    return all(wait.record is not None and wait.record.begun is False for wait in waits)


def _stuck_beside(case: Case, place: Place, past: Ranks) -> Finding:
    """A call that is complete on the devices of some members, and not on those of the others."""
    waits = case.waits_at(place)
    before = _is_before(waits)
    scene = Scene(
        tuple(sorted({wait.rank for wait in waits})),
        past,
        case.where(place),
        case.victims_site(waits),
        sites=case.sites_now(case.direct(place), waits),
    )
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=Reason.GPU_KERNEL if before else Reason.UNKNOWN,
        certainty=Certainty.LIKELY,
        culprits=scene.culprits,
        victims=(),
        text=wording.stuck_beside(scene, alike=_is_alike(case, place), before=before),
        wait_point=place,
        collective=case.collective(place, waits),
        site=scene.site,
        waits=waits,
    )


def _stuck_setup(case: Case, wait_point: Setup) -> Finding:
    if wait_point.keys:
        return judge_key(case, wait_point)
    found = judge_names(case, wait_point) if wait_point.call == NEW_GROUP else None
    return (
        found
        or frozen_setup(case, wait_point)
        or init_incomplete(case, wait_point, (), "", Reason.NETWORK)
    )


def _both_ends(case: Case, wait_point: Channel) -> Ranks:
    """The waiter and its peer; of a recv from any source those whose message is under way."""
    if wait_point.peer != ANYONE:
        return tuple(sorted((wait_point.waiter, wait_point.peer)))
    several = [
        rank for rank in senders(case.job, wait_point) if sending(case.job, wait_point, rank)
    ]
    return tuple(sorted((wait_point.waiter, *several)))


def _frozen(case: Case, wait_point: Place | Channel, culprits: Ranks, doing: Activity) -> Finding:
    """All are there, and a few of them were stopped, or their GPUs, before it was complete."""
    waits = case.waits_at(wait_point)
    others = tuple(rank for rank in case.direct(wait_point) if rank not in culprits)
    scene = Scene(
        culprits,
        others,
        case.where(wait_point),
        (case.site_at(culprits[0], wait_point) if isinstance(wait_point, Place) else None)
        or doing.site,
        case.victims_site(wait for wait in waits if wait.rank in others),
        case.sites_now((*culprits, *others), waits),
    )
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=doing.reason,
        certainty=Certainty.LIKELY if doing.sure else Certainty.POSSIBLE,
        culprits=culprits,
        victims=tuple(sorted(set(case.victims_of(culprits, [wait_point])) - set(culprits))),
        text=wording.frozen(scene, doing),
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
    )


def _gone_before(case: Case, rank: int) -> bool:
    """Whether a rank ended, and not because somebody is just ending the whole job."""
    end = case.ended.get(rank)
    return end is not None and (end.cause is not Cause.TERMINATED or left_behind(case, end))


def _raised(case: Case, rank: int) -> bool:
    end = case.ended.get(rank)
    return end is not None and end.cause is Cause.ECHO


def frozen_in(case: Case, root: Root) -> Ranks:
    """The ranks of a cycle of collectives and messages of which nothing runs.

    What they wait for may have come: the others wait until they are continued.
    """
    if any(isinstance(wait_point, Setup) for wait_point in root.wait_points):
        return ()
    return tuple(rank for rank in root.ranks if case.is_frozen(rank))


def judge_cycle(case: Case, root: Root) -> Finding:
    """Judge ranks that wait for each other."""
    connecting = _all_connect(case, root)
    if connecting is not None:
        return connecting
    finding = unless_beside(case, _judge_cycle(case, root))
    if any(
        isinstance(point, Channel) and is_guessed(case.job, point) for point in root.wait_points
    ):
        return replace(finding, certainty=Certainty.POSSIBLE, final=False)
    return finding


def _judge_cycle(case: Case, root: Root) -> Finding:
    inside = set(root.ranks)
    setups = [wait_point for wait_point in root.wait_points if isinstance(wait_point, Setup)]
    frozen = tuple(rank for rank in root.ranks if case.is_frozen(rank))
    if frozen and setups:
        doing = case.activity(frozen[0])
        return init_incomplete(case, max(setups), frozen, now(frozen, doing), doing.reason)
    told = _left_group(case, root)
    keyed = [wait_point for wait_point in setups if wait_point.keys]
    if told is None and keyed:
        told = judge_key(case, longest_owed(case.job.ranks, keyed))
    if told is None and setups:
        told = _setup_in_cycle(case, setups, inside)
    if told is not None:
        return told
    sides: dict[WaitPoint, list[Wait]] = {}
    beside: list[Wait] = []
    for wait_point in root.wait_points:
        there = case.waits_at(wait_point)
        sides[wait_point] = [
            wait
            for wait in there
            if wait.rank in inside or (not inside and _first(case, root, wait))
        ]
        beside.extend(wait for wait in there if inside and wait.rank not in inside)
    # What they have done before they came to wait might tell who has left the way.
    waits = [wait for side in sides.values() for wait in side]
    silent = any(not has_history(case.job, wait.rank, wait.record) for wait in (*waits, *beside))
    left = divergence(case, waits, beside, [*for_messages(case, root)])
    told = judge_messages(case, sides) if left is None else None
    if told is not None:
        return told
    halves = [s for s in root.wait_points if isinstance(s, Channel) and tells(case, s, left)]
    if len({peers_of(case, half) for half in halves}) == 1:
        oldest = max(halves, key=lambda half: (sides[half][0].age_s, half.sends, half.tag))
        return channel_in_cycle(case, oldest, inside, silent=silent and left is None)
    found = _inversion(case, sides, left)
    if left is None and silent and found.certainty is Certainty.PROVED:
        # One of two sides may have left the way, and the other is named with it.
        outvoted = len(found.culprits) < len({wait.rank for wait in waits})
        return replace(found, certainty=Certainty.LIKELY if outvoted else Certainty.POSSIBLE)
    return found


def _left_group(case: Case, root: Root) -> Finding | None:
    """Some wait in a group that others have destroyed, who come to it no more.

    Whatever those wait for: that they went on to it is the rest of their way.
    """
    for wait_point in root.wait_points:
        if isinstance(wait_point, Place):
            missing = case.graph.missing.get(wait_point, ())
            gone = tuple(
                sorted(rank for rank in missing if case.job.has_left(rank, wait_point.gid))
            )
            if gone:
                return finished(case, wait_point, gone)
    return None


def _first(case: Case, root: Root, wait: Wait) -> bool:
    """Whether of the root's wait points this is the one that the rank came to first."""
    wait_points = (
        own.wait_point
        for own in case.graph.by_rank[wait.rank]
        if own.wait_point in root.wait_points
    )
    return next(wait_points, None) == wait.wait_point


def _setup_in_cycle(case: Case, setups: Sequence[Setup], inside: set[int]) -> Finding:
    """Some are in a set-up call, and the others wait for them elsewhere."""
    wait_point = max(setups, key=lambda one: (len(case.direct(one)), one))
    named = judge_names(case, wait_point) if wait_point.call == NEW_GROUP else None
    if named is not None:
        return named
    culprits = tuple(sorted(inside & set(case.graph.missing.get(wait_point, ()))))
    wait = wait_of(case, culprits[0])
    they = verb(culprits, "it waits", "they wait")
    waiting = (
        f"{they} in {case.where(wait.wait_point)}{at_line(case.wait_site(wait))}" if wait else ""
    )
    found = init_incomplete(case, wait_point, culprits, waiting, Reason.USER_CODE)
    if len(setups) > 1:
        # Each makes another group: who left one out cannot be told from the lines.
        gone = {rank for rank in case.ended if rank not in found.victims}
        everyone = tuple(sorted(inside | gone))
        victims = tuple(rank for rank in found.victims if rank not in everyone)
        found = replace(found, culprits=everyone, victims=victims)
    if len(setups) > 1 or len(culprits) > 1:
        # new_group lets ranks through that are no members of it: not all need be missing.
        return replace(found, certainty=Certainty.POSSIBLE)
    return found


def _inversion(case: Case, sides: dict[WaitPoint, list[Wait]], left: Divergence | None) -> Finding:
    ordered = sorted(sides.items(), key=lambda side: len(side[1]))
    parts = [
        (
            tuple(sorted({wait.rank for wait in waits})),
            case.where(wait_point),
            case.victims_site(waits),
        )
        for wait_point, waits in ordered
        if waits
    ]
    waits = tuple(wait for _, side in ordered for wait in side)
    culprits = left.culprits if left is not None else _fewer(ordered)
    guilty = [wait for wait in waits if wait.rank in culprits]
    rest = [wait for wait in waits if wait.rank not in culprits]
    kind, text = _told(case, left, guilty, rest) if left else (Kind.ORDER_INVERSION, None)
    firm = all(wait.firm for wait in waits)
    sure = Certainty.PROVED if firm else Certainty.LIKELY
    if left is None and any(isinstance(s, Channel) and s.peer == ANYONE for s in sides):
        sure = Certainty.POSSIBLE  # nothing tells whose message is missing, or if any is
    parted = left is not None and left.parted
    if parted:
        sure = Certainty.POSSIBLE
    about = guilty[0].wait_point if left else ordered[0][0]
    sites = (case.victims_site(guilty), case.victims_site(rest)) if left else _sites(parts)
    return Finding(
        kind=kind,
        reason=Reason.USER_CODE,
        certainty=sure,
        culprits=culprits,
        victims=case.victims_of(culprits, sides),
        text=text or wording.cycle(parts, culprits if left else (), parted=parted),
        final=firm,
        wait_point=about,
        collective=case.collective(about, case.waits_at(about)),
        site=sites[0],
        victim_site=sites[1],
        waits=waits,
    )


def _fewer(ordered: Sequence[tuple[WaitPoint, list[Wait]]]) -> Ranks:
    """Of two sides the one with fewer ranks; else all that wait for each other."""
    sides = [tuple(sorted({wait.rank for wait in side})) for _, side in ordered if side]
    if len(sides) == 2 and len(sides[0]) < len(sides[1]):  # noqa: PLR2004 (one or the other)
        return sides[0]
    return tuple(sorted({rank for ranks in sides for rank in ranks}))


def _sites(parts: Sequence[tuple[Ranks, str, Site | None]]) -> tuple[Site | None, Site | None]:
    return parts[0][2], parts[1][2] if len(parts) > 1 else None


def _told(
    case: Case, left: Divergence, guilty: list[Wait], rest: list[Wait]
) -> tuple[Kind, Text | None]:
    """What kind of departure it is; its text, None where it is an inversion."""
    sites = case.victims_site(guilty), case.victims_site(rest)
    mine, theirs = (case.op_at(waits, None) or "a collective" for waits in (guilty, rest))
    at = guilty[0].wait_point
    if isinstance(at, Channel) and not left.parted:
        scene = Scene(left.culprits, left.others, group_text(case.job, at.gid), *sites)
        return Kind.MISSING_PEER, wording.unmatched(scene, mine, theirs, new=True)
    return Kind.ORDER_INVERSION, None
