"""Starts COMMAND with the signals that the supervisor was itself started with."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hangwatch.errors import UsageError

STDERR = 2
SCARCE = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.E2BIG, errno.ENOSPC}
)
"""What start() may meet for want of what COMMAND alone would not have needed."""


class StarvedError(Exception):
    """There is not enough (processes, memory, files, room for variables) to run beside COMMAND."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Signal mask and SIGCHLD's disposition from before the supervisor changed them.

    The dispositions of all other signals are never touched, so what was
    ignored (``nohup``) stays ignored in COMMAND.
    """

    mask: set[signal.Signals | int]
    child: Any
    """What signal.getsignal returned; None where it was not set by Python."""

    @classmethod
    def block(cls, wanted: Collection[int]) -> Signals:
        """Block wanted and SIGCHLD, and return what was in force before.

        An ignored SIGCHLD would have the kernel throw exit codes away.
        """
        before = cls(
            set(signal.pthread_sigmask(signal.SIG_BLOCK, {*wanted, signal.SIGCHLD})),
            signal.getsignal(signal.SIGCHLD),
        )
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return before

    def restore(self) -> None:
        """Put back what was in force before; also for use between fork and exec."""
        if self.child is not None:
            signal.signal(signal.SIGCHLD, self.child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def forget(self) -> None:
        """Drop what has arrived and was not taken, and restore."""
        while signal.sigtimedwait(signal.valid_signals(), 0) is not None:
            pass
        self.restore()

    def hand_over(self, arrived: Iterable[int] = ()) -> None:
        """Restore between fork and exec, where Python must not handle SIGINT by itself.

        arrived: signals that were taken from what is to be started, which gets them now.
        """
        for number in arrived:
            os.kill(os.getpid(), number)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.restore()


def keep_streams_closed() -> None:
    """Have no file of ours take the place of a standard stream that is closed.

    The program that is started then finds it closed, as without us.
    """
    with suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= STDERR:
            pass
        os.close(fd)


def start(
    command: Sequence[str], environ: Mapping[str, str], before: Signals, arrived: Iterable[int] = ()
) -> subprocess.Popen[bytes]:
    """Start command in our process group, on our terminal, with our open files.

    arrived: signals that it is to have got before it runs. Raises UsageError, with what to
    do about it, if it cannot be started, and StarvedError where it may be started in the
    place of this process (become).
    """
    try:
        # The supervisor has no threads, so preexec_fn is safe here.
        return subprocess.Popen(  # noqa: S603 (running the user's command is the purpose)
            list(command),
            env=dict(environ),
            close_fds=False,
            preexec_fn=partial(before.hand_over, arrived),  # noqa: PLW1509 (see above)
        )
    except (MemoryError, subprocess.SubprocessError) as error:
        raise StarvedError(f"{type(error).__name__}: {error}".rstrip(": ")) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in SCARCE:
            raise StarvedError(error.strerror) from None
        raise UsageError(refusal(command, error, environ)) from None


def become(
    command: Sequence[str],
    environ: Mapping[str, str],
    before: Signals | None = None,
    arrived: Iterable[int] = (),
) -> NoReturn:
    """Become command, as if hangwatch were not there. Raises UsageError.

    before: the signals that this process was started with, where it has changed them.
    arrived: those that were taken meanwhile and are meant for command.
    """
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    if before:
        before.hand_over(arrived)
    try:
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 (the user's command)
    except (OSError, ValueError) as error:
        raise UsageError(refusal(command, error, environ)) from None


def refusal(command: Sequence[str], error: Exception, environ: Mapping[str, str]) -> str:
    """One line on why command cannot be started and what to do about it."""
    name = command[0]
    if not isinstance(error, OSError):
        return f"{name}: {error}"
    if error.filename not in {None, name}:
        return f"{error.filename}: {error.strerror}"
    if error.errno == errno.ENOEXEC:
        return f"{name} is not a program: start it with its interpreter, or give it a #! line"
    if error.errno == errno.EACCES:
        return _denied(name)
    if error.errno == errno.ENOENT:
        return _missing(name, environ)
    return f"{name} cannot be started: {error.strerror}"


def _denied(name: str) -> str:
    if Path(name).is_dir():
        return f"{name} is a directory: name the command to run"
    if name.endswith(".py"):
        return f"{name} is not executable: did you mean `python {name}`?"
    return f"{name} is not executable: `chmod +x` it, or name another command"


def _missing(name: str, environ: Mapping[str, str]) -> str:
    if "/" in name:
        return f"no such command: {name} (or its #! interpreter is missing)"
    if name.endswith(".py"):
        return f"command not found: {name}: did you mean `python {name}`?"
    if shutil.which(f"./{name}", path=environ.get("PATH")):
        return f"command not found: {name}: did you mean `./{name}`?"
    return f"command not found: {name}: is it installed, and on PATH?"
