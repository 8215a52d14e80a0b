"""Knows a process group again on every rank, from dumps of the Flight Recorder.

A group's name is a counter of the process: with ``split_group`` one group has several
names, and one name is several groups. Its members and description are the same on
all of them, and its place among the groups with the same ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from hangwatch.model.calls import GroupKey
from hangwatch.model.flight import FlightDump

DEFAULT = "default_pg"
_LATE = 1 << 62
Names = dict[int, dict[str, GroupKey]]
"""Rank to a group's name there to what it is."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of all dumps."""

    by_name: Names
    pg_ids: dict[int, dict[str, int]]
    """Rank to a group's name there to its pg_id, where that is known."""
    inferred: bool
    """Members are those that were seen in it: the dumps do not tell (gloo)."""


def find_groups(dumps: Mapping[int, FlightDump], world_size: int) -> Groups:
    """What each name means on each rank."""
    told = {rank: dict(dump.configs) for rank, dump in dumps.items()}
    inferred = _infer(dumps, told, world_size)
    pg_ids = {rank: _pg_ids(dumps[rank], told[rank]) for rank in dumps}
    _learn(dumps, told, pg_ids)
    return Groups(_keys(told, pg_ids), pg_ids, inferred)


def _infer(
    dumps: Mapping[int, FlightDump],
    told: Mapping[int, dict[str, tuple[str, tuple[int, ...]]]],
    world_size: int,
) -> bool:
    """Add the groups whose members no dump tells, and say whether there are any."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        for name, desc in {(entry.group_name, entry.group_desc) for entry in dump.entries}:
            if name not in told[rank]:
                seen[name, desc].add(rank)
    for (name, desc), ranks in seen.items():
        members = range(world_size) if desc == DEFAULT else sorted(ranks)
        for rank in ranks:
            told[rank][name] = desc, tuple(members)
    return any(desc != DEFAULT for _, desc in seen)


def _pg_ids(dump: FlightDump, told: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, int]:
    """Name to pg_id, from the entries and from the order in which groups were made.

    ``pg_status`` lists the groups that were used, by pg_id, and ``pg_config`` those that
    have a communicator, by name. Both are counters: they pair up where there are as many of
    them, or, where all communicators are made at once, a pg_id is the place of a name.
    """
    known: dict[str, int] = {}
    for entry in dump.entries:
        known[entry.group_name] = max(known.get(entry.group_name, -1), entry.pg_id)
    if told and all(name.isdecimal() for name in told):
        names, ids = sorted(told, key=int), sorted(dump.status)
        tries = [dict(zip(names, ids, strict=True))] if len(names) == len(ids) else []
        tries.append({name: pg_id for pg_id, name in enumerate(names) if pg_id in dump.status})
        for paired in tries:
            if known and all(paired.get(name) == pg_id for name, pg_id in known.items()):
                return paired
        if tries[:-1] and not known:
            return tries[0]
    return known


def _learn(
    dumps: Mapping[int, FlightDump],
    told: Mapping[int, Mapping[str, tuple[str, tuple[int, ...]]]],
    pg_ids: Mapping[int, dict[str, int]],
) -> None:
    """Fill the gaps by what other ranks call a pg_id: they make their groups in one order."""
    descs: dict[int, set[str]] = defaultdict(set)
    for rank, names in pg_ids.items():
        for name, pg_id in names.items():
            if name in told[rank]:
                descs[pg_id].add(told[rank][name][0])
    for rank, dump in dumps.items():
        by_desc: dict[str, list[str]] = defaultdict(list)
        for name, (desc, _) in told[rank].items():
            by_desc[desc].append(name)
        for pg_id in dump.status.keys() - set(pg_ids[rank].values()):
            desc = next(iter(descs[pg_id])) if len(descs[pg_id]) == 1 else ""
            if desc and len(by_desc[desc]) == 1 and by_desc[desc][0] not in pg_ids[rank]:
                pg_ids[rank][by_desc[desc][0]] = pg_id


def _keys(
    told: Mapping[int, Mapping[str, tuple[str, tuple[int, ...]]]],
    pg_ids: Mapping[int, Mapping[str, int]],
) -> Names:
    alike: dict[tuple[str, tuple[int, ...]], dict[int, list[str]]] = defaultdict(dict)
    for rank, groups in told.items():
        for name, config in groups.items():
            alike[config].setdefault(rank, []).append(name)
    found: Names = {rank: {} for rank in told}
    for (desc, ranks), owners in alike.items():
        for rank, names in owners.items():
            names.sort(key=partial(_age, pg_ids[rank]))
        common = _one_order(owners.values())
        made: dict[int, GroupKey] = {}
        for rank, names in owners.items():
            for index, name in enumerate(names):
                at = common.get(name, index)
                found[rank][name] = made.setdefault(at, GroupKey(ranks, desc, at))
    return found


def _one_order(lists: Iterable[list[str]]) -> dict[str, int]:
    """The place of each name, if some rank has all names that any has; else nothing.

    A rank lists a group only once it has used it, so the shorter lists have gaps.
    """
    several = list(lists)
    longest = max(several, key=len)
    if all(set(names) <= set(longest) for names in several):
        return {name: place for place, name in enumerate(longest)}
    return {}


def _age(pg_ids: Mapping[str, int], name: str) -> tuple[int, int, str]:
    """Sorts a rank's groups by when they were made, as far as that is known."""
    return pg_ids.get(name, _LATE), int(name) if name.isdecimal() else _LATE, name
