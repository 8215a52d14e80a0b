"""When the watchdogs of other nodes are joined, and for how long a verdict waits for that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from made_hello import facts

from hangwatch.model.kinds import Phase
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers import connection
from hangwatch.watchdog.peers.connection import Peers
from hangwatch.watchdog.peers.messages import Node

if TYPE_CHECKING:
    from hangwatch.evidence.pages.look import Look
    from hangwatch.run.handshake import Hello

OTHER = Node("there:run", "there", (2, 3), "127.0.0.2")


class FakeExchange:
    """Stands for the connection to the other nodes: joins, or waits for ever to."""

    made: list[FakeExchange]
    endless = False

    def __init__(self, node: Node, *_: object) -> None:
        self.node, self.joined = node, False
        self.done = asyncio.Event()
        self.roster: tuple[Node, ...] = (node,)
        FakeExchange.made.append(self)

    async def join(self, host: str, port: int, prefix: str, world_size: int) -> None:
        assert (host, port, prefix, world_size) == ("127.0.0.1", 1, "hangwatch/job/4", 4)
        if self.endless:
            await asyncio.Event().wait()
        self.joined = True
        self.done.set()

    async def close(self) -> None:
        self.joined = False


@dataclass
class Scene:
    """Ranks of this node at some second."""

    peers: Peers
    local_world_size: int = 2

    @property
    def exchange(self) -> Any:
        """With the other nodes."""
        return self.peers.exchange

    def at(self, now_s: float, *, ranks: int = 2, running: bool = True, wait_s: float = 0) -> bool:
        """Look; whether a verdict should wait."""
        identity = SimpleNamespace(
            store_host="127.0.0.1",
            store_port=1,
            world_size=4,
            local_world_size=self.local_world_size,
            run_id="",
        )
        phase = Phase.RUNNING if running else Phase.EXITED
        light = SimpleNamespace(phase=phase, identity=identity)
        seen = {number: SimpleNamespace(light=light) for number in range(ranks)}
        now_ns = int(now_s * 1e9)
        look = SimpleNamespace(now_ns=now_ns, seen=seen, longest_wait_s=wait_s)
        self.peers.look(cast("Look", look))
        return self.peers.under_way(now_ns)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    FakeExchange.made, FakeExchange.endless = [], False
    monkeypatch.setattr(connection, "Exchange", FakeExchange)
    unused: Any = None
    hello: Any = SimpleNamespace(shared=False, run_dir=Path("/run"))
    news: Any = SimpleNamespace(debug=lambda _: None)
    return Scene(Peers("here", hello, unused, unused, news))


def test_they_are_joined_once_all_ranks_of_this_node_are_there(scene: Scene) -> None:
    async def work() -> None:
        assert scene.at(10, ranks=1)
        assert not FakeExchange.made
        assert scene.at(11, ranks=2)
        await scene.exchange.done.wait()
        assert not scene.at(12)
        (exchange,) = FakeExchange.made
        assert exchange.node == Node("here:run", "here", (0, 1))
        assert scene.peers.store_address == "127.0.0.1"

    asyncio.run(work())


def test_ranks_that_started_the_watch_may_be_followed_by_more(scene: Scene) -> None:
    scene.local_world_size = -1
    started = SimpleNamespace(
        facts=facts(shared=True),
        self_started=True,
        commands=lambda: [1],
        run_dir=Path("/run"),
    )
    scene.peers.hello = cast("Hello", started)

    async def work() -> None:
        scene.at(10, ranks=1)
        assert not FakeExchange.made
        scene.at(10 + timing.JOIN_AFTER_S, ranks=2)
        await scene.exchange.done.wait()
        assert FakeExchange.made[0].node.ranks == (0, 1)

    asyncio.run(work())


def test_ranks_that_do_not_come_are_not_waited_for(scene: Scene) -> None:
    async def work() -> None:
        scene.at(10, ranks=1)
        scene.at(10 + timing.JOIN_AFTER_S, ranks=1)
        await scene.exchange.done.wait()
        assert FakeExchange.made[0].node.ranks == (0,)

    asyncio.run(work())


def test_a_verdict_waits_for_a_moment_and_no_longer(scene: Scene) -> None:
    async def work() -> None:
        FakeExchange.endless = True
        assert scene.at(10)
        assert not scene.at(10 + timing.HOLD_VERDICT_S)
        scene.peers.leave()
        assert not scene.at(30, running=False)
        assert scene.at(40, ranks=1)
        assert not scene.at(40 + timing.HOLD_VERDICT_S, ranks=1, running=False)

    asyncio.run(work())


def test_a_store_that_was_lost_is_joined_anew_where_ranks_wait(scene: Scene) -> None:
    async def work() -> None:
        scene.at(10)
        await scene.exchange.done.wait()
        (first,) = FakeExchange.made
        first.joined, first.roster = False, (first.node, OTHER)
        scene.at(10 + 2 * timing.REJOIN_S)  # nobody waits
        assert len(FakeExchange.made) == 1
        scene.at(10 + 2 * timing.REJOIN_S, wait_s=5)
        await scene.exchange.done.wait()
        _, second = FakeExchange.made
        assert second.roster == (first.node, OTHER)
        second.joined = False
        scene.at(11 + 2 * timing.REJOIN_S, wait_s=6)  # too soon
        assert len(FakeExchange.made) == 2

    asyncio.run(work())
