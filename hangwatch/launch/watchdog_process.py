"""Starts the watchdog process of a run, keeps it running, and writes to it.

The watchdog reads JSON lines on its standard input: first a Hello (run/handshake.py), at the
end ``{"ended": EXIT_CODE, ...}`` once COMMAND has ended; end of file means that the supervisor
is gone. It runs in a session of its own, so that nothing sent to the job's terminal or process
group reaches it, and never writes to standard output.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hangwatch import __version__
from hangwatch.console import say
from hangwatch.errors import UNUSABLE, ReportError
from hangwatch.launch import timing
from hangwatch.launch.command import Signals
from hangwatch.report.directories import open_run
from hangwatch.run.handshake import Hello, RunFacts
from hangwatch.run.rundir import RunDir
from hangwatch.run.shared_run import Start
from hangwatch.safety import redaction
from hangwatch.safety.faultlog import logged
from hangwatch.safety.texts import readable
from hangwatch.settings.config import Config, hook_trouble, new_run_id

PROGRAM = (sys.executable, "-P", "-W", "ignore", "-m", "hangwatch.watchdog")
"""-P: nothing in the job's working directory may shadow what the watchdog imports.
-W: a job that makes errors of its warnings (PYTHONWARNINGS) does not mean ours."""
MAX_DEATHS = 5
"""Deaths within timing.DEATHS_WITHIN_S after which the watchdog is started again."""
COMMAND_BYTES = 32 << 10
"""Most bytes of a command line in a Hello, so that no pipe ever fills."""


def start_now(run_id: str) -> Start:
    """Return the start of a run that begins now. run_id: empty for a new one."""
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Start(run_id or new_run_id(), started_at, time.monotonic_ns(), os.getpid())


def record_loss(lost: list[str], what: str) -> None:
    """Print what hangwatch cannot do in this run, and keep it for the report."""
    lost.append(redaction.text(what))
    say(what)


def introduce(  # noqa: PLR0913 (all by keyword)
    held: RunDir,
    config: Config,
    environ: Mapping[str, str],
    *,
    start: Start,
    command: Sequence[str],
    command_pid: int,
    watched: str,
    lost: list[str],
    option: str = "--report-dir",
    self_started: bool = False,
) -> Hello:
    """Open the reports of a run, and describe it to its watchdog and to other readers.

    watched: the command, to be printed with the place of the reports; empty to print neither.
    lost: what cannot be done in this run; more may be added. option: the setting that names
    another place for the reports.
    """
    shown = f"{config.report_dir.rstrip('/')}/{start.run_id}"
    report_dir = None
    try:
        report_dir = open_run(Path(config.report_dir), start.run_id)
    except ReportError as error:
        shown = "none"
        record_loss(lost, f"{error}: verdicts are shown here only; see {option}")
    if watched:
        say(f"watching {watched} (reports: {shown})", version=__version__)
    if trouble := hook_trouble(config.hook, environ):
        record_loss(lost, trouble)
    node = socket.gethostname()
    facts = RunFacts(
        run_id=start.run_id,
        command=shortened(redaction.command(command)),
        command_pid=command_pid,
        supervisor_pid=os.getpid(),
        shared=held.shared,
        started_at=start.started_at,
        node=node,
        report_dir=report_dir,
        watch=f"{readable(node)}:{held.path.name}",
    )
    with suppress(OSError):  # `hangwatch top` will know less
        facts.keep(held.path)
    python, kernel = platform.python_version(), platform.release()
    versions = {"hangwatch": __version__, "python": python, "kernel": kernel}
    return Hello(
        facts, held.path, config, start.started_ns, versions, self_started, lost=tuple(lost)
    )


def shortened(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command for people, up to COMMAND_BYTES of JSON."""
    kept: list[str] = []
    size = 0
    for word in map(readable, command):
        size += 6 * len(word) + 4  # 6: a character as \\uXXXX
        if size > COMMAND_BYTES:
            return (*kept, "...")
        kept.append(word)
    return tuple(kept)


