"""When to join the watchdogs of the other nodes, and when to join them anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hangwatch.console import News
from hangwatch.evidence.pages.look import QUIET_S, Look
from hangwatch.model.kinds import Phase
from hangwatch.model.page import Identity
from hangwatch.run.handshake import Hello
from hangwatch.watchdog.peers.exchange import Exchange
from hangwatch.watchdog.peers.messages import Local, Node, Published
from hangwatch.watchdog.peers.reach import Peers

JOIN_AFTER_S = 5.0
"""Ranks of this node that come later than this are not named to the other nodes."""
HOLD_S = 6.0
"""What takes longer is not waited for with a verdict."""
AGAIN_S = 15.0
"""Between two attempts to join anew where the store was lost, while ranks wait."""


@dataclass(slots=True)
class Joining:
    """Keeps this watchdog in touch with those of the other nodes, for one restart at a time.

    name: what it is called among them. answer, heard: for their questions and verdicts.
    """

    peers: Peers
    name: str
    node: str
    hello: Hello
    answer: Callable[[bool], Awaitable[Local]]
    heard: Callable[[Published], None]
    news: News
    _full_house_ns: int = 0
    _joined_ns: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _join: asyncio.Task[None] | None = None

    def under_way(self, now_ns: int) -> bool:
        """Whether the others can be asked in a moment: worth waiting for with a verdict."""
        if self.peers.exchange is None:
            since_ns, due = self._full_house_ns, self._full_house_ns > 0
        else:
            since_ns, due = self._joined_ns, self._join is not None and not self._join.done()
        return due and now_ns - since_ns < HOLD_S * 1e9

    def look(self, look: Look) -> None:
        """Join once the ranks of this node run, and again where the store was lost since."""
        running = [
            seen.light.identity
            for seen in look.seen.values()
            if seen.light.phase is Phase.RUNNING and seen.light.identity.store_port
        ]
        if not running or running[0].world_size <= len(look.seen):
            return  # nobody is elsewhere
        exchange = self.peers.exchange
        if exchange is not None:
            self._join_again(exchange, running[0], look)
            return
        self._full_house_ns = self._full_house_ns or look.now_ns
        waited_s = (look.now_ns - self._full_house_ns) / 1e9
        if len(look.seen) == self._expected(running[0]) or waited_s >= JOIN_AFTER_S:
            node = Node(self.name, self.node, tuple(look.seen))
            self._begin(node, running[0], look)

    def leave(self) -> None:
        """The ranks were started anew: they have another conversation."""
        self._full_house_ns = 0
        if self._join is not None:
            self._join.cancel()
        old, self.peers.exchange = self.peers.exchange, None
        if old is not None:
            self._start(old.close())

    async def close(self) -> None:
        """Leave for good."""
        self.leave()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _expected(self, rank: Identity) -> int:
        """How many ranks this node has, as far as that is known."""
        hello = self.hello
        if rank.local_world_size <= 0 and hello.facts.shared and not hello.self_started:
            return len(hello.commands())  # each a rank; now that one runs, all are there
        return rank.local_world_size

    def _join_again(self, lost: Exchange, rank: Identity, look: Look) -> None:
        """A network may come back; the store is only missed where ranks wait."""
        under_way = self._join is not None and not self._join.done()
        rested = (look.now_ns - self._joined_ns) / 1e9 >= AGAIN_S
        if lost.joined or under_way or not rested or look.longest_wait_s < QUIET_S:
            return
        self._start(lost.close())
        (own,) = (node for node in lost.roster if node.node == self.name)
        self._begin(own, rank, look)
        if self.peers.exchange is not None:
            self.peers.exchange.roster = lost.roster

    def _begin(self, node: Node, rank: Identity, look: Look) -> None:
        exchange = Exchange(node, self.news, self.answer, self.heard)
        self.peers.exchange = exchange
        self._joined_ns = look.now_ns
        self._join = self._start(self._connect(exchange, rank))

    async def _connect(self, exchange: Exchange, rank: Identity) -> None:
        with suppress(OSError):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(rank.store_host, rank.store_port)
            self.peers.store_address = str(found[0][4][0])
        prefix = f"hangwatch/{rank.run_id or 'job'}/{rank.world_size}"
        await exchange.join(rank.store_host, rank.store_port, prefix, rank.world_size)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
