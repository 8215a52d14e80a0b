"""Compares notes with the watchdogs of the other nodes, through the job's store.

Keys, below ``hangwatch/<run>/<restart>``:

    joined          how many watchdogs have joined
    node/<n>        Node: the n-th of them
    rounds          how many incidents there have been
    incident/<k>    Incident: the k-th; whoever sets it first (compare_set) owns it
    answer/<k>/<node>   Answer: what a node knows
    blob/<hash>     frames or a source file, once each
    verdict/<k>     Published: what the owner has concluded

A healthy job causes no traffic beyond joining: each watchdog waits in the
server for the next incident, on a connection of its own. Whatever fails here
leaves each node with its own ranks, and is said once.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hangwatch.watchdog import codec
from hangwatch.watchdog.messages import (
    MAX_MESSAGE_BYTES,
    Incident,
    Local,
    Node,
    Published,
    pack,
    unpack,
)
from hangwatch.watchdog.store import Store, StoreLostError, connect, waited
from hangwatch.watchdog.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from hangwatch.watchdog.news import News
    from hangwatch.watchdog.store import Connect

T = TypeVar("T")
JOIN_S = 60.0
"""Importing torch from a busy network file system takes its time."""
CALL_S = 15.0
"""A store that does not answer for so long is as good as gone."""
GATHER_S = 2.0
GATHER_FULL_S = 8.0
VERDICT_S = 12.0
"""How long a node waits for the verdict of the owner of an incident."""
_WAIT_S = 600.0
_KEPT_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Gathered:
    """The other nodes' evidence. ``owner`` is False where another node diagnoses."""

    owner: bool
    round: int
    others: tuple[Local, ...] = ()
    unseen: tuple[str, ...] = ()


class Exchange:
    """One watchdog's part in the conversation of one restart of one job.

    answer(full) gives this node's evidence, on_verdict(published) hears what
    another node has concluded; both are called in the event loop.
    """

    def __init__(
        self,
        node: Node,
        news: News,
        answer: Callable[[bool], Awaitable[Local]],
        on_verdict: Callable[[Published], None],
        *,
        connect: Connect = connect,
    ) -> None:
        self._node = node
        self._news = news
        self._answer = answer
        self._on_verdict = on_verdict
        self._connect = connect
        self._worker = Worker("hangwatch-store")
        self._store: Store | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 1
        self._sent_blobs: set[str] = set()

    @property
    def joined(self) -> bool:
        """Whether the others can be asked."""
        return self._store is not None

    async def join(self, host: str, port: int, prefix: str) -> None:
        """Connect, make ourselves known and listen. Says it once where that fails."""

        def work() -> tuple[Store, int]:
            store = self._connect(host, port, prefix)
            number = store.add("joined", 1)
            store.set(f"node/{number}", codec.dumps(self._node))
            return store, store.add("rounds", 0) + 1

        try:
            self._store, self._next = await self._worker.run(work, JOIN_S)
        except (StoreLostError, RuntimeError, TimeoutError) as error:
            self._lost(error)
            return
        self._start(self._listen(host, port, prefix))

    async def ask(self, *, full: bool) -> Gathered:
        """Claim the next incident and gather what the other nodes know.

        Where another node has claimed it, that one diagnoses: its verdict
        comes through on_verdict, and owner is False.
        """
        number = self._next
        incident = Incident(self._node.node, secrets.token_hex(8), full)
        ours = codec.dumps(incident).decode()
        try:
            if not await self._run(lambda store: _claim(store, number, ours)):
                return Gathered(owner=False, round=number)
            self._next = max(self._next, number + 1)
            budget_s = GATHER_FULL_S if full else GATHER_S
            others, unseen = await self._run(
                lambda store: self._gather(store, number, budget_s), CALL_S + budget_s
            )
        except (StoreLostError, TimeoutError) as error:
            self._lost(error)
            return Gathered(owner=True, round=0, unseen=(f"other nodes were not asked: {error}",))
        return Gathered(owner=True, round=number, others=others, unseen=unseen)

    async def publish(self, number: int, published: Published) -> None:
        """Tell the others what came of an incident of ours."""

        def work(store: Store) -> None:
            data = codec.dumps(published)
            if len(data) > MAX_MESSAGE_BYTES:
                data = codec.dumps(Published(published.node, ()))
            store.set(f"verdict/{number}", data)
            _tidy(store, number - _KEPT_ROUNDS)

        if number and self.joined:
            try:
                await self._run(work)
            except (StoreLostError, TimeoutError) as error:
                self._lost(error)

    async def close(self) -> None:
        """Stop listening. The connections end with the process."""
        self._store = None
        self._worker.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, host: str, port: int, prefix: str) -> None:
        listener = Worker("hangwatch-listen")
        try:
            store = await listener.run(lambda: self._connect(host, port, prefix), JOIN_S)
            while True:
                number = self._next
                data = await listener.run(partial(_await_incident, store, number))
                if data is not None:
                    self._next = max(self._next, number + 1)
                    self._start(self._heard(number, data))
        except (StoreLostError, RuntimeError, TimeoutError) as error:
            self._lost(error)
        finally:
            listener.stop()

    async def _heard(self, number: int, data: bytes) -> None:
        """Answer another node's incident, and hear what comes of it."""
        try:
            incident = codec.loads(Incident, data, MAX_MESSAGE_BYTES)
            if incident.owner == self._node.node:
                return
            message, blobs = pack(self._node.node, await self._answer(incident.full))
            await self._run(lambda store: self._send(store, number, message, blobs))
            found = await self._run(lambda store: _verdict(store, number), CALL_S + VERDICT_S)
            if found is None:
                self._news.debug(f"{incident.owner} has published no verdict on incident {number}")
            else:
                self._on_verdict(codec.loads(Published, found, MAX_MESSAGE_BYTES))
        except codec.CodecError as error:
            self._news.debug(f"incident {number} of another node cannot be read: {error}")
        except (StoreLostError, TimeoutError) as error:
            self._lost(error)

    def _send(self, store: Store, number: int, message: bytes, blobs: Mapping[str, bytes]) -> None:
        for name, blob in blobs.items():
            if name not in self._sent_blobs:
                if not store.check([_blob(name)]):
                    store.set(_blob(name), blob)
                self._sent_blobs.add(name)
        store.set(_answer(number, self._node.node), message)

    def _gather(
        self, store: Store, number: int, budget_s: float
    ) -> tuple[tuple[Local, ...], tuple[str, ...]]:
        joined = store.add("joined", 0)
        keys = [key for n in range(1, joined + 1) if store.check([key := f"node/{n}"])]
        nodes: dict[str, Node] = {}
        for data in store.multi_get(keys):
            with suppress(codec.CodecError):
                node = codec.loads(Node, data, MAX_MESSAGE_BYTES)
                nodes[node.node] = node  # one that was started again joins again
        nodes.pop(self._node.node, None)
        wanted = {name: _answer(number, name) for name in nodes}
        if wanted:
            waited(store, list(wanted.values()), budget_s)
        others, unseen = [], []
        for name, key in wanted.items():
            said = f"{nodes[name].host} ({_ranks(nodes[name].ranks)})"
            if not store.check([key]):
                unseen.append(f"{said} did not answer within {budget_s:g} s")
                continue
            try:
                others.append(unpack(store.get(key), lambda names: _blobs(store, names))[1])
            except codec.CodecError as error:
                unseen.append(f"the answer of {said} cannot be read: {error}")
        return tuple(others), tuple(unseen)

    async def _run(self, call: Callable[[Store], T], timeout_s: float = CALL_S) -> T:
        store = self._store
        if store is None:
            raise StoreLostError("the store is gone")
        try:
            return await self._worker.run(lambda: call(store), timeout_s)
        except RuntimeError as error:
            raise StoreLostError(f"the store failed: {error}".splitlines()[0][:200]) from error

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lost(self, error: BaseException) -> None:
        self._store = None
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        self._news.lose(
            "store",
            f"other nodes cannot be asked ({why}): only this node's ranks are seen",
            quiet=True,
        )