class WatchdogProcess:
    """The watchdog process and its restarts. The methods never raise OSError."""

    def __init__(  # noqa: PLR0913 (what tests hand in comes by keyword)
        self,
        hello: Hello,
        environ: Mapping[str, str],
        before: Signals,
        *,
        program: Sequence[str] = PROGRAM,
        pass_fds: Sequence[int] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """pass_fds: descriptors that the watchdog inherits in addition to its streams."""
        self._hello = hello
        self._environ = environ
        self._before = before
        self._program = program
        self._pass_fds = tuple(pass_fds)
        self._now = now
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS + 1)
        self._due: float | None = None
        self._logged_before = 0
        self._restarts = 0

    def start(self) -> None:
        """Start the watchdog and send it the Hello."""
        self._due = None
        self._logged_before = self._logged()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                self._program,
                env=dict(self._environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if sys.stderr else subprocess.DEVNULL,  # it may have been closed
                start_new_session=True,
                pass_fds=self._pass_fds,
                preexec_fn=self._before.hand_over,  # noqa: PLW1509 (the supervisor has no threads)
            )
        except OSError as error:
            self._died(f"cannot be started: {error}")
            return
        if self._process.stdin:
            os.set_blocking(self._process.stdin.fileno(), False)
        self._send(self._hello.line())

    def check(self) -> None:
        """Notice the watchdog's death, and restart it once that is due."""
        if self._process and self._process.poll() is not None:
            code = self._process.returncode
            if code == UNUSABLE:
                self.let_go()
                return
            kept = ", traceback in watchdog.log" if self._logged() > self._logged_before else ""
            self._died(how_it_ended(code) + kept)
        if self._due is not None and self._now() >= self._due:
            self._restarts += 1
            self.start()

    def due_in(self) -> float | None:
        """Return the seconds until the next restart; None if none is due."""
        return None if self._due is None else max(0.0, self._due - self._now())

    def command_ended(self, code: int, asked_to_end_ns: int = 0) -> None:
        """Report the end of COMMAND to the watchdog; one about to be restarted starts at once.

        asked_to_end_ns: as Forwarder.asked_to_end_ns.
        """
        self.check()
        if self._due is not None:
            self.start()
        self._due = None
        ended = {"ended": code, "asked_to_end_ns": asked_to_end_ns}
        self._send(json.dumps(ended).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The pid of the process that runs now, 0 if there is none."""
        return self._process.pid if self._process else 0

    def gone(self) -> bool:
        """Return True if the process has ended, or was never started."""
        return self._process is None or self._process.poll() is not None

    def succeeded(self) -> bool:
        """Return True if the watchdog did its work to the end."""
        return self._process is not None and self._process.poll() == 0

    def let_go(self) -> None:
        """Close our end of the pipe, and let the process run on if it does."""
        self._hang_up()
        self._process = None

    def kill(self) -> None:
        """Kill the process and its session, if it has not ended."""
        if self._process and self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._process and self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()

    def _logged(self) -> int:
        """Return the bytes of tracebacks that the watchdog has left so far."""
        return len(logged(self._hello.run_dir))

    def _died(self, how: str) -> None:
        self.let_go()
        now = self._now()
        self._deaths.append(now)
        if len(self._deaths) > MAX_DEATHS and now - self._deaths[0] <= timing.DEATHS_WITHIN_S:
            say(f"the watchdog {how}, again and again: the job goes on unwatched")
            return
        recent = sum(now - death <= timing.DEATHS_WITHIN_S for death in self._deaths)
        self._due = now + timing.FIRST_BACKOFF_S * 2 ** (recent - 1)
        if self._restarts == 0:
            what = f"the watchdog {how} and is started again"
            say(what)
            self._hello = replace(self._hello, lost=(*self._hello.lost, what))

    def _send(self, line: bytes) -> None:
        """Write one line, without waiting for a watchdog that does not read.

        One that got only a part of it would wait for the rest for ever: it is killed, and
        check() starts another.
        """
        if self._process and self._process.stdin and not self._process.stdin.closed:
            written = 0
            with suppress(OSError):
                written = os.write(self._process.stdin.fileno(), line)
            if written < len(line):
                self._process.kill()


def how_it_ended(returncode: int) -> str:
    """Return the end of a sentence for Popen's returncode."""
    if returncode < 0:
        return f"was killed by signal {-returncode}"
    return f"ended with exit code {returncode}"
