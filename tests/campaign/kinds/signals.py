"""Every signal that can be sent, to the supervisor or to the whole process group.

The same job is run bare and gets the same signal at the same point of its life; what it
does then is what it has to do under watch. What no program can catch ends or stops the
supervisor alone: KILL, STOP, and 32 and 33, which the C library keeps to itself and lets
nobody block. After such an end the command goes on, its watchdog ends by itself, and the
next run sweeps the run directory.

PIPE and XFSZ are not tried as ignored: Python ignores them at its start, so that no program
in it can tell whether they had been before, and starts others with their default.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle
from fault import Fault, Outcome, merged
from harness import environment
from job import PROGRAMS, QUICK, Job, Result, busy

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

NAME = "signal"
COUNT = 100
SECONDS = 5
FAULT = "all signals, to the pid or the group"
MOMENT = "before and after the command's start, at work, farewell"

UNCATCHABLE = (int(signal.SIGKILL), 32, 33)
IGNORED_BY_DEFAULT = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
JOB_CONTROL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
MOMENTS = ("starting", "begun", "working", "farewell")
POINTS = {
    "starting": ("supervisor-spawning",),
    "begun": ("supervisor-spawned", "supervisor-watching"),
}
"""Where a supervisor is held: before there is a command, and just after."""
EFFECT_S = 10.0
"""How long a signal may take until it has done what it has to do."""
VERDICT_S = 20.0
LAST = 64
STANDARD = 31
ABANDONED_S = 3600.0
"""Older than a run directory has to be before another run removes it."""


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Which signal, to whom, when, and what the command makes of it.

    Each of the first 31 comes twice, to the pid and to the group at another moment; each
    of the others once; the last five are those that end the supervisor.
    """
    if number < 2 * STANDARD:
        sent, to = number // 2 + 1, ("pid", "group")[number % 2]
        moment = MOMENTS[(number // 2 + 2 * (number % 2)) % 4]
    elif number < STANDARD + LAST:
        sent, to = number - STANDARD + 1, ("pid", "group")[number % 2]
        moment = MOMENTS[number // 2 % 4]
    else:
        sent, to = int(signal.SIGKILL), ("pid", "pid", "pid", "pid", "group")[number - 95]
        moment = (*MOMENTS, "working")[number - 95]
    command = dice.choice(("dies", "handles", "handles", "ignores"))
    started = dice.choice(("plain", "plain", "plain", "ignored", "blocked"))
    if started == "ignored" and sent in PYTHONS_OWN:
        started = "blocked"
    return {
        "signal": sent,
        "to": to,
        "moment": moment,
        "command": command,
        "started": started,
        "job": "ranks" if number % 5 in {0, 3} else "pair",
        "point": dice.choice(POINTS.get(moment, ("",))),
    }


@dataclass(frozen=True, slots=True)
class Case:
    """What follows from what was drawn."""

    signal: int
    to: str
    moment: str
    command: str
    started: str
    job: str
    point: str

    @property
    def shell(self) -> bool:
        """Whether it is started by a shell, which sees that it stops."""
        return self.signal in {signal.SIGSTOP, *JOB_CONTROL} and self.moment == "working"

    @property
    def uncaught(self) -> bool:
        """Whether it ends the supervisor, whatever that does."""
        return self.signal in UNCATCHABLE

    @property
    def stalls(self) -> bool:
        """Whether a rank then hangs, so that there is a verdict to lose."""
        return self.job == "ranks" and self.hears_or_ignores

    @property
    def hears_or_ignores(self) -> bool:
        """Whether the job runs on as if nothing had been."""
        return self.command != "dies" and self.moment in {"begun", "working"} and not self.uncaught

    @property
    def stops(self) -> bool:
        """Whether its default action, to stop, is taken."""
        if self.signal == signal.SIGSTOP:
            return True
        # The group of a session's leader is an orphaned one, which these do not stop.
        return self.shell and self.command == "dies" and self.started == "plain"

    @property
    def heard(self) -> bool:
        """Whether the handlers of the command are called."""
        catchable = self.signal not in {*UNCATCHABLE, signal.SIGSTOP, signal.SIGCHLD}
        handled = self.command == "handles" and self.started == "plain"
        return handled and catchable and self.moment in {"begun", "working"}

    @property
    def ends_command(self) -> bool:
        """Whether its default action, to end the process, is taken."""
        if self.uncaught:
            return True
        if self.signal in {signal.SIGSTOP, *JOB_CONTROL, *IGNORED_BY_DEFAULT}:
            return False
        early = self.moment == "starting"
        return self.started == "plain" and (early or self.command == "dies")

    @property
    def forwards(self) -> bool:
        """Whether the launcher passes it on to its ranks, as torchrun does."""
        told = self.signal in {signal.SIGTERM, signal.SIGINT}
        return told and self.to == "pid" and self.job == "ranks"

    @property
    def key(self) -> str:
        """Of the same job without hangwatch."""
        return f"signal {self}"


def inject(fault: Fault, where: Path) -> Outcome:
    """Send it to a job of each kind, and compare."""
    case = Case(**fault.drawn)
    expected = oracle.bare(case.key, lambda bare: _bare(case, bare))
    watched = where / "watched"
    watched.mkdir()
    result = _watched(case, watched)
    if result is None:
        return Outcome(untried=f"this hangwatch knows no moment {case.point}")
    outcomes = [_judged(case, result, expected)]
    if case.stalls:
        outcomes.append(oracle.named(result, 1))
    elif not case.uncaught and not case.ends_command and not case.stops:
        outcomes.append(oracle.healthy(result))
    if case.uncaught:
        outcomes.append(_swept(watched))
    return merged(outcomes)


def _judged(case: Case, result: Result, expected: Result) -> Outcome:
    code = expected.exit_code
    right = code if code is None or code >= 0 else 128 - code
    codes = (-1,) if right is None else (right,)
    if case.uncaught:
        codes = (-case.signal,)
    return oracle.unharmed(result, expected, codes=codes, may_leave=case.uncaught, extra_s=EFFECT_S)


# The job.


def _command(case: Case) -> tuple[str, ...]:
    program = str(PROGRAMS / "heard.py")
    words = ("ranks.py", "2", "steps.py") if case.job == "ranks" else ("pair",)
    return (sys.executable, program, *words)


def _before(case: Case, *, waits: bool) -> tuple[str, ...]:
    how = "no" if case.started == "plain" or case.uncaught else case.started
    inherits = (str(PROGRAMS / "inherits.py"), how, str(case.signal), str(int(waits)))
    line = (sys.executable, *inherits)
    return (sys.executable, str(PROGRAMS / "shell.py"), *line) if case.shell else line


def _env(case: Case) -> dict[str, str]:
    env = {"HEARD": case.command, "HEARD_FORWARDS": str(int(case.forwards))}
    return env | ({"STALL": "1"} if case.stalls else {})


def _bare(case: Case, where: Path) -> Result:
    """The job without hangwatch: what a signal to its launcher, or to all of it, does."""
    # The supervisor alone is ended: the command is not sent anything.
    spared = case.moment == "farewell" or (
        case.uncaught and case.to == "pid" and case.moment != "starting"
    )
    starting = case.moment == "starting"
    before = _before(case, waits=starting)
    with Job(where, watched=False, env=_env(case), command=_command(case), before=before) as job:
        if starting:
            job.until((where / "beginning").exists)
            _send(job, case)
            job.touch("begin")
            _see(job, case)
            job.until_ready()
        else:
            job.until_ready()
            if not spared:
                _send(job, case)
                _see(job, case)
        job.touch("gate")
        job.touch("release")
        return job.finish()


def _watched(case: Case, where: Path) -> Result | None:
    """The same under watch; None where the supervisor cannot be held at that moment."""
    held = where / "moments"
    held.mkdir()
    hold = held / f"{case.point}.hold"
    if case.point:
        hold.touch()
    env = _env(case) | {"HANGWATCH_TEST_HOOKS": str(held)}
    before = _before(case, waits=False)
    with Job(where, *QUICK, env=env, command=_command(case), before=before) as job:
        if case.point:
            job.until(lambda: (held / case.point).exists() or _is_ready(where))
            if not (held / case.point).exists():
                return None
        if case.moment != "starting":
            job.until_ready()
        if case.moment == "farewell":
            watchdogs = _until_watched(job)
            job.signal(watchdogs, signal.SIGSTOP)
            job.touch("gate")
            launcher = int((where / "pid-launcher").read_text())
            job.until(lambda: not Path(f"/proc/{launcher}").exists())
            _send(job, case)
            _see(job, case)
            job.signal(watchdogs, signal.SIGCONT)
        else:
            _send(job, case)
            hold.unlink(missing_ok=True)
            _see(job, case)
            if case.moment == "starting":
                job.until_ready()
        job.touch("gate")
        if case.stalls:
            job.until_verdict(VERDICT_S * busy())
        job.touch("release")
        return job.finish()


def _is_ready(where: Path) -> bool:
    return (where / "ready-0").exists()


def _until_watched(job: Job) -> list[int]:
    job.until(job.watchdogs, bound_s=EFFECT_S * busy())
    return job.watchdogs()


# The signal.


def _leader(job: Job, case: Case) -> int:
    """The supervisor, or in its place the launcher of a bare job."""
    if not case.shell:
        return job.process.pid
    path = job.where / "pid-leader"
    job.until(path.exists)
    return int(path.read_text())


def _send(job: Job, case: Case, number: int = 0) -> None:
    with suppress(ProcessLookupError):
        send = os.kill if case.to == "pid" else os.killpg
        send(_leader(job, case), number or case.signal)


def _see(job: Job, case: Case) -> None:
    """Wait until the signal has done what it has to do, and wake what it has stopped."""
    leader = _leader(job, case)
    if case.stops:
        job.until(lambda: _state(leader) in "TZX", bound_s=EFFECT_S * busy())
        if case.shell:
            job.until((job.where / "out-stops").exists, bound_s=EFFECT_S * busy())
        _send(job, case, signal.SIGCONT)
    if case.heard or (case.stops and case.command == "handles" and case.moment != "farewell"):
        last = case.signal if case.heard else signal.SIGCONT
        who: tuple[str, ...] = ("launcher", "0", "1")
        if case.job == "pair":
            who = ("launcher", "1")
        if case.to == "pid" and not case.forwards:
            who = ("launcher",)
        job.until(
            lambda: all(str(int(last)) in _heard(job, role) for role in who),
            bound_s=EFFECT_S * busy(),
        )
    elif case.uncaught or (case.ends_command and case.moment != "farewell"):
        job.until(lambda: job.process.poll() is not None, bound_s=EFFECT_S * busy())
    elif case.started != "blocked":
        job.until(lambda: not _pending(leader, case.signal), bound_s=EFFECT_S * busy() / 10)


def _heard(job: Job, role: str) -> Sequence[str]:
    with suppress(FileNotFoundError):
        return (job.where / f"out-heard-{role}").read_text().split()
    return ()


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "X"


def _pending(pid: int, number: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("ShdPnd:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


# What an end of the supervisor leaves.


def _swept(where: Path) -> Outcome:
    """The next run removes the directory of one whose supervisor was killed."""
    left = [path for path in (where / "base").glob("hangwatch-*/*") if path.is_dir()]
    for path in left:
        long_ago = time.time() - ABANDONED_S
        os.utime(path, (long_ago, long_ago))
    env = environment({"HANGWATCH_DIR": str(where / "base")})
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(  # noqa: S603 (the campaign's own command)
            [sys.executable, "-m", "hangwatch", shutil.which("true") or "true"],
            cwd=where,
            env=env,
            check=False,
            capture_output=True,
            timeout=60,
        )
    return Outcome(harmed=[f"not swept by the next run: {p.name}" for p in left if p.exists()])
