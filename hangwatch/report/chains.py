"""The way from a rank that waits to the culprit: through whom it waits for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from hangwatch.model.verdict import Wait

Ranks = tuple[int, ...]


def next_towards(waits: Iterable[Wait], culprits: Iterable[int]) -> dict[int, int]:
    """Rank to the one that it waits for on the shortest way to a culprit.

    Ranks from which no wait leads to one are left out, and the culprits themselves.
    Time is linear in the waits and in whom their places wait for: most are in the same
    few places.
    """
    waiting: defaultdict[Ranks, list[int]] = defaultdict(list)
    for wait in waits:
        waiting[wait.waits_for].append(wait.rank)
    holding: defaultdict[int, list[Ranks]] = defaultdict(list)
    for missing in waiting:
        for rank in missing:
            holding[rank].append(missing)
    known = set(culprits)
    found: dict[int, int] = {}
    reached = sorted(known)
    for towards in reached:  # grows while it is read: nearest ranks first
        for missing in holding.pop(towards, ()):
            for rank in waiting.pop(missing, ()):
                if rank not in known:
                    known.add(rank)
                    found[rank] = towards
                    reached.append(rank)
    return found


def chain(rank: int, towards: Mapping[int, int]) -> list[int]:
    """The ranks that one waits for in turn, the culprit last; empty if that is not known."""
    found: dict[int, None] = {}  # a stored report may have been tampered with, and go round
    while (following := towards.get(rank)) is not None and following not in found:
        found[following] = None
        rank = following
    return list(found)
