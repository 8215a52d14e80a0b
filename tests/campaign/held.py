"""Moments of a supervisor or a watchdog at which a fault holds it (hangwatch/run/test_hooks.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "HANGWATCH_TEST_HOOKS"


class Moments:
    """A directory that a job is told of."""

    def __init__(self, where: Path) -> None:
        self._where = where
        where.mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        """By which the job knows it."""
        return {VARIABLE: str(self._where)}

    def hold(self, name: str) -> None:
        """Stop whoever comes by."""
        (self._where / f"{name}.hold").touch()

    def let_go(self, name: str) -> None:
        """Let it go on."""
        (self._where / f"{name}.hold").unlink(missing_ok=True)

    def reached(self, name: str) -> bool:
        """Whether anybody has come by."""
        return (self._where / name).exists()
