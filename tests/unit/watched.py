"""Ranks that are made up, looked at by a clock of the test."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hangwatch.console import News
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import Look, Looker

if TYPE_CHECKING:
    from pathlib import Path


class Watched:
    """A run whose ranks live as long as the test; what is said goes into a file."""

    def __init__(self, where: Path) -> None:
        self._err = where / "err"
        self._fd = os.open(self._err, os.O_WRONLY | os.O_CREAT)
        self.news = News(self._fd)
        self.run_dir = where / "run"
        self.run_dir.mkdir()
        self._added_ns = 0
        self._looker = Looker(Pages(self.run_dir, self.news), lambda *_: True, self._now_ns)

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._added_ns

    @property
    def said(self) -> str:
        """All that was said so far."""
        return self._err.read_text()

    def seen(self, after_s: float) -> Look:
        """A look a while later."""
        self._added_ns += int(after_s * 1e9)
        return self._looker.look()

    def close(self) -> None:
        os.close(self._fd)
