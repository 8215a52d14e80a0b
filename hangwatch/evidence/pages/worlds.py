"""Tells apart the ranks of several worlds, and of several starts of one job.

A script may start two jobs, a job split itself into trainers and workers that each have a
world of their own, or ranks go on in a smaller one: a rank is a number in a world, and which
world that is the store tells. Ranks of two worlds are never compared with each other.

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
from collections.abc import Callable, Mapping, Sequence

from hangwatch.model.kinds import Phase
from hangwatch.model.page import RankPage

World = tuple[str, int]
"""The store's host, as the ranks call it, and its port."""


def world_of(page: RankPage) -> World | None:
    """The world of a page, None where its process has not come to one or its store is no TCP."""
    identity = page.identity
    known = page.phase is not Phase.BORN and identity.store_port
    return (identity.store_host, identity.store_port) if known else None


def others(
    ranks: Mapping[int, Sequence[RankPage]],
    runs: Callable[[RankPage], bool],
    before: World | None,
) -> tuple[World | None, set[World]]:
    """The world to watch, and those whose pages are left out.

    ranks: the pages that claim to be each. runs(page) says whether its process does.
    before: the world that was watched so far, which is kept while anything of it runs.
    Worlds are told apart only where two of them have the same rank.
    """
    rivals: set[World] = set()
    for pages in ranks.values():
        found = {world for page in pages if (world := world_of(page)) is not None}
        if len(found) > 1:
            rivals |= found
    if not rivals:
        return before, rivals
    living: dict[World, int] = dict.fromkeys(rivals, 0)
    oldest: dict[World, int] = dict.fromkeys(rivals, 1 << 63)
    for page in (page for pages in ranks.values() for page in pages):
        world = world_of(page)
        if world in rivals:
            living[world] += runs(page)
            oldest[world] = min(oldest[world], page.created_ns)
    if before in rivals and living[before]:
        chosen = before
    else:
        chosen = min(rivals, key=lambda world: (-living[world], oldest[world]))
    return chosen, rivals - {chosen}


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
