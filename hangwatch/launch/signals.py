"""Passes on to COMMAND the signals that the supervisor is sent, once each.

All signals that can be caught are blocked in the supervisor and taken one by one, so none of
them ends it and leaves COMMAND behind. COMMAND decides what they do: it has the mask and the
dispositions that the supervisor was started with.

COMMAND runs in the supervisor's process group, as it would without hangwatch. A signal to the
whole group (Ctrl-C, ``kill -- -PGID``, timeout(1), a batch system that signals every process
of a job) reaches COMMAND as well and must not be forwarded: torchrun takes a second SIGTERM as
an order to stop cleaning up. A signal carries no trace of how widely it was sent, so a child
process waits in the group and reports each signal that it was sent too (GroupObserver).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hangwatch.launch import timing

FORWARDED = frozenset(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""All but the two that no process can catch."""
JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
"""Signals that stop a job, by which the shell takes the terminal back."""
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Signals by which people and batch systems end a job."""
_OWN = frozenset({signal.SIGXCPU, signal.SIGXFSZ, signal.SIGPIPE})
"""Signals that the kernel sends for the supervisor's own deeds; COMMAND gets its own."""
_CANCELLED = {int(signal.SIGCONT): JOB_CONTROL} | {
    int(number): frozenset({signal.SIGCONT}) for number in JOB_CONTROL
}
"""Signal to those pending ones that the kernel discards when a process is sent it."""
_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_SIGSET_SIZE = 1024
"""Signals in a sigset_t, of glibc and of musl."""
_RECORD = struct.Struct("=id")
_RUNS = frozenset("RD")


def wait_for(signals: Collection[int], timeout_s: float) -> signal.struct_siginfo | None:
    """Take the next of these signals, which are blocked; None if none came in time.

    signal.sigtimedwait() is only asked for pending signals, and signalfd(2) waits: where the
    process is stopped (SIGSTOP, as batch systems suspend a job) and goes on once the time-out
    is over, sigtimedwait returns the garbage on its stack as a signal (CPython up to 3.14).
    """
    deadline = time.monotonic() + timeout_s
    while (info := signal.sigtimedwait(signals, 0)) is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return None
        _sleep(signals, left_s)
    return info


def _sleep(signals: Collection[int], timeout_s: float) -> None:
    """Wait until one of the signals is pending, or less."""
    descriptor = _signalfd(signals)
    if descriptor < 0:
        time.sleep(min(timeout_s, timing.SIGNAL_LOOK_S))
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * timeout_s)
    finally:
        os.close(descriptor)


