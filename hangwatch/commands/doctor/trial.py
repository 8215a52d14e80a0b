"""Runs a launcher's line with a small program in the place of the user's script.

It runs under watch, so that a trial that hangs is explained like any other job, and it
is bounded: the ranks end by themselves, and the launcher is ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangwatch.commands import timing
from hangwatch.commands.doctor import outcome
from hangwatch.commands.doctor.outcome import Outcome
from hangwatch.commands.runs import DIRECTORY
from hangwatch.evidence.sockets import peers
from hangwatch.preflight.job import Job, Line
from hangwatch.safety import redaction
from hangwatch.settings.config import PREFIX

PROGRAM = Path(__file__).parent / "program" / "trial.py"
KEPT_LINES = 40
_WATCH = ("--on-hang=abort", "--metrics-addr=off", "--no-gpu")


@dataclass(slots=True)
class Trial:
    """A trial that has ended."""

    command: list[str]
    """The line that was started, without secrets."""
    exit_code: int | None = None
    """None if the doctor ended it."""
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    """Of the ranks of this node, in their order."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """The report.json of each incident of the trial."""
    output: list[str] = field(default_factory=list)
    """The last lines that launcher and ranks printed."""
    peers: list[str] = field(default_factory=list)
    """Addresses connected to the rendezvous at the end, if that is on this machine."""


def run(line: Line, environ: Mapping[str, str], job: Job, patience_s: float) -> Trial:
    """Run a launcher's line as a trial."""
    with tempfile.TemporaryDirectory(prefix="hangwatch-doctor-") as directory:
        words = line.with_script(str(PROGRAM), directory, f"{patience_s:g}")
        return _watched(words, environ, job, patience_s, Path(directory))


def _watched(
    words: list[str], environ: Mapping[str, str], job: Job, patience_s: float, directory: Path
) -> Trial:
    trial = Trial(redaction.command(words))
    hang_s = max(timing.TRIAL_HANG_LEAST_S, outcome.init_s(patience_s) / 3)
    began = time.monotonic()
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (the user's own line)
            [
                *(sys.executable, "-m", "hangwatch", "--report-dir", str(directory / "reports")),
                *(f"--suspect-after={hang_s / 2:g}", f"--hang-after={hang_s:g}", *_WATCH),
                *("run", "--", *words),
            ],
            env=_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            least_s = timing.TRIAL_START_S if job.several_nodes else timing.TRIAL_PATIENCE_S
            _wait(process, directory, patience_s, max(patience_s, least_s))
            trial.exit_code = process.poll()
            trial.peers = peers(job.port) if job.port else []
        finally:
            _end(process)
    trial.seconds = time.monotonic() - began
    trial.outcomes = outcome.read(directory)
    trial.reports = [
        json.loads(path.read_bytes())
        for path in sorted((directory / "reports").glob("[!l]*/incident-*/report.json"))
    ]
    text = redaction.text(
        (directory / "output").read_text("utf-8", "replace")[-redaction.MAX_CHARS :]
    )
    trial.output = [line for line in text.splitlines() if line.strip()][-KEPT_LINES:]
    return trial


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without the settings for watching a real job."""
    kept = {
        name: value
        for name, value in environ.items()
        if name == DIRECTORY or not name.startswith(PREFIX)
    }
    return {"OMP_NUM_THREADS": "1", **kept, "HANGWATCH": "1"}


def _wait(
    process: subprocess.Popen[bytes], directory: Path, patience_s: float, start_s: float
) -> None:
    """Wait until the trial has ended or its time is over: sooner if no rank has started at all."""
    began = time.monotonic()
    while process.poll() is None:
        waited_s = time.monotonic() - began
        started = any(directory.glob(outcome.PATTERN))
        if waited_s > start_s + (outcome.longest_s(patience_s) if started else 0):
            return
        time.sleep(timing.TRIAL_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher as a scheduler would; its ranks end by themselves."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timing.TRIAL_GRACE_S)
