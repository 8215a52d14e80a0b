"""The usual order of a program's calls, from the rings and the marks of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeVar

from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import Channel, Wait
from hangwatch.model.calls import Site
from hangwatch.model.snapshot import OpRecord, RankSnapshot

_T = TypeVar("_T")
MOST_BEFORE = 40
"""Number of calls before a call that show if it is usual there."""
ENOUGH_SENT = 4
"""Messages of a line that have gone elsewhere: two rounds of one to each of two neighbours."""
PEER = "peer"
"""The difference where a message goes to another rank than the one that waits for it."""
MAX_SHIFT = 8
"""Most calls that a rank skipped, or made in excess."""


class Step(NamedTuple):
    """The properties by which a call is recognised when it comes again, on any rank."""

    wire: str
    file: str = ""
    line: int = 0
    size: str = ""
    """The size, for a call that C++ issued, which has no line; for new_group the group."""
    kind: str = ""
    """The description of its group, or its size, if the group matters."""


Call = tuple[int, int, Step]
"""(gid, peer, step) of a call."""


def step(record: OpRecord, kind: str = "", group: str = "") -> Step:
    """A call as its operation and line; its size, and the group, where C++ issued it."""
    site = record.site
    if site is None:
        return Step(record.wire, "", 0, f"{record.shape}{group}", kind)
    return Step(record.wire, site.file, site.line, "", kind)


def next_of(job: Job, rank: int, calls: Collection[Call]) -> set[Call]:
    """Return the calls among these that the rank used to make next; none if that is not known.

    Its other calls are ignored, so that the calls of another thread at the same time do not
    matter.
    """
    done = [call for pair in job.ops.get(rank, ()) if (call := call_of(*pair)) in calls]
    return expected(done) or set()


def is_usual_wait(job: Job, wait: Wait) -> bool | None:
    """Return True if a rank waits in a call that always came after those before it.

    None if that is unknown. The longest run of calls before it that the rank has made twice
    before decides.
    """
    rank, record = wait.rank, wait.record
    if record is None:
        return None
    made = takewhile(lambda pair: pair[1] is not record, job.ops.get(rank, ()))
    calls = [call_of(*pair) for pair in made]
    call = call_of(job.gid(record.group), record)
    if call not in calls:
        # It may come after a loop, or every hundredth time; but not to another peer.
        return False if other_peers(job, rank, record) else None
    usual = expected(calls)
    return None if usual is None else call in usual


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
    """The number of slots by which the first is ahead of the second (behind if negative).

    Both by slot. All that are known have to agree, so shifted, and at least so many; None
    where they do not.
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
    """The ranks that all messages of a line went to before this one, which goes to another.

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
    """The number of messages that a rank is known to have posted, to or from a peer."""
    return sum(one.p2p and one.peer == peer for _, one in job.ops.get(rank, ()))


def has_left_out(job: Job, point: Channel) -> bool:
    """Return True if the peer of a message skipped its part, which it always made there."""
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
    """Return True if a rank has made a call like another rank's, from the same line."""
    return any(step(own) == step(record) for _, own in job.ops.get(rank, ()))


def has_history(job: Job, wait: Wait) -> bool:
    """Return True if the calls of a rank before its wait, or before the given calls, are known."""
    made = sum(group.enqueued + group.p2p for group in job.progress.get(wait.rank, {}).values())
    return len(job.ops.get(wait.rank, ())) >= made or is_usual_wait(job, wait) is not None


def call_of(gid: int, record: OpRecord) -> Call:
    """A call as it is known when a rank makes it again."""
    return gid, record.peer, step(record)


NO_SYNC = "no_sync"
THREAD_DIED = "thread_died"
AWAITS_KEY = "awaits_key"
SETS_KEY = "sets_key"
HANDLES = "handles"
"""Kinds of marks (agent/record/marks.py)."""


def uneven(
    ranks: Mapping[int, RankSnapshot], kind: str, some: Collection[int], others: Collection[int]
) -> list[tuple[Site, int, int]]:
    """The lines at which all of some ranks did it equally often, and all others not as often.

    With how often each of the ones did it, and each of the others.
    """
    found = []
    for site in lines_of(ranks, kind, (*some, *others)):
        mine, theirs = (
            {
                next((m.count for m in ranks[rank].marks if (m.kind, m.site) == (kind, site)), 0)
                for rank in part
                if rank in ranks
            }
            for part in (some, others)
        )
        if len(mine) == len(theirs) == 1 and mine != theirs:
            found.append((site, mine.pop(), theirs.pop()))
    return found


def lines_of(ranks: Mapping[int, RankSnapshot], kind: str, some: Collection[int]) -> list[Site]:
    """The lines at which some of the ranks did it."""
    known = (mark for rank in some if rank in ranks for mark in ranks[rank].marks)
    return list(dict.fromkeys(m.site for m in known if m.kind == kind and m.site is not None))
