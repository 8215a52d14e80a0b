"""Reads what is asked for often from the ring of a page.

Takes the native reader's plain values as they are, since making a RankPage of
them costs five times as much.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any

from hangwatch.evidence.page import parse_page
from hangwatch.evidence.pages.arrivals import Issued
from hangwatch.evidence.pages.waits import Waiting
from hangwatch.model import native
from hangwatch.model.kinds import OpState


def blocked_in(memory: mmap | bytes) -> Waiting | None:
    """The oldest call that the owner of a page is blocked in. Raises PageError."""
    events = _raw_events(memory)
    if events is None:
        page = parse_page(memory, events=True)
        blocked = [
            Waiting(event.blocked_ns or event.issued_ns, event.op, event.slot)
            for event in page.events
            if event.state is OpState.BLOCKED
        ]
    else:
        blocked = [
            Waiting(event["blocked_ns"] or event["issued_ns"], event["op"], event["slot"])
            for event in events
            if event["state"] == "blocked"
        ]
    return min(blocked, key=lambda wait: wait.since_ns, default=None)


def issued(memory: mmap | bytes) -> list[Issued]:
    """The collectives in the ring of a page, oldest first. Raises PageError."""
    events = _raw_events(memory)
    if events is None:
        page = parse_page(memory, events=True)
        return [
            Issued(e.slot, e.seq, e.issued_ns, (e.site.file, e.site.line) if e.site else None)
            for e in page.events
            if not e.p2p
        ]
    return [
        Issued(e["slot"], e["seq"], e["issued_ns"], _line(e["site"]))
        for e in events
        if not e["p2p"]
    ]


def _line(site: dict[str, Any] | None) -> tuple[str, int] | None:
    return (site["file"], site["line"]) if site else None


def _raw_events(memory: mmap | bytes) -> list[dict[str, Any]] | None:
    """The events as the native reader gives them, None where it cannot read the page."""
    try:
        events: list[dict[str, Any]] = native.load().read_page(memory)["events"]
    except (ImportError, ValueError):
        return None
    return events
