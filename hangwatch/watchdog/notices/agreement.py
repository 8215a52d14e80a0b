"""Notices in a running job that ranks no longer issue the same, by their checkpoints.

A checkpoint is a hash of all that Python issued in a group up to a place. Ranks of one
node are compared at each look, for next to nothing. That two differ says that they
came by different lines, which may be meant: only a look at the calls themselves tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import Look
from hangwatch.model.calls import GroupKey

FIRST_S, MOST_S = 1.0, 60.0
"""Until the next closer look at ranks that differ; twice as long after each."""


@dataclass(slots=True)
class Agreement:
    """When ranks that differ were last looked at."""

    _due_s: float = 0.0
    _rest_s: float = FIRST_S

    def look_due(self, look: Look) -> bool:
        """Whether ranks differ and the time has come to see in what; notes that it is done."""
        now_s = look.now_ns / 1e9
        if now_s < self._due_s or not differ(look.seen):
            return False
        self._due_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, MOST_S)
        return True


def differ(seen: Mapping[int, Seen]) -> bool:
    """Whether two ranks have different hashes for one place of one group."""
    # Comparing members is cheaper than hashing them, which a tuple does anew each time.
    known: dict[tuple[str, int, int], list[tuple[GroupKey, dict[int, int]]]] = {}
    for one in seen.values():
        for group in one.light.groups:
            if not group.alive or not group.checkpoints:
                continue
            key = group.key
            alike = known.setdefault((key.desc, key.index, len(key.ranks)), [])
            hashes = next((found for other, found in alike if other.ranks == key.ranks), None)
            if hashes is None:
                alike.append((key, hashes := {}))
            for place, value in group.checkpoints:
                if hashes.setdefault(place, value) != value:
                    return True
    return False
