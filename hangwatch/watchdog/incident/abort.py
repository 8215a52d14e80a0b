"""Decides which ranks of this node are ended for a hang, and when. Pure.

A verdict is only the occasion. It may rest on what came over the store, which anybody may
have written who reaches that port, and the job may have recovered while its report was
written. So a rank is ended only as long as its own page shows that it has not gone on, by
any means that is counted, for as long as a hang takes (``--hang-after``): it waits in one
call, or it is named as the culprit, and others wait. What this node can prove by its own
pages alone need not have lasted that long; the waits that prove it have to stand, for PROVED_NS:
a proof is a conclusion, too, and has been wrong about calls that backends let through.

Each rank is remembered as it stood, and has to stand there still when it is looked at
again. That any of them has gone on changes the hang: then the rest are given the whole
time anew, from that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hangwatch.evidence.pages.rank_status import RankStatus

PROVED_NS = 30 * 10**9
"""Nobody is ended for a wait younger than this, unless a hang takes less (``--hang-after``)."""
SOON_NS = 10**9
"""Ranks that come due so soon are waited for, to be ended together with the others."""
ALONE_NS = 5 * 10**9
"""How much later the culprit is ended on a node where nobody waits: the end of those that
wait on other nodes may be enough, and there it is what ends the job."""


@dataclass(slots=True)
class Abort:
    """A hang whose ranks are to be ended. Times are CLOCK_MONOTONIC in ns."""

    culprits: frozenset[int]
    """Culprits of the verdict, of whichever node."""
    not_before_ns: int = 0
    proving: frozenset[int] = frozenset()
    """The ranks of this node whose waits prove it, by the pages of this node alone."""
    ended_any: bool = False
    _stood: dict[int, RankStatus] = field(default_factory=dict)
    """The ranks that may be ended, and the culprits, as they were seen last."""
    _held_since_ns: int = 0
    _alone_since_ns: int = 0

    def begin(self, seen: Mapping[int, RankStatus], now_ns: int, patience_ns: int) -> None:
        """Remember how the ranks of this node stand at the verdict."""
        for rank, standing in seen.items():
            named = rank in self.culprits or rank in self.proving
            if named or _waits_long(standing, now_ns, patience_ns):
                self._stood[rank] = standing

    def due(self, seen: Mapping[int, RankStatus], now_ns: int, patience_ns: int) -> frozenset[int]:
        """The ranks that are to be ended now.

        seen: all ranks of this node that live, as they stand now. patience_ns: how long
        a hang takes.
        """
        before = {rank: standing for rank, standing in self._stood.items() if rank in seen}
        if any(not seen[rank].is_where(standing) for rank, standing in before.items()):
            self._stood.clear()
            self._alone_since_ns = 0
            self.proving, self.not_before_ns = frozenset(), now_ns + patience_ns
            return frozenset()
        waiting = {
            rank for rank, standing in seen.items() if _waits_long(standing, now_ns, patience_ns)
        }
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
        least_ns = min(patience_ns, PROVED_NS)
        proved = {rank for rank in self.proving if rank in seen}
        proved = {rank for rank in proved if _waits_long(seen[rank], now_ns, least_ns)}
        due = (waiting | idle | proved) & before.keys()
        if not due or now_ns < self.not_before_ns:
            return frozenset()
        return frozenset() if self._holds(seen, due, now_ns, patience_ns) else frozenset(due)

    def stand(self, ranks: Collection[int], seen: Mapping[int, RankStatus]) -> frozenset[int]:
        """Return the ranks that are still where they were when they came due."""
        return frozenset(
            rank
            for rank in ranks
            if rank in seen and rank in self._stood and seen[rank].is_where(self._stood[rank])
        )

    def export(self) -> dict[str, Any]:
        """Return plain values for restored(). How the ranks stood has to be seen anew."""
        return {
            "culprits": sorted(self.culprits),
            "not_before_ns": self.not_before_ns,
            "ended_any": self.ended_any,
        }

    def _holds(
        self, seen: Mapping[int, RankStatus], due: set[int], now_ns: int, patience_ns: int
    ) -> bool:
        """Return True if others come due in a moment: a launcher ends those that are left."""
        soon_ns = patience_ns - SOON_NS
        late = [
            rank
            for rank, standing in seen.items()
            if rank not in due
            and (standing.waits or rank in self.culprits)
            and now_ns - standing.moved_ns >= soon_ns
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


def _waits_long(standing: RankStatus, now_ns: int, patience_ns: int) -> bool:
    """Return True if it waits, and has done nothing else for as long as a hang takes."""
    return (
        bool(standing.waits) and now_ns - max(standing.since_ns, standing.moved_ns) >= patience_ns
    )
