"""One watchdog's part in the conversation of the watchdogs of all nodes.

A healthy job causes no traffic beyond joining: each watchdog waits in the server for the next
incident, on a connection of its own. A failure leaves each node with its own ranks, and is
reported once. rounds.py has the keys.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from hangwatch.console import News
from hangwatch.evidence.background import Tasks
from hangwatch.model import codec
from hangwatch.run.test_hooks import Point, reach
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers import rounds
from hangwatch.watchdog.peers.comparison import Comparison
from hangwatch.watchdog.peers.messages import (
    MAX_INCIDENT_BYTES,
    Gathered,
    Incident,
    Local,
    Node,
    Published,
    pack,
)
from hangwatch.watchdog.peers.store import Store, StoreLostError, connect, first_line

ANSWERS = 30
"""Incidents of others that are answered at once, and one more each time."""
FULL_ANSWERS = 8
"""The same with stacks, for which each rank is stopped for some milliseconds."""
TELLS = 3
"""The same for the moments of the last minutes."""
ANSWERED_AT_ONCE = 8
KEPT = 16
"""Incidents that are over and remembered."""
ATTEMPTS = 3
"""Owners of an incident that may fail one after the other before a node goes on alone."""


class Allowance:
    """Allows something ``most`` times at once, and once more every ``every_s`` seconds."""

    def __init__(
        self, most: int, every_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._every_s, self._now = most, every_s, now
        self._left, self._at_s = float(most), now()

    def take(self) -> bool:
        """Return True if it may be done now, and count it."""
        now_s = self._now()
        self._left = min(self._most, self._left + (now_s - self._at_s) / self._every_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Exchange:
    """The conversation of one restart of one job.

    answer(full) returns this node's evidence, on_verdict(published) takes the conclusion of
    another node; both are called in the event loop.
    """

    def __init__(
        self,
        node: Node,
        news: News,
        answer: Callable[[bool], Awaitable[Local]],
        on_verdict: Callable[[Published], None],
        comparison: Comparison | None = None,
    ) -> None:
        self._node = node
        self._news = news
        self._answer = answer
        self._on_verdict = on_verdict
        self._comparison = comparison
        self._world_size = 0
        # As few connections as can be: for each the job's store asks the name service for the
        # client's name, in its only thread.
        self._store: Store | None = None
        self._listening: Store | None = None
        self._open: dict[int, asyncio.Future[bool]] = {}
        """Incidents of other nodes that are under way; True once a verdict came."""
        self._over: dict[int, bool] = {}
        """The same of the last ones that are over."""
        self._silent: frozenset[Node] = frozenset()
        """Nodes that did not answer the last time: they are not waited for as long again."""
        self._tasks = Tasks()
        # Anyone may open incidents: to answer them must not hold up the ranks of this node.
        self._may_answer = Allowance(ANSWERS, timing.ANSWER_EVERY_S)
        self._may_tell = Allowance(TELLS, timing.TELL_EVERY_S)
        self._may_answer_in_full = Allowance(FULL_ANSWERS, timing.FULL_ANSWER_EVERY_S)
        self._hearing = asyncio.Semaphore(ANSWERED_AT_ONCE)
        self._asking = asyncio.Lock()
        self._next = 1
        self.roster: tuple[Node, ...] = (node,)
        """The nodes that are known, including this one."""
        self.why_not = "they have not been joined yet"
        """The reason if the others cannot be asked."""

    @property
    def joined(self) -> bool:
        """True if the others can be asked."""
        return self._store is not None

    async def join(self, host: str, port: int, prefix: str, world_size: int) -> None:
        """Connect, make this node known and listen. A failure is reported once."""
        self._world_size = world_size
        deadline = time.monotonic() + timing.JOIN_S
        while not self.joined:
            try:
                await self._join(host, port, prefix)
            except StoreLostError as error:
                self.why_not = first_line(error)
                if time.monotonic() + timing.JOIN_RETRY_S > deadline:
                    self._lost(error)
                    return
                await asyncio.sleep(timing.JOIN_RETRY_S)

    async def _join(self, host: str, port: int, prefix: str) -> None:
        # Both before this node is known: it may be asked at once, and has to be listening.
        store = await connect(host, port, prefix)
        try:
            listening = await connect(host, port, prefix)
            self._node = replace(self._node, address=store.address)
            self._next, self.roster = await rounds.join(store, self._node, self._world_size)
        except BaseException:
            store.close()
            raise
        self._store, self._listening = store, listening
        self._tasks.start(self._listen(listening))
        self._tasks.start(self._learn(store))

    async def ask(self, *, full: bool) -> Gathered:
        """Claim the next incident and gather the evidence of the other nodes.

        If another node has claimed it, that one diagnoses: returns when its verdict has come
        through on_verdict, with owner False. If none comes, because that node has died or
        stopped, the next incident is claimed.
        """
        incident = Incident(self._node.node, secrets.token_hex(8), full)
        try:
            for _ in range(ATTEMPTS):
                # Two questions of this node would take each other for a node that takes over.
                async with self._asking:
                    gathered = await self._claim(incident)
                if gathered.owner or await self._heard_verdict(gathered.round):
                    return gathered
        except StoreLostError as error:
            self._lost(error)
            return Gathered(owner=True, round=0, unseen=(f"other nodes were not asked: {error}",))
        note = "other nodes were not asked: the watchdogs that took the incident have not concluded"
        return Gathered(owner=True, round=0, unseen=(note,))

    async def compare(self) -> str:
        """Have the moments of all nodes compared; return why that cannot be, for people.

        Nothing is asked if another node does so at this moment, or while there is an incident.
        """
        store, comparison, own = self._store, self._comparison, self._node.node
        if store is None or comparison is None:
            return f"the other nodes cannot be asked: {self.why_not}"
        try:
            async with self._asking:
                number = self._next
                incident = Incident(own, secrets.token_hex(8), full=False, moments=True)
                if self._open or not await rounds.claim(store, number, incident):
                    return ""
                self._next = max(self._next, number + 1)
            if sum(len(node.ranks) for node in self.roster) < self._world_size:
                self.roster = await rounds.known_nodes(store, self._world_size) or self.roster
            await comparison.lead(store, number, own, self.roster, self._world_size)
        except StoreLostError as error:
            self._lost(error)
            return f"the other nodes cannot be asked: {error}"
        return ""

    async def publish(self, number: int, published: Published) -> None:
        """Publish the conclusion of an incident of this node."""
        if number and self._store is not None:
            try:
                await rounds.publish(self._store, number, published, self.roster)
            except StoreLostError as error:
                self._lost(error)

    async def close(self) -> None:
        """Stop listening."""
        self._tasks.cancel()
        await self._tasks.settle()
        self._leave()

    async def _claim(self, incident: Incident) -> Gathered:
        """Gather for an incident of this node.

        Owner is False if another one is under way, or has taken over since this one took too long.
        """
        store = self._store
        if store is None:
            raise StoreLostError(self.why_not)
        first = min(self._open, default=self._next)
        for number in range(first, first + rounds.PASSED_OVER):
            if number not in self._open and await rounds.claim(store, number, incident):
                break
            if number in self._open or not await rounds.asks_for_moments(store, number):
                return Gathered(owner=False, round=number)
        else:
            return Gathered(owner=False, round=first)
        reach(Point.CLAIMED)
        self._next = max(self._next, number + 1)
        self.roster = await rounds.known_nodes(store, self._world_size) or self.roster
        budget_s = timing.GATHER_FULL_S if incident.full else timing.GATHER_S
        patience_s = {
            node: timing.GATHER_S if node in self._silent else budget_s
            for node in self.roster
            if node.node != self._node.node
        }
        gathered = await rounds.gather(store, number, patience_s, self.roster, self._world_size)
        self._silent = frozenset(gathered.silent)
        later = await rounds.taken_over_by(store, number)
        return gathered if later is None else Gathered(owner=False, round=later)

    async def _heard_verdict(self, number: int) -> bool:
        """Wait for the verdict on another node's incident; False if none comes."""
        if number in self._over:
            return self._over[number]
        heard = self._opened(number)
        try:
            # A little more than _heard() takes at most.
            limit_s = timing.GATHER_FULL_S + 2 * timing.OWNER_CONCLUDES_S
            return await asyncio.wait_for(asyncio.shield(heard), limit_s)
        except TimeoutError:
            self._close(number, heard=False)
            return False

    async def _listen(self, store: Store) -> None:
        number = self._next
        try:
            while True:
                data = await rounds.await_incident(store, number)
                if data is not None:
                    await self._hearing.acquire()
                    self._tasks.start(self._heard(number, data))
                    number += 1
                    self._next = max(self._next, number)
        except StoreLostError as error:
            # Most often the job has ended, and its store with it: a loss only once it is needed.
            self._leave()
            self.why_not = first_line(error)

    async def _learn(self, store: Store) -> None:
        """Learn all nodes, to know them should the store be lost later."""
        with suppress(StoreLostError):  # _listen() reports it
            for pause_s in timing.ROSTER_PAUSES_S:
                if nodes := await rounds.roster(store, self._world_size):
                    self.roster = nodes
                    self._news.debug(f"the watchdogs of {len(nodes)} nodes know each other")
                    return
                await asyncio.sleep(pause_s)

    async def _heard(self, number: int, data: bytes) -> None:
        """Answer another node's incident, and wait for its verdict."""
        published = None
        try:
            incident: Incident = codec.loads(Incident, data, MAX_INCIDENT_BYTES)
            own, store = self._node.node, self._store
            if incident.owner == own or store is None:
                return
            if incident.moments:
                if self._comparison is not None and self._may_tell.take():
                    await self._comparison.follow(store, number, own, self._world_size)
                return
            if not self._may_answer.take():
                return
            self._opened(number)
            reach(Point.ASKED)
            full = incident.full and self._may_answer_in_full.take()
            local = await self._answer(full)
            message, blobs = pack(own, local, self._world_size, full=full)
            await rounds.send(store, number, own, message, blobs)
            limit_s = timing.GATHER_FULL_S if incident.full else timing.GATHER_S
            limit_s += timing.OWNER_CONCLUDES_S
            published = await rounds.await_verdict(store, number, limit_s, self._world_size)
            if published is not None:
                self._on_verdict(published)
        except StoreLostError as error:
            self._lost(error)
        except codec.CodecError as error:
            self._news.debug(f"incident {number} of another node cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 (the owner does without this node)
            what = f"an incident of another node was not answered ({type(error).__name__}: {error})"
            self._news.fault("answer", what, error, quiet=True)
        finally:
            self._close(number, heard=published is not None)
            self._hearing.release()

    def _opened(self, number: int) -> asyncio.Future[bool]:
        """Note that an incident of another node is under way."""
        if number not in self._open:
            self._open[number] = asyncio.get_running_loop().create_future()
        self._next = max(self._next, number + 1)
        return self._open[number]

    def _close(self, number: int, *, heard: bool) -> None:
        self._over[number] = heard
        if len(self._over) > KEPT:
            del self._over[min(self._over)]
        over = self._open.pop(number, None)
        if over is not None and not over.done():
            over.set_result(heard)

    def _leave(self) -> None:
        for store in (self._store, self._listening):
            if store is not None:
                store.close()
        self._store = self._listening = None

    def _lost(self, error: StoreLostError) -> None:
        self._leave()
        self.why_not = first_line(error)
        self._news.lose(
            "store",
            f"other nodes cannot be asked ({self.why_not}): only this node's ranks are seen",
            quiet=True,
        )
