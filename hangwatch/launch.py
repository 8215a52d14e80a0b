"""Starts COMMAND with the signals that the supervisor was itself started with."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hangwatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


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
    def block(cls, wanted: Collection[signal.Signals]) -> Signals:
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


def start(
    command: Sequence[str], environ: Mapping[str, str], before: Signals
) -> subprocess.Popen[bytes]:
    """Start command in our process group, on our terminal, with our open files.

    Raises UsageError, with what to do about it, if it cannot be started.
    """
    try:
        # The supervisor has no threads, so preexec_fn is safe here.
        return subprocess.Popen(  # noqa: S603 (running the user's command is the purpose)
            list(command),
            env=dict(environ),
            close_fds=False,
            preexec_fn=before.restore,  # noqa: PLW1509 (see above)
        )
    except (OSError, ValueError) as error:
        raise UsageError(refusal(command, error, environ)) from None


def refusal(command: Sequence[str], error: Exception, environ: Mapping[str, str]) -> str:
    """One line on why command cannot be started and what to do about it."""
    name = command[0]
    if not isinstance(error, OSError):
        return f"{name}: {error}"
    if error.filename is not None and error.filename != name:
        return f"{error.filename}: {error.strerror}"
    if error.errno == errno.ENOEXEC:
        return f"{name} is not a program: start it with its interpreter, or give it a #! line"
    if error.errno == errno.EACCES and os.path.isdir(name):  # noqa: PTH112 (no Path in the supervisor's hot start)
        return f"{name} is a directory: name the command to run"
    if error.errno == errno.EACCES and name.endswith(".py"):
        return f"{name} is not executable: did you mean `python {name}`?"
    if error.errno == errno.EACCES:
        return f"{name} is not executable: `chmod +x` it, or name another command"
    if error.errno == errno.ENOENT and "/" not in name:
        found = shutil.which(f"./{name}", path=environ.get("PATH"))
        hint = f"did you mean `./{name}`?" if found else "is it installed, and on PATH?"
        if name.endswith(".py"):
            hint = f"did you mean `python {name}`?"
        return f"command not found: {name}: {hint}"
    if error.errno == errno.ENOENT:
        return f"no such command: {name} (or its #! interpreter is missing)"
    return f"{name} cannot be started: {error.strerror}"
