"""Joins the recorders of a rank that has several: NCCL's, and those of other backends.

Each counts records and groups (``pg_id``) by itself. A group with two backends, as
``init_process_group()`` makes it where there is a GPU, is one group in the program's eyes
and on the page, but each backend numbers its own calls: the first all_reduce on a GPU is
1 there, whatever ran on the CPU before. In the order in which they were made the calls
have the page's numbers again. What hooks recorded is counted together, whichever its backend is
(entries.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hangwatch.evidence.flight.entries import FlightDump, FlightEntry
from hangwatch.model.operations import ran_on_host

_APART = 1 << 40
"""Added to the records and groups of another recorder: no process makes so many."""
_FURTHER_APART = 1 << 48
"""Added to the records of another recorder of hooks, whose groups are those of the first."""


class _Numbers(NamedTuple):
    """The numbers of one backend's collectives in one group, oldest first."""

    created_unix_ns: list[int]
    numbers: list[int]

    def before(self, unix_ns: int) -> int:
        """Return how many had been made by then, also if they are no longer recorded."""
        if not self.numbers:
            return 0
        at = bisect_right(self.created_unix_ns, unix_ns)
        return self.numbers[at - 1] if at else self.numbers[0] - 1


def join_recorders(dumps: Sequence[FlightDump]) -> FlightDump:
    """Return one dump with what the recorders of a rank know, of which there is at least one."""
    hooked = [dump for dump in dumps if _is_hooked(dump)]
    others = [dump for dump in dumps if not _is_hooked(dump)]
    whole, *more = [*others, _join_hooked(hooked)] if hooked else others
    for number, dump in enumerate(more, 1):
        whole = _join_two(whole, dump, number * _APART)
    return whole


def _is_hooked(dump: FlightDump) -> bool:
    return bool(dump.entries) and dump.entries[0].is_hooked


def _join_hooked(dumps: Sequence[FlightDump]) -> FlightDump:
    """Join what hooks have recorded, for one backend or several: they count as one."""
    return FlightDump(
        version=dumps[0].version,
        entries=_by_age(
            replace(entry, record=entry.record + number * _FURTHER_APART)
            for number, dump in enumerate(dumps)
            for entry in dump.entries
        ),
        configs={name: config for dump in dumps for name, config in dump.configs.items()},
    )


def _join_two(first: FlightDump, second: FlightDump, apart: int) -> FlightDump:
    """Join two recorders. Recent versions of torch show one under two names.

    apart: what distinguishes the records and groups of the second from those of the first.
    """
    if _moments(first) & _moments(second):
        return first
    shared = _shared(first, second)
    second_hooked = _is_hooked(second)
    if second_hooked:
        second = _placed(first, second, shared)
    ours = {pg_id: _numbers(first, pg_id) for pg_id in shared.values()}
    theirs = {pg_id: _numbers(second, other) for other, pg_id in shared.items()}
    entries = []
    for entry in first.entries:
        others = theirs.get(entry.pg_id)
        if others is not None and second_hooked:
            entries.append(_placed_among(entry, others, ours[entry.pg_id]))
        else:
            entries.append(_renumbered(entry, others))
    for entry in second.entries:
        pg_id = shared.get(entry.pg_id, entry.pg_id + apart)
        moved = replace(entry, pg_id=pg_id, record=entry.record + apart)
        entries.append(moved if entry.is_hooked else _renumbered(moved, ours.get(pg_id)))
    status = {pg_id: status for pg_id, status in first.status.items() if pg_id not in theirs}
    for pg_id, counts in second.status.items():
        if pg_id not in shared:  # else they count in numbers that are no longer there
            status[pg_id + apart] = counts
    return FlightDump(
        version=first.version,
        entries=_by_age(entries),
        status=status,
        configs=second.configs | first.configs,
    )


def _placed(host: FlightDump, hooked: FlightDump, shared: Mapping[int, int]) -> FlightDump:
    """Return what hooks recorded, with the numbers that calls of a shared group have among both.

    Barriers that the host ran are left to its own recorder.
    """
    of_group: dict[int, list[FlightEntry]] = defaultdict(list)
    for entry in hooked.entries:
        of_group[entry.pg_id].append(entry)
    entries: list[FlightEntry] = []
    for pg_id, own in of_group.items():
        if pg_id in shared:
            others = [e for e in host.entries if _is_collective(e) and e.pg_id == shared[pg_id]]
            entries += _placed_in_group(own, others)
        else:
            entries += own
    return replace(hooked, entries=_by_age(entries))


