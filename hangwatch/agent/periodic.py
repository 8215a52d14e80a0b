"""A thread of ours that runs something every so often, unseen by the user's program."""

from __future__ import annotations

import _thread
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.guard import Guard

JOIN_S = 2.0
"""How long an ending interpreter waits for a run in progress."""
_SHORTEST_REST_S = 0.01


class Periodic:
    """Calls run every period_s seconds until stopped; what it raises is the guard's.

    Started without the threading module: it shows up in no list of the user's
    threads, nobody joins it, and the user's tracing does not run in it.
    """

    def __init__(self, run: Callable[[], object], period_s: float, guard: Guard) -> None:
        self._run = run
        self._period_s = period_s
        self._guard = guard
        self._pid = os.getpid()
        self._stop = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._stop.acquire()
        self._ended.acquire()
        _thread.start_new_thread(self._loop, ())

    def stop(self) -> bool:
        """End the thread and wait for it, JOIN_S at most; False if it did not end. Once."""
        if self._pid != os.getpid():
            return True  # a fork's child has not inherited it
        self._stop.release()
        return self._ended.acquire(timeout=JOIN_S)

    def _loop(self) -> None:
        stopped = False
        while not stopped and self._guard.open:
            before = time.monotonic()
            with self._guard:
                self._run()
            rest = self._period_s - (time.monotonic() - before)
            stopped = self._stop.acquire(timeout=max(rest, _SHORTEST_REST_S))
        self._ended.release()
