"""Learns from the job itself how long a silence is normal.

Two things are learnt. A *gap* is a time without a new collective on any rank;
the longest of each half minute is kept, and their median is the job's typical
longest gap. A *recovered wait* is one that a rank waited and then went on from:
whatever the job once recovered from (a checkpoint, an evaluation) is no hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hangwatch.model.snapshot import Thresholds

SUSPECT_GAPS = 8.0
SUSPECT_MIN_S, SUSPECT_MAX_S = 10.0, 120.0
SUSPECT_RECOVERED = 1.5
HANG_RECOVERED = 3.0
HANG_MIN_S, HANG_MAX_S = 300.0, 1800.0
HANG_SUSPECTS = 2.0
WINDOW_S = 30.0
WINDOWS = 20
SHORT_S = 1.0
"""Waits shorter than this teach nothing."""


@dataclass(slots=True)
class _Window:
    since_s: float
    longest_s: float = 0.0


class Cadence:
    """What ``auto`` stands for. Times are seconds of one monotonic clock."""

    def __init__(self, suspect_after_s: float | None, hang_after_s: float | None) -> None:
        self._suspect_after_s = suspect_after_s
        self._hang_after_s = hang_after_s
        self._windows: deque[float] = deque(maxlen=WINDOWS)
        self._window: _Window | None = None
        self._moved_s: float | None = None
        self._waits: dict[int, float] = {}
        self.longest_recovered_s = 0.0

    @property
    def typical_gap_s(self) -> float:
        """The longest gap of a typical half minute, 0 before anything moved."""
        current = [self._window.longest_s] if self._window else []
        seen = [*self._windows, *current]
        return median(seen) if seen else 0.0

    def observe(self, now_s: float, *, moved: bool, waits: Mapping[int, float | None]) -> None:
        """One look at the job.

        moved: a new collective was seen on some rank since the last look.
        waits: living ranks, each with since when it has waited where it waits
            now, or None for one that does not wait.
        """
        if moved:
            self._gap(now_s)
        self._recoveries(now_s, waits)
        self._waits = {rank: since for rank, since in waits.items() if since is not None}

    def forget_waits(self) -> None:
        """After a restart: nobody has recovered, and the gap before it was none."""
        self._waits = {}
        self._moved_s = None

    def thresholds(self) -> Thresholds:
        """When waiting is slow and when a hang, as things stand."""
        suspect = self._suspect_after_s
        hang = self._hang_after_s
        if suspect is None:
            learnt = SUSPECT_GAPS * self.typical_gap_s
            suspect = min(max(learnt, SUSPECT_MIN_S), SUSPECT_MAX_S)
            suspect = max(suspect, SUSPECT_RECOVERED * self.longest_recovered_s)
            if hang is not None:
                suspect = min(suspect, hang)
        if hang is None:
            learnt = HANG_RECOVERED * self.longest_recovered_s
            hang = min(max(learnt, HANG_MIN_S), HANG_MAX_S)
            hang = max(hang, HANG_SUSPECTS * suspect)
        return Thresholds(suspect, hang)

    def export(self) -> dict[str, Any]:
        """What was learnt, as plain values for restore()."""
        return {"windows": list(self._windows), "longest_recovered_s": self.longest_recovered_s}

    def restore(self, learnt: Mapping[str, Any]) -> None:
        """Go on from what a watchdog before this one had learnt.

        Raises KeyError, TypeError or ValueError for what export() never gives.
        """
        self._windows.extend(float(gap) for gap in learnt["windows"])
        self.longest_recovered_s = float(learnt["longest_recovered_s"])

    def _gap(self, now_s: float) -> None:
        if self._moved_s is not None:
            if self._window is None:
                self._window = _Window(self._moved_s)
            self._window.longest_s = max(self._window.longest_s, now_s - self._moved_s)
            if now_s - self._window.since_s >= WINDOW_S:
                self._windows.append(self._window.longest_s)
                self._window = None
        self._moved_s = now_s

    def _recoveries(self, now_s: float, waits: Mapping[int, float | None]) -> None:
        for rank, since_s in self._waits.items():
            if rank in waits and waits[rank] != since_s and now_s - since_s >= SHORT_S:
                self.longest_recovered_s = max(self.longest_recovered_s, now_s - since_s)
