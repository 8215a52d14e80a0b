"""Whether what was reported has passed: the waits of that moment, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hangwatch.evidence.pages.look import OVER, QUIET_S, Look, moved_ns

STEADY_S = 1.0
"""A wait has passed once it has been over for so long."""


@dataclass(slots=True)
class Progress:
    """The ranks that waited when something was reported."""

    waited: dict[int, int] = field(default_factory=dict)
    """Rank to since when (CLOCK_MONOTONIC, ns)."""
    _over_ns: int = 0
    _told_ns: int = 0
    """Since when another node's report is known, where nobody of this one is remembered."""

    def begin(self, look: Look) -> None:
        """Remember who waits now."""
        self.waited = {
            rank: since
            for rank, since in look.waits.items()
            if since is not None and look.now_ns - since >= QUIET_S * 1e9
        }
        self._over_ns = 0

    def passed_after_s(self, look: Look) -> float | None:
        """How long they had waited if that is over for good, else None.

        Where nobody is remembered (another node's watchdog has reported it),
        those who wait now are. Where nobody waits, it may be the ranks of this node
        that are waited for: it has passed once all of them have gone on.
        """
        if not self.waited and look.longest_wait_s >= QUIET_S:
            self.begin(look)
        self._told_ns = self._told_ns or look.now_ns
        if not self._is_over(look):
            self._over_ns = 0
            return None
        self._over_ns = self._over_ns or look.now_ns
        if look.now_ns - self._over_ns < STEADY_S * 1e9:
            return None
        began_ns = min(self.waited.values(), default=self._told_ns)
        return (self._over_ns - began_ns) / 1e9

    def forget(self) -> None:
        """Nobody is remembered any more."""
        self.waited, self._over_ns, self._told_ns = {}, 0, 0

    def export(self) -> list[list[int]]:
        """Plain values for restore()."""
        return [[rank, since] for rank, since in self.waited.items()]

    def restore(self, values: Iterable[Any]) -> None:
        """Undo export(). Raises TypeError or ValueError for anything else."""
        self.waited = {int(rank): int(since) for rank, since in values}

    def _is_over(self, look: Look) -> bool:
        """Whether all of them live and wait no more, or for something newer."""
        waits = look.waits
        if not waits or not self.waited.keys() <= waits.keys():
            return False  # one has ended: a job that falls apart has not recovered
        if any(waits[rank] is None and _fails(look, rank) for rank in self.waited or waits):
            return False
        if not self.waited:
            return all(moved_ns(look.seen[rank].light) > self._told_ns for rank in waits)
        return all(
            (now := waits[rank]) is None or now > since for rank, since in self.waited.items()
        )


def _fails(look: Look, rank: int) -> bool:
    """Whether a rank waits no more since it has failed, or is about to."""
    seen = look.seen.get(rank)
    return seen is not None and (seen.light.phase in OVER or bool(seen.light.handling))
