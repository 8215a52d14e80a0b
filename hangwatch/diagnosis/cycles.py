"""Judges what is stuck without a rank to wait for: cycles, and places that are full."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from hangwatch.diagnosis import disagreement, wording
from hangwatch.diagnosis.absentees import init_incomplete, missing_peer
from hangwatch.diagnosis.case import Finding
from hangwatch.diagnosis.divergence import divergence
from hangwatch.diagnosis.endings import Cause
from hangwatch.diagnosis.naming import judge_names
from hangwatch.diagnosis.phrases import at_line
from hangwatch.diagnosis.spots import Channel, Place, Setup
from hangwatch.diagnosis.terminals import died, left_behind
from hangwatch.diagnosis.unrecorded import judge_unrecorded
from hangwatch.diagnosis.wording import Scene
from hangwatch.types import Certainty, Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangwatch.diagnosis.case import Case
    from hangwatch.diagnosis.divergence import Divergence
    from hangwatch.diagnosis.graph import Root
    from hangwatch.diagnosis.spots import Spot, Wait
    from hangwatch.diagnosis.wording import Text
    from hangwatch.types import Site

Ranks = tuple[int, ...]


def judge_stuck(case: Case, spot: Spot) -> Finding:
    """A spot that everyone has reached and that does not complete."""
    if isinstance(spot, Setup):
        return init_incomplete(case, spot, (), "", Reason.NETWORK)
    waits = case.waits_at(spot)
    members = (
        case.job.members(spot.gid)
        if isinstance(spot, Place)
        else tuple(sorted((spot.waiter, spot.peer)))
    )
    known = case.job.places(spot.gid).get(spot.seq, {}) if isinstance(spot, Place) else {}
    alike = len(known) == len(members)
    broken = any(_raised(case, wait.rank) for wait in waits)
    site = case.victims_site(waits)
    gone = tuple(sorted({wait.rank for wait in waits if _gone_before(case, wait.rank)}))
    if gone and len(gone) < len(members):
        return died(case, spot, gone, Certainty.LIKELY)
    found = None
    if isinstance(spot, Place):
        found = judge_names(case, spot) or (None if broken else judge_unrecorded(case, spot))
    if found is not None:
        return found
    frozen = tuple(r for r in members if _is_frozen(case, r))
    if frozen and isinstance(spot, Place):
        return _frozen(case, spot, frozen)
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=Reason.NETWORK if broken else Reason.UNKNOWN,
        certainty=Certainty.LIKELY if alike else Certainty.POSSIBLE,
        culprits=(),
        victims=case.victims_of((), [spot]),
        text=wording.stuck(members, case.where(spot), site, alike=alike),
        spot=spot,
        collective=case.collective(spot, waits),
        victim_site=site,
        final=broken,
        waits=waits,
    )


def _is_frozen(case: Case, rank: int) -> bool:
    """Whether nothing of a rank runs, not even what works on its collectives."""
    known = rank in case.job.ranks and rank not in case.ended
    return known and case.activity(rank).reason in (Reason.STOPPED, Reason.DEBUGGER)


def _frozen(case: Case, place: Place, culprits: Ranks) -> Finding:
    """All are there, and a few of them were stopped before it was complete."""
    waits = case.waits_at(place)
    doing = case.activity(culprits[0])
    others = tuple(rank for rank in case.direct(place) if rank not in culprits)
    scene = Scene(
        culprits,
        others,
        case.where(place),
        case.site_at(culprits[0], place) or doing.site,
        case.victims_site(wait for wait in waits if wait.rank in others),
    )
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=doing.reason,
        certainty=Certainty.LIKELY,
        culprits=culprits,
        victims=tuple(sorted(set(case.victims_of((), [place])) - set(culprits))),
        text=wording.frozen(scene, doing),
        spot=place,
        collective=case.collective(place, waits),
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


def judge_cycle(case: Case, root: Root) -> Finding:
    """Ranks that wait for each other."""
    inside = set(root.ranks)
    camps: dict[Spot, list[Wait]] = defaultdict(list)
    for spot in root.spots:
        camps[spot] = [
            wait
            for wait in case.waits_at(spot)
            if wait.rank in inside or (not inside and _first(case, root, wait))
        ]
    for spot in root.spots:
        if isinstance(spot, Setup):
            return _setup_in_cycle(case, spot, inside)
    for spot in root.spots:
        if isinstance(spot, Channel) and spot.peer in inside and _is_elsewhere(case, spot.peer):
            return _channel_in_cycle(case, spot, inside)
    return _inversion(case, root, camps)


def _first(case: Case, root: Root, wait: Wait) -> bool:
    """Whether of the root's spots this is the one that the rank came to first."""
    spots = (own.spot for own in case.graph.by_rank[wait.rank] if own.spot in root.spots)
    return next(spots, None) == wait.spot