def _claim(store: Store, number: int, ours: str) -> bool:
    """Set the incident unless somebody has; whether it is ours."""
    held = store.compare_set(_incident(number), "", ours).decode("utf-8", "replace")
    # Only the libuv server wakes those that wait when it is a compare_set that
    # sets the key; setting it again does, whoever does it.
    store.set(_incident(number), held)
    if held == ours:
        store.add("rounds", 1)
    return held == ours


def _await_incident(store: Store, number: int) -> bytes | None:
    """The incident once there is one, None if there is none for a long time."""
    key = _incident(number)
    return store.get(key) if waited(store, [key], _WAIT_S) else None


def _verdict(store: Store, number: int) -> bytes | None:
    key = f"verdict/{number}"
    return store.get(key) if waited(store, [key], VERDICT_S) else None


def _blobs(store: Store, names: Iterable[str]) -> dict[str, bytes]:
    found = [name for name in names if name and store.check([_blob(name)])]
    return dict(zip(found, store.multi_get([_blob(n) for n in found]), strict=True))


def _tidy(store: Store, number: int) -> None:
    """Free what an old round left; its incident stays for those that lag behind."""
    if number < 1:
        return
    for n in range(1, store.add("joined", 0) + 1):
        if store.check([f"node/{n}"]):
            with suppress(codec.CodecError):
                node = codec.loads(Node, store.get(f"node/{n}"), MAX_MESSAGE_BYTES)
                store.delete_key(_answer(number, node.node))
    store.delete_key(f"verdict/{number}")


def _incident(number: int) -> str:
    return f"incident/{number}"


def _answer(number: int, node: str) -> str:
    return f"answer/{number}/{node}"


def _blob(name: str) -> str:
    return f"blob/{name}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"
