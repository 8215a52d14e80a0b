"""A handle on a process that keeps how it ended: pidfd_open(2).

From Linux 6.15 on it keeps the exit status for good (PIDFD_GET_INFO of
include/uapi/linux/pidfd.h), also of a process that is no child of ours.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info, version 0: mask, cgroup, 11 ids, exit_code."""
_INFO_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)."""


def open_pid(pid: int) -> int | None:
    """A pidfd, or None where the kernel or a sandbox refuses one."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def send(pidfd: int, number: signal.Signals) -> None:
    """Signal the process that the pidfd stands for: never another one that has its pid by now.

    Raises OSError, ProcessLookupError where it was reaped.
    """
    signal.pidfd_send_signal(pidfd, number)


def kept_status(pidfd: int | None) -> int | None:
    """The exit status, as wait(2) gives it, that the pidfd keeps of a process that was reaped."""
    if pidfd is None:
        return None
    request = bytearray(_INFO.size)
    _INFO.pack_into(request, 0, _INFO_EXIT, *([0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, request)
    except OSError:
        return None
    fields = _INFO.unpack(request)
    return int(fields[-1]) if fields[0] & _INFO_EXIT else None
