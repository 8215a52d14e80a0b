"""Judges ranks that others wait for and that are alive, lost, or unseen."""

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
from hangwatch.diagnosis.rules.setups import init_incomplete
from hangwatch.diagnosis.rules.splits import position
from hangwatch.diagnosis.source.program import fork
from hangwatch.diagnosis.text import disagreement, wording
from hangwatch.diagnosis.text.phrases import Ranks, each_now, group_text, verb
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Certainty, Kind, Reason


def living(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """Ranks that are busy with something else; all do the same kind of thing."""
    waits = case.waits_at(wait_point)
    of_thread = case.doing_in_thread(culprits[0], waits)
    parts = [(culprits, of_thread)] if of_thread else case.doing_by_line(culprits)
    activity, doing = parts[0][1], each_now(parts)
    if isinstance(wait_point, Setup):
        return init_incomplete(case, wait_point, culprits, doing, activity.reason)
    if isinstance(wait_point, Channel):
        return missing_peer(case, wait_point, culprits, doing, activity.reason)
    if is_half(culprits, case.job.members(wait_point.gid)):
        few = subset(case, wait_point, culprits, f"never did: {doing}", final=False)
        if few is not None:
            return few
    loop = _left_loop(case, culprits[0], waits)
    scene = case.scene(wait_point, culprits, activity.site)
    if of_thread:
        scene = replace(scene, sites={})  # of the main threads
    seen = activity.reason is not Reason.UNKNOWN and activity.sure
    if activity.reason is not Reason.GPU_FAULT:
        seen = seen and not any(may_wait(case.job.ranks[rank], case.texts) for rank in culprits)
    finding = Finding(
        kind=Kind.NEVER_ENTERED if loop is None else Kind.FINISHED_EARLY,
        reason=activity.reason,
        certainty=Certainty.LIKELY if seen else Certainty.POSSIBLE,
        text=wording.never_entered(scene, activity, doing, timed_out=gave_up(case.ended, waits))
        if loop is None
        else wording.left_loop(scene, "", loop),
        **case.about(wait_point, scene),
    )
    return _or_crossed(case, finding, activity)


def _or_crossed(case: Case, finding: Finding, activity: Activity) -> Finding:
    """The finding, of both sides where the lock that a culprit waits for is held during a call.

    The thread that holds the lock is in a call that a victim does not make in turn.
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
    """The loop that the culprit has left for good and the waiting ranks are in."""
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

    None unless the source shows that the waiting ranks took a condition on the rank.
    """
    culprits, site = case.direct(wait_point), case.victims_site(case.waits_at(wait_point))
    scene = case.scene(wait_point, culprits, site, others, case.waiting_site(others[0]))
    victims = tuple(rank for rank in case.victims_of(others) if rank not in culprits)
    finding = Finding(
        kind=Kind.SUBSET_ENTERED,
        certainty=Certainty.PROVED if final else Certainty.LIKELY,
        text=disagreement.subset(scene, went_on),
        final=final,
        **case.about(wait_point, scene, victims),
    )
    return finding if is_by_rank(case, finding) else None


def absent_ranks(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """Ranks without a snapshot: not started, or on a node that does not answer."""
    if isinstance(wait_point, Setup):
        they = verb(culprits, "it has", "they have")
        return init_incomplete(case, wait_point, culprits, f"{they} not been seen", Reason.UNKNOWN)
    waits = case.waits_at(wait_point)
    scene = case.scene(wait_point, culprits)
    causes = {end.cause for end in case.ended.values() if end.how is not How.CLEAN}
    # All that is seen has failed of a peer that was gone: of one that is not seen.
    failed = Cause.OWN not in causes and any(
        wait.over and case.ended[wait.rank].cause is Cause.ECHO for wait in waits
    )
    return Finding(
        kind=Kind.DIED if failed else Kind.NEVER_ENTERED,
        reason=Reason.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        text=wording.unseen(scene, case.job.snapshot.unseen, failed=failed),
        ended=culprits if failed else (),
        **case.about(wait_point, scene),
    )


def lost(case: Case, awaited: Iterable[int], wait_points: Iterable[WaitPoint | None]) -> Finding:
    """Ranks whose nodes cannot be reached, with all others of these nodes.

    awaited: the ranks that others wait for, or that were gone when the job ended.
    wait_points: the points at which others wait for them.
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
    scene = case.scene(wait_point, culprits)
    alone = case.job.snapshot.cut_off
    here = sorted({snap.node for snap in case.job.ranks.values() if snap.node} - {*nodes})
    return Finding(
        kind=Kind.DIED,
        # That all others are lost at once is less likely than that this one is.
        reason=Reason.NETWORK if alone and len(nodes) > 1 else Reason.NODE_LOST,
        certainty=Certainty.POSSIBLE if alone else Certainty.LIKELY,
        text=wording.lost(
            scene, nodes, here if alone else (), failed=all(wait.over for wait in waits)
        ),
        ended=culprits,
        **case.about(wait_point, scene),
    )


def missing_peer(
    case: Case, wait_point: Channel, culprits: Ranks, doing: str, reason: Reason
) -> Finding:
    """A send that its peer never receives, or a recv that it never sends.

    Several culprits: of a recv from any source the ranks that sent less than the others, or
    all that might have sent.
    """
    gone = reason is Reason.EXITED
    busy = [case.job.ranks[r] for r in culprits if r in case.job.ranks and r not in case.ended]
    seen = reason is not Reason.UNKNOWN and not any(may_wait(rank, case.texts) for rank in busy)
    # The message that a stopped rank waited for may have come.
    frozen = case.is_frozen(wait_point.waiter)
    certainty = Certainty.LIKELY if seen and not frozen else Certainty.POSSIBLE
    if gone and not frozen:
        certainty = Certainty.PROVED if wait_point.peer != ANYONE else Certainty.LIKELY
    fewer = _sent_less(case, wait_point, culprits)
    everyone = wait_point.peer == ANYONE and len(culprits) > 1 and not fewer
    scene = case.scene(wait_point, culprits, case.site_of(culprits[0]))
    scene = replace(scene, where=group_text(case.job, wait_point.gid))
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=reason,
        certainty=Certainty.POSSIBLE if everyone else certainty,
        text=wording.missing_peer(scene, "send" if wait_point.sends else "recv", doing, fewer),
        final=gone and not frozen,
        **case.about(wait_point, scene),
    )


def _sent_less(case: Case, wait_point: Channel, culprits: Ranks) -> tuple[int, int] | None:
    """(messages of each culprit, of each other rank) for a recv from any source, if known."""
    if wait_point.peer != ANYONE:
        return None
    counts = sent(case.job, wait_point, senders(case.job, wait_point))
    mine = {counts[rank] for rank in culprits if rank in counts}
    others = {count for rank, count in counts.items() if rank not in culprits}
    return (mine.pop(), others.pop()) if len(mine) == len(others) == 1 else None
