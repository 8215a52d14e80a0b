"""Tells apart process groups that are known by the same and never were one.

A group's place among its like is counted in each process. So a process that was started
later begins to count anew: a trainer that opens a world with a fresh helper for each epoch
is in its third group of the two where the helper is in its first, and so are the ranks that
go on when one of them was replaced. When each made and destroyed its groups tells which of
them can be one: what was destroyed before another was made is not the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangwatch.types import GroupKey, GroupProgress, RankSnapshot

SAME_NODE_S = 0.1
"""The ranks of a node make and destroy a group at the same time but for this."""
OTHER_NODE_S = 2.0
"""And those of several nodes but for this, since one is looked at a moment after the other."""

_Ended = tuple[float, float]
"""How long ago a group was destroyed, and made, in seconds."""


class _Families:
    """Numbers what groups are known by but for their place: members and description.

    A key may name all ranks of a large job, and many ranks share one: it is hashed once.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[int, ...], str], int] = {}
        self._by_id: dict[int, int] = {}

    def number(self, key: GroupKey) -> int:
        found = self._by_id.get(id(key))
        if found is None:
            found = self._numbers.setdefault((key.ranks, key.desc), len(self._numbers))
            self._by_id[id(key)] = found
        return found


def told_apart(ranks: dict[int, RankSnapshot]) -> dict[int, RankSnapshot]:
    """The ranks, those that were started later with the places of their groups among all."""
    over = [(rank, group) for rank in ranks.values() for group in rank.groups if not group.alive]
    oldest_s = max((group.made_age_s or 0.0 for _, group in over), default=0.0)
    late = [r for r in ranks.values() if r.born_age_s is not None and r.born_age_s < oldest_s]
    if not late:
        return ranks
    families = _Families()
    ended = _ended(over, families)
    return {**ranks, **{rank.rank: _moved(rank, ended, families) for rank in late}}


def _ended(
    over: Iterable[tuple[RankSnapshot, GroupProgress]], families: _Families
) -> dict[tuple[int, str], dict[int, _Ended]]:
    """By family and node ("" for all of them), by place: the one that was destroyed first."""
    found: defaultdict[tuple[int, str], dict[int, _Ended]] = defaultdict(dict)
    for rank, group in over:
        if group.made_age_s is None or group.ended_age_s is None:
            continue
        times = group.ended_age_s, group.made_age_s
        for node in (rank.node, ""):
            known = found[families.number(group.key), node]
            known[group.key.index] = max(known.get(group.key.index, times), times)
    return found


def _moved(
    rank: RankSnapshot, ended: Mapping[tuple[int, str], dict[int, _Ended]], families: _Families
) -> RankSnapshot:
    """A rank whose groups stand behind those that were over before it made its first."""
    first: dict[int, GroupProgress] = {}
    for group in rank.groups:
        known = first.setdefault(families.number(group.key), group)
        if group.key.index < known.key.index:
            first[families.number(group.key)] = group
    shifts: dict[int, int] = {}
    for family, own in first.items():
        for node, slack_s in ((rank.node, SAME_NODE_S), ("", OTHER_NODE_S)):
            for place, times in ended.get((family, node), {}).items():
                if _was_over(times, rank, own, slack_s):
                    past = place + 1 - own.key.index
                    shifts[family] = max(shifts.get(family, 0), past)
    if not any(shifts.values()):
        return rank
    keys: dict[int, GroupKey] = {}

    def moved(key: GroupKey) -> GroupKey:
        if id(key) not in keys:
            shift = shifts.get(families.number(key), 0)
            keys[id(key)] = replace(key, index=key.index + shift)
        return keys[id(key)]

    return replace(
        rank,
        groups=tuple(replace(group, key=moved(group.key)) for group in rank.groups),
        ops=tuple(replace(op, group=moved(op.group)) for op in rank.ops),
    )


def _was_over(times: _Ended, rank: RankSnapshot, own: GroupProgress, slack_s: float) -> bool:
    """Whether a group had been made when the rank came, and was destroyed before its own one."""
    if rank.born_age_s is None or own.made_age_s is None:
        return False
    ended_s, made_s = times
    return made_s > rank.born_age_s + slack_s and ended_s > own.made_age_s + slack_s
