"""How often something may be done that others ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Allowance:
    """Allows something ``most`` times at once, and once more every ``every_s`` seconds."""

    most: int
    every_s: float
    now: Callable[[], float] = time.monotonic
    _left: float = field(init=False)
    _at_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._at_s = float(self.most), self.now()

    def take(self) -> bool:
        """Whether it may be done now; notes that it is."""
        now_s = self.now()
        self._left = min(self.most, self._left + (now_s - self._at_s) / self.every_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
