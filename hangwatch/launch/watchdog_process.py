"""Keeps a watchdog process running beside COMMAND, and speaks to it.

The watchdog reads JSON lines on its standard input. The first says what to
watch (launch/handshake.py), the last ``{"ended": EXIT_CODE, ...}`` that
COMMAND has ended; end of file means that the supervisor is gone. It runs in a
session of its own, so that nothing sent to the job's terminal or process group
reaches it, and never writes to standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hangwatch.console import say
from hangwatch.errors import UNUSABLE
from hangwatch.launch.command import Signals
from hangwatch.safety.faultlog import logged

PROGRAM = (sys.executable, "-P", "-W", "ignore", "-m", "hangwatch.watchdog")
"""-P: nothing in the job's working directory may shadow what the watchdog imports.
-W: a job that makes errors of its warnings (PYTHONWARNINGS) does not mean ours."""
MAX_DEATHS = 5
DEATHS_WITHIN_S = 60.0
FIRST_BACKOFF_S = 0.25


class Guardian:
    """The watchdog process and its restarts. Its methods never raise OSError."""

    def __init__(  # noqa: PLR0913 (what tests hand in comes by keyword)
        self,
        hello: Mapping[str, Any],
        environ: Mapping[str, str],
        before: Signals,
        *,
        program: Sequence[str] = PROGRAM,
        pass_fds: Sequence[int] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """pass_fds: what the watchdog inherits beside its standard streams."""
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
        self.given_up = False
        self.restarts = 0

    def start(self) -> None:
        """Start the watchdog and tell it what to watch."""
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
        self._send(self._hello)

    def check(self) -> None:
        """Notice that it died, and start it again once its time has come."""
        if self._process and self._process.poll() is not None:
            code = self._process.returncode
            if code == UNUSABLE:
                self._hang_up()
                self._process = None
                self.given_up = True
                return
            kept = ", traceback in watchdog.log" if self._logged() > self._logged_before else ""
            self._died(how_it_ended(code) + kept)
        if self._due is not None and self._now() >= self._due:
            self.restarts += 1
            self.start()

    def due_in(self) -> float | None:
        """Seconds until the next restart; None if there is nothing to wait for."""
        return None if self._due is None else max(0.0, self._due - self._now())

    def farewell(self, code: int, asked_to_end_ns: int = 0) -> None:
        """Say that COMMAND ended; one that is just being restarted starts at once.

        asked_to_end_ns: when it was asked to (Relay.asked_to_end_ns).
        """
        self.check()
        if self._due is not None:
            self.start()
        self._due = None
        self._send({"ended": code, "asked_to_end_ns": asked_to_end_ns})

    @property
    def pid(self) -> int:
        """Of the process that runs now, 0 if there is none."""
        return self._process.pid if self._process else 0

    def gone(self) -> bool:
        """Whether the process has ended (or never was)."""
        return self._process is None or self._process.poll() is not None

    def succeeded(self) -> bool:
        """Whether the watchdog did its work to the end."""
        return self._process is not None and self._process.poll() == 0

    def let_go(self) -> None:
        """Leave it to itself."""
        self._hang_up()
        self._process = None

    def kill(self) -> None:
        """End it and what it started (its session), if it has not ended."""
        if self._process and self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._hang_up()

    def _logged(self) -> int:
        """Bytes of the tracebacks that the watchdog has left so far."""
        run_dir = self._hello.get("run_dir")
        return len(logged(Path(run_dir))) if run_dir else 0

    def _hang_up(self) -> None:
        """Close our end of the pipe."""
        if self._process and self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()

    def _died(self, how: str) -> None:
        self._hang_up()
        self._process = None
        now = self._now()
        self._deaths.append(now)
        if len(self._deaths) > MAX_DEATHS and now - self._deaths[0] <= DEATHS_WITHIN_S:
            self.given_up = True
            say(f"the watchdog {how}, again and again: the job goes on unwatched")
            return
        recent = sum(now - death <= DEATHS_WITHIN_S for death in self._deaths)
        self._due = now + FIRST_BACKOFF_S * 2 ** (recent - 1)
        if self.restarts == 0:
            what = f"the watchdog {how} and is started again"
            say(what)
            self._hello = {**self._hello, "lost": [*self._hello.get("lost", ()), what]}

    def _send(self, message: Mapping[str, Any]) -> None:
        """Write one line; a watchdog that does not read is never waited for.

        One that got a part of it, or nothing, would wait for the rest for ever: it is ended,
        and check() starts another.
        """
        if self._process and self._process.stdin and not self._process.stdin.closed:
            line = json.dumps(message).encode() + b"\n"
            written = 0
            with suppress(OSError):
                written = os.write(self._process.stdin.fileno(), line)
            if written < len(line):
                self._process.kill()


def how_it_ended(returncode: int) -> str:
    """Popen's returncode as the end of a sentence."""
    if returncode < 0:
        return f"was killed by signal {-returncode}"
    return f"ended with exit code {returncode}"
