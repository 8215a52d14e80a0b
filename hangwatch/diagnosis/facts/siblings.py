"""What the other groups of a kind did at a line where the members of one did not do the same."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hangwatch.diagnosis.facts.history import step
from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.signatures import Differs, Split
from hangwatch.diagnosis.facts.wait_points import Place
from hangwatch.model.snapshot import OpRecord

LEAST = 2
"""Calls that have to agree on what is usual."""
LASTING = (Differs.DTYPE, Differs.ROOT)
"""Respects in which a line does not come to differ by itself, as sizes do in a last batch."""


def usual_side(job: Job, place: Place, found: Split) -> tuple[int, ...] | None:
    """The side of a split that did what all other groups of the kind did at that line.

    Where there are none, what the members themselves did there before, if that is lasting. None
    where that is not one thing, and where it is what neither side did, or both.
    """
    records = job.places(place.gid).get(place.seq, {})
    steps = {step(record) for record in records.values()}

    def value(gid: int, record: OpRecord) -> object:
        return _value(job, gid, record, found.differs)

    siblings = [value(*call) for call in _in_siblings(job, place) if step(call[1]) in steps]
    before = [
        value(place.gid, record)
        for seq, made in job.places(place.gid).items()
        for record in made.values()
        if seq < place.seq and step(record) in steps
    ]
    usual = siblings or (before if found.differs in LASTING else [])
    if len(usual) < LEAST or len({*usual}) > 1 or not {*before} <= {*usual}:
        return None
    sides = [
        ranks
        for _, ranks in found.parts
        if {value(place.gid, records[rank]) for rank in ranks} == {*usual}
    ]
    return sides[0] if len(sides) == 1 else None


def _in_siblings(job: Job, place: Place) -> Iterator[tuple[int, OpRecord]]:
    """The calls of that number in groups of as many other ranks, and of that description."""
    key = job.keys[place.gid]
    members = frozenset(key.ranks)
    for gid, other in enumerate(job.keys):
        alike = (other.desc, len(other.ranks)) == (key.desc, len(key.ranks))
        if alike and members.isdisjoint(other.ranks):
            for record in job.places(gid).get(place.seq, {}).values():
                yield gid, record


def _value(job: Job, gid: int, record: OpRecord, differs: Differs) -> object:
    """A call in one respect, of the root its position in the group."""
    match differs:
        case Differs.DTYPE:
            return record.dtype
        case Differs.SHAPE:
            return math.prod(record.shape)
        case Differs.ROOT:
            ranks = job.keys[gid].ranks
            return ranks.index(record.root) if record.root in ranks else record.root
        case _:
            return record.wire
