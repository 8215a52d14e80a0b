"""What the metrics are made from: one node at one moment.

The watchdog's loop makes a new one at each look and puts it in the place of the
last; whoever answers a scrape reads it, in another thread. So nothing of it ever
changes. Labels of groups are made before, by the loop.
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
    """What a rank waits in. ``group`` is a label, empty where it is not known."""

    since_ns: int
    op: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of this node that has a page. Times are CLOCK_MONOTONIC."""

    page: RankPage
    alive: bool
    moved_ns: int
    """When it last issued something."""
    groups: tuple[tuple[str, PageGroup], ...] = ()
    """Those that live, each below its label."""
    wait: WaitState | None = None
    loop_period_s: float | None = None


@dataclass(frozen=True, slots=True)
class OwnState:
    """The watchdog itself."""

    looks: int = 0
    look_s: float = 0.0
    """Seconds spent looking, in all."""
    late_s: float = 0.0
    """How much later than it should the last look began."""
    failures: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    """What could not be done, counted by what it is about."""


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
    """How far the furthest member of each group on this node had come a moment ago."""
    arrivals: tuple[GroupArrivals, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """Those that stand."""
    told: Mapping[tuple[State, Kind | None], int] = field(default_factory=dict)
    """Announcements so far."""
    own: OwnState = field(default_factory=OwnState)
