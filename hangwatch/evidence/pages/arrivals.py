"""Statistics of when the ranks of this node arrive at the collectives of their groups.

All ranks of a node have one CLOCK_MONOTONIC, so that the moments at which they
issued the same collective can be compared. Only groups with two members or more
on the node count, and of them only the collectives of which the rings of
all these members still hold the call. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from statistics import median
from typing import Any, NamedTuple

from hangwatch.evidence import timing

RECURRENCES = 3
"""Calls from one line of code that are needed to know its period."""


class Issued(NamedTuple):
    """One collective in the ring of a rank."""

    slot: int
    """Of the group on the rank's page."""
    seq: int
    """Its number in the group."""
    at_ns: int
    """CLOCK_MONOTONIC."""
    line: tuple[str, int] | None
    """File and line that it was called from, where known."""


def issued(ring: Iterable[Mapping[str, Any]]) -> list[Issued]:
    """Return the collectives of a ring (``page.parse_ring``), oldest first."""
    return [
        Issued(
            event["slot"],
            event["seq"],
            event["issued_ns"],
            (site["file"], site["line"]) if (site := event["site"]) else None,
        )
        for event in ring
        if not event["p2p"]
    ]


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group that this node has. Another set of them counts from 1 again."""

    index: int
    """GroupKey.index of the group."""
    processes: tuple[tuple[int, int], ...]
    """(rank, pid), by rank."""


@dataclass(frozen=True, slots=True)
class GroupArrivals:
    """The statistics of one group. ``buckets``: collectives with a spread up to each bound."""

    group: str
    buckets: tuple[int, ...]
    spread_s: float
    """Sum of all spreads: last arrival minus first."""
    last: tuple[tuple[int, int], ...]
    """(rank, how often it was the last to arrive)."""
    delay_s: tuple[tuple[int, float], ...]
    """(rank, seconds that it arrived after the first, summed up)."""


@dataclass(slots=True)
class _Counted:
    """The statistics of one group so far."""

    members: Members | None = None
    seq: int = 0
    """The last collective that was counted, of these members."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(timing.ARRIVAL_BOUNDS_S) + 1))
    spread_s: float = 0.0
    last: Counter[int] = field(default_factory=Counter)
    delay_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class Arrivals:
    """Counts each collective once. A group is known by its label."""

    def __init__(self) -> None:
        self._groups: dict[str, _Counted] = {}

    def add(
        self,
        rings: Mapping[int, Mapping[str, Sequence[Issued]]],
        members: Mapping[str, Members],
    ) -> None:
        """Count what is new. rings: rank to group to its calls, oldest first."""
        for group, local in members.items():
            if len(local.processes) < 2:  # noqa: PLR2004 (one alone is neither early nor late)
                continue
            counted = self._groups.setdefault(group, _Counted())
            if counted.members != local:
                counted.members, counted.seq = local, 0
            times = {
                rank: {call.seq: call.at_ns for call in rings.get(rank, {}).get(group, ())}
                for rank, _ in local.processes
            }
            everywhere = set.intersection(*(set(calls) for calls in times.values()))
            for seq in sorted(seq for seq in everywhere if seq > counted.seq):
                _count(counted, {rank: calls[seq] for rank, calls in times.items()})
                counted.seq = seq

    def groups(self) -> tuple[GroupArrivals, ...]:
        """Return all that was counted so far."""
        return tuple(
            GroupArrivals(
                group,
                tuple(counted.buckets),
                counted.spread_s,
                tuple(sorted(counted.last.items())),
                tuple(sorted(counted.delay_s.items())),
            )
            for group, counted in self._groups.items()
            if counted.delay_s
        )


def _count(counted: _Counted, at_ns: Mapping[int, int]) -> None:
    first_ns = min(at_ns.values())
    last = max(at_ns, key=at_ns.__getitem__)
    spread_s = (at_ns[last] - first_ns) / 1e9
    counted.buckets[bisect_left(timing.ARRIVAL_BOUNDS_S, spread_s)] += 1
    counted.spread_s += spread_s
    for rank, when_ns in at_ns.items():
        counted.last[rank] += rank == last
        counted.delay_s[rank] += (when_ns - first_ns) / 1e9


def loop_period_s(ring: Iterable[Issued]) -> float | None:
    """Return the duration of a turn of the training loop, as far as a rank's ring shows it.

    The median time between two calls from one line of code, of the line that recurs
    least often: what is called once in a turn, where anything is. A line that issues several
    calls before another one does counts once, if there is another one. None where no line recurs
    often enough.
    """
    calls = [call for call in ring if call.line is not None]
    runs = [next(run) for _, run in groupby(calls, lambda call: call.line)]
    at_ns: dict[tuple[str, int] | None, list[int]] = defaultdict(list)
    for call in runs if len(runs) > 1 else calls:
        at_ns[call.line].append(call.at_ns)
    recurring = [times for times in at_ns.values() if len(times) >= RECURRENCES]
    if not recurring:
        return None
    rarest = min(recurring, key=lambda times: (len(times), -times[-1]))
    return median(after - before for before, after in pairwise(rarest)) / 1e9
