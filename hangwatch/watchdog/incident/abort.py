"""Which ranks of this node are ended for a hang, and when. Pure.

A verdict is only the occasion. It may rest on what came over the store, which anybody may
have written who reaches that port, and the job may have recovered while its report was
written. So a rank is ended only as long as its own page shows that it has not gone on, by
any means that is counted, for as long as a hang takes (``--hang-after``): it waits in one
call, or it is named as the culprit, and others wait. What this node can prove by its own
pages alone need not have lasted that long; the waits that prove it have to stand.

Each rank is remembered as it stood, and has to stand there still when it is looked at
again. That any of them has gone on changes the hang: then the rest are given the whole
time anew, from that moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hangwatch.observe.pages.standing import Standing

SOON_NS = 10**9
"""Ranks that come due so soon are waited for, to be ended together with the others."""
ALONE_NS = 5 * 10**9
"""How much later the culprit is ended on a node where nobody waits: the end of those that
wait on other nodes may be enough, and there it is what ends the job."""


@dataclass(slots=True)
class Abort:
    """A hang whose ranks are to be ended. Times are CLOCK_MONOTONIC in ns."""

    culprits: frozenset[int]
    """As the verdict names them, of whichever node."""
    not_before_ns: int = 0
    proving: frozenset[int] = frozenset()
    """The ranks of this node whose waits prove it, by the pages of this node alone."""
    ended_any: bool = False
    _stood: dict[int, Standing] = field(default_factory=dict)
    """The ranks that may be ended, and the culprits, as they were seen last."""
    _held_since_ns: int = 0
    _alone_since_ns: int = 0

    def begin(self, seen: Mapping[int, Standing], now_ns: int, patience_ns: int) -> None:
        """Remember how the ranks of this node stand at the verdict."""
        for rank, one in seen.items():
            named = rank in self.culprits or rank in self.proving
            if named or _waits_long(one, now_ns, patience_ns):
                self._stood[rank] = one

    def due(self, seen: Mapping[int, Standing], now_ns: int, patience_ns: int) -> frozenset[int]:
        """The ranks that are to be ended now.

        seen: all ranks of this node that live, as they stand now. patience_ns: how long
        a hang takes.
        """
        before = {rank: one for rank, one in self._stood.items() if rank in seen}
        if any(not seen[rank].is_where(one) for rank, one in before.items()):
            self._stood.clear()
            self._alone_since_ns = 0
            self.proving, self.not_before_ns = frozenset(), now_ns + patience_ns
            return frozenset()
        waiting = {rank for rank, one in seen.items() if _waits_long(one, now_ns, patience_ns)}
        idle = {
            rank
            for rank in self.culprits & seen.keys()
            if not seen[rank].waits
            and now_ns - seen[rank].moved_ns >= patience_ns
            and (waiting or self.ended_any or seen[rank].has_page)
        }
        if waiting or self.ended_any:
            self._alone_since_ns = 0
        elif idle:
            self._alone_since_ns = self._alone_since_ns or now_ns
            if now_ns - self._alone_since_ns < ALONE_NS:
                idle = set()
        self._stood = {**{rank: seen[rank] for rank in waiting | idle}, **before}
        found = ((waiting | idle) & before.keys()) | (self.proving & before.keys())
        if not found or now_ns < self.not_before_ns:
            return frozenset()
        return frozenset() if self._holds(seen, found, now_ns, patience_ns) else frozenset(found)

    def stand(self, ranks: Collection[int], seen: Mapping[int, Standing]) -> frozenset[int]:
        """Those of some ranks that were due which are where they were then."""
        return frozenset(
            rank
            for rank in ranks
            if rank in seen and rank in self._stood and seen[rank].is_where(self._stood[rank])
        )

    def export(self) -> dict[str, Any]:
        """Plain values for restored(). How the ranks stood has to be seen anew."""
        return {
            "culprits": sorted(self.culprits),
            "not_before_ns": self.not_before_ns,
            "ended_any": self.ended_any,
        }

    def _holds(
        self, seen: Mapping[int, Standing], found: set[int], now_ns: int, patience_ns: int
    ) -> bool:
        """Whether others come due in a moment: a launcher ends those that are left."""
        soon_ns = patience_ns - SOON_NS
        late = [
            rank
            for rank, one in seen.items()
            if rank not in found
            and (one.waits or rank in self.culprits)
            and now_ns - one.moved_ns >= soon_ns
        ]
        self._held_since_ns = self._held_since_ns or now_ns
        return bool(late) and now_ns - self._held_since_ns < SOON_NS


def restored(values: Mapping[str, Any] | None) -> Abort | None:
    """Undo export(). Raises KeyError, TypeError or ValueError for anything else."""
    if values is None:
        return None
    return Abort(
        frozenset(int(rank) for rank in values["culprits"]),
        int(values["not_before_ns"]),
        ended_any=bool(values["ended_any"]),
    )


def _waits_long(one: Standing, now_ns: int, patience_ns: int) -> bool:
    """Whether it waits, and has done nothing else for as long as a hang takes."""
    return bool(one.waits) and now_ns - max(one.since_ns, one.moved_ns) >= patience_ns
