"""Finds groups that two threads of each rank use at once.

Nothing orders the calls of two threads: one rank comes to the one first, and another rank
to the other. No rank has left the common program then. An asynchronous checkpoint that
has no group of its own is the usual case.
"""

from __future__ import annotations

from collections.abc import Mapping

from hangwatch.diagnosis.facts.wait_points import Place
from hangwatch.diagnosis.rules.beside import is_beside, is_started
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import Ranks, group_text
from hangwatch.model.kinds import Certainty, Kind, Reason, What
from hangwatch.model.snapshot import OpRecord
from hangwatch.model.verdict import Collective


def judge_threads(case: Case, place: Place) -> Finding | None:
    """The finding where at a place some are by their main thread, others by another one.

    None unless all of them use the group from both.
    """
    records = case.job.places(place.gid).get(place.seq, {})
    kinds = {rank: is_beside(case.job.ranks[rank], record) for rank, record in records.items()}
    main = tuple(sorted(rank for rank, aside in kinds.items() if aside is False))
    beside = tuple(sorted(rank for rank, aside in kinds.items() if aside))
    if not main or not beside or None in kinds.values():
        return None
    both = tuple(sorted((*main, *beside)))
    if not all(_uses_both(case, rank, place.gid) for rank in both):
        return None
    sure = all(is_started(case.job.ranks[rank], records[rank]) is not None for rank in beside)
    named = {side: _op(records, side) for side in (main, beside)}
    waits = case.waits_at(place)
    about = records[main[0]]
    return Finding(
        kind=Kind.OP_MISMATCH,
        reason=Reason.USER_CODE,
        certainty=Certainty.LIKELY if sure else Certainty.POSSIBLE,
        culprits=both,
        victims=tuple(rank for rank in case.victims_of(both, [place]) if rank not in both),
        text=disagreement.two_threads(
            both,
            [(main, named[main]), (beside, named[beside])],
            f"#{place.seq} of {group_text(case.job, place.gid)}",
            case.site_at(main[0], place),
        ),
        final=True,
        wait_point=place,
        collective=Collective(named[main], place.seq, about.dtype, about.shape),
        site=case.site_at(main[0], place),
        waits=waits,
        what=What.UNORDERED_THREADS,
    )


def _op(records: Mapping[int, OpRecord], ranks: Ranks) -> str:
    record = records[ranks[0]]
    return record.op or record.wire


def _uses_both(case: Case, rank: int, gid: int) -> bool:
    """Whether a rank has made calls of a group from its main thread and from another."""
    made = [record for at, record in case.job.ops.get(rank, ()) if at == gid and not record.p2p]
    return {True, False} <= {is_beside(case.job.ranks[rank], record) for record in made}
