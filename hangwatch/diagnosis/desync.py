"""Finds ranks that are out of step while the job still runs, and nothing is stuck.

The calls of a rank that skipped a collective, or made an extra one, are paired from then on with
the wrong calls of the others: its results are wrong, and it gets stuck where the program changes
or ends. Two ranks that reach one slot from one line with a different shape, dtype or root are as
wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangwatch.diagnosis.advice.remedy import advice
from hangwatch.diagnosis.facts.history import Step, shift, step
from hangwatch.diagnosis.facts.job import Job, at_least_half, index
from hangwatch.diagnosis.facts.signatures import Differs, split_of
from hangwatch.diagnosis.facts.wait_points import Slot
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import Ranks, wait_point_text
from hangwatch.diagnosis.text.wording import Scene, Text
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.snapshot import JobSnapshot, OpRecord
from hangwatch.model.verdict import Collective, Verdict

MOST_RANKS = 32
"""Most ranks of a group that are compared, the first ones."""
AGREED_BEFORE = 2
"""Slots directly before the one at which ranks fell out of step that have to agree."""
AGREE_AFTER = 3
"""Slots after it that have to agree when shifted."""
AGREE_WITHOUT_START = 12
"""The same, if no slot is known at which they were in step."""
_WRONG = {Differs.SHAPE, Differs.DTYPE, Differs.ROOT}


_Slots = Mapping[int, Mapping[int, OpRecord]]
"""Calls of a group: slot to rank to record."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A rank that is ``shift`` slots ahead of the others from ``seq`` on (behind if negative)."""

    seq: int
    shift: int
    known: bool = True
    """``seq`` is where it began; else it began before."""


def find_desync(snapshot: JobSnapshot) -> Verdict | None:
    """The first disagreement of the group in which it began first; None if all agree.

    Only calls that Python issued are compared: their slot, operation, size and line are known on
    each rank. State ``desync``; certainty never more than ``likely``.
    """
    job = index(snapshot)
    found: list[Verdict] = []
    for gid in range(len(job.keys)):
        ranks = [rank for rank in job.members(gid) if rank in job.ranks][:MOST_RANKS]
        slots = {
            seq: {r: records[r] for r in ranks if r in records and records[r].source == "page"}
            for seq, records in job.slots(gid).items()
        }
        found += _out_of_step(job, gid, ranks, slots)
        found += _other_signature(job, gid, slots)
    return min(found, key=lambda verdict: len(verdict.culprits), default=None)


def _out_of_step(job: Job, gid: int, ranks: list[int], slots: _Slots) -> Iterator[Verdict]:
    steps = {
        rank: {seq: step(records[rank]) for seq, records in slots.items() if rank in records}
        for rank in ranks
    }
    for rank in ranks:
        by_shift: dict[int, dict[int, Drift]] = defaultdict(dict)
        for other in ranks:
            drifted = drift(steps[rank], steps[other])
            if drifted is not None:
                by_shift[drifted.shift][other] = drifted
        others = max(by_shift.values(), key=len, default={})
        if not others or not at_least_half(others, ranks):
            continue
        model, first = next(iter(others.items()))
        # A rank that nowhere differs from the others has only not come far enough to show it.
        culprits = tuple(
            one
            for one in ranks
            if one == rank or (one not in others and _differing(steps[one], steps[model]))
        )
        rest = tuple(one for one in ranks if one not in culprits)
        if first.known or len(culprits) < len(rest):
            yield _verdict_of_drift(job, gid, first, (culprits, rest), slots)
        return  # else neither its begin nor the rank is known: too little for an alarm


