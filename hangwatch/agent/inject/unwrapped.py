"""Starts the watchdog from a rank where the job was not launched through ``hangwatch``.

A launcher on another node has started the ranks here and carried PYTHONPATH along,
or a pod template or a batch system has set it. The ranks of one job then meet in a
directory named by what they all know (run/launchers.py), and one of them starts the
stand-alone supervisor (launch/standalone.py): the rank that gets the lock on the file
``watch`` there. It hands the lock over, so that a node has one supervisor.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TYPE_CHECKING

from hangwatch.agent.environment import (
    SUPERVISOR_PID,
    outside_environment,
    package_directory,
)
from hangwatch.agent.inject import rank as ranks
from hangwatch.run import rundir
from hangwatch.run.launchers import shared_name
from hangwatch.run.shared_run import WATCH
from hangwatch.safety import untrusted
from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangwatch.run.rundir import RunDir

PROGRAM = ("-P", "-m", "hangwatch.launch.standalone")
WATCH_FD, LOCK_FD = 3, 4
"""File descriptors of the locks that are handed over to the supervisor."""
_SAFE_FD = 10
"""Lowest number for a copy of a lock's descriptor: none is where another has to go."""
_DETACH = """\
import os, sys
os.setsid()
if os.fork():
    os._exit(0)
for name in os.listdir("/proc/self/fd"):
    if int(name) > 4:
        try:
            os.close(int(name))
        except OSError:
            pass
os.execv(sys.argv[1], sys.argv[1:])
"""
"""The supervisor is no child of the rank, whose launcher ends all those, and holds none of its
files: a socket that stayed open would hide from the peers that the rank is gone. Open ones are
closed one by one: there may be a thousand million numbers, and the rank waits for this."""
_OF_THE_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
"""Variables by which a process is taken for a rank."""


class Unwrapped:
    """The part of one rank in having its node watched."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._held: RunDir | None = None

    def join(self, meeting: str = "") -> str:
        """Make or find the directory for the pages of this node's ranks. Raises OSError.

        meeting: the URL by which the ranks find each other where the environment
        does not say it. see_to_watch() is to follow, which lets go of the directory.
        """
        base = dict(self._environ)
        if SUPERVISOR_PID in base:
            base.pop("HANGWATCH_DIR", None)  # the directory of a run, on another node
        self._held = rundir.join(self._name(meeting), base)
        return str(self._held.path)

    def see_to_watch(self, *, wanted: bool) -> None:
        """Start the supervisor unless there is one. To be called once the page is there.

        In this order, since a supervisor that is about to end looks for pages once more
        after it has let go of the lock. wanted: whether there is a page. Raises OSError.
        """
        held, self._held = self._held, None
        if held is None:
            return
        try:
            if not wanted:
                return
            watch = untrusted.open_ours(held.path / WATCH, create=True)
            try:
                with Ignoring(BlockingIOError):
                    fcntl.flock(watch, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._start(held, watch)
            finally:
                os.close(watch)
        finally:
            os.close(held.lock)

    def _name(self, meeting: str) -> str:
        run_id = ranks.named_run(self._environ)
        if not (self._environ.get("MASTER_ADDR") and self._environ.get("MASTER_PORT")):
            parent = os.getppid()
            # The first process of a container has none that could be seen.
            since = ranks.start_ticks(parent) if parent else 0
            return shared_name(self._environ, run_id, meeting or f"{parent}-{since}")
        return shared_name(self._environ, run_id)

    def _start(self, held: RunDir, watch: int) -> None:
        python = interpreter(package_directory())
        environ = outside_environment(self._environ)
        for name in _OF_THE_RANK:
            environ.pop(name, None)
        command = [python, *PROGRAM, str(held.path), str(os.getpid())]
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _SAFE_FD) for fd in (watch, held.lock)]
        try:
            # Not fork(): the process has threads, and may be a large one.
            child = os.posix_spawn(
                python,
                [python, "-I", "-S", "-c", _DETACH, *command],
                environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, copies[0], WATCH_FD),
                    (os.POSIX_SPAWN_DUP2, copies[1], LOCK_FD),
                ],
                setsigmask=[],
            )
        finally:
            for fd in copies:
                os.close(fd)
        with Ignoring(ChildProcessError):  # the program reaps all its children, or ignores SIGCHLD
            os.waitpid(child, 0)


def interpreter(package: str) -> str:
    """Return the Python that has what the watchdog imports. Raises FileNotFoundError.

    That of the environment which hangwatch is installed in, which need not be the
    job's; from a source tree the job's own.
    """
    home = os.path.dirname(package)
    if os.path.basename(home) == "site-packages":
        prefix = os.path.dirname(os.path.dirname(os.path.dirname(home)))
        theirs = os.path.join(prefix, "bin", "python3")
        if os.path.realpath(prefix) != os.path.realpath(sys.prefix) and os.access(theirs, os.X_OK):
            return theirs
    if not sys.executable:
        raise FileNotFoundError("no Python to run the watchdog with is known")
    return sys.executable
