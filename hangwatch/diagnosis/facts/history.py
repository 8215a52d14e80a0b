"""The usual order of a program's collectives, from the rings of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import Channel, Wait
from hangwatch.model.calls import Site
from hangwatch.model.snapshot import OpRecord, RankSnapshot

_T = TypeVar("_T")
MOST_BEFORE = 40
"""Calls before one that tell whether it is usual there."""
ENOUGH_SENT = 4
"""Messages of a line that have gone elsewhere: two rounds of one to each of two neighbours."""
PEER = "peer"
"""What differs where a message goes to another rank than the one that waits for it."""
MAX_SHIFT = 8
"""Calls that a rank left out, or made more."""


class Step(NamedTuple):
    """The properties by which a call is recognised when it comes again, on any rank."""

    wire: str
    file: str = ""
    line: int = 0
    size: str = ""
    """Where C++ issued it, and it has no line; of new_group the group that it makes."""
    kind: str = ""
    """Of its group, where that counts: how it is described, else how large it is."""


Call = tuple[int, int, Step]
"""(gid, peer, step) of a call."""


def step(record: OpRecord, kind: str = "", group: str = "") -> Step:
    """A call as its operation and line; its size, and the group, where C++ issued it."""
    site = record.site
    if site is None:
        return Step(record.wire, "", 0, f"{record.shape}{group}", kind)
    return Step(record.wire, site.file, site.line, "", kind)


def next_of(job: Job, rank: int, calls: Collection[Call]) -> set[Call]:
    """Which of some calls the rank used to make next; none if that is not known.

    Of all that it did only these calls count, so that what it did at the same time
    in another thread does not matter.
    """
    done = [call for pair in job.ops.get(rank, ()) if (call := call_of(*pair)) in calls]
    return expected(done) or set()


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
    usual = expected(calls)
    return None if usual is None else call in usual


def is_usual_wait(job: Job, wait: Wait) -> bool | None:
    """The same of the call that a rank waits in."""
    return is_usual(job, wait.rank, wait.record) if wait.record is not None else None


def expected(
    calls: Sequence[_T], least: int = 1, *, shortest: int = 1, longest: int = MOST_BEFORE
) -> set[_T] | None:
    """The calls that always came next after the last ones, None where these did not come before.

    The longest run of last calls that came before, at least so many times, decides.
    """
    for length in range(min(longest, len(calls) - 1), shortest - 1, -1):
        context = calls[-length:]
        after = [
            calls[at] for at in range(length, len(calls)) if calls[at - length : at] == context
        ]
        if len(after) >= least:
            return {*after}
    return None


def shift(mine: Mapping[int, _T], theirs: Mapping[int, _T], least: int) -> int | None:
    """How many places the first is ahead of the second (behind if negative), None for neither.

    Both by place. All that are known have to agree, so shifted, and at least so many.
    """
    for count in range(1, MAX_SHIFT + 1):
        for ahead, behind, sign in ((mine, theirs, 1), (theirs, mine, -1)):
            pairs = [
                (call, behind[at + count]) for at, call in ahead.items() if at + count in behind
            ]
            if len(pairs) >= least and all(one == other for one, other in pairs):
                return sign * count
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


def messages_between(job: Job, rank: int, peer: int) -> int:
    """How many messages a rank has posted that are known, to or from a peer."""
    return sum(one.p2p and one.peer == peer for _, one in job.ops.get(rank, ()))


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


NO_SYNC = "no_sync"
THREAD_DIED = "thread_died"
AWAITS_KEY = "awaits_key"
SETS_KEY = "sets_key"
HANDLES = "handles"
"""Kinds of marks (agent/record/marks.py)."""


class Uneven(NamedTuple):
    """A line at which some ranks did something ``mine`` times, and others ``theirs`` times."""

    site: Site
    mine: int
    theirs: int


def uneven(
    ranks: Mapping[int, RankSnapshot], kind: str, some: Collection[int], others: Collection[int]
) -> list[Uneven]:
    """The lines at which all of some ranks did it equally often, and all others not as often."""
    found = []
    for site in lines_of(ranks, kind, (*some, *others)):
        mine, theirs = (_counts(ranks, kind, site, part) for part in (some, others))
        if len(mine) == len(theirs) == 1 and mine != theirs:
            found.append(Uneven(site, mine.pop(), theirs.pop()))
    return found


def lines_of(ranks: Mapping[int, RankSnapshot], kind: str, some: Collection[int]) -> list[Site]:
    """The lines at which some of the ranks did it."""
    known = (mark for rank in some if rank in ranks for mark in ranks[rank].marks)
    return list(dict.fromkeys(m.site for m in known if m.kind == kind and m.site is not None))


def _counts(
    ranks: Mapping[int, RankSnapshot], kind: str, site: Site, some: Collection[int]
) -> set[int]:
    """How often ranks did it at a line."""
    return {
        next((m.count for m in ranks[rank].marks if m.kind == kind and m.site == site), 0)
        for rank in some
        if rank in ranks
    }
