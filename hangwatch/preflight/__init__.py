"""Checks for the causes of hangs at the start of a job: small, with explicit inputs.

Each takes its evidence (an environment, a root of /proc, a resolver) and returns
findings. Nothing here imports torch or changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Grade(IntEnum):
    """The severity of a finding; the worst counts."""

    OK = 0
    WARN = 1
    """It may be meant so, or cost something."""
    FAIL = 2
    """A job for which it holds does not work."""

    @property
    def word(self) -> str:
        """The grade for people and JSON."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    """Stable name of the check, one word."""
    grade: Grade
    what: str
    """The fact, and its reason."""
    remedy: str = ""
    """Empty if it is fine."""


def ok(check: str, what: str) -> Finding:
    """Return a finding that is fine."""
    return Finding(check, Grade.OK, what)


def warn(check: str, what: str, remedy: str) -> Finding:
    """Return a finding that may be meant so, or costs something."""
    return Finding(check, Grade.WARN, what, remedy)


def fail(check: str, what: str, remedy: str) -> Finding:
    """Return a finding for which a job does not work."""
    return Finding(check, Grade.FAIL, what, remedy)
