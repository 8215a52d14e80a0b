"""Keeps the moments of a node, and knows when the other nodes are worth a question. Pure.

While a job goes on as it did, its ranks wait as much as before, and nobody asks. Times are seconds
since the run began.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from math import ceil, inf, sqrt

from hangwatch.efficiency.leads import Ranks
from hangwatch.efficiency.nodes import KEPT, MOST_GROUPS, MOST_RANKS, SHIFTS, NodeMoments, SlowNodes
from hangwatch.efficiency.straggler_watch import ASSESS_EVERY, LONGER, StragglerWatch
from hangwatch.efficiency.stragglers import BLOCKS, LEAST_FRACTION
from hangwatch.model.report import Straggler, Why

_CERTAINTY = 5.0
"""Standard errors by which something has changed."""
_FIRST_PAUSE, _LONGER, _MOST_PAUSE = 0.5, 1.25, 8.0
"""Windows between two questions, of which there are fewer the less news there is."""


@dataclass(frozen=True, slots=True)
class Waited:
    """The shares of some time for which the ranks of a node waited, and for which all of them did.

    moments: how many it is known from.
    """

    shares: tuple[float, ...] = ()
    moments: int = 0

    def differ(self, other: Waited) -> bool:
        """True if one of them has changed, for sure and by much. Before the first all are 0."""
        for share, then in zip_longest(self.shares, other.shares, fillvalue=0.0):
            usual = (share + then) / 2
            parts = sum(1 / one.moments for one in (self, other) if one.moments)
            error = sqrt(usual * (1 - usual) * parts)
            if abs(share - then) >= max(LEAST_FRACTION, _CERTAINTY * error):
                return True
        return False


@dataclass(slots=True)
class NodeWatch:
    """Keeps what ``NodeMoments`` tells. window_s: the shortest window that is assessed."""

    window_s: float
    ranks: tuple[int, ...] = ()
    groups: Collection[Ranks] = ()
    """Process groups that have all their ranks here."""
    peers: set[tuple[int, int]] = field(default_factory=set)
    """As in NodeMoments."""
    _seen: deque[tuple[float, int, int]] = field(default_factory=deque)
    """The time of each moment, the awake ranks as bits, and the calls that all had issued."""
    _asked: Waited = Waited()
    """When the nodes were last asked."""
    _asked_s: float = -inf
    _due_s: float = 0.0
    """When it is worth a look if they should be asked."""
    _again_s: float = inf
    """When they are asked although nothing has changed."""
    _pause: float = _FIRST_PAUSE
    """Windows until then."""
    _in_vain: float = _FIRST_PAUSE
    """Windows until they are asked again when something changes, which may mean nothing."""
    _by_change: bool = False
    """The last time they were asked since something had changed."""
    _found: tuple[int, ...] = ()

    @property
    def part_s(self) -> float:
        """The length of a part."""
        return self.window_s / BLOCKS

    @property
    def needed_s(self) -> float:
        """For how long moments are kept until the nodes are asked for the first time."""
        return self.window_s + (SHIFTS[-1] + 1) * self.part_s

    def add(self, at_s: float, ranks: Sequence[int], awake: Ranks, place: int) -> None:
        """Take the next moment. place: the calls that all ranks together had issued."""
        if tuple(ranks) != self.ranks:
            self._seen.clear()
            self.ranks = tuple(ranks)
        bits = sum(1 << at for at, rank in enumerate(self.ranks) if rank in awake)
        self._seen.append((at_s, bits, place))
        while self._seen[0][0] < at_s - (KEPT + 1) * self.part_s:
            self._seen.popleft()

    def forget_before(self, since_s: float) -> None:
        """Forget older moments, in which longer windows would find what is over."""
        while self._seen and self._seen[0][0] < since_s:
            self._seen.popleft()

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()
        self.peers.clear()
        self._asked, self._asked_s = Waited(), -inf
        self._again_s, self._found = inf, ()
        self._in_vain = self._pause = _FIRST_PAUSE

    def moments(self, host: str, turn_s: float, unknown: str) -> NodeMoments:
        """Return what this node tells, up to its last moment.

        turn_s: a turn of the training loop in which ranks may wait several times, 0 if not known.
        """
        if unknown or not self._seen:
            unknown = unknown or "it has noted no moments"
            return NodeMoments(host, self.ranks, self.part_s, unknown=unknown)
        if len(self.ranks) > MOST_RANKS:
            unknown = f"there are more than {MOST_RANKS} ranks"
            return NodeMoments(host, self.ranks, self.part_s, unknown=unknown)
        last_s = self._seen[-1][0]
        counts: list[Counter[int]] = [Counter() for _ in range(KEPT)]
        places: list[list[int]] = [[] for _ in range(KEPT)]
        for at_s, bits, place in self._seen:
            part = int((last_s - at_s) / self.part_s)
            if part < KEPT:
                counts[part][bits] += 1
                places[part].append(place)
        still = [at for at, seen in enumerate(places) if seen and seen[0] == seen[-1]]
        parts = tuple(tuple(chain.from_iterable(sorted(count.items()))) for count in counts)
        last = max(at for at, part in enumerate(parts) if part) if any(parts) else -1
        told = NodeMoments(
            host,
            self.ranks,
            self.part_s,
            parts[: last + 1],
            tuple(still),
            turn_parts=max(ceil(turn_s / self.part_s), 1),
        )
        groups = {told.bits(group) for group in self.groups if len(group) < len(self.ranks)}
        return replace(
            told,
            groups=tuple(sorted(groups)[:MOST_GROUPS]),
            peers=tuple(sorted(self.peers)[:MOST_GROUPS]),
        )

    def wants(self, now_s: float) -> bool:
        """True if the other nodes should be asked: something has changed, or may be told soon."""
        if now_s < self._due_s or not self._seen:
            return False
        if self._seen[0][0] > now_s - self.needed_s:
            return False
        wants = now_s >= self._again_s or any(
            self._asked.differ(self._waited(since_s))
            for factor in LONGER
            if (since_s := now_s - factor * self.window_s) >= self._asked_s
        )
        if not wants:
            self._due_s = now_s + self.window_s * ASSESS_EVERY
        return wants

    def asked(self, now_s: float) -> None:
        """Note that a node, this or another one, asks all now."""
        if now_s - self._asked_s > 2 * _MOST_PAUSE * self.window_s:
            self._in_vain = _FIRST_PAUSE
        self._by_change = now_s < self._again_s and self._asked.moments > 0
        self._asked, self._asked_s = self._waited(), now_s
        self._due_s = now_s + self._in_vain * self.window_s
        self._again_s = inf

    def heard(self, found: SlowNodes, watch: StragglerWatch, now_s: float) -> Straggler | None:
        """Take in what the nodes have found; return what is news of it, as watch.assess() does."""
        self.concluded(found)
        if found.unknown or found.suspected:
            return None
        if not found.ranks:
            if watch.current is not None:
                self.forget_before(now_s - watch.span_s)
            return watch.hear(None, now_s)
        since_s = max(now_s - found.since_s, 0.0)
        straggler = Straggler(found.ranks, found.fraction, since_s, now_s, Why(like=found.like))
        return watch.hear(straggler, now_s, found.window_s)

    def concluded(self, found: SlowNodes) -> None:
        """Note what was found: the next question waits for longer, the less news there is."""
        if found.ranks != self._found:
            self._found = found.ranks
            self._in_vain = self._pause = _FIRST_PAUSE
        elif self._by_change and not found.suspected:
            self._in_vain = min(_LONGER * self._in_vain, _MOST_PAUSE)
        self._due_s = self._asked_s + self._in_vain * self.window_s
        if found.ranks or found.suspected or found.unknown:
            self._again_s = self._asked_s + self._pause * self.window_s
            self._pause = min(_LONGER * self._pause, _MOST_PAUSE)

    def _waited(self, since_s: float = 0.0) -> Waited:
        sets = Counter(bits for at_s, bits, _ in self._seen if at_s >= since_s)
        total = sum(sets.values())
        awake = [
            sum(count for bits, count in sets.items() if bits >> place & 1)
            for place in range(len(self.ranks))
        ]
        shares = (1 - count / total for count in (*awake, total - sets[0])) if total else ()
        return Waited(tuple(shares), total)
