"""``python -m hangwatch.launch.standalone``: a rank starts it where no supervisor runs.

It keeps the watchdog running beside the ranks as the supervisor does beside its
command, but has started none of them: it finds them by their pages, and learns how
they ended from the kernel (evidence/exits.py). It ends with the last of them. A rank has
handed it the locks on the directory of the run (agent/inject/unwrapped.py), and its standard
error.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hangwatch import __version__
from hangwatch.agent.environment import CARRIED, carried
from hangwatch.agent.inject.unwrapped import LOCK_FD, WATCH_FD
from hangwatch.console import fold_command, say
from hangwatch.errors import HangwatchError, ReportError
from hangwatch.evidence.local_ranks import LocalRanks, launcher_of
from hangwatch.evidence.page import SUFFIX
from hangwatch.evidence.processes import command_words
from hangwatch.launch.command import Signals
from hangwatch.launch.handshake import greeting
from hangwatch.launch.watchdog_process import Guardian
from hangwatch.report.files import open_run
from hangwatch.run import rundir, runfacts
from hangwatch.run.peers import CONCLUDED, WATCH, Companions
from hangwatch.safety.faultlog import log_fault
from hangwatch.settings import options
from hangwatch.settings.config import Config, hook_trouble, new_run_id

LOOK_S = 0.2
"""Between two looks at the ranks and the watchdog."""
FAREWELL_S = 15.0
"""How long the watchdog may take to write its report after the last rank has ended."""
MEANT_FOR_THE_JOB = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Watch over the ranks whose pages lie in a directory until all have ended.

    arguments: the directory, and the pid of the rank that has started this.
    """
    for number in MEANT_FOR_THE_JOB:
        signal.signal(number, signal.SIG_IGN)
    for fd in (WATCH_FD, LOCK_FD):
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    with suppress(OSError, ValueError):  # a rank may be bound to its cores
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    run_dir, pid = arguments
    held = rundir.RunDir(Path(run_dir), LOCK_FD, shared=True)
    rundir.sweep(held.path.parent)
    caretaker = Caretaker(held, dict(environ), int(pid), Signals.block(()))
    try:
        companions = Companions(held.path)
        companions.watch = WATCH_FD
        if (held.path / CONCLUDED).exists():  # a rank came as the one before was about to end
            caretaker.start_afresh()
        while caretaker.take_care(companions):
            companions = Companions(held.path)
            if not companions.take_watch():
                break  # a rank that has just started was quicker
            caretaker.start_afresh()
    except (HangwatchError, OSError) as error:
        say(f"the ranks of this node run unwatched: {error}")
        while caretaker.ranks.look():  # whoever took the watch now would say the same
            caretaker.ranks.wait(LOOK_S)
        return 1
    except Exception as error:  # noqa: BLE001 (an error that nobody has thought of)
        log_fault(held.path, "the caretaker", error)
        say(f"the ranks of this node run unwatched: {type(error).__name__}: {error}")
        return 1
    finally:
        held.remove()
    return 0


def told(environ: Mapping[str, str]) -> tuple[Config, str]:
    """The settings and the run id: those of the supervisor on another node, or variables.

    Raises UsageError.
    """
    packed = carried(environ)
    if isinstance(packed.get("config"), dict):
        return Config.from_dict(packed["config"]), str(packed.get("run_id") or new_run_id())
    settings = options.settings({}, environ)
    return settings, settings.run_id or new_run_id()


@dataclass(slots=True)
class Caretaker:
    """Stands in for the supervisor of the ranks on this node."""

    held: rundir.RunDir
    environ: dict[str, str]
    rank_pid: int
    """Of a rank: the one that has started this, or one that has come later."""
    before: Signals
    """What the watchdog is to be started with."""
    ranks: LocalRanks = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = LocalRanks(self.held.path)

    def take_care(self, companions: Companions) -> bool:
        """Have the ranks watched until all of them have ended; whether others run by now.

        Lets go of the watch. Raises OSError.
        """
        self.ranks.look()
        companions.enter(launcher_of(self.rank_pid))
        guardian = Guardian(
            self._greeting(),
            {name: value for name, value in self.environ.items() if name != CARRIED},
            self.before,
            pass_fds=companions.watch_fds(),
        )
        guardian.start()
        try:
            while self.ranks.look():
                self.ranks.wait(LOOK_S)
                guardian.check()
            if not companions.leave(self.ranks.exit_code()):
                guardian.let_go()  # supervisors of single ranks are here as well
                return False
            _see_off(guardian)
        finally:
            guardian.kill()
            companions.let_watchdog_go()
        return bool(self.ranks.look())

    def start_afresh(self) -> None:
        """Leave nothing of the job that is over to the ranks that run now."""
        self.ranks.look()
        self.ranks.forget_ended()
        self.rank_pid = self.ranks.pids()[0] if self.ranks.pids() else self.rank_pid
        pages = {path.name for path in self.held.path.glob(f"*{SUFFIX}")}
        rundir.empty(self.held.path, keep={rundir.LOCK, WATCH, *pages})

    def _greeting(self) -> dict[str, Any]:
        """What the watchdog is told. Raises UsageError."""
        settings, run_id = told(self.environ)
        command = command_of(self.rank_pid)
        lost: list[str] = []
        report_dir = None
        shown = f"{settings.report_dir.rstrip('/')}/{run_id}"
        try:
            report_dir = open_run(Path(settings.report_dir), run_id)
        except ReportError as error:
            shown = "none"
            lost.append(f"{error}: verdicts are shown here only; see HANGWATCH_REPORT_DIR")
        if trouble := hook_trouble(settings.hook, self.environ):
            lost.append(trouble)
        say(
            f"watching the ranks of {fold_command(_short(command))} on this node "
            f"(reports: {shown})",
            version=__version__,
        )
        for what in lost:
            say(what)
        hello = greeting(
            settings,
            self.held,
            report_dir=report_dir,
            run_id=run_id,
            command=command,
            command_pid=self.rank_pid,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            started_ns=time.monotonic_ns(),
            lost=lost,
        )
        hello["self_started"] = True
        with suppress(OSError):  # `hangwatch top` will know less
            runfacts.keep(self.held.path, hello)
        return hello


def _see_off(guardian: Guardian) -> None:
    """Give the watchdog time to conclude: it sees for itself that all have ended."""
    deadline = time.monotonic() + FAREWELL_S
    while not guardian.gone() and time.monotonic() < deadline:
        select.select((), (), (), LOOK_S)


def _short(command: Sequence[str]) -> list[str]:
    """The command with the program's name instead of its path."""
    return [Path(word).name if n == 0 else word for n, word in enumerate(command)]


def command_of(pid: int) -> list[str]:
    """The command line of a process, empty if it is gone."""
    return command_words(pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
