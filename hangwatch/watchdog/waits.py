"""Whether a rank waits, and since when, from its page alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangwatch.page import parse_page
from hangwatch.types import OpState, Phase

if TYPE_CHECKING:
    from mmap import mmap

    from hangwatch.types import PageGroup, RankPage

_OVER = frozenset({Phase.EXITED, Phase.RAISED})

Position = tuple[object, ...]
"""What changes on a page when its rank goes on."""


def position(light: RankPage) -> Position:
    """Where the rank is: two looks that agree mean that it issued nothing new."""
    groups = tuple((g.slot, g.enqueued, g.entered, g.left, g.p2p, g.alive) for g in light.groups)
    return light.phase, light.in_call, light.in_call_ns, groups


def moved_ns(light: RankPage) -> int:
    """When the rank last issued something, by its own account. CLOCK_MONOTONIC."""
    groups = (group.changed_ns for group in light.groups)
    return max(light.phase_ns, light.in_call_ns, *groups, 0)


def waiting_since_ns(light: RankPage, blocked_ns: int | None) -> int | None:
    """Since when the longest wait of the rank lasts, None if it waits for nothing.

    It waits in a call that it blocks in (blocked_ns: blocked_since_ns of its
    page), in a set-up call (init_process_group), or for work that c10d has not
    finished. CLOCK_MONOTONIC.
    """
    if light.phase in _OVER:
        return None
    waits = [] if blocked_ns is None else [blocked_ns]
    if light.in_call:
        waits.append(light.in_call_ns)
    if light.pending_since_ns:
        waits.append(light.pending_since_ns)
    return min(waits, default=None)


def blocked_since_ns(memory: mmap) -> int | None:
    """Since when the oldest call lasts that the owner of a page is blocked in.

    Takes the native reader's plain values as they are, since making a RankPage
    of them costs five times as much. Raises PageError.
    """
    events = _raw_events(memory)
    if events is None:
        page = parse_page(memory, events=True)
        blocked = [e.blocked_ns or e.issued_ns for e in page.events if e.state is OpState.BLOCKED]
    else:
        blocked = [e["blocked_ns"] or e["issued_ns"] for e in events if e["state"] == "blocked"]
    return min(blocked, default=None)


def _raw_events(memory: mmap) -> list[dict[str, Any]] | None:
    """The events as the native reader gives them, None where it cannot read the page."""
    try:
        from hangwatch import _native  # noqa: PLC0415 (absent where it could not be built)

        events: list[dict[str, Any]] = _native.read_page(memory)["events"]
    except (ImportError, ValueError):
        return None
    return events


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
