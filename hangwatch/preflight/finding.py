"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Grade(IntEnum):
    """How bad it is; the worst counts."""

    OK = 0
    WARN = 1
    """It may be meant so, or cost something."""
    FAIL = 2
    """A job for which it holds does not work."""

    @property
    def word(self) -> str:
        """As people and JSON see it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """Stable name of the check, one word."""
    grade: Grade
    what: str
    """What was found, and why that is so."""
    remedy: str = ""
    """What to do about it; empty where it is fine."""


def ok(check: str, what: str) -> Finding:
    """It is fine."""
    return Finding(check, Grade.OK, what)


def warn(check: str, what: str, remedy: str) -> Finding:
    """It may be meant so, or cost something."""
    return Finding(check, Grade.WARN, what, remedy)


def fail(check: str, what: str, remedy: str) -> Finding:
    """A job for which it holds does not work."""
    return Finding(check, Grade.FAIL, what, remedy)
