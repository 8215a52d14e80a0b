"""What the rings say about the usual order of a program's collectives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.wait_points import Channel, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangwatch.diagnosis.facts.job import Job
    from hangwatch.types.snapshot import OpRecord

MOST_BEFORE = 40
"""Calls before one that tell whether it is usual there."""
ENOUGH = 1
"""Times that a rank has to have made them."""
ENOUGH_SENT = 4
"""Messages of a line that have gone elsewhere: two rounds of one to each of two neighbours."""
Step = tuple[str, str, int, str]
"""What makes a call recognisable when it comes again: operation and line."""

Call = tuple[int, int, Step]
"""(gid, peer, step) of a call."""


@dataclass(frozen=True, slots=True)
class Habit:
    """Which of two calls usually comes after what came before them."""

    here_is_usual: bool
    """Or not known to be unusual."""
    there_is_usual: bool
    here_is_new: bool
    """Neither side has made this call at another place: the program may just go on."""
    by_line: bool
    """One of the calls has a line; else only their sizes tell them from others."""
    from_cpp: bool
    """What came here has no line: C++ issued it."""
    apart: bool
    """Both have a line, and not the same."""
    times: int
    """How often what usually comes there was seen to come."""


def step(record: OpRecord) -> Step:
    """A call as its operation and line; its size where C++ issued it."""
    if record.site is None:
        return record.wire, "", 0, str(record.shape)
    return record.wire, record.site.file, record.site.line, ""


def habit(job: Job, place: Place, here: Iterable[int], there: Iterable[int]) -> Habit | None:
    """Compare what two sides entered at a place with what each did before."""
    mine, other = _one(job, place, here), _one(job, place, there)
    if mine is None or other is None:
        return None
    my_step, other_step = step(mine[1]), step(other[1])
    both = mine[0], other[0]
    before = {rank: job.record(rank, Place(place.gid, place.seq - 1)) for rank in both}
    follows = {
        rank: _followers(job, place, both, step(known))
        for rank, apart in zip(both, reversed(both), strict=True)
        if (known := before[rank] or before[apart]) is not None
    }
    mine_follow = follows.get(mine[0])
    return Habit(
        here_is_usual=not mine_follow or my_step in mine_follow,
        there_is_usual=follows.get(other[0], Counter())[other_step] > 0,
        here_is_new=not any(my_step in _steps(job, place, rank) for rank in both),
        by_line=bool(my_step[1] or other_step[1]),
        from_cpp=not my_step[1],
        apart=bool(my_step[1] and other_step[1]) and my_step[1:3] != other_step[1:3],
        times=follows.get(other[0], Counter())[other_step],
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


def _followers(job: Job, place: Place, ranks: Iterable[int], before: Step) -> Counter[Step]:
    """What followed a call on some ranks, in places before this one, and at how many of them."""
    places = job.places(place.gid)
    found = Counter[Step]()
    for seq, records in places.items():
        after = places.get(seq + 1, {}) if seq + 1 < place.seq else {}
        known = (rank for rank in ranks if rank in records and rank in after)
        found.update({step(after[rank]) for rank in known if step(records[rank]) == before})
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

    The longest run of calls before it that the rank has made twice before tells.
    """
    calls = []
    for gid, own in job.ops.get(rank, ()):
        if own is record:
            break
        calls.append(call_of(gid, own))
    call = call_of(job.gid(record.group), record)
    if call not in calls:
        # It may come after a loop, or every hundredth time; but not to another peer.
        return False if other_peers(job, rank, record) else None
    for length in range(min(MOST_BEFORE, len(calls) - 1), 0, -1):
        context = calls[-length:]
        after = [
            calls[at] for at in range(length, len(calls)) if calls[at - length : at] == context
        ]
        if len(after) >= ENOUGH:
            return call in after
    return None


def other_peers(job: Job, rank: int, record: OpRecord) -> tuple[int, ...]:
    """To whom all messages of a line went before this one, which goes to somebody else.

    Empty where it does not, and where too few are known.
    """
    if not record.p2p:
        return ()
    made = [
        one.peer
        for gid, one in job.ops.get(rank, ())
        if one.issued_age_s > record.issued_age_s
        and job.gid(record.group) == gid
        and step(one) == step(record)
    ]
    return () if record.peer in made or len(made) < ENOUGH_SENT else tuple(sorted({*made}))


def has_left_out(job: Job, point: Channel) -> bool:
    """Whether the peer of a message has come by where it always made its part, and did not."""
    wire = "recv" if point.sends else "send"
    made = [
        (call_of(gid, one), one.p2p and one.wire.startswith(wire) and one.peer == point.waiter)
        for gid, one in job.ops.get(point.peer, ())
    ]
    places = [at for at, (_, matches) in enumerate(made) if matches and at > 0]
    before = {made[at - 1][0] for at in places}
    if len(before) != 1 or len(places) < ENOUGH_SENT:
        return False
    came_by = [at for at, (call, _) in enumerate(made[:-1]) if call in before]
    return came_by[-1] > places[-1] and [at + 1 for at in came_by if at < places[-1]] == places


def made_before(job: Job, rank: int, record: OpRecord) -> bool:
    """Whether a rank has made a call like another rank's, from the same line."""
    return any(step(own) == step(record) for _, own in job.ops.get(rank, ()))


def has_history(job: Job, rank: int, record: OpRecord | None) -> bool:
    """Whether it is known what a rank did before it made a call, or did before such calls."""
    made = sum(group.enqueued + group.p2p for group in job.progress.get(rank, {}).values())
    whole = len(job.ops.get(rank, ())) >= made
    return whole or (record is not None and is_usual(job, rank, record) is not None)


def call_of(gid: int, record: OpRecord) -> Call:
    """A call as it is known when a rank makes it again."""
    return gid, record.peer, step(record)
