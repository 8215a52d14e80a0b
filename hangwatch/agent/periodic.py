"""A thread of ours that runs something every so often, unseen by the user's program."""

from __future__ import annotations

import _thread
import os
import signal
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.guard import Guard

JOIN_S = 2.0
"""Longest time that an ending interpreter waits for a run in progress."""
_SHORTEST_REST_S = 0.01
_LISTENS_EVERY_S = 0.05


class Bell(Protocol):
    """Wakes the thread between two runs, and holds the collector (see hangwatch/_native.pyi)."""

    def wait_for_request(self, seen: int, seconds: float) -> int: ...  # noqa: D102
    def watch_collector(self) -> None: ...  # noqa: D102
    def hold_collector(self) -> None: ...  # noqa: D102
    def let_collect(self) -> None: ...  # noqa: D102
    def ring(self) -> None: ...  # noqa: D102


_OF_A_THREAD = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
"""Signals of a thread's own faults, for which the program may have handlers (faulthandler)."""


class FlagBell:
    """A bell that only this process can ring.

    It leaves the collector alone: Python alone cannot hold it without undoing what the program does
    with it meanwhile, which does more harm than a finalizer in the thread of the sampler.
    """

    def __init__(self) -> None:
        self._rung = False

    def watch_collector(self) -> None:
        """Do nothing, as the next two."""

    def hold_collector(self) -> None:  # noqa: D102
        pass

    def let_collect(self) -> None:  # noqa: D102
        pass

    def wait_for_request(self, seen: int, seconds: float) -> int:
        """Wait for at most ``seconds``; return ``seen``, plus one if it rang."""
        end = time.monotonic() + seconds
        while not self._rung:
            rest = end - time.monotonic()
            if rest <= 0:
                return seen
            time.sleep(min(rest, _LISTENS_EVERY_S))
        self._rung = False
        return seen + 1

    def ring(self) -> None:
        """End the wait, or the next one."""
        self._rung = True


class Periodic:
    """Calls run every period_s seconds, or when the bell rings; what it raises is the guard's.

    Started without the threading module: it shows up in no list of the user's
    threads, nothing joins it, and the user's tracing does not run in it. Nor do the
    user's finalizers: Python collects garbage in the thread that makes more objects than
    its threshold, and what they close may be another thread's (sqlite3, Tk). So the bell
    holds the collector while this one works, and it makes none while it waits.
    """

    def __init__(
        self, run: Callable[[], object], period_s: float, guard: Guard, bell: Bell | None = None
    ) -> None:
        self._run = run
        self._period_s = period_s
        self._guard = guard
        self._pid = os.getpid()
        self._bell = bell or FlagBell()
        self._stopped = False
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._bell.watch_collector()
        os.register_at_fork(after_in_child=self._bell.let_collect)
        _thread.start_new_thread(self._loop, ())

    def stop(self) -> bool:
        """End the thread and wait for it, JOIN_S at most; False if it did not end. Once."""
        if self._pid != os.getpid():
            return True  # a fork's child has not inherited it
        self._stopped = True
        self._bell.ring()
        return self._ended.acquire(timeout=JOIN_S)

    def _loop(self) -> None:
        # The program may block a signal later, and wait for it: this thread is not to take it.
        # By the thread itself: an exception amid that must not leave those of another one blocked.
        self._bell.hold_collector()
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OF_A_THREAD)
        finally:
            self._bell.let_collect()
        seen = 0
        while not self._stopped and self._guard.open:
            self._bell.hold_collector()
            try:
                before = time.monotonic()
                with self._guard:
                    self._run()
                rest = self._period_s - (time.monotonic() - before)
                rest = max(rest, _SHORTEST_REST_S)
            finally:
                self._bell.let_collect()
            seen = self._bell.wait_for_request(seen, rest)
        self._ended.release()
