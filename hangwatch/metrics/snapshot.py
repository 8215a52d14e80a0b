"""The data of the metrics: one node at one time.

The watchdog's loop makes a new snapshot at each look, and the threads that answer scrapes read
the last one. So nothing in it ever changes. Labels of groups are made before, by the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangwatch.evidence.pages.arrivals import GroupArrivals
from hangwatch.model.kinds import Kind, State
from hangwatch.model.page import PageGroup, RankPage
from hangwatch.model.snapshot import Thresholds
from hangwatch.model.verdict import Verdict


@dataclass(frozen=True, slots=True)
class WaitState:
    """The call in which a rank waits. ``group`` is a label, empty if it is unknown."""

    since_ns: int
    op: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of this node that has a page. Times are CLOCK_MONOTONIC."""

    page: RankPage
    alive: bool
    moved_ns: int
    """Time of the last call that it issued."""
    groups: tuple[tuple[str, PageGroup], ...] = ()
    """Live groups with their labels."""
    wait: WaitState | None = None
    loop_period_s: float | None = None


@dataclass(frozen=True, slots=True)
class OwnState:
    """The watchdog itself."""

    looks: int = 0
    look_s: float = 0.0
    """Seconds spent looking, in all."""
    late_s: float = 0.0
    """Delay of the last look."""
    failures: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    """Number of losses of each sort."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node as its watchdog sees it."""

    at_ns: int
    """CLOCK_MONOTONIC: all ages are as of then."""
    thresholds: Thresholds
    usual_gap_s: float
    world_size: int = 0
    expected: int = 0
    """Ranks that this node should have, 0 while that is not known."""
    torch: str = ""
    ranks: tuple[RankState, ...] = ()
    reached: Mapping[str, int] = field(default_factory=dict)
    """Label of a group to how far its furthest member on this node was a second ago."""
    arrivals: tuple[GroupArrivals, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts that are still true."""
    announced: Mapping[tuple[State, Kind | None], int] = field(default_factory=dict)
    """Number of announcements so far."""
    own: OwnState = field(default_factory=OwnState)
