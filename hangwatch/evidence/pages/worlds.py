"""Tells the ranks of one world from those of another that run below the same command.

A script may start two jobs, a job split itself into trainers and workers that each have a
world of their own, or ranks go on in a smaller one: a rank is a number in a world, and which
world that is the store tells. Ranks of two worlds are never compared with each other.
"""

from __future__ import annotations

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
