"""Starts COMMAND with the signals that the supervisor was itself started with."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
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
