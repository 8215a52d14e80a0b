"""Passes on to COMMAND what the supervisor is sent, as if it had been sent to COMMAND.

All signals that can be caught are blocked in the supervisor and taken one by one
(signal_origin.py), so none of them ends it and leaves COMMAND behind. COMMAND decides what
they do: it has the mask and the dispositions that the supervisor was started with. What
the whole process group was sent COMMAND has got by itself (signal_origin.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from hangwatch.launch.signal_origin import JOB_CONTROL, Witness, arrived

FORWARDED = frozenset(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""All but the two that no process can catch."""
ITS_OWN = frozenset({signal.SIGXCPU, signal.SIGXFSZ, signal.SIGPIPE})
"""What the kernel sends for what the supervisor itself did; COMMAND gets its own."""
IMPATIENT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""By which people and batch systems end a job."""
FOLLOWS_S = 5.0
"""How long COMMAND may tidy up (its terminal) before it stops as it was asked to."""


@dataclass(slots=True)
class Relay:
    """What arrives at the supervisor, from before COMMAND is started until it has ended."""

    witness: Witness | None = None
    early: list[int] = field(default_factory=list)
    """What arrived before there was a COMMAND, which is started with it."""
    early_stops: list[int] = field(default_factory=list)
    """The same that stop a process: one that has not become COMMAND yet must not stop."""
    stop_asked: float | None = None
    """time.monotonic() of a stop signal that COMMAND may be about to follow."""
    asked_to_end_ns: int = 0
    """time.monotonic_ns() of the last signal by which COMMAND was asked to end, 0 for none."""

    def before_start(self) -> None:
        """Keep what has arrived for COMMAND, which is to be started with it.

        Nothing of it has reached COMMAND, even where the whole group was sent it.
        """
        early = [info.si_signo for info in taken(FORWARDED) if _is_from_outside(info)]
        began = time.monotonic()
        for number in early:
            if self.witness:
                self.witness.saw(number, began)
        self.early += [number for number in early if number not in JOB_CONTROL]
        self.early_stops += [number for number in early if number in JOB_CONTROL]

    def after_start(self, child: subprocess.Popen[bytes]) -> None:
        """Have COMMAND stop if that is what was asked for before it was there."""
        for number in self.early_stops:
            self.stop_asked = time.monotonic()
            self._send(child, number)

    def wait(self, child: subprocess.Popen[bytes], timeout_s: float) -> None:
        """Wait for signals or a change of COMMAND's state, and pass them on."""
        first = arrived(FORWARDED, timeout_s)
        infos = [first, *taken(FORWARDED)] if first else []
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
        elif number in IMPATIENT:
            self.asked_to_end_ns = time.monotonic_ns()
        if not self._was_for_all(info, began):
            self._send(child, number)

    def _was_for_all(self, info: signal.struct_siginfo, began: float) -> bool:
        """Whether the signal was sent to the process group, and so to COMMAND too."""
        if self.witness:
            return self.witness.saw(info.si_signo, began)
        return info.si_code > 0  # SI_KERNEL: the terminal's driver (sigaction(2))

    def _send(self, child: subprocess.Popen[bytes], number: int) -> None:
        with suppress(OSError):  # it has changed its user (sudo), and is out of our reach
            child.send_signal(number)

    def _follow_stop(self, child: subprocess.Popen[bytes]) -> None:
        """Stop too where COMMAND was stopped by job control, so that the shell sees it.

        Not where somebody has stopped COMMAND alone, who may wake it alone again: the
        supervisor would sleep on. In the foreground of a terminal only the shell can
        wake it, and does so once it sees that the job has stopped.
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
        followed = asked is not None and time.monotonic() - asked < FOLLOWS_S
        if followed or (change.si_status in JOB_CONTROL and in_foreground()):
            stop(change.si_status)


def stop(number: int = signal.SIGTSTP) -> None:
    """Stop this process by a signal that is blocked, unless it was told to go on by now."""
    if signal.SIGCONT in signal.sigpending():
        return
    os.kill(os.getpid(), number)
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number} - {signal.SIGSTOP})
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_foreground() -> bool:
    """Whether the controlling terminal is ours, and so nobody else's."""
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


def taken(signals: Collection[int]) -> list[signal.struct_siginfo]:
    """The signals that wait to be taken."""
    found = []
    while (info := signal.sigtimedwait(signals, 0)) is not None:
        found.append(info)
    return found


def _is_from_outside(info: signal.struct_siginfo) -> bool:
    """Whether somebody else sent it, and not the kernel on account of the supervisor."""
    if info.si_signo == signal.SIGCHLD:
        return info.si_code <= 0  # CLD_EXITED and its like are above (sigaction(2))
    if info.si_signo in ITS_OWN:
        return info.si_code <= 0 and info.si_pid != os.getpid()
    return True


def reap_adopted(own: dict[int, Callable[[], object]]) -> None:
    """Collect processes that have lost their parent, where they are given to this one.

    So it is for the first process of a container, and for a subreaper. own: pid to what
    collects it, of those whose exit codes others wait for.
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
