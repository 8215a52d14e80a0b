"""``python -m hangwatch.launch.standalone``: the supervisor of ranks that started without one.

A rank starts it (agent/inject/unwrapped.py) and hands over the locks on the directory of the
run, and its standard error. It keeps the watchdog running as the supervisor does, but has
started none of the ranks: it finds them by their pages, and learns how they ended from the
kernel (evidence/exits.py). It ends with the last of them.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hangwatch.agent.environment import CARRIED, carried
from hangwatch.agent.inject.unwrapped import LOCK_FD, WATCH_FD
from hangwatch.console import fold_command, say
from hangwatch.errors import HangwatchError
from hangwatch.evidence.local_ranks import LocalRanks, launcher_of
from hangwatch.evidence.pages.reader import SUFFIX
from hangwatch.evidence.processes import command_words
from hangwatch.launch import timing
from hangwatch.launch.command import Signals
from hangwatch.launch.signals import ENDING
from hangwatch.launch.watchdog_process import WatchdogProcess, introduce, start_now
from hangwatch.model.codec import decode
from hangwatch.run import rundir
from hangwatch.run.handshake import Hello
from hangwatch.run.shared_run import WATCH, SharedRun
from hangwatch.safety.faultlog import log_fault
from hangwatch.settings.config import Config, read_config


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Have the ranks watched whose pages lie in a directory, until all have ended.

    arguments: the directory, and the pid of the rank that has started this.
    """
    for number in ENDING:  # meant for the job
        signal.signal(number, signal.SIG_IGN)
    for fd in (WATCH_FD, LOCK_FD):
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    with suppress(OSError, ValueError):  # a rank may be bound to its cores
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    run_dir, pid = arguments
    held = rundir.RunDir(Path(run_dir), LOCK_FD, shared=True)
    rundir.sweep(held.path.parent)
    supervisor = StandaloneSupervisor(held, dict(environ), int(pid), Signals.block(()))
    try:
        shared = SharedRun(held.path)
        shared.watch = WATCH_FD
        if shared.concluded():  # the rank came as the supervisor before was about to end
            supervisor.forget_ended_job()
        while supervisor.supervise(shared):
            shared = SharedRun(held.path)
            if not shared.take_watch():
                break  # a rank that has just started was quicker
            supervisor.forget_ended_job()
    except (HangwatchError, OSError) as error:
        say(f"the ranks of this node run unwatched: {error}")
        while supervisor.ranks.look():  # another with the watch would fail in the same way
            supervisor.ranks.wait(timing.RANKS_LOOK_S)
        return 1
    except Exception as error:  # noqa: BLE001 (an unforeseen error)
        log_fault(held.path, "the stand-alone supervisor", error)
        say(f"the ranks of this node run unwatched: {type(error).__name__}: {error}")
        return 1
    finally:
        held.remove()
    return 0


def find_settings(environ: Mapping[str, str]) -> tuple[Config, str]:
    """Return settings and run id, if any: of the supervisor on another node, else of variables.

    Raises HangwatchError.
    """
    packed = carried(environ)
    if isinstance(packed.get("config"), dict):
        return decode(Config, packed["config"]), str(packed.get("run_id") or "")
    settings = read_config({}, environ)
    return settings, settings.run_id


@dataclass(slots=True)
class StandaloneSupervisor:
    """The supervisor of the ranks of this node, in a run that others may share."""

    held: rundir.RunDir
    environ: dict[str, str]
    rank_pid: int
    """The rank that has started this, or one that has come later."""
    before: Signals
    """The signals to start the watchdog with."""
    ranks: LocalRanks = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = LocalRanks(self.held.path)

    def supervise(self, shared: SharedRun) -> bool:
        """Have the ranks watched until all of them have ended; True if others run by now.

        Lets go of the watch. Raises OSError.
        """
        self.ranks.look()
        shared.enter(launcher_of(self.rank_pid))
        watchdog = WatchdogProcess(
            self._hello(),
            {name: value for name, value in self.environ.items() if name != CARRIED},
            self.before,
            pass_fds=shared.watch_fds(),
        )
        watchdog.start()
        try:
            while self.ranks.look():
                self.ranks.wait(timing.RANKS_LOOK_S)
                watchdog.check()
            if not shared.leave(self.ranks.exit_code()):
                watchdog.let_go()  # supervisors of single ranks are here as well
                return False
            # The watchdog sees for itself that all have ended.
            deadline = time.monotonic() + timing.CONCLUDE_S
            while not watchdog.gone() and time.monotonic() < deadline:
                select.select((), (), (), timing.RANKS_LOOK_S)
        finally:
            watchdog.kill()
            shared.release_watch()
        return self.ranks.look()

    def forget_ended_job(self) -> None:
        """Delete the files of the job that is over, and keep those of the ranks that run now."""
        self.ranks.look()
        self.ranks.forget_ended()
        self.rank_pid = self.ranks.pids()[0] if self.ranks.pids() else self.rank_pid
        pages = {path.name for path in self.held.path.glob(f"*{SUFFIX}")}
        rundir.empty(self.held.path, keep={rundir.LOCK, WATCH, *pages})

    def _hello(self) -> Hello:
        """Make the message to the watchdog. Raises HangwatchError."""
        settings, run_id = find_settings(self.environ)
        command = command_words(self.rank_pid)
        program = [Path(word).name for word in command[:1]]
        return introduce(
            self.held,
            settings,
            self.environ,
            start=start_now(run_id),
            command=command,
            command_pid=self.rank_pid,
            watched=f"the ranks of {fold_command([*program, *command[1:]])} on this node",
            lost=[],
            option="HANGWATCH_REPORT_DIR",
            self_started=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
