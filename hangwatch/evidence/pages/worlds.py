"""Separates the ranks of several worlds, and of several starts of one job.

A script may start two jobs, a job split itself into trainers and workers that each have a
world of their own, or ranks go on in a smaller one: a rank is a number in a world, and its
store identifies the world. Ranks of two worlds are never compared with each other.

A launcher that restarts the ranks ends all of them first. Its counter is no help:
torchrun's TORCHELASTIC_RESTART_COUNT stays as it is where nodes join or
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
    """Return the world of a page, None where its process has none yet or its store is no TCP."""
    identity = page.identity
    known = page.phase is not Phase.BORN and identity.store_port
    return (identity.store_host, identity.store_port) if known else None


def choose_world(
    ranks: Mapping[int, Sequence[RankPage]],
    runs: Callable[[RankPage], bool],
    before: World | None,
) -> tuple[World | None, set[World]]:
    """Return the world to watch, and the worlds whose pages are left out.

    ranks: the pages that claim to be each. runs(page): True if its process runs.
    before: the world that was watched so far, which is kept while anything of it runs.
    Worlds are separated only where two of them have the same rank.
    """
    rivals: set[World] = set()
    for pages in ranks.values():
        worlds = {world for page in pages if (world := world_of(page)) is not None}
        if len(worlds) > 1:
            rivals |= worlds
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


def split_incarnations(
    pages: Mapping[str, RankPage],
    alive: Callable[[int, int], bool],
    ended: Mapping[int, int],
    boot_ns: int | None = None,
) -> list[frozenset[str]]:
    """Return the names of the pages of each incarnation, oldest first.

    alive(pid, start_ticks): True if a process runs. ended: pids of processes that
    were seen to end, with when (CLOCK_MONOTONIC, ns). boot_ns: how far
    CLOCK_BOOTTIME, which start_ticks counts, is ahead of CLOCK_MONOTONIC.
    """
    ahead_ns = _boot_ns() if boot_ns is None else boot_ns
    incarnations: list[set[str]] = []
    restart, over_ns = -1, 0

    def order(name: str) -> tuple[int, int]:
        return pages[name].identity.restart, pages[name].identity.start_ticks

    for name in sorted(pages, key=order):
        page = pages[name]
        started_ns = start_ns(page.identity.start_ticks, ahead_ns)
        if page.identity.restart != restart or started_ns >= over_ns:
            incarnations.append(set())
            restart, over_ns = page.identity.restart, 0
        incarnations[-1].add(name)
        over_ns = max(over_ns, _ended_ns(page, alive, ended))
    return [frozenset(names) for names in incarnations]


def start_ns(start_ticks: int, boot_ns: int | None = None) -> int:
    """Return the end of the tick in which a process was started (CLOCK_MONOTONIC).

    boot_ns: as in split_incarnations().
    """
    return (start_ticks + 1) * _TICK_NS - (_boot_ns() if boot_ns is None else boot_ns)


def _ended_ns(page: RankPage, alive: Callable[[int, int], bool], ended: Mapping[int, int]) -> int:
    """Return when a process ended, as far as that is known: else when it surely lived."""
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