def _placed_in_group(
    hooked: Sequence[FlightEntry], host: Sequence[FlightEntry]
) -> Iterable[FlightEntry]:
    """Yield a hook's entries, numbered in the order in which both made their calls.

    ``op_id`` counts the calls of both, and also what is captured into a graph. But it counts the
    host's sends and recvs, of which there are no entries: the host's own ``op_id`` shows how many
    were made between two of its collectives, and any of them may have been before a call in
    between. What is more than that was captured.
    """
    barriers = [entry.created_unix_ns for entry in host if entry.wire == "barrier"]
    twice = ran_on_host(
        [(entry.created_unix_ns, entry.wire == "barrier") for entry in hooked], barriers
    )
    made = [entry.created_unix_ns for entry in host]
    seqs = _Numbers(made, [entry.seq for entry in host])
    op_ids = _Numbers(made, [entry.op_id for entry in host])
    captured = 0
    for entry, is_of_host in zip(hooked, twice, strict=True):
        at = entry.created_unix_ns
        before = entry.coalescing - (not entry.p2p) - bisect_left(barriers, at)
        following = bisect_right(made, at)
        if following < len(made):
            known = before + entry.p2p_before - entry.p2p + op_ids.before(at)
            captured = max(captured, entry.op_id - known - _sent_before(host, following))
        if entry.p2p:
            yield entry
        elif not is_of_host:
            yield replace(entry, seq=before + 1 + seqs.before(at) + captured)


def _sent_before(host: Sequence[FlightEntry], following: int) -> int:
    """Return how many sends and recvs the host made between a collective and the one before it."""
    if following == 0:
        return 0
    last, this = host[following - 1 : following + 1]
    return (this.op_id - last.op_id) - (this.seq - last.seq)


def _moments(dump: FlightDump) -> set[tuple[int, int, str]]:
    return {(entry.record, entry.created_unix_ns, entry.backend) for entry in dump.entries}


def _shared(first: FlightDump, second: FlightDump) -> dict[int, int]:
    """Return pg_id in the second to pg_id in the first, for groups that both have calls of.

    A name that was used again is several groups: the newest are the same.
    """
    ours, theirs = _pg_ids(first), _pg_ids(second)
    return {
        other: pg_id
        for name in ours.keys() & theirs.keys()
        for other, pg_id in zip(theirs[name], ours[name], strict=False)
    }


def _pg_ids(dump: FlightDump) -> dict[str, list[int]]:
    """Return name to the groups that had it, newest first."""
    ids: dict[str, set[int]] = defaultdict(set)
    for entry in dump.entries:
        ids[entry.group_name].add(entry.pg_id)
    return {name: sorted(of_name, reverse=True) for name, of_name in ids.items()}


def _is_collective(entry: FlightEntry) -> bool:
    return not entry.p2p and entry.seq >= 1


def _numbers(dump: FlightDump, pg_id: int) -> _Numbers:
    own = _by_age(e for e in dump.entries if _is_collective(e) and e.pg_id == pg_id)
    return _Numbers([entry.created_unix_ns for entry in own], [entry.seq for entry in own])


def _by_age(entries: Iterable[FlightEntry]) -> tuple[FlightEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.created_unix_ns))


def _renumbered(entry: FlightEntry, others: _Numbers | None) -> FlightEntry:
    """Return an entry with its number among the calls of both backends."""
    if others is None or not _is_collective(entry):
        return entry
    return replace(entry, seq=entry.seq + others.before(entry.created_unix_ns))


def _placed_among(entry: FlightEntry, hooked: _Numbers, own: _Numbers) -> FlightEntry:
    """Return an entry with its number, which the hook's next to it have already."""
    if not _is_collective(entry) or not hooked.numbers:
        return entry
    at = bisect_right(hooked.created_unix_ns, entry.created_unix_ns)
    next_to = max(at - 1, 0)
    made_by_then = own.before(hooked.created_unix_ns[next_to])
    number = hooked.numbers[next_to] + entry.seq - made_by_then
    return replace(entry, seq=number if at else number - 1)
