"""Waits for blocked signals, and finds out who sent them.

signal.sigtimedwait() with a timeout is not fit for it: where the process is stopped
(SIGSTOP, as batch systems suspend a job) and goes on once the time is over, it returns what
happens to lie on its stack as if it were a signal (CPython up to 3.14 at least). So it is
asked only for what is there already, and signalfd(2) waits.

COMMAND runs in the supervisor's process group, as it would without hangwatch.
What reaches the whole group (Ctrl-C, ``kill -- -PGID``, timeout(1), a batch
system that signals every process of a job) reaches COMMAND as well and must not
be forwarded: torchrun takes a second SIGTERM as an order to stop cleaning up. A
signal carries no trace of how widely it was sent, so a child that does little
else waits in the group and reports each signal that it was sent too. If the supervisor is
killed, the child tidies up after it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

_SLICE_S = 0.02
"""Between two looks where there is no signalfd: too many files are open, or the libc is odd."""
_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_SIZE = 1024
"""Signals in a sigset_t, of glibc and of musl."""


def arrived(signals: Collection[int], timeout_s: float) -> signal.struct_siginfo | None:
    """Take the next of these signals, which are blocked; None where none came in time."""
    deadline = time.monotonic() + timeout_s
    while (info := signal.sigtimedwait(signals, 0)) is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return None
        _sleep(signals, left_s)
    return info


def _sleep(signals: Collection[int], timeout_s: float) -> None:
    """Wait until one of the signals is there, or less."""
    descriptor = _signalfd(signals)
    if descriptor < 0:
        time.sleep(min(timeout_s, _SLICE_S))
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * timeout_s)
    finally:
        os.close(descriptor)


def _signalfd(signals: Collection[int]) -> int:
    """A descriptor that can be read from when one of the signals is there, -1 if there is none."""
    mask = (ctypes.c_ulong * (_SIZE // _BITS))()
    for number in signals:
        mask[(number - 1) // _BITS] |= 1 << (number - 1) % _BITS
    try:
        made: int = ctypes.CDLL(None).signalfd(-1, mask, os.O_CLOEXEC)
    except (OSError, AttributeError):
        return -1
    return made


JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
"""Signals that stop a job, by which the shell takes the terminal back."""
_CANCELLED = {int(signal.SIGCONT): JOB_CONTROL} | {
    int(number): frozenset({signal.SIGCONT}) for number in JOB_CONTROL
}
"""What the kernel takes back where a process has not taken it yet as it is sent these."""
_RECORD = struct.Struct("=id")
GRACE_S = 0.05
"""How much later than the supervisor the witness may get the same signal: a
batch system signals one process after the other."""
STALE_S = 1.0
"""Older reports were not for the signal at hand."""
LATE_S = 5.0
"""How long a witness that gets no processor is waited for."""
LOOK_S = 0.005
"""Between two looks at one that is about to report."""
_RUNS = frozenset("RD")


class Witness:
    """The child. Make it before there are threads, with the signals blocked."""

    def __init__(
        self, signals: Collection[int], orphaned: Callable[[], object] = lambda: None
    ) -> None:
        """orphaned: what the child does once the supervisor has been killed."""
        self._seen: list[tuple[int, float]] = []
        self._owed: Counter[int] = Counter()
        """Reports to come of signals that were seen to wait for the child."""
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
        while True:
            # In this order: what it was not to be sent any more it has reported by then.
            state, pending = self._state()
            if not self._receive_what_is_there():
                return False
            if self._take(signum) or self._is_cancelled(signum, pending):
                return True
            # Of those below SIGRTMIN one waits at most: it may be the one before this.
            if pending >> (signum - 1) & 1 and (
                signum >= signal.SIGRTMIN or not self._owed[signum]
            ):
                self._owed[signum] += 1
                return True
            # While it runs it may have taken the signal and not have come to report it.
            bound_s = LATE_S if state in _RUNS else GRACE_S
            left = taken_at + bound_s - time.monotonic()
            if left <= 0:
                return False
            select.select([self._read], [], [], min(left, LOOK_S))

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
        for i, (seen, _) in enumerate(self._seen):
            if seen == signum:
                cancelled = _CANCELLED.get(signum, ())
                before = [one for one in self._seen[:i] if one[0] not in cancelled]
                self._seen = before + self._seen[i + 1 :]
                return True
        return False

    def _is_cancelled(self, signum: int, pending: int) -> bool:
        """Whether the group has been sent one since that takes the signal back.

        The child may not have taken it by then, and never will. Nor may COMMAND get it
        any more: it would go on where it was told to stop, or stop where it is to go on.
        """
        by = _CANCELLED.get(signum, ())
        return any(seen in by for seen, _ in self._seen) or any(
            pending >> (one - 1) & 1 and not self._owed[one] for one in by
        )

    def _state(self) -> tuple[str, int]:
        """The child's state, as in proc(5), and the mask of the signals that it is to take."""
        state, pending = "", 0
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{self.pid}/status").read_bytes().splitlines():
                name, _, value = line.partition(b":")
                if name == b"State":
                    state = value.split()[0].decode()
                elif name in (b"SigPnd", b"ShdPnd"):
                    pending |= int(value, 16)
        return state, pending

    def _receive_what_is_there(self) -> bool:
        """Read what was reported; False once the child is gone."""
        with suppress(BlockingIOError):
            while data := os.read(self._read, _RECORD.size * 64):
                whole = len(data) - len(data) % _RECORD.size
                for signum, at in _RECORD.iter_unpack(data[:whole]):
                    for one in _CANCELLED.get(signum, ()):
                        self._owed[one] = 0  # taken before, or not to be taken any more
                    if self._owed[signum]:
                        self._owed[signum] -= 1
                    else:
                        self._seen.append((signum, at))
            return False
        return True


def _watch(signals: Collection[int], write: int, parent: int) -> None:
    """Report signals until the parent is gone; holds no file but its pipe open."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names are wanted, not paths)
        if int(name) != write:
            with suppress(OSError):
                os.close(int(name))
    while os.getppid() == parent:
        info = arrived(signals, 1.0)
        if info is not None and os.getppid() == parent:
            os.write(write, _RECORD.pack(info.si_signo, time.monotonic()))
