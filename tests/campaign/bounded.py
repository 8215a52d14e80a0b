"""Runs a command of hangwatch's that has to end soon, whatever it meets, in little memory."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fault import Outcome
from harness import environment
from job import busy, peak_mib
from oracle import MAX_MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from job import Result

MAX_S = 20.0
ROOM_BYTES = 3 << 30
"""Of addresses: what needs more is ended by that, and spares the machine."""
POLL_S = 0.01
_CRASH = re.compile(r"the watchdog .*(is started again|again and again)")
CODES = (0, 1, 2)
"""Of the commands: done, found something that fails, refused."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    words: tuple[str, ...]
    code: int | None
    """None where it did not end in time."""
    printed: str
    said: str
    seconds: float
    peak_mib: float

    @property
    def text(self) -> str:
        """All that it wrote."""
        return self.printed + self.said


def hangwatch(
    words: Sequence[str], where: Path, env: Mapping[str, str], python: str = sys.executable
) -> Done:
    """Run ``hangwatch WORDS`` in a directory."""
    out, err = where / "command.out", where / "command.err"
    began = time.monotonic()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 (the campaign's own command)
            [python, "-m", "hangwatch", *words],
            cwd=where,
            env=environment(env, python),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    resource.prlimit(process.pid, resource.RLIMIT_AS, (ROOM_BYTES, ROOM_BYTES))
    code, used = _reap(process, began)
    return Done(
        tuple(words),
        code,
        out.read_text("utf-8", "replace"),
        err.read_text("utf-8", "replace"),
        time.monotonic() - began,
        used,
    )


def _reap(process: subprocess.Popen[bytes], began: float) -> tuple[int | None, float]:
    """Exit code, and the largest resident size in MiB.

    Not as wait4(2) has it: that is at least what this process had, which it comes from.
    """
    late, bound_s, most_mib = False, MAX_S * busy(), 0.0
    while True:
        # It is read while it is not waited for, so that the pid is still its own.
        most_mib = max(most_mib, peak_mib(process.pid))
        if process.poll() is not None:
            return None if late else process.returncode, most_mib
        if not late and time.monotonic() - began > bound_s:
            late = True
            process.kill()
        time.sleep(POLL_S)


def sound(done: Done, codes: Sequence[int] = CODES) -> Outcome:
    """Whether it ended as a command has to, whatever it met."""
    name = " ".join(done.words[:2])
    harmed = []
    if done.code is None:
        harmed.append(f"{name}: it did not end within {MAX_S:g} s")
    elif done.code not in codes:
        harmed.append(f"{name}: exit code {done.code}: {done.said[-400:]!r}")
    if done.peak_mib > MAX_MIB:
        harmed.append(f"{name}: it needed {done.peak_mib:.0f} MiB")
    if "Traceback" in done.text:
        harmed.append(f"{name}: a traceback: {done.text[-600:]!r}")
    return Outcome(harmed=harmed)


def no_crash(watched: Result) -> Outcome:
    """Whether the watchdog lived through the whole job."""
    crashes = [line for line in watched.news if _CRASH.search(line)]
    return Outcome(harmed=[f"the watchdog crashed: {line}" for line in crashes])