def _signalfd(signals: Collection[int]) -> int:
    """Return a descriptor that is readable once one of the signals is pending, -1 for none."""
    mask = (ctypes.c_ulong * (_SIGSET_SIZE // _BITS))()
    for number in signals:
        mask[(number - 1) // _BITS] |= 1 << (number - 1) % _BITS
    try:
        made: int = ctypes.CDLL(None).signalfd(-1, mask, os.O_CLOEXEC)
    except (OSError, AttributeError):
        return -1
    return made


def take_pending(signals: Collection[int]) -> list[signal.struct_siginfo]:
    """Take all pending ones of these signals."""
    found = []
    while (info := signal.sigtimedwait(signals, 0)) is not None:
        found.append(info)
    return found


@dataclass(slots=True)
class Forwarder:
    """Passes signals on, from before COMMAND is started until it has ended."""

    observer: GroupObserver | None = None
    early: list[int] = field(default_factory=list)
    """Signals from before COMMAND, which is started with them pending."""
    early_stops: list[int] = field(default_factory=list)
    """Stop signals among them: a process that has not become COMMAND yet must not stop."""
    stop_asked: float | None = None
    """time.monotonic() of a stop signal that COMMAND may be about to follow."""
    asked_to_end_ns: int = 0
    """time.monotonic_ns() of the last signal by which COMMAND was asked to end, 0 for none."""

    def before_start(self) -> None:
        """Keep the signals that have arrived for COMMAND.

        None of them has reached COMMAND, even if the whole group was sent it.
        """
        early = [info.si_signo for info in take_pending(FORWARDED) if _is_from_outside(info)]
        began = time.monotonic()
        for number in early:
            if self.observer:
                self.observer.saw(number, began)
        self.early += [number for number in early if number not in JOB_CONTROL]
        self.early_stops += [number for number in early if number in JOB_CONTROL]

    def after_start(self, child: subprocess.Popen[bytes]) -> None:
        """Stop COMMAND if that was asked for before it was started."""
        for number in self.early_stops:
            self.stop_asked = time.monotonic()
            _send(child, number)

    def wait(self, child: subprocess.Popen[bytes], timeout_s: float) -> None:
        """Wait for signals or a change of COMMAND's state, and pass them on."""
        first = wait_for(FORWARDED, timeout_s)
        infos = [first, *take_pending(FORWARDED)] if first else []
        began = time.monotonic()
        for info in infos:
            if _is_from_outside(info):
                self._pass_on(child, info, began)
        self._follow_stop(child)

    def _pass_on(
        self, child: subprocess.Popen[bytes], info: signal.struct_siginfo, began: float
    ) -> None:
        number = info.si_signo
        if number in JOB_CONTROL:
            self.stop_asked = began
        elif number == signal.SIGCONT:
            self.stop_asked = None
        elif number in ENDING:
            self.asked_to_end_ns = time.monotonic_ns()
        # Without an observer, SI_KERNEL (> 0): the terminal's driver (sigaction(2)).
        for_group = self.observer.saw(number, began) if self.observer else info.si_code > 0
        if not for_group:
            _send(child, number)

    def _follow_stop(self, child: subprocess.Popen[bytes]) -> None:
        """Stop too if COMMAND was stopped by job control, so that the shell sees it.

        Not if COMMAND alone was stopped, and may be woken alone again: the supervisor would
        sleep on. In the foreground of a terminal only the shell can wake it, and does so once
        it sees that the job has stopped.
        """
        if child.returncode is not None:
            return
        try:
            change = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:
            return
        if change is None:
            return
        asked, self.stop_asked = self.stop_asked, None
        if change.si_code == os.CLD_CONTINUED:
            return
        followed = asked is not None and time.monotonic() - asked < timing.STOP_FOLLOWS_S
        if followed or (change.si_status in JOB_CONTROL and _in_foreground()):
            stop(change.si_status)


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(OSError):  # it has changed its user (sudo), and is out of our reach
        child.send_signal(number)


def stop(number: int) -> None:
    """Stop this process by a blocked signal, unless a SIGCONT is pending."""
    if signal.SIGCONT in signal.sigpending():
        return
    os.kill(os.getpid(), number)
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number} - {signal.SIGSTOP})
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_foreground() -> bool:
    """Return True if this process group has the controlling terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _is_from_outside(info: signal.struct_siginfo) -> bool:
    """Return False for a signal that the kernel sent on account of the supervisor."""
    if info.si_signo == signal.SIGCHLD:
        return info.si_code <= 0  # CLD_EXITED and its like are above (sigaction(2))
    if info.si_signo in _OWN:
        return info.si_code <= 0 and info.si_pid != os.getpid()
    return True


def reap_adopted(own: dict[int, Callable[[], object]]) -> None:
    """Collect processes that lost their parent and were given to this one.

    The first process of a container gets them, and a subreaper. own: pid to what collects
    it, of processes whose exit codes are needed elsewhere.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        collect = own.pop(ended.si_pid, None)
        if collect:
            collect()
        else:
            with suppress(ChildProcessError):
                os.waitpid(ended.si_pid, os.WNOHANG)


class GroupObserver:
    """A child process that reports each signal that the process group was sent.

    Make it before there are threads, with the signals blocked. If the supervisor is killed,
    the child calls orphaned().
    """

    def __init__(
        self, signals: Collection[int], orphaned: Callable[[], object] = lambda: None
    ) -> None:
        self._seen: list[tuple[int, float]] = []
        self._owed: Counter[int] = Counter()
        """Reports to come of signals that were seen pending in the child."""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _observe(signals, write, parent)
                orphaned()
            finally:
                os._exit(0)
        os.close(write)
        self._collected = False

    def saw(self, signum: int, taken_at: float) -> bool:
        """Return True if the signal that the supervisor took was sent to the group.

        taken_at: time.monotonic() when it was taken; one time for signals taken together.
        """
        while True:
            # In this order: a signal that is not pending any more has been reported by then.
            state, pending = self._state()
            owed = self._owed.copy()
            if not self._receive():
                return False
            if self._owed != owed:
                continue  # what was pending may have been reported since
            if self._take(signum) or self._is_cancelled(signum, pending):
                return True
            # Of those below SIGRTMIN one is pending at most: it may be the one before this.
            if pending >> (signum - 1) & 1 and (
                signum >= signal.SIGRTMIN or not self._owed[signum]
            ):
                self._owed[signum] += 1
                return True
            # While it runs it may have taken the signal, and not have reported it yet.
            bound_s = timing.LATE_S if state in _RUNS else timing.GRACE_S
            left = taken_at + bound_s - time.monotonic()
            if left <= 0:
                return False
            select.select([self._read], [], [], min(left, timing.REPORT_LOOK_S))

    def reap(self) -> None:
        """Collect the child if it has ended; its pid may then be another process's."""
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
        self._seen = [(seen, at) for seen, at in self._seen if now - at < timing.STALE_S]
        for i, (seen, _) in enumerate(self._seen):
            if seen == signum:
                cancelled = _CANCELLED.get(signum, ())
                before = [earlier for earlier in self._seen[:i] if earlier[0] not in cancelled]
                self._seen = before + self._seen[i + 1 :]
                return True
        return False

    def _is_cancelled(self, signum: int, pending: int) -> bool:
        """Return True if the group has been sent a later signal that discards this one.

        The child may not have taken it by then, and never will. Nor may COMMAND get it
        any more: it would go on where it was asked to stop, or stop where it is to go on.
        """
        by = _CANCELLED.get(signum, ())
        return any(seen in by for seen, _ in self._seen) or any(
            pending >> (number - 1) & 1 and not self._owed[number] for number in by
        )

    def _state(self) -> tuple[str, int]:
        """Return the child's state, as in proc(5), and the mask of its pending signals."""
        state, pending = "", 0
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{self.pid}/status").read_bytes().splitlines():
                name, _, value = line.partition(b":")
                if name == b"State":
                    state = value.split()[0].decode()
                elif name in (b"SigPnd", b"ShdPnd"):
                    pending |= int(value, 16)
        return state, pending

    def _receive(self) -> bool:
        """Read all reports there are; False once the child is gone."""
        with suppress(BlockingIOError):
            while data := os.read(self._read, _RECORD.size * 64):
                whole = len(data) - len(data) % _RECORD.size
                for signum, at in _RECORD.iter_unpack(data[:whole]):
                    for number in _CANCELLED.get(signum, ()):
                        self._owed[number] = 0  # taken before, or discarded
                    if self._owed[signum]:
                        self._owed[signum] -= 1
                    else:
                        self._seen.append((signum, at))
            return False
        return True


def _observe(signals: Collection[int], write: int, parent: int) -> None:
    """Report signals until the parent is gone; holds no file but its pipe open."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names are wanted, not paths)
        if int(name) != write:
            with suppress(OSError):
                os.close(int(name))
    while os.getppid() == parent:
        info = wait_for(signals, timing.ORPHANED_LOOK_S)
        if info is not None and os.getppid() == parent:
            os.write(write, _RECORD.pack(info.si_signo, time.monotonic()))
