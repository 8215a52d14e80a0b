"""The last calls of ranks in report.json, for a few ranks of each kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hangwatch.model.snapshot import OpRecord, RankSnapshot
from hangwatch.model.verdict import Verdict
from hangwatch.report import schema
from hangwatch.report.groups import Groups, Sites
from hangwatch.report.sites import group_label

RANKS = 24
"""Ranks whose calls are kept; all of a job that has no more."""
CULPRITS = 8
"""Of more culprits than that, these many are told in full."""
OF_EACH = 2
"""Ranks kept of those that wait in the same place."""
CALLS = 24
"""Calls kept of a rank: its last ones ..."""
OF_GROUP = 12
"""... and so many in the group of the verdict, around the place that it is about."""


def chosen_ranks(
    ranks: Sequence[RankSnapshot], verdict: Verdict, towards: Mapping[int, int]
) -> set[int]:
    """Whose calls to keep: the culprits, and some of each place, those next to a culprit first."""
    if len(ranks) <= RANKS:
        return {rank.rank for rank in ranks}
    culprits = list(verdict.culprits[:CULPRITS])
    chosen = dict.fromkeys(culprits)
    alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for wait in verdict.waits:
        alike[wait.op, wait.group, wait.seq].append(wait.rank)
    known = set(verdict.culprits)
    near = sorted(
        alike.values(),
        key=lambda members: (-sum(towards.get(rank) in known for rank in members), -len(members)),
    )
    for members in near:
        chosen |= dict.fromkeys(members[:OF_EACH])
    chosen |= dict.fromkeys(verdict.victims[:OF_EACH])
    return set(list(chosen)[:RANKS])


def calls_content(
    rank: RankSnapshot, verdict: Verdict, groups: Groups, sites: Sites
) -> list[schema.Call]:
    """The last calls of one rank, oldest first."""
    last = range(max(0, len(rank.ops) - CALLS), len(rank.ops))
    kept = sorted({*last, *_around(rank.ops, verdict)})
    return [_call(rank.ops[index], groups, sites) for index in kept]


def _around(ops: Sequence[OpRecord], verdict: Verdict) -> Iterable[int]:
    """The calls in the group of the verdict that are nearest to its place."""
    at = verdict.collective.seq if verdict.collective else 0
    of_group = [
        index for index, op in enumerate(ops) if op.group == verdict.group and not op.p2p and at
    ]
    return sorted(of_group, key=lambda index: abs(ops[index].seq - at))[:OF_GROUP]


def _call(op: OpRecord, groups: Groups, sites: Sites) -> schema.Call:
    """Ages are seconds before the snapshot, comparable between ranks."""
    blocked = op.blocked_age_s
    return {
        "op": op.op,
        "group": group_label(op.group),
        "group_id": groups.number(op.group),
        "seq": op.seq,
        "p2p": op.p2p,
        "peer": op.peer if op.peer >= 0 else None,
        "root": op.root if op.root >= 0 else None,
        "dtype": op.dtype,
        "shape": list(op.shape),
        "state": op.state.value,
        "issued_age_s": round(op.issued_age_s, 6),
        "blocked_age_s": round(blocked, 6) if blocked is not None else None,
        "source": op.source,
        "site": sites.number(op.site),
    }