def drift(mine: Mapping[int, Step], theirs: Mapping[int, Step]) -> Drift | None:
    """The shift between two sequences of calls, by their slots; None where there is none.

    Ranks may take turns at a call that stands on two lines. So one of the calls at which they
    differ first has to be one that they had made together.
    """
    differ = _differing(mine, theirs)
    if not differ:
        return None
    common = sorted(mine.keys() & theirs.keys())
    first, last = differ[0], common[-1]
    before = [seq for seq in common if seq < first]
    if before[-AGREED_BEFORE:] == [*range(first - AGREED_BEFORE, first)]:
        again = last > first and differ == [first]  # they are in step again
        moved = None if again else shift(_from(first, mine), _from(first, theirs), AGREE_AFTER)
        if moved is not None:
            together = {mine[seq] for seq in before}
            return Drift(first, moved) if {mine[first], theirs[first]} & together else None
    begin = common[0]
    moved = shift(_from(begin, mine), _from(begin, theirs), AGREE_WITHOUT_START)
    if moved is None:
        return None
    # If one call repeats, any shift agrees: this one has to explain a difference.
    ahead, behind = (mine, theirs) if moved > 0 else (theirs, mine)
    explained = sum(seq + abs(moved) in behind for seq in differ if seq in ahead)
    return Drift(begin, moved, known=False) if explained >= AGREE_AFTER else None


def _differing(mine: Mapping[int, Step], theirs: Mapping[int, Step]) -> list[int]:
    """The slots at which two ranks made different calls."""
    return sorted(seq for seq in mine.keys() & theirs.keys() if mine[seq] != theirs[seq])


def _from(first: int, calls: Mapping[int, Step]) -> dict[int, Step]:
    """A sequence of calls from a slot on."""
    return {seq: call for seq, call in calls.items() if seq >= first}


def _verdict_of_drift(
    job: Job, gid: int, drifted: Drift, sides: tuple[Ranks, Ranks], slots: _Slots
) -> Verdict:
    slot, records = Slot(gid, drifted.seq), slots[drifted.seq]
    mine, theirs = (next(records[rank] for rank in side if rank in records) for side in sides)
    about = theirs if drifted.shift > 0 else mine
    texts = job.snapshot.sources
    scene = Scene(
        *sides,
        wait_point_text(job, slot, about.op),
        with_source(mine.site, texts),
        with_source(theirs.site, texts),
    )
    even = len(sides[0]) == len(sides[1])
    text = disagreement.drifting(scene, drifted.shift, known=drifted.known, even=even)
    return _verdict(job, slot, Kind.OP_MISMATCH, scene, about, text, even=even)


def _other_signature(job: Job, gid: int, slots: _Slots) -> Iterator[Verdict]:
    for seq, records in sorted(slots.items()):
        split = split_of(records)
        if split is None or split.differs not in _WRONG:
            continue
        if len({step(record) for record in records.values()}) > 1:
            continue  # other lines: which slot a call has may be wrong where threads race
        slot = Slot(gid, seq)
        most, *rest = (ranks for _, ranks in split.parts)
        culprits = tuple(sorted(rank for ranks in rest for rank in ranks))
        about = records[culprits[0]]
        site = with_source(about.site, job.snapshot.sources)
        scene = Scene(culprits, most, wait_point_text(job, slot, about.op), site, site)
        text = disagreement.unnoticed(scene, split)
        even = len(most) == len(rest[0])
        yield _verdict(job, slot, Kind.SIGNATURE_MISMATCH, scene, about, text, even=even)
        return


def _verdict(  # noqa: PLR0913 (what was found, and where)
    job: Job, slot: Slot, kind: Kind, scene: Scene, about: OpRecord, text: Text, *, even: bool
) -> Verdict:
    """even: as many ranks are on one side as on the other, so all of them are candidates."""
    everyone = tuple(sorted({*scene.culprits, *scene.others}))
    return Verdict(
        state=State.DESYNC,
        kind=kind,
        reason=Reason.USER_CODE,
        certainty=Certainty.POSSIBLE if even else Certainty.LIKELY,
        culprits=everyone if even else scene.culprits,
        group=job.keys[slot.gid],
        group_name=job.group_name(slot.gid),
        collective=Collective(about.op or about.wire, slot.seq, about.dtype, about.shape),
        site=scene.site,
        victim_site=scene.other_site,
        headline=text.headline,
        explanation=text.explanation,
        advice=advice(kind, Reason.USER_CODE),
    )
