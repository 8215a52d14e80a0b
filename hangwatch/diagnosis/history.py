"""What the rings say about the usual order of a program's collectives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from hangwatch.diagnosis.spots import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangwatch.diagnosis.job import Job
    from hangwatch.types import OpRecord

Step = tuple[str, str, int, str]
"""What makes a call recognisable when it comes again: operation and line."""

Call = tuple[int, int, Step]
"""(gid, peer, step) of a call."""


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


def next_of(job: Job, rank: int, calls: Iterable[Call]) -> Call | None:
    """Which of some calls the rank used to make next, None if that is not known.

    Of all that it did only these calls count, so that what it did at the same time
    in another thread does not matter. It makes each a few times in a row.
    """
    wanted = set(calls)
    done = [call for pair in job.ops.get(rank, ()) if (call := call_of(*pair)) in wanted]
    runs = [(call, len(list(run))) for call, run in groupby(done)]
    if not runs:
        return None
    last, length = runs[-1]
    before = [(count, after) for (call, count), (after, _) in pairwise(runs) if call == last]
    if not before:
        return None
    if length < Counter(count for count, _ in before).most_common(1)[0][0]:
        return last
    return Counter(after for _, after in before).most_common(1)[0][0]


def is_usual(job: Job, rank: int, record: OpRecord) -> bool | None:
    """Whether a rank made a call after what it always does before it, None if unknown.

    What it did since it last made the same call is compared, whatever its order.
    """
    call = call_of(job.gid(record.group), record)
    since: Counter[Call] = Counter()
    gaps: list[Counter[Call] | None] = []
    for gid, own in job.ops.get(rank, ()):
        if own is record:
            break
        if call_of(gid, own) == call:
            gaps.append(since if gaps else None)
            since = Counter()
        else:
            since[call_of(gid, own)] += 1
    if not gaps:  # it never made that call: strange for one that goes round in a loop
        return False if any(count > 1 for count in since.values()) else None
    return since in gaps if len(gaps) > 1 else None


def made_before(job: Job, rank: int, record: OpRecord) -> bool:
    """Whether a rank has made a call like another rank's, from the same line."""
    return any(step(own) == step(record) for _, own in job.ops.get(rank, ()))


def call_of(gid: int, record: OpRecord) -> Call:
    """A call as it is known when a rank makes it again."""
    return gid, record.peer, step(record)
