"""Work next to the event loop: blocking calls in threads that never hold up the exit, and tasks.

The threads are daemons (those of asyncio.to_thread are joined at exit): a call
that is stuck in a dead file system or a dead store is left behind.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """One thread that makes calls one after the other."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """Return the result of the call, or raise its exception; TimeoutError after timeout_s."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # T may itself be None

        def work() -> None:
            result, error = None, None
            try:
                result = call()
            except Exception as caught:  # noqa: BLE001 (it is the awaiting task's)
                error = caught
            with suppress(RuntimeError):  # the loop is closed: no task waits any more
                loop.call_soon_threadsafe(settle, result, error)

        self._calls.put(work)
        return await asyncio.wait_for(future, timeout_s)

    def stop(self) -> None:
        """End the thread once it has made the calls that it was given."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


async def in_thread(call: Callable[[], T], timeout_s: float) -> T:
    """Make one call in a thread of its own. Raises what it raises, or TimeoutError."""
    worker = Worker("hangwatch-call")
    try:
        return await worker.run(call, timeout_s)
    finally:
        worker.stop()


class Tasks:
    """Tasks that run in the background: each is kept until it is done.

    on_error: takes the exception of a task that failed; else the event loop's handler does.
    """

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def settle(self, timeout_s: float | None = None) -> None:
        """Wait until all are done, for timeout_s at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def cancel(self) -> None:
        """Cancel all."""
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._on_error and not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)
