"""Runs COMMAND under watch: starts it and the watchdog, forwards signals, returns.

Small and dull so that it does not die. It imports no torch, starts no thread and reads nothing
that the job writes. A failure of our own is printed once, and COMMAND runs on.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from hangwatch.agent.environment import (
    ANY_SUPERVISOR,
    CARRIED,
    SUPERVISOR_PID,
    job_environment,
    outside_environment,
    packed,
)
from hangwatch.console import fold_command
from hangwatch.errors import ReportError
from hangwatch.launch import timing
from hangwatch.launch.command import Signals, StarvedError, become, keep_streams_closed, start
from hangwatch.launch.signals import (
    ENDING,
    FORWARDED,
    JOB_CONTROL,
    Forwarder,
    GroupObserver,
    reap_adopted,
    stop,
    take_pending,
    wait_for,
)
from hangwatch.launch.watchdog_process import (
    WatchdogProcess,
    introduce,
    record_loss,
    start_now,
)
from hangwatch.model.report import Stragglers
from hangwatch.report.runs import write_log, write_run
from hangwatch.run import rundir
from hangwatch.run.handshake import Hello, to_other_nodes
from hangwatch.run.launchers import job_name
from hangwatch.run.rundir import RunDir
from hangwatch.run.shared_run import ABORTED, SharedRun, Start
from hangwatch.run.test_hooks import reach
from hangwatch.safety.faultlog import log_fault, logged
from hangwatch.settings.config import Config

EXIT_ABORTED = 75
"""EX_TEMPFAIL of sysexits.h: the hung ranks were ended, running again may help."""
ENDED_EARLY = "the watchdog did not run to the end"
RUN_ID = "HANGWATCH_RUN_ID"
"""Distinguishes the ranks of all nodes from those of other runs; a flag sets it too."""


def supervise(
    command: Sequence[str],
    settings: Config,
    environ: Mapping[str, str],
    before: Signals | None = None,
) -> int:
    """Run command under watch and return its exit code (128+n for signal n).

    Signals stay blocked when it returns, so that none that comes late changes the exit code of
    this process. A caller that goes on has blocked FORWARDED itself, passes what was in force
    before that, and forgets the signals in the end. Raises UsageError if command cannot be
    started.
    """
    keep_streams_closed()
    before = before or Signals.block(FORWARDED)
    run = _Run(list(command), settings, dict(environ), before, start_now(settings.run_id))
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
    began: Start
    lost: list[str] = field(default_factory=list)
    held: RunDir | None = None
    shared: SharedRun | None = None
    """The part in a run that other supervisors share, if each rank has its own."""
    forwarder: Forwarder = field(default_factory=Forwarder)
    hello: Hello | None = None
    watchdog: WatchdogProcess | None = None
    """None if another supervisor of a shared run has it."""

    def execute(self) -> int:
        self._reach("supervisor-starting")
        self._attempt(self._make_run_dir)
        self._attempt(self._make_observer)
        environ = self._environment()
        self._reach("supervisor-spawning")
        child = self._start(environ)
        self._reach("supervisor-spawned")
        self._attempt(partial(self.forwarder.after_start, child))
        self._attempt(lambda: self._begin_watch(child.pid))
        self._reach("supervisor-watching")
        self._attempt(lambda: self._forward_until_end(child))
        self._attempt(lambda: self._forward_until_end(child))  # unwatched, if the first failed
        code = exit_code(child.wait())
        self._reach("supervisor-ended")
        self._attempt(lambda: self._conclude(code, child.pid))
        self._attempt(lambda: self._write_run_file(code))
        self._reach("supervisor-leaving")
        return EXIT_ABORTED if code and self._was_aborted() else code

    def _start(self, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start COMMAND; if there is not enough for both, become it instead."""
        self._attempt(self.forwarder.before_start)
        try:
            return start(self.command, environ, self.before, self.forwarder.early)
        except StarvedError as error:
            self._lose(f"the job runs unwatched, there is not enough for both: {error}")
            self.clean_up()
            become(self.command, self.environ, self.before, self.forwarder.early)

    def _was_aborted(self) -> bool:
        with suppress(OSError):
            return self.held is not None and (self.held.path / ABORTED).exists()
        return False

    def _reach(self, point: str) -> None:
        """Let a test hold the supervisor here; a failure here is like any other of ours."""
        self._attempt(partial(reach, point))

    def _attempt(self, step: Callable[[], None]) -> None:
        """Do a step of ours; an error costs the watch and not the job."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (an unforeseen error)
            where = log_fault(self.held.path if self.held else None, "the supervisor", error)
            kept = f" ({where})" if where else ""
            self._lose(f"the job goes on unwatched: {type(error).__name__}: {error}{kept}")
            watchdog, self.watchdog, self.shared = self.watchdog, None, None
            if watchdog:
                watchdog.kill()

    def _begin_watch(self, command_pid: int) -> None:
        if self.shared:
            self.shared.enter(command_pid)
        self._watch_if_needed(command_pid)

    def _watch_if_needed(self, command_pid: int) -> None:
        """Start the watchdog unless another supervisor has one."""
        if not self.held or (self.shared and not self.shared.take_watch()):
            return
        own = self.began
        if self.shared:
            self.began = self.shared.agree(own)
        self.hello = introduce(
            self.held,
            self.settings,
            self.environ,
            start=self.began,
            command=self.command,
            command_pid=command_pid,
            watched=fold_command(self.command) if self.began == own else "",
            lost=self.lost,
        )
        self.watchdog = WatchdogProcess(
            self.hello,
            outside_environment(self.environ),
            self.before,
            pass_fds=self.shared.watch_fds() if self.shared else (),
        )
        self.watchdog.start()

    def clean_up(self) -> None:
        """Let go of everything; never raises."""
        if self.watchdog:
            self.watchdog.kill()
        if self.forwarder.observer:
            self.forwarder.observer.close()
        if self.held:
            self.held.remove()
        self.watchdog = self.forwarder.observer = self.held = None

    def _make_run_dir(self) -> None:
        try:
            job = job_name(self.environ, self.settings.run_id)
            join = partial(rundir.join, job) if job else partial(rundir.make, self.began.run_id)
            self.held = join(self.environ)
        except OSError as error:
            self._lose(f"no directory for the ranks' pages ({error}): the job runs unwatched")
        else:
            rundir.sweep(self.held.path.parent)
            if self.held.shared:
                self.shared = SharedRun(self.held.path)
            if self.held.lost:
                self._lose(f"pages are kept in {self.held.path.parent.parent}: {self.held.lost}")

    def _make_observer(self) -> None:
        try:
            held = self.held
            orphaned = partial(rundir.remove_abandoned, held.path) if held else lambda: None
            self.forwarder.observer = GroupObserver(FORWARDED, orphaned)
        except OSError as error:
            self._lose(f"signals for the whole job may reach COMMAND twice: {error}")

    def _lose(self, what: str) -> None:
        record_loss(self.lost, what)

    def _environment(self) -> dict[str, str]:
        if not self.held:
            return self.environ
        try:
            carried = to_other_nodes(self.settings, self.began.run_id, self.held.path)
            named = {CARRIED: packed(carried)}
            if self.settings.run_id:
                named[RUN_ID] = self.settings.run_id
            if self.shared:
                named[SUPERVISOR_PID] = ANY_SUPERVISOR
            return {**job_environment(self.environ, self.held.path), **named}
        except Exception as error:  # noqa: BLE001 (as in _attempt)
            self._lose(f"the ranks cannot be watched: {error}")
            return self.environ

    def _forward_until_end(self, child: subprocess.Popen[bytes]) -> None:
        while child.poll() is None:
            due = self.watchdog.due_in() if self.watchdog else None
            self.forwarder.wait(child, timing.LOOK_S if due is None else min(due, timing.LOOK_S))
            if self.watchdog:
                self.watchdog.check()
            elif self.shared:
                self._watch_if_needed(child.pid)
            own: dict[int, Callable[[], object]] = {child.pid: child.poll}
            if self.watchdog:
                own[self.watchdog.pid] = self.watchdog.gone
            if self.forwarder.observer:
                own[self.forwarder.observer.pid] = self.forwarder.observer.reap
            reap_adopted(own)

    def _conclude(self, code: int, command_pid: int) -> None:
        """Give the watchdog time to conclude; the user may cut it short."""
        if self.shared and not self._is_last(self.shared, code, command_pid):
            return
        if not self.watchdog and not self.shared:
            return
        take_pending(FORWARDED)  # meant for COMMAND, which is gone
        if self.watchdog:
            self.watchdog.command_ended(code, self.forwarder.asked_to_end_ns)
        deadline = time.monotonic() + timing.CONCLUDE_S
        while not self._watchdog_gone():
            left = deadline - time.monotonic()
            info = wait_for(FORWARDED, left if self.watchdog else min(left, timing.SHARED_LOOK_S))
            number = info.si_signo if info else 0
            if number in JOB_CONTROL:
                stop(number)
            if left <= 0 or number in ENDING:
                self._lose("the watchdog was still at work and was ended: a report may be missing")
                break
        if self.watchdog:
            self.watchdog.kill()

    def _is_last(self, shared: SharedRun, code: int, command_pid: int) -> bool:
        """Publish COMMAND's end; our watchdog stays for the commands that still run."""
        if shared.leave(code):
            if not self.watchdog and not shared.concluded():
                self._watch_if_needed(command_pid)
            return True
        if self.watchdog:
            self.watchdog.let_go()
        self.watchdog = self.hello = None
        shared.release_watch()
        return False

    def _watchdog_gone(self) -> bool:
        if self.watchdog:
            return self.watchdog.gone()
        return self.shared is None or self.shared.take_watch()

    def _write_run_file(self, code: int) -> None:
        """Write run.json if the watchdog could not."""
        hello = self.hello
        if hello and hello.facts.report_dir and not (self.watchdog and self.watchdog.succeeded()):
            with suppress(ReportError):
                if log := logged(hello.run_dir):
                    write_log(hello.facts.report_dir, log)
                write_run(
                    hello.facts.report_dir,
                    hello.run,
                    watch=hello.facts.watch,
                    duration_s=hello.elapsed_s(),
                    exit_code=code,
                    lost=[*self.lost, ENDED_EARLY],
                    stragglers=Stragglers(unknown=ENDED_EARLY),
                )


def exit_code(returncode: int) -> int:
    """Return the exit code of a shell for what Popen returns: 128+n for signal n."""
    return returncode if returncode >= 0 else 128 - returncode
