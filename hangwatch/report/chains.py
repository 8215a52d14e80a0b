"""The ways along which ranks wait for a culprit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from hangwatch.model.verdict import Wait
from hangwatch.report.schema import Report

Ranks = tuple[int, ...]


def next_towards(waits: Iterable[Wait], culprits: Iterable[int]) -> dict[int, int]:
    """Rank to the one that it waits for on the shortest way to a culprit.

    Culprits are left out, and ranks from which no wait leads to one. Time is linear in the
    waits and in the ranks that their places wait for: most waits are in the same few places.
    """
    waiting: defaultdict[Ranks, list[int]] = defaultdict(list)
    for wait in waits:
        waiting[wait.waits_for].append(wait.rank)
    holding: defaultdict[int, list[Ranks]] = defaultdict(list)
    for missing in waiting:
        for rank in missing:
            holding[rank].append(missing)
    known = set(culprits)
    towards: dict[int, int] = {}
    reached = sorted(known)
    for target in reached:  # grows while it is read: nearest ranks first
        for missing in holding.pop(target, ()):
            for rank in waiting.pop(missing, ()):
                if rank not in known:
                    known.add(rank)
                    towards[rank] = target
                    reached.append(rank)
    return towards


def towards_of(report: Report) -> dict[int, int]:
    """The same as a stored report has it."""
    return {
        wait["rank"]: towards
        for wait in report["waits"]
        if (towards := wait["towards"]) is not None
    }


def chain(rank: int, towards: Mapping[int, int]) -> list[int]:
    """The ranks that a rank waits for in turn, the culprit last; empty if that is not known."""
    way: dict[int, None] = {}  # a stored report may have been tampered with, and go round
    while (following := towards.get(rank)) is not None and following not in way:
        way[following] = None
        rank = following
    return list(way)
