"""Samples of the stacks of a process, taken for some seconds."""

from __future__ import annotations

from dataclasses import dataclass

from hangwatch.model.calls import Site
from hangwatch.model.snapshot import Frame


@dataclass(frozen=True, slots=True)
class StackSamples:
    """A stack, and how often it was seen."""

    pid: int
    """Of the process, or of one that it has started."""
    tid: int
    thread: str
    """Its name."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    count: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What a rank did for some seconds."""

    rank: int
    pid: int
    thread: int
    """Native id of the thread that trains."""
    samples: tuple[StackSamples, ...]
    delay: float = 0.0
    """Share of the time for which this thread waited for a CPU."""
    cpu: float = 0.0
    """Share of the time for which it had one."""
    throttled: float = 0.0
    """Share of the time for which a limit on the CPU kept its container from running."""
    waits: float = 0.0
    """Share of the time for which the rank waited for others, in calls of C++, too."""


@dataclass(frozen=True, slots=True)
class LineShare:
    """A line of the user's code, and the shares of the time for which two ranks were at it."""

    site: Site | None
    """None for waiting for other ranks."""
    share: float
    """Of the slow rank."""
    like_share: float


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """What a thread of two ranks was at."""

    name: str
    lines: tuple[LineShare, ...]
