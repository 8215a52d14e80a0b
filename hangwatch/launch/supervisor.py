"""Runs COMMAND under watch: starts it and the watchdog, forwards signals, returns.

Small and dull so that it does not die. It imports no torch, starts no thread
and reads nothing that the job writes. Whatever of ours fails is said once on
standard error, and COMMAND runs on.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from hangwatch import __version__
from hangwatch.agent.environment import (
    ANY_SUPERVISOR,
    CARRIED,
    SUPERVISOR_PID,
    job_environment,
    outside_environment,
    packed,
)
from hangwatch.console import fold_command, say
from hangwatch.errors import ReportError
from hangwatch.launch.command import Signals, StarvedError, become, keep_streams_closed, start
from hangwatch.launch.handshake import greeting, to_other_nodes, watch_name
from hangwatch.launch.signal_origin import JOB_CONTROL, Witness, arrived
from hangwatch.launch.signals import FORWARDED, IMPATIENT, Relay, reap_adopted, stop, taken
from hangwatch.launch.watchdog_process import Guardian
from hangwatch.report.files import open_run, write_log, write_run
from hangwatch.run import rundir, runfacts
from hangwatch.run.peers import Companions, job_name
from hangwatch.run.rundir import RunDir
from hangwatch.run.test_hooks import reach
from hangwatch.safety import redaction
from hangwatch.safety.faultlog import log_fault, logged
from hangwatch.settings.config import Config, hook_trouble, new_run_id

FAREWELL_S = 15.0
"""How long the watchdog may take to write its report after COMMAND has ended."""
LOOK_S = 5.0
"""Between two looks around where no signal wakes the supervisor."""
COMPANION_S = 0.05
"""Between two looks whether a companion's watchdog has ended."""
EXIT_ABORTED = 75
"""EX_TEMPFAIL of sysexits.h: the hung ranks were ended, running again may help."""
ABORTED = "aborted"
"""File in the run directory by which the watchdog says that it ended ranks."""
RUN_ID = "HANGWATCH_RUN_ID"
"""Tells the ranks of all nodes apart from those of other runs; a flag sets it too."""


def supervise(
    command: Sequence[str],
    settings: Config,
    environ: Mapping[str, str],
    before: Signals | None = None,
) -> int:
    """Run command under watch and return its exit code (128+n for signal n).

    Signals stay blocked when it returns, so that none that comes late changes what this
    process ends with. Who goes on after it has blocked FORWARDED itself, gives what was in
    force before that, and forgets them in the end. Raises UsageError if command cannot be
    started.
    """
    keep_streams_closed()
    before = before or Signals.block(FORWARDED)
    run = _Run(list(command), settings, dict(environ), before)
    try:
        return run.execute()
    finally:
        run.clean_up()


