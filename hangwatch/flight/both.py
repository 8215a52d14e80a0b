"""One dump from the recorders of a rank that has two: NCCL's, and the general one.

Each counts records and groups (``pg_id``) by itself. A group with both backends, as
``init_process_group()`` makes it where there is a GPU, is one group in the program's eyes
and on the page, but each backend numbers its own calls: the first all_reduce on a GPU is
1 there, whatever ran on the CPU before. In the order in which they were made the calls
have the page's numbers again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hangwatch.types.flight import FlightDump

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangwatch.types.flight import FlightEntry

_APART = 1 << 40
"""Added to the records and groups of the second recorder: no process makes so many."""


class _Numbers(NamedTuple):
    """The collectives of one backend in one group, oldest first."""

    created_unix_ns: list[int]
    seqs: list[int]

    def before(self, unix_ns: int) -> int:
        """How many had been made by then, also those that are no longer recorded."""
        if not self.seqs:
            return 0
        at = bisect_right(self.created_unix_ns, unix_ns)
        return self.seqs[at - 1] if at else self.seqs[0] - 1


def both(first: FlightDump, second: FlightDump) -> FlightDump:
    """What the two recorders of a rank know. Recent versions of torch show one under two names."""
    if _moments(first) & _moments(second):
        return first
    shared = _shared(first, second)
    ours = {pg_id: _numbers(first, pg_id) for pg_id in shared.values()}
    theirs = {pg_id: _numbers(second, pg_id) for pg_id in shared}
    of_first = {pg_id: theirs[other] for other, pg_id in shared.items()}
    entries = [_renumbered(entry, of_first.get(entry.pg_id)) for entry in first.entries]
    for entry in second.entries:
        pg_id = shared.get(entry.pg_id, entry.pg_id + _APART)
        moved = replace(entry, pg_id=pg_id, record=entry.record + _APART)
        entries.append(_renumbered(moved, ours.get(pg_id)))
    status = {pg_id: status for pg_id, status in first.status.items() if pg_id not in of_first}
    for pg_id, counts in second.status.items():
        if pg_id not in shared:  # else they count in numbers that are no longer there
            status[pg_id + _APART] = counts
    return FlightDump(
        version=first.version,
        entries=tuple(sorted(entries, key=lambda entry: entry.created_unix_ns)),
        status=status,
        configs=second.configs | first.configs,
    )


def _moments(dump: FlightDump) -> set[tuple[int, int, str]]:
    return {(entry.record, entry.created_unix_ns, entry.backend) for entry in dump.entries}


def _shared(first: FlightDump, second: FlightDump) -> dict[int, int]:
    """pg_id in the second to pg_id in the first, for groups that both have calls of.

    A name that was used again is several groups: the newest are the same.
    """
    ours, theirs = _pg_ids(first), _pg_ids(second)
    return {
        other: pg_id
        for name in ours.keys() & theirs.keys()
        for other, pg_id in zip(theirs[name], ours[name], strict=False)
    }


def _pg_ids(dump: FlightDump) -> dict[str, list[int]]:
    """Name to the groups that had it, newest first."""
    found: dict[str, set[int]] = {}
    for entry in dump.entries:
        found.setdefault(entry.group_name, set()).add(entry.pg_id)
    return {name: sorted(ids, reverse=True) for name, ids in found.items()}


def _collectives(entries: Iterable[FlightEntry]) -> Iterable[FlightEntry]:
    return (entry for entry in entries if not entry.p2p and entry.seq >= 1)


def _numbers(dump: FlightDump, pg_id: int) -> _Numbers:
    own = [entry for entry in _collectives(dump.entries) if entry.pg_id == pg_id]
    own.sort(key=lambda entry: entry.created_unix_ns)
    return _Numbers([entry.created_unix_ns for entry in own], [entry.seq for entry in own])


def _renumbered(entry: FlightEntry, others: _Numbers | None) -> FlightEntry:
    """An entry with its place among the calls of both backends."""
    if others is None or entry.p2p or entry.seq < 1:
        return entry
    return replace(entry, seq=entry.seq + others.before(entry.created_unix_ns))
