"""Compares what the members of a group send each other with what they take (all_to_all)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.model.kinds import OpState
from hangwatch.model.snapshot import OpRecord


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pair of ranks of which one sends another amount than the other takes."""

    sender: int
    receiver: int
    sent: int
    taken: int
    unit: str
    """``row``, or ``element`` where a Flight Recorder tells."""


def misfits(records: Mapping[int, OpRecord]) -> list[Misfit]:
    """The pairs that do not fit, of calls of one sequence number that all members have made.

    Where one has not come, the others wait for it, whether their sizes fit or not.
    """
    first = next(iter(records.values()), None)
    if first is None or not first.wire.startswith("all_to_all"):
        return []  # as nearly always
    if not records.keys() >= {*first.group.ranks}:
        return []
    return list(_misfits(records))


def _misfits(records: Mapping[int, OpRecord]) -> Iterator[Misfit]:
    ranks = next(iter(records.values())).group.ranks
    for sending, sender in enumerate(ranks):
        theirs = records.get(sender)
        if theirs is None or len(theirs.sends) != len(ranks):
            continue
        for taking, receiver in enumerate(ranks):
            mine = records.get(receiver)
            if mine is None or len(mine.receives) != len(ranks) or mine.source != theirs.source:
                continue
            if mine.state is theirs.state is OpState.DONE:
                continue  # there was room enough
            if mine.source == "page" and mine.shape[1:] != theirs.shape[1:]:
                continue  # their rows are not of one size
            sent, taken = theirs.sends[taking], mine.receives[sending]
            if sent != taken:
                unit = "row" if mine.source == "page" else "element"
                yield Misfit(sender, receiver, sent, taken, unit)


def odd_ones(found: Sequence[Misfit]) -> tuple[int, ...]:
    """The one rank that is in all pairs; both where it is one pair, and all where none is."""
    pairs = [{pair.sender, pair.receiver} for pair in found]
    return tuple(sorted(set.intersection(*pairs) or set.union(*pairs)))
