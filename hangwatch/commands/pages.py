"""The pages of a run's ranks, as the commands read them: they write nothing there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hangwatch.console import News
from hangwatch.errors import PageError
from hangwatch.evidence.pages.finder import Pages, Seen
from hangwatch.evidence.pages.look import Look, Looker
from hangwatch.evidence.processes import read_stat
from hangwatch.model.calls import Site
from hangwatch.model.kinds import OpState
from hangwatch.model.page import PageEvent
from hangwatch.report.sites import group_label


class RunPages:
    """The pages of one run and the states of its processes; a context manager."""

    def __init__(self, run_dir: Path, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._states: dict[tuple[int, int], str] = {}
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._news = News(self._null)
        self._pages = Pages(run_dir, self._news, alive=self._is_alive)
        self._looker = Looker(self._pages, self._is_alive, now_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the pages."""
        self._pages.close()
        os.close(self._null)

    def look(self) -> Look:
        """Read the pages of the job's newest start."""
        self._states.clear()
        look = self._looker.look()
        while self._pages.superseded:
            self._pages.advance()
            look = self._looker.look()
        return look

    def state(self, pid: int, start_ticks: int) -> str:
        """Return the letter of proc(5) for a process, read once per look; empty if it ended."""
        known = self._states.get((pid, start_ticks))
        if known is None:
            stat = read_stat(pid)
            gone = stat is None or stat.ended or stat.start_ticks != start_ticks
            known = "" if gone or stat is None else stat.state
            self._states[pid, start_ticks] = known
        return known

    @property
    def unreadable(self) -> list[str]:
        """Reasons why some pages cannot be read."""
        return self._news.lost

    @property
    def unrecorded(self) -> list[str]:
        """Reasons that ranks left behind for not being recorded."""
        return list(self._pages.notes().values())

    def _is_alive(self, pid: int, start_ticks: int) -> bool:
        return bool(self.state(pid, start_ticks))


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """A call that a rank waits in, as people read it."""

    name: str
    """``all_reduce #46``, ``recv from rank 3``, ``init_process_group``."""
    group: str = ""
    site: Site | None = None

    def __str__(self) -> str:
        """``all_reduce #46 of default_pg``."""
        return f"{self.name} of {self.group}" if self.group else self.name


def blocking_call(seen: Seen) -> BlockingCall:
    """Return the oldest call that the rank is blocked in, else what its counters show."""
    try:
        page = seen.page.read(events=True)
    except PageError:
        page = seen.light
    blocked = [event for event in page.events if event.state is OpState.BLOCKED]
    if blocked:
        event = min(blocked, key=lambda event: event.blocked_ns or event.issued_ns)
        key = next((group.key for group in page.groups if group.slot == event.slot), None)
        return BlockingCall(_event_name(event), group_label(key) or "", event.site)
    if page.in_call:
        return BlockingCall(page.in_call, site=page.in_call_site)
    # Issued by C++ (DDP's reducer): c10d has unfinished work, and no frame shows whose.
    unfinished = [g for g in page.groups if g.alive and 0 <= g.completed < g.enqueued]
    if unfinished:
        group = min(unfinished, key=lambda group: group.changed_ns)
        return BlockingCall(f"collective #{group.completed + 1}", group_label(group.key) or "")
    return BlockingCall("a collective")


def _event_name(event: PageEvent) -> str:
    if event.p2p:
        towards = "to" if event.wire.startswith("send") else "from"
        peer = f"rank {event.peer}" if event.peer >= 0 else "any rank"
        return f"{event.op} {towards} {peer}"
    return f"{event.op} #{event.seq}" if event.seq > 0 else event.op
