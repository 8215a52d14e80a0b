"""What the rings say about the usual order of a program's collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangwatch.diagnosis.spots import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangwatch.diagnosis.job import Job
    from hangwatch.types import OpRecord

Step = tuple[str, str, int, str]
"""What makes a call recognisable when it comes again: operation and line."""


@dataclass(frozen=True, slots=True)
class Habit:
    """Which of two calls usually comes after what came before them."""

    here_is_usual: bool
    there_is_usual: bool
    here_known_there: bool
    """The ranks that entered ``there`` have entered ``here`` at other places."""
    there_known_here: bool


def step(record: OpRecord) -> Step:
    """A call as its operation and line; its size where C++ issued it."""
    if record.site is None:
        return record.wire, "", 0, str(record.shape)
    return record.wire, record.site.file, record.site.line, ""


def habit(job: Job, place: Place, here: Iterable[int], there: Iterable[int]) -> Habit | None:
    """Compare what two camps entered at a place with what each did before."""
    mine, other = _one(job, place, here), _one(job, place, there)
    if mine is None or other is None:
        return None
    my_step, other_step = step(mine[1]), step(other[1])
    before = job.record(mine[0], Place(place.gid, place.seq - 1)) or job.record(
        other[0], Place(place.gid, place.seq - 1)
    )
    follows = set()
    if before is not None:
        for rank in (mine[0], other[0]):
            follows |= _followers(job, place, rank, step(before))
    return Habit(
        here_is_usual=my_step in follows,
        there_is_usual=other_step in follows,
        here_known_there=my_step in _steps(job, place, other[0]),
        there_known_here=other_step in _steps(job, place, mine[0]),
    )


def _one(job: Job, place: Place, ranks: Iterable[int]) -> tuple[int, OpRecord] | None:
    for rank in ranks:
        record = job.record(rank, place)
        if record is not None:
            return rank, record
    return None


def _steps(job: Job, place: Place, rank: int) -> set[Step]:
    """All that a rank entered in the group at other places."""
    return {
        step(records[rank])
        for seq, records in job.places(place.gid).items()
        if seq != place.seq and rank in records
    }


def _followers(job: Job, place: Place, rank: int, before: Step) -> set[Step]:
    """What followed a call on a rank, in places before this one."""
    places = job.places(place.gid)
    found = set()
    for seq, records in places.items():
        if seq + 1 >= place.seq or rank not in records or step(records[rank]) != before:
            continue
        following = places.get(seq + 1, {}).get(rank)
        if following is not None:
            found.add(step(following))
    return found
