"""Judges ranks that wait for a key of a store."""

from __future__ import annotations

from dataclasses import replace

from hangwatch.diagnosis.facts.history import AWAITS_KEY, step
from hangwatch.diagnosis.facts.stores import KEY, Setter, asked_alike, setter
from hangwatch.diagnosis.facts.wait_points import Setup
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import key_text
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.kinds import Certainty, Kind, Reason, What


def judge_key(case: Case, wait_point: Setup) -> Finding:
    """A key that no rank sets: all that live wait (facts/stores.py).

    The rank that has set such keys before is to blame; where none is known, any may be. And
    where it has gone on to what it never did before, those who wait may ask for one too many.
    """
    waits = case.waits_at(wait_point)
    waiting = case.direct(wait_point)
    known = setter(case.job.ranks, wait_point.keys)
    alike = asked_alike(case.job.ranks, waiting, known) if known is not None else ()
    if known is not None and alike:
        return _asks_for_another(case, wait_point, known, alike)
    behind = known.behind if known is not None else waiting
    others = tuple(rank for rank in waiting if rank not in behind)
    either = bool(known and known.by_form and others) and any(
        _has_gone_on(case, rank) for rank in behind
    )
    culprits = tuple(sorted({*behind, *others})) if either else behind
    scene = Scene(
        culprits,
        others,
        key_text(wait_point.keys),
        case.victims_site(case.graph.by_rank.get(behind[0], ())) or case.waiting_site(behind[0]),
        case.victims_site(waits),
        case.sites_now(case.direct(wait_point), waits),
    )
    gone = any(rank in case.ended for rank in culprits)
    one = known is not None and len(culprits) == 1
    if known is None:
        text = disagreement.set_by_nobody(scene)
    elif either:
        text = disagreement.one_more(replace(scene, culprits=behind), known)
    else:
        text = disagreement.never_set(scene, known)
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=Reason.EXITED if gone else Reason.USER_CODE if known else Reason.STORE_WAIT,
        certainty=Certainty.LIKELY if one else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits, [wait_point]),
        text=text,
        wait_point=wait_point,
        site=scene.site,
        victim_site=scene.other_site,
        hang=Certainty.LIKELY,
        waits=waits,
        settled=True,
    )


def _asks_for_another(
    case: Case, wait_point: Setup, known: Setter, alike: tuple[int, ...]
) -> Finding:
    """Those who wait for a key where others, in the same turn, asked for the one that was set."""
    waits, waiting = case.waits_at(wait_point), case.direct(wait_point)
    scene = Scene(waiting, alike, key_text(wait_point.keys), case.victims_site(waits))
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=Reason.USER_CODE,
        certainty=Certainty.LIKELY,
        culprits=waiting,
        victims=case.victims_of(waiting, [wait_point]),
        text=disagreement.asks_for_another(scene, known),
        wait_point=wait_point,
        site=scene.site,
        hang=Certainty.LIKELY,
        waits=waits,
        what=What.DIFFERENT_ARGUMENT,
        settled=True,
        differs=KEY,
    )


def _has_gone_on(case: Case, rank: int) -> bool:
    """Whether a rank has come to its end, or waits where it has never been before."""
    if rank in case.ended or rank not in case.job.ranks:
        return True
    snapshot = case.job.ranks[rank]
    there = (m for m in snapshot.marks if m.kind == AWAITS_KEY and m.site == snapshot.in_call_site)
    if any(mark.count > 1 for mark in there):
        return False
    known = [wait.record for wait in case.graph.by_rank.get(rank, ()) if wait.record is not None]
    made = [record for _, record in case.job.ops.get(rank, ())]
    return not any(
        step(one) == step(record) for record in known for one in made if one is not record
    )
