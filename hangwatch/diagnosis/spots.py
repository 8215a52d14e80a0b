"""Where a rank can wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangwatch.types import OpRecord, Site


@dataclass(frozen=True, slots=True)
class Place:
    """The ``seq``-th collective of a group, 0 where it is not known which."""

    gid: int
    seq: int


@dataclass(frozen=True, slots=True)
class Channel:
    """A point-to-point call of ``waiter`` that ``peer`` has to match."""

    gid: int
    waiter: int
    peer: int
    sends: bool
    """Whether the waiter sends; else it receives."""
    tag: int
    turn: int
    """How many calls like it the waiter has under way before it."""
    nth: int
    """How many calls like it the waiter ever made before it, -1 where unknown."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A call that all ranks of the job make together."""

    call: str
    where: str = ""
    """The line that makes it, for calls that a program makes more than once."""


Spot = Place | Channel | Setup


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits at a spot."""

    rank: int
    spot: Spot
    age_s: float
    firm: bool
    """It is known to be blocked; else its unfinished work is all that is known."""
    op: str = ""
    record: OpRecord | None = None
    site: Site | None = None
    over: bool = False
    """It waited until it ended, or until the call raised."""
    apart: bool = False
    """A thread of its own waits, while the program of the rank is elsewhere."""
    vague: bool = False
    """Only counters tell of it: which group it is, and which place, is inferred."""
