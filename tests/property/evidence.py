"""The same job with other names for its ranks, or with evidence taken away."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hangwatch.model.kinds import OpState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from hangwatch.model.calls import GroupKey
    from hangwatch.model.snapshot import JobSnapshot, OpRecord, RankSnapshot
    from hangwatch.model.verdict import Verdict


_RANK = re.compile(r"(\brank (?:==|!=) )(\d+)")
"""How the source of a simulated job asks for a rank."""


def renamed(job: JobSnapshot, names: Sequence[int]) -> JobSnapshot:
    """The same job with other numbers for its ranks."""
    keys: dict[GroupKey, GroupKey] = {}

    def key(group: GroupKey) -> GroupKey:
        if group not in keys:
            keys[group] = replace(group, ranks=tuple(names[rank] for rank in group.ranks))
        return keys[group]

    def record(op: OpRecord) -> OpRecord:
        return replace(
            op,
            group=key(op.group),
            root=names[op.root] if op.root >= 0 else -1,
            peer=names[op.peer] if op.peer >= 0 else -1,
        )

    def rank(snapshot: RankSnapshot) -> RankSnapshot:
        return replace(
            snapshot,
            rank=names[snapshot.rank],
            groups=tuple(replace(group, key=key(group.key)) for group in snapshot.groups),
            ops=tuple(map(record, snapshot.ops)),
            new_groups=tuple(replace(call, group=key(call.group)) for call in snapshot.new_groups),
        )

    ranks = tuple(sorted(map(rank, job.ranks), key=lambda r: r.rank))
    sources = {
        file: _RANK.sub(lambda match: f"{match[1]}{names[int(match[2])]}", text)
        for file, text in job.sources.items()
    }
    return replace(job, ranks=ranks, sources=sources)


def gist(verdict: Verdict, names: Sequence[int] | None = None) -> tuple[object, ...]:
    """What must not depend on how ranks are numbered, with the names put in."""

    def named(ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(ranks) if names is None else tuple(sorted(names[rank] for rank in ranks))

    return (
        verdict.state,
        verdict.kind,
        verdict.reason,
        verdict.certainty,
        named(verdict.culprits),
        named(verdict.victims),
        verdict.stuck_age_s,
    )


def lessened(rng: Random, job: JobSnapshot) -> JobSnapshot:
    """The same job with evidence taken away from some of its ranks."""
    share = rng.choice((0.15, 0.5, 1.0))
    kinds = rng.sample(("none", "stack", "flight", "ring", "short"), rng.randint(1, 3))
    kept = []
    for rank in job.ranks:
        what = rng.choice(kinds) if rng.random() < share else "all"
        if what == "none" and share < 1.0:
            continue
        kept.append(_lessened(rank, what))
    return replace(job, ranks=tuple(kept), sources=job.sources if rng.random() < 0.5 else {})


def _lessened(rank: RankSnapshot, what: str) -> RankSnapshot:
    match what:
        case "stack":
            return replace(rank, threads=None, children=())
        case "flight":
            own = tuple(op for op in rank.ops if op.source == "page")
            return replace(rank, ops=own, flight=False)
        case "ring":
            waits = [op for op in rank.ops if op.state is not OpState.DONE]
            return replace(rank, ops=tuple(waits))
        case "short":
            return replace(rank, ops=rank.ops[-3:])
    return rank
