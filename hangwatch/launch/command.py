"""Starts COMMAND with the signal mask and dispositions that the supervisor got."""

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
"""Errors of a start that COMMAND alone, without a process next to it, might not meet."""


class StarvedError(Exception):
    """Too few processes, files, memory or bytes for variables to run next to COMMAND."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Signal mask and SIGCHLD's disposition from before the supervisor changed them.

    The dispositions of all other signals are never touched, so an ignored
    signal (``nohup``) stays ignored in COMMAND.
    """

    mask: set[signal.Signals | int]
    child: Any
    """As signal.getsignal returned it; None if it was not set by Python."""

    @classmethod
    def block(cls, wanted: Collection[int]) -> Signals:
        """Block wanted and SIGCHLD, and return mask and disposition from before.

        An ignored SIGCHLD would have the kernel throw exit codes away.
        """
        before = cls(
            set(signal.pthread_sigmask(signal.SIG_BLOCK, {*wanted, signal.SIGCHLD})),
            signal.getsignal(signal.SIGCHLD),
        )
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return before

    def restore(self) -> None:
        """Restore mask and disposition; also for use between fork and exec."""
        if self.child is not None:
            signal.signal(signal.SIGCHLD, self.child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def forget(self) -> None:
        """Drop pending signals, and restore."""
        while signal.sigtimedwait(signal.valid_signals(), 0) is not None:
            pass
        self.restore()

    def hand_over(self, arrived: Iterable[int] = ()) -> None:
        """Restore between fork and exec, where Python must not handle SIGINT by itself.

        arrived: signals for the program that is started; it has them pending.
        """
        for number in arrived:
            os.kill(os.getpid(), number)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.restore()


def keep_streams_closed() -> None:
    """Keep our files off the descriptors of standard streams that are closed.

    COMMAND then finds them closed, as it would without us.
    """
    with suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= STDERR:
            pass
        os.close(fd)


def start(
    command: Sequence[str], environ: Mapping[str, str], before: Signals, arrived: Iterable[int] = ()
) -> subprocess.Popen[bytes]:
    """Start command in our process group, on our terminal, with our open files.

    arrived: signals that it is to have pending. Raises UsageError, which names a remedy, if it
    cannot be started, and StarvedError if it could be started in place of this process (become).
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

    before: the signals that this process was started with, if it has changed them.
    arrived: as for start().
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
    """Return one line that says why command cannot be started, and names a remedy."""
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
