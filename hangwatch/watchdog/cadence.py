"""Timing of diagnoses: what wait is normal, when to look closer, and when a wait is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import OVER, Look, moved_ns
from hangwatch.evidence.timing import QUIET_S
from hangwatch.model.calls import GroupKey
from hangwatch.model.snapshot import Thresholds
from hangwatch.watchdog import timing

SUSPECT_GAPS = 8.0
SUSPECT_RECOVERED = 1.5
HANG_RECOVERED = 3.0
HANG_SUSPECTS = 2.0
WINDOWS = 20
GROWTH = 1.3
GROWTH_ASKING = 2.0
"""If other nodes have to be asked each time."""
FLIGHT_GROWTH = 3.0


@dataclass(frozen=True, slots=True)
class Learnt:
    """The knowledge of a Cadence, which outlives its watchdog."""

    gaps_s: tuple[float, ...] = ()
    """The longest gap of each of the last windows of time."""
    longest_recovered_s: float = 0.0


class Cadence:
    """Learns from the job itself what ``auto`` stands for. Times are seconds of a monotonic clock.

    A *gap* is a time without a new collective on any rank; the longest of each half minute is
    kept, and their median is the job's typical gap. A *recovered wait* is one that a rank waited
    and then went on from: what the job once recovered from (a checkpoint, an evaluation) is no
    hang.
    """

    def __init__(self, suspect_after_s: float | None, hang_after_s: float | None) -> None:
        self._suspect_after_s = suspect_after_s
        self._hang_after_s = hang_after_s
        self.learnt = Learnt()
        self._window_since_s: float | None = None
        self._window_gap_s = 0.0
        self._moved_s: float | None = None
        self._waits: dict[int, float] = {}

    @property
    def typical_gap_s(self) -> float:
        """The longest gap of a typical half minute, 0 before anything moved."""
        current = [] if self._window_since_s is None else [self._window_gap_s]
        return median([*self.learnt.gaps_s, *current] or [0.0])

    def observe(self, now_s: float, *, moved: bool, waits: Mapping[int, float | None]) -> None:
        """Take in one look at the job.

        moved: a new collective was seen on some rank since the last look. waits: living ranks,
        each with the beginning of its present wait, or None if it does not wait.
        """
        if moved:
            self._observe_gap(now_s)
        for rank, since_s in self._waits.items():
            if rank in waits and waits[rank] != since_s and now_s - since_s >= timing.SHORT_WAIT_S:
                longest_s = max(self.learnt.longest_recovered_s, now_s - since_s)
                self.learnt = replace(self.learnt, longest_recovered_s=longest_s)
        self._waits = {rank: since for rank, since in waits.items() if since is not None}

    def forget_waits(self) -> None:
        """Forget the time before a restart: it is neither a recovery nor a gap."""
        self._waits = {}
        self._moved_s = None

    def thresholds(self) -> Thresholds:
        """Return how long a wait is slow, and how long a hang, as known so far."""
        suspect, hang = self._suspect_after_s, self._hang_after_s
        if suspect is None:
            learnt = SUSPECT_GAPS * self.typical_gap_s
            suspect = min(max(learnt, timing.SUSPECT_MIN_S), timing.SUSPECT_MAX_S)
            suspect = max(suspect, SUSPECT_RECOVERED * self.learnt.longest_recovered_s)
            if hang is not None:
                suspect = min(suspect, hang)
        if hang is None:
            learnt = HANG_RECOVERED * self.learnt.longest_recovered_s
            hang = min(max(learnt, timing.HANG_MIN_S), timing.HANG_MAX_S)
            hang = max(hang, HANG_SUSPECTS * suspect)
        return Thresholds(suspect, hang)

    def _observe_gap(self, now_s: float) -> None:
        if self._moved_s is not None:
            if self._window_since_s is None:
                self._window_since_s, self._window_gap_s = self._moved_s, 0.0
            self._window_gap_s = max(self._window_gap_s, now_s - self._moved_s)
            if now_s - self._window_since_s >= timing.GAP_WINDOW_S:
                gaps_s = (*self.learnt.gaps_s, self._window_gap_s)[-WINDOWS:]
                self.learnt = replace(self.learnt, gaps_s=gaps_s)
                self._window_since_s = None
        self._moved_s = now_s


@dataclass(slots=True)
class Schedule:
    """Ages of the longest wait, in seconds, at which it was diagnosed last."""

    judged_s: float = 0.0
    flight_s: float = 0.0

    def due(self, age_s: float, thresholds: Thresholds, *, moved: bool, asking: bool) -> bool:
        """Return True if a diagnosis is due at this age of the longest wait, and note it.

        moved: some rank went on since the last look. asking: other nodes take part.
        """
        if age_s < max(QUIET_S, self.judged_s):  # no wait, or another, younger one
            self.judged_s = self.flight_s = 0.0
        if age_s < QUIET_S:
            return False
        last_s = self.judged_s
        growth = GROWTH_ASKING if asking else GROWTH
        due = (
            last_s == 0.0
            or age_s >= last_s * growth
            or last_s < thresholds.suspect_after_s <= age_s
            or last_s < thresholds.hang_after_s <= age_s
            or (moved and not asking)
        )
        if due and (last_s == 0.0 or age_s - last_s >= timing.BETWEEN_DIAGNOSES_S):
            self.judged_s = age_s
            return True
        return False

    def flight_due(self, age_s: float) -> bool:
        """Return True if the Flight Recorders are to be read at this age, and note it."""
        if self.flight_s and age_s < self.flight_s * FLIGHT_GROWTH:
            return False
        self.flight_s = age_s
        return True


@dataclass(slots=True)
class Progress:
    """The ranks that waited when an incident was reported, and whether they went on."""

    waited: dict[int, int] = field(default_factory=dict)
    """Rank to the beginning of its wait (CLOCK_MONOTONIC, ns)."""
    _over_ns: int = 0
    _reported_ns: int = 0
    """Time of another node's report, if no rank of this one is remembered."""

    def begin(self, look: Look) -> None:
        """Remember the ranks that wait now."""
        self.waited = {
            rank: since
            for rank, since in look.waits.items()
            if since is not None and look.now_ns - since >= QUIET_S * 1e9
        }
        self._over_ns = 0

    def passed_after_s(self, look: Look) -> float | None:
        """Return how long the ranks had waited if that is over for good, else None.

        If none is remembered (another node's watchdog has reported it), the ranks that wait now
        are. If none waits, others may wait for the ranks of this node: it has passed once all of
        them have gone on.
        """
        if not self.waited and look.longest_wait_s >= QUIET_S:
            self.begin(look)
        self._reported_ns = self._reported_ns or look.now_ns
        if not self._is_over(look):
            self._over_ns = 0
            return None
        self._over_ns = self._over_ns or look.now_ns
        if look.now_ns - self._over_ns < timing.OVER_S * 1e9:
            return None
        began_ns = min(self.waited.values(), default=self._reported_ns)
        return (self._over_ns - began_ns) / 1e9

    def _is_over(self, look: Look) -> bool:
        """Return True if all of them live and no longer wait, or wait for something newer."""
        waits = look.waits
        if not waits or not self.waited.keys() <= waits.keys():
            return False  # one has ended: a job that falls apart has not recovered
        if any(waits[rank] is None and _fails(look, rank) for rank in self.waited or waits):
            return False
        if not self.waited:
            return all(moved_ns(look.seen[rank].light) > self._reported_ns for rank in waits)
        return all(
            (now := waits[rank]) is None or now > since for rank, since in self.waited.items()
        )


