"""Ranks that others wait for and that are alive, or that nothing is known of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.diagnosis import wording
from hangwatch.diagnosis.case import Finding
from hangwatch.diagnosis.phrases import now, verb
from hangwatch.diagnosis.spots import Channel, Place, Setup
from hangwatch.types import Certainty, Frame, Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangwatch.diagnosis.case import Case
    from hangwatch.diagnosis.source import Guard, LeftLoop
    from hangwatch.diagnosis.spots import Spot, Wait

Ranks = tuple[int, ...]


def living(case: Case, spot: Spot, culprits: Ranks) -> Finding:
    """Ranks that are busy with something else; all do the same kind of thing."""
    activity = case.activity(culprits[0])
    doing = now(culprits, activity)
    if isinstance(spot, Setup):
        return init_incomplete(case, spot, culprits, doing, activity.reason)
    if isinstance(spot, Channel):
        return missing_peer(case, spot, culprits[0], doing, activity.reason)
    waits = case.waits_at(spot)
    there = case.direct(spot)
    if 2 * len(culprits) >= len(case.job.members(spot.gid)):
        guard = rank_guard(case, waits)
        if guard is not None:
            return subset(case, spot, there, culprits, guard, f"never did: {doing}", final=False)
    loop = _left_loop(case, spot, culprits[0], waits)
    victim_site = case.victims_site(waits)
    if loop is not None:
        text = wording.left_loop(
            culprits, there, case.where(spot), "", (activity.site, victim_site), loop
        )
    else:
        text = wording.never_entered(culprits, there, case.where(spot), activity, victim_site)
    seen = activity.reason is not Reason.UNKNOWN
    return Finding(
        kind=Kind.NEVER_ENTERED if loop is None else Kind.FINISHED_EARLY,
        reason=activity.reason,
        certainty=Certainty.LIKELY if seen else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=text,
        spot=spot,
        collective=case.collective(spot, waits),
        site=activity.site,
        victim_site=victim_site,
        waits=waits,
    )


def _left_loop(case: Case, spot: Place, culprit: int, waits: Iterable[Wait]) -> LeftLoop | None:
    """The loop that the culprit has left for good and those who wait are in."""
    mine = case.stack(culprit)
    for wait in waits:
        theirs = case.frames_at(wait.rank, spot)
        if not mine or not theirs:
            continue
        fork = case.source.fork(mine, theirs) or case.source.fork_of_lines(mine[-1], theirs[-1])
        loop = case.source.left_loop(fork) if fork else None
        return loop if loop is not None and not loop.returns else None
    return None


def rank_guard(case: Case, waits: Iterable[Wait]) -> Guard | None:
    """The condition on the rank that those who wait stand under, if they do.

    One whose other branch communicates too says nothing: both kinds of ranks
    have their part to do.
    """
    for wait in waits:
        stack = case.stack(wait.rank)
        frames = stack[::-1] if stack and not wait.over else []
        if wait.site is not None:
            frames = [Frame(wait.site.file, wait.site.line, wait.site.function), *frames]
        for frame in frames:
            guard = case.source.rank_guard(frame)
            if guard is not None:
                return None if guard.other_branch_communicates else guard
    return None


def subset(
    case: Case,
    spot: Place,
    culprits: Ranks,
    others: Ranks,
    guard: Guard | None,
    went_on: str,
    *,
    final: bool,
) -> Finding:
    """A minority waits in a collective that the others do not come to."""
    waits = case.waits_at(spot)
    site = case.victims_site(waits)
    other_site = case.waiting_site(others[0])
    op = case.op_at(waits, spot)
    return Finding(
        kind=Kind.SUBSET_ENTERED,
        reason=Reason.USER_CODE,
        certainty=Certainty.PROVED if final else Certainty.LIKELY,
        culprits=culprits,
        victims=tuple(sorted(set(case.victims_of(others)) - set(culprits))),
        text=wording.subset(
            culprits, others, case.where(spot), op, (site, other_site), guard, went_on
        ),
        final=final,
        spot=spot,
        collective=case.collective(spot, waits),
        site=site,
        victim_site=other_site,
        waits=waits,
    )


def absent_ranks(case: Case, spot: Spot, culprits: Ranks) -> Finding:
    """Ranks without a snapshot: on a lost node, not started, or not reachable."""
    snapshot = case.job.snapshot
    waits = case.waits_at(spot)
    there = case.direct(spot)
    lost = bool(snapshot.lost_nodes)
    if isinstance(spot, Setup):
        they = verb(culprits, "it", "they")
        now = f"no process of {verb(culprits, 'its', 'theirs')} was seen, or {they} never started"
        return init_incomplete(case, spot, culprits, now, Reason.UNKNOWN)
    return Finding(
        kind=Kind.DIED if lost else Kind.NEVER_ENTERED,
        reason=Reason.NODE_LOST if lost else Reason.UNKNOWN,
        certainty=Certainty.LIKELY if lost else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=wording.unseen(
            culprits, there, case.where(spot), (*snapshot.unseen, *_lost(snapshot.lost_nodes))
        ),
        spot=spot,
        collective=case.collective(spot, waits),
        victim_site=case.victims_site(waits),
        waits=waits,
    )


def _lost(nodes: tuple[str, ...]) -> tuple[str, ...]:
    return (f"lost: {', '.join(nodes[:4])}",) if nodes else ()


def missing_peer(case: Case, spot: Channel, culprit: int, now: str, reason: Reason) -> Finding:
    """A send that its peer never receives, or a recv that it never sends."""
    waits = case.waits_at(spot)
    site = case.waiting_site(culprit)
    waiter_site = case.victims_site(waits)
    wanted = "recv" if spot.sends else "send"
    where = "send" if spot.sends else "recv"
    gone = culprit in case.ended or reason is Reason.EXITED
    seen = reason is not Reason.UNKNOWN
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=reason,
        certainty=(Certainty.PROVED if gone else Certainty.LIKELY if seen else Certainty.POSSIBLE),
        culprits=(culprit,),
        victims=case.victims_of((culprit,)),
        text=wording.missing_peer((culprit,), spot.waiter, where, wanted, now, (site, waiter_site)),
        final=gone,
        spot=spot,
        collective=case.collective(spot, waits),
        site=site,
        victim_site=waiter_site,
        waits=waits,
    )


def init_incomplete(case: Case, spot: Setup, culprits: Ranks, now: str, reason: Reason) -> Finding:
    """Ranks missing from a call that all ranks make."""
    waits = case.waits_at(spot)
    activity_site = case.waiting_site(culprits[0]) if culprits else None
    victim_site = case.victims_site(waits)
    known = reason not in (Reason.UNKNOWN, Reason.NETWORK)
    return Finding(
        kind=Kind.INIT_INCOMPLETE,
        reason=reason,
        certainty=Certainty.LIKELY if known else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits, [spot]),
        text=wording.init_incomplete(
            culprits, case.direct(spot), spot.call, now, activity_site, victim_site
        ),
        spot=spot,
        site=activity_site,
        victim_site=victim_site,
        waits=waits,
    )
