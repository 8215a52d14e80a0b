"""Ranks that others wait for and that are alive, lost, or that nothing is known of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hangwatch.diagnosis.facts.activity import Activity, may_wait
from hangwatch.diagnosis.facts.awaited import On
from hangwatch.diagnosis.facts.channels import senders, sent
from hangwatch.diagnosis.facts.endings import Cause, How, gave_up
from hangwatch.diagnosis.facts.job import is_half
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Place, Setup, Wait, WaitPoint
from hangwatch.diagnosis.rules.by_source import is_by_rank
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.splits import position
from hangwatch.diagnosis.source.program import fork
from hangwatch.diagnosis.text import disagreement, wording
from hangwatch.diagnosis.text.phrases import Ranks, each_now, group_text, now
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Certainty, Kind, Reason
from hangwatch.text import verb


def living(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """Ranks that are busy with something else; all do the same kind of thing."""
    beside = case.doing_beside(culprits[0], case.waits_at(wait_point))
    parts = [(culprits, beside)] if beside else case.doing_by_line(culprits)
    activity, doing = parts[0][1], each_now(parts)
    if isinstance(wait_point, Setup):
        return init_incomplete(case, wait_point, culprits, doing, activity.reason)
    if isinstance(wait_point, Channel):
        return missing_peer(case, wait_point, culprits, doing, activity.reason)
    if is_half(culprits, case.job.members(wait_point.gid)):
        found = subset(case, wait_point, culprits, f"never did: {doing}", final=False)
        if found is not None:
            return found
    waits = case.waits_at(wait_point)
    loop = _left_loop(case, culprits[0], waits)
    direct = case.direct(wait_point)
    scene = Scene(
        culprits,
        direct,
        case.where(wait_point),
        activity.site,
        case.victims_site(waits),
        case.sites_now((*direct, *culprits), waits) if beside is None else {},
    )
    seen = activity.reason is not Reason.UNKNOWN and activity.sure
    if activity.reason is not Reason.GPU_FAULT:
        seen = seen and not any(may_wait(case.job.ranks[rank], case.texts) for rank in culprits)
    found = Finding(
        kind=Kind.NEVER_ENTERED if loop is None else Kind.FINISHED_EARLY,
        reason=activity.reason,
        certainty=Certainty.LIKELY if seen else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=wording.never_entered(scene, activity, doing, timed_out=gave_up(case.ended, waits))
        if loop is None
        else wording.left_loop(scene, "", loop),
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
    )
    return _or_crossed(case, found, activity)


def _or_crossed(case: Case, finding: Finding, activity: Activity) -> Finding:
    """The finding; of both sides where the lock that one waits for is kept for a call of both.

    The thread that has the lock is in a call that a victim does not come to in turn.
    """
    blocked = activity.blocked
    if blocked is None or blocked.on is not On.LOCK or blocked.link is None:
        return finding
    kept = [
        (wait, others)
        for waits in case.graph.at.values()
        for wait in waits
        if wait.apart and wait.rank in finding.culprits
        if (others := {*case.graph.missing.get(wait.wait_point, ())} & {*finding.victims})
    ]
    if not kept or blocked.link.holds is None:
        return finding
    wait, others = kept[0]
    text = wording.crossed(
        finding.text, blocked.link.name, case.where(wait.wait_point), tuple(sorted(others))
    )
    return replace(finding.of_any({*finding.culprits, *others}), text=text, settled=True)


def _left_loop(case: Case, culprit: int, waits: Iterable[Wait]) -> Site | None:
    """The loop that the culprit has left for good and those who wait are in."""
    here = position(case, culprit)
    there = next((at for wait in waits if (at := position(case, wait.rank)) is not None), None)
    parted = fork(case.source.program, here, there) if here and there else None
    if parted is None or not parted.left or parted.in_one_loop:
        return None
    return case.site_of_line(parted.file, parted.left[-1].lineno)


def subset(
    case: Case, wait_point: Place, others: Ranks, went_on: str, *, final: bool
) -> Finding | None:
    """A minority waits in a collective that the others do not come to.

    None unless the source says that those who wait took a condition on the rank.
    """
    waits = case.waits_at(wait_point)
    culprits = case.direct(wait_point)
    scene = Scene(
        culprits,
        others,
        case.where(wait_point),
        case.victims_site(waits),
        case.waiting_site(others[0]),
        case.sites_now((*culprits, *others), waits),
    )
    found = Finding(
        kind=Kind.SUBSET_ENTERED,
        reason=Reason.USER_CODE,
        certainty=Certainty.PROVED if final else Certainty.LIKELY,
        culprits=culprits,
        victims=tuple(sorted(set(case.victims_of(others)) - set(culprits))),
        text=disagreement.subset(scene, went_on),
        final=final,
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
    )
    return found if is_by_rank(case, found) else None


def absent_ranks(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """Ranks without a snapshot: not started, or on a node that does not tell."""
    snapshot = case.job.snapshot
    if isinstance(wait_point, Setup):
        they = verb(culprits, "it has", "they have")
        return init_incomplete(case, wait_point, culprits, f"{they} not been seen", Reason.UNKNOWN)
    waits = case.waits_at(wait_point)
    scene = Scene(
        culprits,
        case.direct(wait_point),
        case.where(wait_point),
        other_site=case.victims_site(waits),
        sites=case.sites_now(case.direct(wait_point), waits),
    )
    causes = {end.cause for end in case.ended.values() if end.how is not How.CLEAN}
    # All that is seen has failed of a peer that was gone: of one that is not seen.
    failed = Cause.OWN not in causes and any(
        wait.over and case.ended[wait.rank].cause is Cause.ECHO for wait in waits
    )
    return Finding(
        kind=Kind.DIED if failed else Kind.NEVER_ENTERED,
        reason=Reason.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=wording.unseen(scene, snapshot.unseen, failed=failed),
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        victim_site=scene.other_site,
        waits=waits,
        ended=culprits if failed else (),
    )


def lost(case: Case, awaited: Iterable[int], wait_points: Iterable[WaitPoint | None]) -> Finding:
    """Ranks whose nodes cannot be reached, with all others of these nodes.

    awaited: those that others wait for, or that were gone when the job ended.
    wait_points: where they are waited for.
    """
    nodes = sorted({case.job.ranks[rank].node for rank in awaited})
    culprits = tuple(
        rank
        for rank, end in sorted(case.ended.items())
        if end.how is How.LOST and case.job.ranks[rank].node in nodes
    )
    known = [wait_point for wait_point in wait_points if wait_point is not None]
    wait_point = max(known, key=lambda wait_point: len(case.graph.at[wait_point]), default=None)
    waits = case.waits_at(wait_point)
    scene = Scene(
        culprits,
        case.direct(wait_point),
        case.where(wait_point),
        other_site=case.victims_site(waits),
        sites=case.sites_now(case.direct(wait_point), waits),
    )
    alone = case.job.snapshot.cut_off
    here = sorted({snap.node for snap in case.job.ranks.values() if snap.node} - {*nodes})
    return Finding(
        kind=Kind.DIED,
        # That all others are lost at once is less likely than that this one is.
        reason=Reason.NETWORK if alone and len(nodes) > 1 else Reason.NODE_LOST,
        certainty=Certainty.POSSIBLE if alone else Certainty.LIKELY,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=wording.lost(
            scene, nodes, here if alone else (), failed=all(wait.over for wait in waits)
        ),
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        victim_site=scene.other_site,
        waits=waits,
        ended=culprits,
    )


def missing_peer(
    case: Case, wait_point: Channel, culprits: Ranks, doing: str, reason: Reason
) -> Finding:
    """A send that its peer never receives, or a recv that it never sends.

    Several culprits: of a recv from any source those who sent less than the others, or
    all who might have sent.
    """
    waits = case.waits_at(wait_point)
    gone = reason is Reason.EXITED
    busy = [case.job.ranks[r] for r in culprits if r in case.job.ranks and r not in case.ended]
    seen = reason is not Reason.UNKNOWN and not any(may_wait(rank, case.texts) for rank in busy)
    # What one that is stopped waited for may have come.
    frozen = case.is_frozen(wait_point.waiter)
    certainty = Certainty.LIKELY if seen and not frozen else Certainty.POSSIBLE
    if gone and not frozen:
        certainty = Certainty.PROVED if wait_point.peer != ANYONE else Certainty.LIKELY
    everyone = (
        wait_point.peer == ANYONE
        and len(culprits) > 1
        and not _sent_less(case, wait_point, culprits)
    )
    scene = Scene(
        culprits,
        (wait_point.waiter,),
        group_text(case.job, wait_point.gid),
        _site_of(case, culprits[0]),
        case.victims_site(waits),
        case.sites_now(culprits, waits),
    )
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=reason,
        certainty=Certainty.POSSIBLE if everyone else certainty,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=wording.missing_peer(
            scene,
            "send" if wait_point.sends else "recv",
            doing,
            _sent_less(case, wait_point, culprits),
        ),
        final=gone and not frozen,
        wait_point=wait_point,
        collective=case.collective(wait_point, waits),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
    )


def _sent_less(case: Case, wait_point: Channel, culprits: Ranks) -> tuple[int, int] | None:
    """(messages of each culprit, of each other rank) for a recv from any source, if known."""
    if wait_point.peer != ANYONE:
        return None
    counts = sent(case.job, wait_point, senders(case.job, wait_point))
    mine = {counts[rank] for rank in culprits if rank in counts}
    others = {count for rank, count in counts.items() if rank not in culprits}
    return (mine.pop(), others.pop()) if len(mine) == len(others) == 1 else None


def init_incomplete(
    case: Case, wait_point: Setup, culprits: Ranks, doing: str, reason: Reason
) -> Finding:
    """Ranks missing from a call that all ranks make."""
    waits = case.waits_at(wait_point)
    scene = Scene(
        culprits,
        case.direct(wait_point),
        wait_point.call,
        _site_of(case, culprits[0]) if culprits else None,
        case.victims_site(waits),
        case.sites_now((*case.direct(wait_point), *culprits), waits),
    )
    known = reason not in (Reason.UNKNOWN, Reason.NETWORK)
    return Finding(
        kind=Kind.INIT_INCOMPLETE,
        reason=reason,
        certainty=Certainty.LIKELY if known else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits, [wait_point]),
        text=wording.init_incomplete(scene, doing),
        wait_point=wait_point,
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
    )


def frozen_setup(case: Case, wait_point: Setup) -> Finding | None:
    """A set-up call that ranks are in which were stopped, if there are any."""
    frozen = tuple(rank for rank in case.direct(wait_point) if case.is_frozen(rank))
    if not frozen:
        return None
    doing = case.activity(frozen[0])
    return init_incomplete(case, wait_point, frozen, now(frozen, doing), doing.reason)


def _site_of(case: Case, culprit: int) -> Site | None:
    """Where a culprit waits itself, or what it does instead."""
    for wait in case.graph.by_rank.get(culprit, ()):
        site = case.wait_site(wait)
        if site is not None:
            return site
    return case.activity(culprit).site if culprit in case.job.ranks else None
