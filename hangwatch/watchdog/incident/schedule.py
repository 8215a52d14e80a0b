"""When a wait is worth another diagnosis. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hangwatch.evidence.pages.look import QUIET_S
from hangwatch.model.snapshot import Thresholds

AT_LEAST_S = 0.4
"""Between two diagnoses of one wait, also where ranks still move."""
GROWTH = 1.3
GROWTH_ASKING = 2.0
"""Where other nodes have to be asked each time."""
FLIGHT_GROWTH = 3.0


@dataclass(slots=True)
class Schedule:
    """What was done at what age of the longest wait, in seconds."""

    judged_s: float = 0.0
    flight_s: float = 0.0

    def due(self, age_s: float, thresholds: Thresholds, *, moved: bool, asking: bool) -> bool:
        """Whether to diagnose now, at this age of the longest wait; notes that it is done.

        moved: some rank went on since the last look. asking: other nodes take part.
        """
        if age_s < QUIET_S:
            self.judged_s = self.flight_s = 0.0
            return False
        if age_s < self.judged_s:
            self.judged_s = self.flight_s = 0.0  # another, younger wait is the longest now
        last_s = self.judged_s
        growth = GROWTH_ASKING if asking else GROWTH
        due = (
            last_s == 0.0
            or age_s >= last_s * growth
            or last_s < thresholds.suspect_after_s <= age_s
            or last_s < thresholds.hang_after_s <= age_s
            or (moved and not asking)
        )
        if due and (last_s == 0.0 or age_s - last_s >= AT_LEAST_S):
            self.judged_s = age_s
            return True
        return False

    def flight_due(self, age_s: float) -> bool:
        """Whether to ask for Flight Recorders at this age; notes that it is done."""
        if self.flight_s and age_s < self.flight_s * FLIGHT_GROWTH:
            return False
        self.flight_s = age_s
        return True
