"""The fields of straggler.json: ranks that make a job slow, and what is known of them.

As those of schema.py they are described in docs, in straggler.schema.json.
"""

from __future__ import annotations

from typing import Final, Literal, TypedDict

from hangwatch.report.schema import Site, Straggler

STRAGGLER_SCHEMA: Final = "hangwatch.straggler/1"


class StragglerRun(TypedDict):
    """The run that a straggler belongs to."""

    id: str
    command: list[str]
    world_size: int
    node: str
    """That the report was written on."""
    started_at: str
    versions: dict[str, str]


class RankProcess(TypedDict):
    """The process of a rank."""

    rank: int
    pid: int
    node: str


class LineShare(TypedDict):
    """A line of code, and the shares of the time for which two ranks were at it."""

    site: Site | None
    """Null for waiting for other ranks."""
    share: float
    """Of ``rank``."""
    like_share: float
    """Of ``like``."""


class ThreadShares(TypedDict):
    """What a thread of both ranks was at, first the lines for which ``rank`` took longer."""

    name: str
    lines: list[LineShare]


class Compared(TypedDict):
    """The profiles of a straggler and of another rank, taken in the same seconds."""

    rank: int
    like: int | None
    """Null where there is none to compare with."""
    threads: list[ThreadShares]
    missing: str | None
    """The reason why there are none."""


class RankWaits(TypedDict):
    """Whether a rank waited, at each moment."""

    rank: int
    works: str
    """A digit for each moment: 1 if it did not wait."""


class Waits(TypedDict):
    """Which ranks of the node waited, at random moments up to ``detected_at``."""

    at_s: list[float]
    """Each moment, in seconds since the run began."""
    held: str
    """A digit for each moment: 1 if all others waited for the stragglers."""
    ranks: list[RankWaits]


class StragglerReport(TypedDict):
    """straggler.json: ranks that make a job slow, and what is known of them."""

    schema: Literal["hangwatch.straggler/1"]
    """``hangwatch.straggler/1``: fields are added to it, and none is taken away."""
    run: StragglerRun
    straggler: Straggler
    site: Site | None
    """The line that takes longer, with those around it."""
    waits_at: Site | None
    """The line of the thread that trains, if ``site`` is that of another thread or process."""
    headline: str
    cause: str
    """Whole sentences; empty where it is not known."""
    advice: str
    detected_at: str
    period_s: float | None
    """The time after which the calls of Python's lines recur: a turn of the loop, or some."""
    processes: list[RankProcess]
    """Of the stragglers on this node."""
    compared: Compared
    waits: Waits