def _is_elsewhere(case: Case, rank: int) -> bool:
    """Whether a rank waits in something else than a send or recv."""
    return any(not isinstance(wait.spot, Channel) for wait in case.graph.by_rank.get(rank, ()))


def _setup_in_cycle(case: Case, spot: Setup, inside: set[int]) -> Finding:
    """Some are in a set-up call, and the others wait for them elsewhere."""
    culprits = tuple(sorted(inside & set(case.graph.missing.get(spot, ()))))
    wait = _wait_of(case, culprits[0])
    now = f"it waits in {case.where(wait.spot)}{at_line(case.wait_site(wait))}" if wait else ""
    found = init_incomplete(case, spot, culprits, now, Reason.USER_CODE)
    if len(culprits) > len(case.direct(spot)):
        # new_group lets ranks through that are no members of it: not all need be missing.
        return replace(found, certainty=Certainty.POSSIBLE)
    return found


def _channel_in_cycle(case: Case, spot: Channel, inside: set[int]) -> Finding:
    """A send or recv whose peer waits in something else, and that for the waiter."""
    wait = _wait_of(case, spot.peer)
    now = f"it waits in {case.where(wait.spot)}{at_line(case.wait_site(wait))}" if wait else ""
    found = missing_peer(case, spot, spot.peer, now, Reason.USER_CODE)
    firm = all(w.firm for r in inside for w in case.graph.by_rank.get(r, ()))
    return replace(found, certainty=Certainty.PROVED if firm else Certainty.LIKELY, final=firm)


def _inversion(case: Case, root: Root, camps: dict[Spot, list[Wait]]) -> Finding:
    ordered = sorted(camps.items(), key=lambda camp: len(camp[1]))
    parts = [
        (tuple(sorted({wait.rank for wait in waits})), case.where(spot), case.victims_site(waits))
        for spot, waits in ordered
        if waits
    ]
    waits = tuple(wait for _, camp in ordered for wait in camp)
    left = divergence(case, waits)
    if left is not None and all(isinstance(spot, Channel) for spot in root.spots):
        spots = [wait.spot for wait in waits if isinstance(wait.spot, Channel)]
        for spot in spots:
            if spot.peer in left.culprits and spot.waiter in left.others:
                return _channel_in_cycle(case, spot, set(root.ranks))
    if left is None:
        fewer = len(parts) > 1 and len(parts[0][0]) < len(parts[1][0])
        all_of_them = {rank for ranks, _, _ in parts for rank in ranks}
        culprits = parts[0][0] if fewer else tuple(sorted(all_of_them))
    else:
        culprits = left.culprits
    guilty = [wait for wait in waits if wait.rank in culprits]
    rest = [wait for wait in waits if wait.rank not in culprits]
    kind, text = _told(case, left, guilty, rest) if left else (Kind.ORDER_INVERSION, None)
    firm = all(wait.firm for wait in waits)
    # Who finished early is to blame for where the others wait, else for where it waits.
    about = (rest if kind is Kind.FINISHED_EARLY else guilty)[0].spot if left else ordered[0][0]
    sites = (case.victims_site(guilty), case.victims_site(rest)) if left else _sites(parts)
    return Finding(
        kind=kind,
        reason=Reason.USER_CODE,
        certainty=Certainty.PROVED if firm else Certainty.LIKELY,
        culprits=culprits,
        victims=case.victims_of(culprits, root.spots),
        text=text or wording.cycle(parts, culprits if left else ()),
        final=firm,
        spot=about,
        collective=case.collective(about, case.waits_at(about)),
        site=sites[0],
        victim_site=sites[1],
        waits=waits,
    )


def _sites(parts: Sequence[tuple[Ranks, str, Site | None]]) -> tuple[Site | None, Site | None]:
    return parts[0][2], parts[1][2] if len(parts) > 1 else None


def _told(
    case: Case, left: Divergence, guilty: list[Wait], rest: list[Wait]
) -> tuple[Kind, Text | None]:
    """What kind of departure it is; its text, None where it is an inversion."""
    sites = case.victims_site(guilty), case.victims_site(rest)
    mine, theirs = (case.op_at(waits, None) or "a collective" for waits in (guilty, rest))
    if left.loop is not None:
        scene = Scene(left.culprits, left.others, case.where(rest[0].spot), *sites)
        over = all(wait.over for wait in rest)
        return Kind.FINISHED_EARLY, wording.left_loop(scene, mine, left.loop, failed=over)
    if left.guard is not None:
        scene = Scene(left.culprits, left.others, case.where(guilty[0].spot), *sites)
        text = disagreement.subset(scene, left.guard, f"went on to {theirs}")
        return Kind.SUBSET_ENTERED, text
    return Kind.ORDER_INVERSION, None


def _wait_of(case: Case, rank: int) -> Wait | None:
    return next(iter(case.graph.by_rank.get(rank, ())), None)