@dataclass(slots=True)
class _Run:
    """One COMMAND and what is held for it."""

    command: list[str]
    settings: Config
    environ: dict[str, str]
    before: Signals
    run_id: str = ""
    report_dir: Path | None = None
    lost: list[str] = field(default_factory=list)
    held: RunDir | None = None
    companions: Companions | None = None
    """The supervisors of this job's other ranks on this node, where each rank has its own."""
    relay: Relay = field(default_factory=Relay)
    guardian: Guardian | None = None
    """Of the watchdog, None where a companion has it."""
    command_pid: int = 0
    started_at: str = ""
    started_ns: int = 0

    def execute(self) -> int:
        self.run_id = self.settings.run_id or new_run_id()
        self._come_by("supervisor-starting")
        self._attempt(self._make_run_dir)
        self._attempt(self._make_witness)
        began = time.monotonic()
        self.started_at, self.started_ns = _utc_now(), time.monotonic_ns()
        environ = self._environment()
        self._come_by("supervisor-spawning")
        child = self._start(environ)
        self.command_pid = child.pid
        self._come_by("supervisor-spawned")
        self._attempt(partial(self.relay.after_start, child))
        self._attempt(self._begin_watch)
        self._come_by("supervisor-watching")
        self._attempt(lambda: self._forward_until_end(child))
        self._attempt(lambda: self._forward_until_end(child))  # where that failed: unwatched
        code = exit_code(child.wait())
        self._come_by("supervisor-ended")
        self._attempt(lambda: self._see_off(code))
        self._attempt(lambda: self._leave_run_file(code, time.monotonic() - began))
        self._come_by("supervisor-leaving")
        return EXIT_ABORTED if code and self._was_aborted() else code

    def _start(self, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start COMMAND; where there is not enough for both, become it instead."""
        self._attempt(self.relay.before_start)
        try:
            return start(self.command, environ, self.before, self.relay.early)
        except StarvedError as error:
            self._lose(f"the job runs unwatched, there is not enough for both: {error}")
            self.clean_up()
            become(self.command, self.environ, self.before, self.relay.early)

    def _was_aborted(self) -> bool:
        with suppress(OSError):
            return self.held is not None and (self.held.path / ABORTED).exists()
        return False

    def _come_by(self, moment: str) -> None:
        """Let a test hold the supervisor here; a failure here is like any other of ours."""
        self._attempt(partial(reach, moment))

    def _attempt(self, step: Callable[[], None]) -> None:
        """Do a step of ours; whatever it raises costs the watch and not the job."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (an error that nobody has thought of)
            where = log_fault(self.held.path if self.held else None, "the supervisor", error)
            kept = f" ({where})" if where else ""
            self._lose(f"the job goes on unwatched: {type(error).__name__}: {error}{kept}")
            guardian, self.guardian, self.companions = self.guardian, None, None
            if guardian:
                guardian.kill()

    def _begin_watch(self) -> None:
        if self.companions:
            self.companions.enter(self.command_pid)
        self._watch_if_nobody_does()

    def _watch_if_nobody_does(self) -> None:
        if not self.held or (self.companions and not self.companions.take_watch()):
            return
        first = True
        if self.companions:
            own = {
                "run_id": self.run_id,
                "started_at": self.started_at,
                "started_ns": self.started_ns,
                "pid": os.getpid(),
            }
            job = self.companions.job(**own)
            first = job == own
            self.run_id, self.started_at = str(job["run_id"]), str(job["started_at"])
            self.started_ns = int(job["started_ns"])
        self._make_report_dir(quiet=not first)
        if trouble := hook_trouble(self.settings.hook, self.environ):
            self._lose(trouble)
        told = greeting(
            self.settings,
            self.held,
            report_dir=self.report_dir,
            run_id=self.run_id,
            command=self.command,
            command_pid=self.command_pid,
            started_at=self.started_at,
            started_ns=self.started_ns,
            lost=self.lost,
        )
        with suppress(OSError):  # `hangwatch top` will know less
            runfacts.keep(self.held.path, told)
        self.guardian = Guardian(
            told,
            outside_environment(self.environ),
            self.before,
            pass_fds=self.companions.watch_fds() if self.companions else (),
        )
        self.guardian.start()

    def clean_up(self) -> None:
        """Let go of everything; never raises."""
        if self.guardian:
            self.guardian.kill()
        if self.relay.witness:
            self.relay.witness.close()
        if self.held:
            self.held.remove()
        self.guardian = self.relay.witness = self.held = None

    def _make_run_dir(self) -> None:
        try:
            job = job_name(self.environ, self.settings.run_id)
            join = partial(rundir.join, job) if job else partial(rundir.make, self.run_id)
            self.held = join(self.environ)
        except OSError as error:
            self._lose(f"no directory for the ranks' pages ({error}): the job runs unwatched")
        else:
            rundir.sweep(self.held.path.parent)
            if self.held.shared:
                self.companions = Companions(self.held.path)
            if self.held.lost:
                self._lose(f"pages are kept in {self.held.path.parent.parent}: {self.held.lost}")

    def _make_witness(self) -> None:
        try:
            held = self.held
            orphaned = partial(rundir.remove_abandoned, held.path) if held else lambda: None
            self.relay.witness = Witness(FORWARDED, orphaned)
        except OSError as error:
            self._lose(f"signals for the whole job may reach COMMAND twice: {error}")

    def _make_report_dir(self, *, quiet: bool) -> None:
        shown = f"{self.settings.report_dir.rstrip('/')}/{self.run_id}"
        try:
            self.report_dir = open_run(Path(self.settings.report_dir), self.run_id)
        except ReportError as error:
            shown = "none"
            self._lose(f"{error}: verdicts are shown here only; see --report-dir")
        if not quiet:
            say(f"watching {fold_command(self.command)} (reports: {shown})", version=__version__)

    def _lose(self, what: str) -> None:
        """Say what hangwatch cannot do in this run, and remember it for the report."""
        self.lost.append(redaction.text(what))
        say(what)

    def _environment(self) -> dict[str, str]:
        try:
            return self._job_environment()
        except Exception as error:  # noqa: BLE001 (as in _attempt)
            self._lose(f"the ranks cannot be watched: {error}")
            return self.environ

    def _job_environment(self) -> dict[str, str]:
        if not self.held:
            return self.environ
        named = {CARRIED: packed(to_other_nodes(self.settings, self.held, self.run_id))}
        if self.settings.run_id:
            named[RUN_ID] = self.settings.run_id
        if self.companions:
            named[SUPERVISOR_PID] = ANY_SUPERVISOR
        return {**job_environment(self.environ, self.held.path), **named}

    def _forward_until_end(self, child: subprocess.Popen[bytes]) -> None:
        while child.poll() is None:
            due = self.guardian.due_in() if self.guardian else None
            self.relay.wait(child, LOOK_S if due is None else min(due, LOOK_S))
            if self.guardian:
                self.guardian.check()
            elif self.companions:
                self._watch_if_nobody_does()
            self._reap(child)

    def _reap(self, child: subprocess.Popen[bytes]) -> None:
        own: dict[int, Callable[[], object]] = {child.pid: child.poll}
        if self.guardian:
            own[self.guardian.pid] = self.guardian.gone
        if self.relay.witness:
            own[self.relay.witness.pid] = self.relay.witness.reap
        reap_adopted(own)

    def _see_off(self, code: int) -> None:
        """Give the watchdog time to conclude; the user may cut it short."""
        if self.companions and not self._is_last(self.companions, code):
            return
        if not self.guardian and not self.companions:
            return
        taken(FORWARDED)  # meant for COMMAND, which is gone
        if self.guardian:
            self.guardian.farewell(code, self.relay.asked_to_end_ns)
        deadline = time.monotonic() + FAREWELL_S
        while not self._watchdog_gone():
            left = deadline - time.monotonic()
            wait_s = left if self.guardian else min(left, COMPANION_S)
            info = arrived(FORWARDED, wait_s)
            number = info.si_signo if info else 0
            if number in JOB_CONTROL:
                stop(number)
            if left <= 0 or number in IMPATIENT:
                self._lose("the watchdog was still at work and was ended: a report may be missing")
                break
        if self.guardian:
            self.guardian.kill()

    def _is_last(self, companions: Companions, code: int) -> bool:
        """Say that COMMAND has ended; a watchdog of ours stays for those that run on."""
        if companions.leave(code):
            if not self.guardian and not companions.concluded():
                self._watch_if_nobody_does()
            return True
        if self.guardian:
            self.guardian.let_go()
        self.guardian = self.report_dir = None
        companions.let_watchdog_go()
        return False

    def _watchdog_gone(self) -> bool:
        if self.guardian:
            return self.guardian.gone()
        return self.companions is None or self.companions.take_watch()

    def _leave_run_file(self, code: int, duration_s: float) -> None:
        """Write run.json where the watchdog could not."""
        if self.report_dir and not (self.guardian and self.guardian.succeeded()):
            with suppress(ReportError):
                if log := logged(self.held.path if self.held else None):
                    write_log(self.report_dir, log)
                write_run(
                    self.report_dir,
                    watch=watch_name(self.held),
                    run_id=self.run_id,
                    command=redaction.command(self.command),
                    started_at=self.started_at,
                    duration_s=duration_s,
                    exit_code=code,
                    lost=[*self.lost, "the watchdog did not run to the end"],
                )


def exit_code(returncode: int) -> int:
    """The exit code of a shell for what Popen returns: 128+n for signal n."""
    return returncode if returncode >= 0 else 128 - returncode


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
