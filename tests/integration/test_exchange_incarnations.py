"""Watchdogs join anew, through a store that outlives the incarnation of the job."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from hangwatch.watchdog.peers import rounds
from hangwatch.watchdog.peers.messages import Node
from hangwatch.watchdog.peers.store import Store, connect

if importlib.util.find_spec("torch"):
    from test_exchange import serving
else:
    pytest.skip("needs torch", allow_module_level=True)

PREFIX = "hangwatch/job/4"
WORLD_SIZE = 4
A, B, C = (
    Node(f"{name}:run", name, ranks)
    for name, ranks in zip("abc", ((0, 1), (2, 3), (0, 1)), strict=True)
)


async def join(store: Store, *nodes: Node) -> list[str]:
    """Who is known when these have joined, with their ranks, and who is in the roster."""
    for node in nodes:
        await rounds.join(store, node, WORLD_SIZE)
    known = await rounds.known_nodes(store, WORLD_SIZE)
    listed = await rounds.roster(store, WORLD_SIZE)
    assert listed in ((), known)
    return [f"{node.host}{node.ranks[0]}" + "?" * (not listed) for node in known]


def test_of_nodes_that_claim_the_same_ranks_the_last_one_has_them() -> None:
    async def run(port: int) -> None:
        store = await connect("127.0.0.1", port, PREFIX)
        assert await join(store, A) == ["a0?"]
        assert await join(store, B) == ["a0", "b2"]
        # C comes in the place of A.
        assert await join(store, B, C) == ["b2", "c0"]
        # They change places: the first of them takes the ranks of the other.
        assert await join(store, Node(B.node, B.host, (0, 1))) == ["b0?"]
        assert await join(store, Node(C.node, C.host, (2, 3))) == ["b0", "c2"]
        # A watchdog that was killed and started again.
        assert await join(store, Node(C.node, C.host, (2, 3))) == ["b0", "c2"]
        store.close()

    with serving() as server:
        asyncio.run(run(server.port))
