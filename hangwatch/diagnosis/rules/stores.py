"""Judges ranks that wait for a key of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.stores import setter
from hangwatch.diagnosis.rules.case import Finding
from hangwatch.diagnosis.text import stores
from hangwatch.diagnosis.text.phrases import key_text
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.types.kinds import Certainty, Kind, Reason

if TYPE_CHECKING:
    from hangwatch.diagnosis.facts.wait_points import Setup
    from hangwatch.diagnosis.rules.case import Case


def judge_key(case: Case, wait_point: Setup) -> Finding:
    """A key that no rank sets: all that live wait (facts/stores.py).

    The rank that has set such keys before is to blame; where none is known, any may be.
    """
    waits = case.waits_at(wait_point)
    waiting = case.direct(wait_point)
    known = setter(case.job.ranks, wait_point.keys)
    culprits = known.behind if known is not None else waiting
    others = tuple(rank for rank in waiting if rank not in culprits)
    scene = Scene(
        culprits,
        others,
        key_text(wait_point.keys),
        case.victims_site(case.graph.by_rank.get(culprits[0], ()))
        or case.waiting_site(culprits[0]),
        case.victims_site(waits),
    )
    gone = any(rank in case.ended for rank in culprits)
    one = known is not None and len(culprits) == 1
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=Reason.EXITED if gone else Reason.USER_CODE if known else Reason.STORE_WAIT,
        certainty=Certainty.LIKELY if one else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits, [wait_point]),
        text=stores.never_set(scene, known) if known else stores.set_by_nobody(scene),
        wait_point=wait_point,
        site=scene.site,
        victim_site=scene.other_site,
        hang=Certainty.LIKELY,
        waits=waits,
        settled=True,
    )
