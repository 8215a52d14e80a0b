"""Waits for blocked signals, also where this process is stopped meanwhile.

signal.sigtimedwait() with a timeout is not fit for it: where the process is stopped
(SIGSTOP, as batch systems suspend a job) and goes on once the time is over, it returns what
happens to lie on its stack as if it were a signal (CPython up to 3.14 at least). So it is
asked only for what is there already, and signalfd(2) waits.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Collection

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