def _fails(look: Look, rank: int) -> bool:
    """Return True if a rank no longer waits because it has failed, or is about to."""
    seen = look.seen.get(rank)
    return seen is not None and (seen.light.phase in OVER or bool(seen.light.handling))


@dataclass(slots=True)
class Agreement:
    """Schedule of closer looks at ranks that issue different calls.

    A checkpoint is a hash of all calls that Python issued in a group up to a place. Those of the
    ranks of a node are compared at each look, at almost no cost. If two differ, the ranks came by
    different lines, which may be intended: only a look at the calls themselves shows it.
    """

    _due_s: float = 0.0
    _rest_s: float = timing.COMPARE_FIRST_S

    def look_due(self, look: Look) -> bool:
        """Return True if ranks differ and a closer look is due, and note it."""
        now_s = look.now_ns / 1e9
        if now_s < self._due_s or not differ(look.seen):
            return False
        self._due_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, timing.COMPARE_MOST_S)
        return True


def differ(seen: Mapping[int, Seen]) -> bool:
    """Return True if two ranks have different hashes for one place of one group."""
    # Comparing members is cheaper than hashing them, which a tuple does each time.
    known: dict[tuple[str, int, int], list[tuple[GroupKey, dict[int, int]]]] = {}
    for rank in seen.values():
        for group in rank.light.groups:
            if not group.alive or not group.checkpoints:
                continue
            key = group.key
            alike = known.setdefault((key.desc, key.index, len(key.ranks)), [])
            hashes = next((hashes for other, hashes in alike if other.ranks == key.ranks), None)
            if hashes is None:
                alike.append((key, hashes := {}))
            for place, value in group.checkpoints:
                if hashes.setdefault(place, value) != value:
                    return True
    return False
