"""Tells the ranks of one start of the job from those of the next.

A launcher that starts the ranks anew ends all of them first. What it counts does
not tell: torchrun's TORCHELASTIC_RESTART_COUNT stays as it is where nodes join or
leave (SimpleElasticAgent._invoke_run: "membership changes do not count as
retries"), ranks get other numbers then, and the world another size. So an
*incarnation* of the job is a set of processes whose lives overlap. Pure but for
two clocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from hangwatch.model.page import RankPage

_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_FOREVER_NS = 1 << 63


def split(
    pages: Mapping[str, RankPage],
    alive: Callable[[int, int], bool],
    ended: Mapping[int, int],
    boot_ns: int | None = None,
) -> list[frozenset[str]]:
    """The names of the pages of each incarnation, oldest first.

    alive(pid, start_ticks) says whether a process runs; ended holds the pids of
    processes that were seen to end, with when (CLOCK_MONOTONIC, ns). boot_ns:
    how far CLOCK_BOOTTIME, which start_ticks counts, is ahead of CLOCK_MONOTONIC.
    """
    ahead_ns = _boot_ns() if boot_ns is None else boot_ns
    found: list[set[str]] = []
    restart, over_ns = -1, 0
    for name in sorted(pages, key=lambda name: _order(pages[name])):
        page = pages[name]
        # The tick in which it was started, to its end: it may have been started in all of it.
        started_ns = start_ns(page.identity.start_ticks, ahead_ns)
        if page.identity.restart != restart or started_ns >= over_ns:
            found.append(set())
            restart, over_ns = page.identity.restart, 0
        found[-1].add(name)
        over_ns = max(over_ns, _ended_ns(page, alive, ended))
    return [frozenset(names) for names in found]


def start_ns(start_ticks: int, boot_ns: int | None = None) -> int:
    """When a process was started at the latest (CLOCK_MONOTONIC). boot_ns: as in split()."""
    return (start_ticks + 1) * _TICK_NS - (_boot_ns() if boot_ns is None else boot_ns)


def _order(page: RankPage) -> tuple[int, int]:
    return page.identity.restart, page.identity.start_ticks


def _ended_ns(page: RankPage, alive: Callable[[int, int], bool], ended: Mapping[int, int]) -> int:
    """When a process ended, as far as that is known: else when it surely lived."""
    identity = page.identity
    if alive(identity.pid, identity.start_ticks):
        return _FOREVER_NS
    return max(
        page.created_ns,
        page.phase_ns,
        page.heartbeat_ns,
        page.gil_ns,
        ended.get(identity.pid, 0),
    )


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
