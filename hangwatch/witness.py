"""Tells a signal for the supervisor alone from one for its whole process group.

COMMAND runs in the supervisor's process group, as it would without hangwatch.
What reaches the whole group (Ctrl-C, ``kill -- -PGID``, timeout(1), a batch
system that signals every process of a job) reaches COMMAND as well and must not
be forwarded: torchrun takes a second SIGTERM as an order to stop cleaning up. A
signal carries no trace of how widely it was sent, so a child that does little
else waits in the group and reports each signal that it was sent too. If the supervisor is
killed, the child tidies up after it.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_RECORD = struct.Struct("=id")
GRACE_S = 0.05
"""How much later than the supervisor the witness may get the same signal: a
batch system signals one process after the other."""
STALE_S = 1.0
"""Older reports were not for the signal at hand."""


class Witness:
    """The child. Make it before there are threads, with the signals blocked."""

    def __init__(
        self, signals: Collection[int], orphaned: Callable[[], None] = lambda: None
    ) -> None:
        """orphaned: what the child does once the supervisor has been killed."""
        self._seen: list[tuple[int, float]] = []
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _watch(signals, write, parent)
                orphaned()
            finally:
                os._exit(0)
        os.close(write)
        self._collected = False

    def saw(self, signum: int, taken_at: float) -> bool:
        """Whether the group was sent the signal that we were sent.

        taken_at: time.monotonic() when we took it; for some that came together the same.
        """
        deadline = taken_at + GRACE_S
        self._receive_what_is_there()
        while not self._take(signum):
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._read], [], [], left)
            if not ready or not self._receive():
                return False
        return True

    def reap(self) -> None:
        """Collect the child, if it has ended; its pid may then be somebody else's."""
        if not self._collected:
            self._collected = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid

    def close(self) -> None:
        """End the child; never raises."""
        if not self._collected:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(self.pid, 0)
            self._collected = True
        os.close(self._read)

    def _take(self, signum: int) -> bool:
        now = time.monotonic()
        self._seen = [(seen, at) for seen, at in self._seen if now - at < STALE_S]
        for record in self._seen:
            if record[0] == signum:
                self._seen.remove(record)
                return True
        return False

    def _receive_what_is_there(self) -> None:
        with suppress(BlockingIOError):
            while self._receive():
                pass

    def _receive(self) -> bool:
        """Read what was reported; False once the child is gone."""
        data = os.read(self._read, _RECORD.size * 64)
        whole = len(data) - len(data) % _RECORD.size
        self._seen.extend(_RECORD.iter_unpack(data[:whole]))
        return bool(data)


def _watch(signals: Collection[int], write: int, parent: int) -> None:
    """Report signals until the parent is gone; holds no file but its pipe open."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names are wanted, not paths)
        if int(name) != write:
            with suppress(OSError):
                os.close(int(name))
    while os.getppid() == parent:
        info = signal.sigtimedwait(signals, 1.0)
        if info is not None and os.getppid() == parent:
            os.write(write, _RECORD.pack(info.si_signo, time.monotonic()))
