"""Whether a rank waits, and since when, from its page alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hangwatch.model.calls import OF_A_STORE
from hangwatch.model.kinds import Phase
from hangwatch.model.page import PageGroup, RankPage

UNFINISHED = "unfinished_work"
"""Stands for the call where only c10d knows that something is not done."""
OVER = frozenset({Phase.EXITED, Phase.RAISED})
"""Phases of a rank that issues nothing more."""

Position = tuple[object, ...]
"""What changes on a page when its rank goes on."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a rank waits in, and since when (CLOCK_MONOTONIC)."""

    since_ns: int
    op: str
    slot: int = -1
    """Of the group on the rank's page, -1 where there is none."""

    @property
    def of_store(self) -> bool:
        """Whether it is for a key of a store."""
        return self.op.startswith(OF_A_STORE)


def position(light: RankPage) -> Position:
    """Where the rank is: two looks that agree mean that it issued nothing new."""
    groups = tuple((g.slot, g.enqueued, g.entered, g.left, g.p2p, g.alive) for g in light.groups)
    return light.phase, light.in_call, light.in_call_ns, groups


def moved_ns(light: RankPage) -> int:
    """When the rank last issued something, by its own account. CLOCK_MONOTONIC."""
    groups = (group.changed_ns for group in light.groups)
    return max(light.phase_ns, light.in_call_ns, *groups, 0)


def longest_wait(light: RankPage, blocked: Waiting | None) -> Waiting | None:
    """The wait of a rank that has lasted longest, None if it waits for nothing.

    It waits in a call that it blocks in (``blocked``, of its ring), in a set-up
    call (init_process_group), or for work that c10d has not finished. Which of
    them it is said to wait in is decided in this order; since when, by the longest.
    """
    if light.phase in OVER:
        return None
    waits = [] if blocked is None else [blocked]
    if light.in_call:
        waits.append(Waiting(light.in_call_ns, light.in_call))
    if light.pending_since_ns:
        waits.append(Waiting(light.pending_since_ns, UNFINISHED))
    if not waits:
        return None
    return replace(waits[0], since_ns=min(wait.since_ns for wait in waits))


def may_wait(light: RankPage, now_ns: int, after_s: float) -> bool:
    """Whether a page without its events leaves it open that the rank waits so long."""
    if light.phase in OVER:
        return False
    return (
        bool(light.in_call)
        or any(_unfinished(group, now_ns, after_s) for group in light.groups)
        or 0 < light.pending_since_ns < now_ns - after_s * 1e9
    )


def _unfinished(group: PageGroup, now_ns: int, after_s: float) -> bool:
    return group.entered > group.left and now_ns - group.changed_ns > after_s * 1e9
