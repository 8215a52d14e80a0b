"""Judges a full place of which some members issued from C++ what nobody recorded.

Without a Flight Recorder (gloo before PyTorch 2.8, or a buffer of size 0) the
counters say only that a rank has reached the place. Where its page, which knows
all that Python issues, knows of no call there, C++ made it: DDP's reducer, a
functional collective. Members for whom Python made it are another side then.
"""

from __future__ import annotations

from dataclasses import replace

from hangwatch.diagnosis.facts.wait_points import Place
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.mismatch import judge_dispute
from hangwatch.model.kinds import Certainty, OpState
from hangwatch.model.snapshot import OpRecord

BY_CPP = "a collective issued by C++"


def judge_unrecorded(case: Case, place: Place) -> Finding | None:
    """What the sides disagree in, as far as it can be known; None where all are known."""
    members = case.job.members(place.gid)
    unknown = [rank for rank in members if case.job.record(rank, place) is None]
    if not 0 < len(unknown) < len(members):
        return None
    if not all(_page_would_know(case, rank, place) for rank in unknown):
        return None
    known = [case.job.record(rank, place) for rank in members]
    if not any(record is not None and record.source == "page" for record in known):
        return None  # C++ made it there as well
    key = case.job.keys[place.gid]
    for rank in unknown:
        call = OpRecord(
            key, BY_CPP, BY_CPP, place.seq, p2p=False, state=OpState.ISSUED, source="counters"
        )
        case.job.assume(rank, place, call)
    finding = judge_dispute(case, place)
    if finding is None or finding.certainty is Certainty.POSSIBLE:
        return finding and replace(finding, final=False)
    return replace(finding, certainty=Certainty.LIKELY, final=False)


def _page_would_know(case: Case, rank: int, place: Place) -> bool:
    """Whether a Python call there would still be in the rank's ring."""
    snapshot = case.job.ranks.get(rank)
    if snapshot is None or snapshot.flight:
        return False
    if rank in case.ended and not case.job.ops.get(rank):
        # Either nothing of its ring is left, or Python never made a call.
        progress = case.job.progress.get(rank, {}).get(place.gid)
        return progress is not None and progress.by_python == 0
    ops = case.job.ops.get(rank, ())
    seqs = [r.seq for gid, r in ops if gid == place.gid and not r.p2p]
    if seqs:
        return min(seqs) < place.seq
    first: dict[int, int] = {}
    for gid, record in ops:
        if record.p2p:
            first.setdefault(gid, record.seq)
    return all(seq <= 1 for seq in first.values())  # else the ring has wrapped since
