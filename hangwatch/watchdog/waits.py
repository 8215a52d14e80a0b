"""Whether a rank waits, and since when, from its page alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.types import OpState, Phase

if TYPE_CHECKING:
    from hangwatch.types import PageGroup, RankPage

_OVER = frozenset({Phase.EXITED, Phase.RAISED})

Position = tuple[object, ...]
"""What changes on a page when its rank goes on."""


def position(light: RankPage) -> Position:
    """Where the rank is: two looks that agree mean that it issued nothing new."""
    groups = tuple((g.slot, g.enqueued, g.entered, g.left, g.p2p, g.alive) for g in light.groups)
    return light.phase, light.in_call, light.in_call_ns, groups


def waiting_since_ns(page: RankPage) -> int | None:
    """Since when the longest wait of the rank lasts, None if it waits for nothing.

    It waits in a call that it blocks in, in a set-up call (init_process_group),
    or for work that c10d has not finished. CLOCK_MONOTONIC. Needs the events.
    """
    if page.phase in _OVER:
        return None
    waits = [
        event.blocked_ns or event.issued_ns
        for event in page.events
        if event.state is OpState.BLOCKED
    ]
    if page.in_call:
        waits.append(page.in_call_ns)
    if page.pending_since_ns:
        waits.append(page.pending_since_ns)
    return min(waits, default=None)


def may_wait(light: RankPage, now_ns: int, after_s: float) -> bool:
    """Whether a page without its events leaves it open that the rank waits so long."""
    if light.phase in _OVER:
        return False
    return (
        bool(light.in_call)
        or any(_unfinished(group, now_ns, after_s) for group in light.groups)
        or 0 < light.pending_since_ns < now_ns - after_s * 1e9
    )


def _unfinished(group: PageGroup, now_ns: int, after_s: float) -> bool:
    return group.entered > group.left and now_ns - group.changed_ns > after_s * 1e9
