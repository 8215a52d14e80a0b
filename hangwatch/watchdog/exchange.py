"""Compares notes with the watchdogs of the other nodes, through the job's store.

A healthy job causes no traffic beyond joining: each watchdog waits in the
server for the next incident, on a connection of its own. Whatever fails here
leaves each node with its own ranks, and is said once. rounds.py has the keys.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hangwatch.watchdog import codec, rounds
from hangwatch.watchdog.messages import MAX_MESSAGE_BYTES, Incident, Local, Node, Published, pack
from hangwatch.watchdog.store import Store, StoreLostError, connect
from hangwatch.watchdog.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangwatch.watchdog.news import News
    from hangwatch.watchdog.store import Connect

T = TypeVar("T")
JOIN_S = 60.0
"""Importing torch from a busy network file system takes its time."""
CALL_S = 15.0
"""A store that does not answer for so long is as good as gone."""
GATHER_S = 2.0
GATHER_FULL_S = 8.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """The other nodes' evidence. ``owner`` is False where another node diagnoses."""

    owner: bool
    round: int
    """Number of the incident, 0 where nobody else has heard of it."""
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
        # Asking and answering each have a connection: two nodes that ask at the same
        # time would else wait for each other's answers.
        self._worker = Worker("hangwatch-ask")
        self._answering = Worker("hangwatch-answer")
        self._store: Store | None = None
        self._answers: Store | None = None
        self._open: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 1
        self.why_not = "they have not been joined yet"
        """Why the others cannot be asked, where they cannot."""

    @property
    def joined(self) -> bool:
        """Whether the others can be asked."""
        return self._store is not None

    async def join(self, host: str, port: int, prefix: str) -> None:
        """Connect, make ourselves known and listen. Says it once where that fails."""

        def work() -> tuple[Store, Store, Store, int]:
            # All before we are known: who is known is asked, and has to be listening.
            stores = [self._connect(host, port, prefix) for _ in range(3)]
            return stores[0], stores[1], stores[2], rounds.join(stores[0], self._node)

        try:
            self._store, self._answers, waiting, self._next = await self._worker.run(work, JOIN_S)
        except (StoreLostError, RuntimeError, TimeoutError) as error:
            self._lost(error)
        else:
            self._start(self._listen(waiting))

    async def ask(self, *, full: bool) -> Gathered:
        """Claim the next incident and gather what the other nodes know.

        Where another node has claimed it, that one diagnoses: its verdict
        comes through on_verdict, and owner is False.
        """
        if self._open:
            return Gathered(owner=False, round=min(self._open))
        number, budget_s = self._next, GATHER_FULL_S if full else GATHER_S
        own, incident = self._node.node, Incident(self._node.node, secrets.token_hex(8), full)
        try:
            if not await self._run(lambda store: rounds.claim(store, number, incident)):
                return Gathered(owner=False, round=number)
            self._next = max(self._next, number + 1)
            others, unseen = await self._run(
                lambda store: rounds.gather(store, number, own, budget_s), CALL_S + budget_s
            )
        except (StoreLostError, TimeoutError) as error:
            self._lost(error)
            return Gathered(owner=True, round=0, unseen=(f"other nodes were not asked: {error}",))
        return Gathered(owner=True, round=number, others=others, unseen=unseen)

    async def publish(self, number: int, published: Published) -> None:
        """Tell the others what came of an incident of ours."""
        if number and self.joined:
            try:
                await self._run(lambda store: rounds.publish(store, number, published))
            except (StoreLostError, TimeoutError) as error:
                self._lost(error)

    async def close(self) -> None:
        """Stop listening. The connections end with the process."""
        self._store = self._answers = None
        self._worker.stop()
        self._answering.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, store: Store) -> None:
        listener = Worker("hangwatch-listen")
        try:
            while True:
                number = self._next
                data = await listener.run(partial(rounds.await_incident, store, number))
                if data is not None:
                    self._next = max(self._next, number + 1)
                    self._start(self._heard(number, data))
        except (StoreLostError, RuntimeError) as error:
            # Most often the job has ended, and its store with it: a loss only once it is needed.
            self._store = self._answers = None
            self.why_not = _first_line(error)
        finally:
            listener.stop()

    async def _heard(self, number: int, data: bytes) -> None:
        """Answer another node's incident, and hear what comes of it."""
        try:
            incident: Incident = codec.loads(Incident, data, MAX_MESSAGE_BYTES)
            own, answers = self._node.node, self._answers
            if incident.owner == own or answers is None:
                return
            self._open.add(number)
            message, blobs = pack(own, await self._answer(incident.full))
            await _called(
                self._answering, lambda: rounds.send(answers, number, own, message, blobs), CALL_S
            )
            published = await _called(
                self._answering,
                lambda: rounds.await_verdict(answers, number),
                CALL_S + rounds.VERDICT_S,
            )
            self._open.discard(number)
            if published is not None:
                self._on_verdict(published)
        except (StoreLostError, TimeoutError) as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 (the owner waits for us only so long)
            self._news.debug(f"incident {number} of another node was not answered: {error!r}")
        finally:
            self._open.discard(number)

    async def _run(self, call: Callable[[Store], T], timeout_s: float = CALL_S) -> T:
        store = self._store
        if store is None:
            raise StoreLostError("the store is gone")
        return await _called(self._worker, lambda: call(store), timeout_s)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lost(self, error: BaseException) -> None:
        self._store = self._answers = None
        self.why_not = _first_line(error)
        self._news.lose(
            "store",
            f"other nodes cannot be asked ({self.why_not}): only this node's ranks are seen",
            quiet=True,
        )


async def _called(worker: Worker, call: Callable[[], T], timeout_s: float) -> T:
    """Make a call on the store. Raises StoreLostError, TimeoutError, CodecError."""
    try:
        return await worker.run(call, timeout_s)
    except RuntimeError as error:
        raise StoreLostError(f"the store failed: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
