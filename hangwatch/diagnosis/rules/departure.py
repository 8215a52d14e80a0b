"""Which ranks did at some point what nobody with the same past did.

Ranks of one program make the same calls, by operation and line, whatever their
groups: stages and replicas alike, until they come to a line that is not for all of
them. So the calls of all ranks form a tree. Where a single rank takes a branch of
its own it has left the common program, or it has a part that only one rank has; of
the latter kind is a branch that it takes again later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.endings import How
from hangwatch.diagnosis.facts.history import step
from hangwatch.types.kinds import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangwatch.diagnosis.facts.endings import Ending
    from hangwatch.diagnosis.facts.history import Step
    from hangwatch.diagnosis.facts.job import Job
    from hangwatch.types.snapshot import OpRecord, RankSnapshot

MOST_RANKS = 256
"""Ranks that are compared; of a larger job those in question and its first ones."""
_END: Step = ("", "end", 0, "")


@dataclass(frozen=True, slots=True)
class _Past:
    """All calls of a rank in their order; ``groups`` has -1 for the end of its program."""

    steps: list[Step]
    groups: list[int]
    made: frozenset[Step]


def departed(job: Job, ended: Mapping[int, Ending], ranks: Iterable[int]) -> frozenset[int]:
    """Those of some ranks that left the common program, as far as their calls tell.

    Empty where that is not known: rings that have wrapped, calls of C++ that nobody
    recorded, a program that each rank runs in its own way.
    """
    asked = {rank for rank in ranks if rank in job.ranks}
    pasts = {
        rank: past
        for rank in _compared(job, asked)
        if (past := _past(job, rank, ended)) is not None
    }
    if not asked <= pasts.keys():
        return frozenset()
    return frozenset(rank for rank in _alone(job, pasts) if rank in asked)


def _compared(job: Job, asked: set[int]) -> list[int]:
    others = [rank for rank in job.ranks if rank not in asked]
    return [*sorted(asked), *others[: max(0, MOST_RANKS - len(asked))]]


def _past(job: Job, rank: int, ended: Mapping[int, Ending]) -> _Past | None:
    """What a rank did, None where some calls are not known."""
    ops = job.ops.get(rank, [])
    first: dict[tuple[int, bool], int] = {}
    for gid, record in ops:
        key = gid, record.p2p
        first[key] = min(first.get(key, record.seq), record.seq)
    if any(seq > 1 for seq in first.values()):
        return None
    known = Counter(gid for gid, record in ops if not record.p2p)
    if any(p.enqueued > known[gid] for gid, p in job.progress.get(rank, {}).items()):
        return None
    steps = [_step(job, gid, record) for gid, record in ops]
    groups = [gid for gid, _ in ops]
    made = frozenset(steps)
    if _has_ended(job.ranks[rank], ended.get(rank)):
        steps.append(_END)
        groups.append(-1)
    return _Past(steps, groups, made)


def _step(job: Job, gid: int, record: OpRecord) -> Step:
    """A call as it is known on other ranks: with the kind of its group, and without which."""
    key = job.keys[gid]
    wire, file, line, size = step(record)
    return wire, file, line, f"{size} {key.desc} of {len(key.ranks)}"


def _has_ended(rank: RankSnapshot, end: Ending | None) -> bool:
    """Whether it came to the end of its program."""
    return rank.phase is Phase.FINALIZING if end is None else end.how is How.CLEAN


def _alone(job: Job, pasts: Mapping[int, _Past]) -> list[int]:
    """The ranks that part from all others by themselves, and not again and again."""
    found = []
    todo = [(list(pasts), 0)]
    while todo:
        together, depth = todo.pop()
        branches: dict[Step, list[int]] = defaultdict(list)
        for rank in together:
            if depth < len(pasts[rank].steps):
                branches[pasts[rank].steps[depth]].append(rank)
        for ranks in branches.values():
            if len(ranks) > 1:
                todo.append((ranks, depth + 1))
                continue
            rank = ranks[0]
            # What stages of a pipeline send and receive differs, and tells nothing.
            rivals = [
                other
                for branch in branches.values()
                for other in branch
                if branch != ranks
                and not (_is_p2p(pasts[rank].steps[depth]) and _is_p2p(pasts[other].steps[depth]))
                and _could_do_as(job, pasts, rank, other, depth)
                and _could_do_as(job, pasts, other, rank, depth)
            ]
            if rivals and not _is_its_part(job, pasts, rank, rivals, depth):
                found.append(rank)
                if len(rivals) == 1:  # one against one: it may be the other as well
                    found.extend(rivals)
    return found


def _could_do_as(job: Job, pasts: Mapping[int, _Past], rank: int, other: int, at: int) -> bool:
    """Whether what another rank did is also for this one.

    Ranks that are not in the same groups leave out what is not for them.
    """
    made, gid = pasts[other].steps[at], pasts[other].groups[at]
    if gid < 0 or made in pasts[rank].made or rank in job.members(gid):
        return True
    desc = job.keys[gid].desc
    return bool(desc) and any(job.keys[own].desc == desc for own in job.progress.get(rank, ()))


def _is_its_part(
    job: Job, pasts: Mapping[int, _Past], rank: int, rivals: Sequence[int], at: int
) -> bool:
    """Whether the rank alone has to make that step, where others make another.

    What it goes on to make from then on. Stages of a pipeline differ in when they come
    to a collective: there only what the rank did itself before tells.
    """
    past = pasts[rank].steps
    theirs = {pasts[rival].steps[at] for rival in rivals}
    pairs = list(pairwise(past))
    p2p = _is_p2p(past[at]) or any(map(_is_p2p, theirs))
    if p2p and at == 0:
        return True
    if p2p and not any(_meet(job, pasts, rank, rival, at) for rival in rivals):
        return not any((past[at - 1], made) in pairs[: at - 1] for made in theirs)
    if at == 0:
        again = [before for before, made in pairs if made == past[0]]
        return bool(again) and not theirs & set(again)
    pair = past[at - 1], past[at]
    return pair not in pairs[: at - 1] and pair in pairs[at:]


def _meet(job: Job, pasts: Mapping[int, _Past], one: int, other: int, at: int) -> bool:
    """Whether one of two ranks makes a collective that the other is a member of."""
    return any(
        not _is_p2p(pasts[a].steps[at])
        and pasts[a].groups[at] >= 0
        and b in job.members(pasts[a].groups[at])
        for a, b in ((one, other), (other, one))
    )


def _is_p2p(made: Step) -> bool:
    return made[0].startswith(("send", "recv"))
