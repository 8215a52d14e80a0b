"""A thread of ours that runs something every so often, unseen by the user's program."""

from __future__ import annotations

import _thread
import os
import signal
import time
from typing import TYPE_CHECKING, Protocol

from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.guard import Guard

JOIN_S = 2.0
"""How long an ending interpreter waits for a run in progress."""
_SHORTEST_REST_S = 0.01


class Bell(Protocol):
    """What the thread waits at between two runs (see hangwatch/_native.pyi)."""

    def wait_for_request(self, seen: int, seconds: float) -> int: ...  # noqa: D102
    def ring(self) -> None: ...  # noqa: D102


_OF_A_THREAD = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
"""What a fault of a thread raises, for which the program may have handlers (faulthandler)."""


class LockBell:
    """A bell that only this process can ring."""

    def __init__(self) -> None:
        self._silent = _thread.allocate_lock()
        self._silent.acquire()

    def wait_for_request(self, seen: int, seconds: float) -> int:
        """Wait for at most so long; seen comes back, plus one if it rang."""
        return seen + self._silent.acquire(timeout=seconds)

    def ring(self) -> None:
        """End the wait, or the next one."""
        with Ignoring(RuntimeError):  # it has rung already
            self._silent.release()


class Periodic:
    """Calls run every period_s seconds, or when the bell rings; what it raises is the guard's.

    Started without the threading module: it shows up in no list of the user's
    threads, nobody joins it, and the user's tracing does not run in it.
    """

    def __init__(
        self, run: Callable[[], object], period_s: float, guard: Guard, bell: Bell | None = None
    ) -> None:
        self._run = run
        self._period_s = period_s
        self._guard = guard
        self._pid = os.getpid()
        self._bell = bell or LockBell()
        self._stopped = False
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        _thread.start_new_thread(self._loop, ())

    def stop(self) -> bool:
        """End the thread and wait for it, JOIN_S at most; False if it did not end. Once."""
        if self._pid != os.getpid():
            return True  # a fork's child has not inherited it
        self._stopped = True
        self._bell.ring()
        return self._ended.acquire(timeout=JOIN_S)

    def _loop(self) -> None:
        # The program may come to block a signal, and wait for it: this thread is not to take it.
        # By the thread itself: an exception amid that must not leave those of another one blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OF_A_THREAD)
        seen = 0
        while not self._stopped and self._guard.open:
            before = time.monotonic()
            with self._guard:
                self._run()
            rest = self._period_s - (time.monotonic() - before)
            seen = self._bell.wait_for_request(seen, max(rest, _SHORTEST_REST_S))
        self._ended.release()
