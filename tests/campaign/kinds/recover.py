"""The job recovers between a verdict and what --on-hang abort does of it."""

from __future__ import annotations

import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle
from fault import Fault, Outcome, merged
from held import Moments
from job import Job, Result, busy

from hangwatch.watchdog import timing

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

NAME = "recover"
COUNT = 120
SECONDS = 16
FAULT = "it recovers 0 to 10 s after the verdict while report, hook or py-spy stall"
MOMENT = "between verdict and kill"

RANKS = 2
HANG_S = 2.0
LATER_S = 6.0
"""--hang-after where a second stall is to be over long before it."""
POINTS = ("judged", "reported", "hook-started", "announced", "before-abort", "before-term")
WAITS = ("world", "pair", "recv", "barrier")
STALLS = ("py-spy", "hook", "nothing", "slow")
HELD, STALLED, LATE, TERM = 48, 28, 16, 16
"""So many of each; the others stall again."""
COME_S = 30.0
SETTLE_S = 5.0
SLACK_S = 0.3
"""Between a look at the pages and the signal on a busy machine."""
SCRIPT = """#!/bin/sh
: > "{where}/{name}.came"
turns=0
while [ -e "{where}/{name}.hold" ] && [ $turns -lt 240 ]; do sleep 0.05; turns=$((turns+1)); done
{then}
"""


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Where the watchdog is held, what stalls and when it recovers."""
    far = dice.random() < 0.1
    seconds = round(dice.uniform(3, 10) if far else dice.choice((0, 0.3, 1, 2, 3)), 1)
    stall, wait_in = number % RANKS, WAITS[number // RANKS % len(WAITS)]
    drawn: dict[str, Any] = {"stall": stall, "wait_in": wait_in, "seconds": seconds}
    if number < HELD:
        return {"how": "held", "point": POINTS[number // 8], **drawn}
    if (rest := number - HELD) < STALLED:
        return {"how": "stalled", "what": STALLS[rest % len(STALLS)], **drawn}
    if (rest := rest - STALLED) < LATE:
        return {"how": "late", "point": POINTS[rest % len(POINTS)], **drawn}
    if (rest := rest - LATE) < TERM:
        how = ("term-held", "term", "term-held", "ignored")[rest % 4]
        return {"how": how, **drawn}
    rest -= TERM
    how, point = ("again", "again-long")[rest % 2], POINTS[3:][rest // 2 % 3]
    # The second stall is elsewhere, of the same rank or of the other.
    again = {"again": rest // 2 % RANKS, "again_in": "pair" if wait_in != "pair" else "world"}
    return {"how": how, "point": point, **drawn, **again}


def inject(fault: Fault, where: Path) -> Outcome:
    """Do it to a job of two ranks, and judge."""
    return _Recovery(fault.drawn, where).run()


class _Recovery:
    """One job that hangs and recovers, or does not."""

    def __init__(self, drawn: dict[str, Any], where: Path) -> None:
        self.drawn, self.where = drawn, where
        self.how, self.seconds = str(drawn["how"]), float(drawn["seconds"])
        self.stall, self.again = int(drawn["stall"]), int(drawn.get("again", -1))
        self.moments = Moments(where / "moments")
        self.lost: list[str] = []
        self.held_s = 0.0

    def run(self) -> Outcome:
        expected = self._bare()
        hang_s = LATER_S if self.how == "again" else HANG_S
        options = ["--suspect-after", "1", "--hang-after", f"{hang_s:g}", "--metrics-addr", "off"]
        hooks = self.drawn.get("point") == "hook-started" or self.drawn.get("what") == "hook"
        if hooks:
            options += ["--hook", str(self._script("hook", "exit 0"))]
        python = self._beside_slow_py_spy() if self.drawn.get("what") == "py-spy" else None
        with Job(
            self.where,
            *options,
            "--on-hang",
            "abort",
            program="recover.py",
            env=self._env() | self.moments.env,
            python=python or sys.executable,
        ) as job:
            for name in (self.drawn.get("what"), "hook" if hooks else None):
                if name in ("py-spy", "hook"):
                    (self.where / f"{name}.hold").touch()
            if "point" in self.drawn:
                self.moments.hold(self.drawn["point"])
            if not job.until_ready(RANKS):
                self.lost.append("its ranks never came to the gate")
            job.touch("gate")
            acts: dict[str, Callable[[Job], None]] = {
                "held": self._recover_while_held,
                "stalled": self._recover_while_stalled,
                "late": self._hold_on,
                "term-held": self._recover_at_term,
                "term": self._recover_at_term,
                "ignored": self._hold_on,
                "again": self._stall_again,
                "again-long": self._stall_again,
            }
            acts[self.how](job)
            for name in ("hook", "py-spy"):
                (self.where / f"{name}.hold").unlink(missing_ok=True)
            job.touch("finish")
            # Its start as well: a busy machine may make that long.
            self.held_s = time.monotonic() - job.began
            result = job.finish()
        return self._judge(result, expected)

    # What is done.

    def _recover_while_held(self, job: Job) -> None:
        point = self.drawn["point"]
        self._until_at(job, point)
        time.sleep(self.seconds)
        job.touch("release")
        self._until_marked(job, "recovered")
        self.moments.let_go(point)
        self._settle(job)

    def _recover_while_stalled(self, job: Job) -> None:
        what = self.drawn["what"]
        if what in ("py-spy", "hook"):
            came = job.until((self.where / f"{what}.came").exists, bound_s=COME_S * busy())
        else:
            # On a busy machine it may be called a hang at once.
            said = re.compile(
                r"^hangwatch: (?:SLOW|HANG) \(" if what == "slow" else r"^hangwatch: HANG \(",
                re.MULTILINE,
            )
            came = job.until(lambda: said.search(job.said()), bound_s=COME_S * busy())
        if not came:
            self.lost.append(f"{what} never came")
        time.sleep(self.seconds)
        job.touch("release")
        if self._until_marked(job, "recovered", or_signalled=True):
            self._settle(job)

    def _hold_on(self, job: Job) -> None:
        """Let the watchdog go on where nothing has recovered."""
        if "point" in self.drawn:
            self._until_at(job, self.drawn["point"])
            time.sleep(self.seconds)
            self.moments.let_go(self.drawn["point"])
        job.until(lambda: False, bound_s=COME_S * busy())

    def _recover_at_term(self, job: Job) -> None:
        point = "before-kill" if self.how == "term-held" else "before-term"
        if self.how == "term-held":
            self.moments.hold(point)
        # The ranks catch SIGTERM, and might save what they have.
        self._until_at(job, point, COME_S + timing.CHECKPOINT_S)
        self._until_marked(job, "recovered")
        time.sleep(min(self.seconds, 2.0))
        self.moments.let_go(point)
        self._settle(job)

    def _stall_again(self, job: Job) -> None:
        point = self.drawn["point"]
        self._until_at(job, point)
        time.sleep(min(self.seconds, 2.0))
        job.touch("release")
        waiting = self.where / f"waits-release-again-{1 - self.again}"
        job.until(waiting.exists, bound_s=COME_S * busy())
        self.moments.let_go(point)
        if self.how == "again":
            time.sleep(0.5 + min(self.seconds, 1.0))
            job.touch("release-again")
            self._settle(job)
        else:
            job.until(lambda: False, bound_s=COME_S * busy())

    def _until_at(self, job: Job, point: str, bound_s: float = COME_S) -> None:
        if not job.until(lambda: self.moments.reached(point), bound_s=bound_s * busy()):
            self.lost.append(f"the watchdog never came by {point}")

    def _until_marked(self, job: Job, name: str, *, or_signalled: bool = False) -> bool:
        """Wait for a mark of all ranks; whether they made it."""
        paths = [self.where / f"{name}-{rank}" for rank in range(RANKS)]
        job.until(
            lambda: (
                all(path.exists() for path in paths) or (or_signalled and bool(self._signalled()))
            ),
            bound_s=COME_S * busy(),
        )
        return all(path.exists() for path in paths)

    def _settle(self, job: Job) -> None:
        """Wait until the watchdog has had its say."""
        job.until(lambda: "the job recovered" in job.said(), bound_s=SETTLE_S * busy())
        time.sleep(0.2)

    # What came of it.

    def _judge(self, result: Result, expected: Result) -> Outcome:
        signalled, recovered = self._signalled(), self._marks("recovered")
        ends = self.how in ("late", "ignored", "again-long")
        if self.how == "stalled":
            ends = bool(signalled)
        outcome = Outcome(lost=list(self.lost))
        if ends:
            outcome = merged([outcome, self._ended(result, expected)])
        else:
            outcome = merged([outcome, oracle.unharmed(result, expected, extra_s=self.held_s)])
        if self.how in ("held", "again") and signalled:
            outcome.harmed.append(f"ranks {[*signalled]} were signalled after they had recovered")
        if self.how == "stalled" and signalled and len(recovered) == RANKS:
            late_s = max(signalled.values()) - max(recovered.values())
            if late_s > SLACK_S:
                outcome.harmed.append(f"signalled {late_s:.1f} s after all had recovered")
        if self.how == "again-long" and signalled:
            began = self._marks("waits-release-again")
            after_s = min(signalled.values()) - max(began.values())
            if after_s < HANG_S - SLACK_S:
                outcome.harmed.append(f"ended {after_s:.1f} s after the second stall began")
        return merged([outcome, self._named(result, told=ends or self.how != "stalled")])

    def _ended(self, result: Result, expected: Result) -> Outcome:
        """Ranks that were ended for good reason: what they left undone is no harm."""
        own = "\n".join(result.news)
        whole = replace(result, outputs=expected.outputs, printed=expected.printed, said=own)
        found = oracle.unharmed(whole, expected, extra_s=self.held_s, codes=(75,))
        if not self._signalled():
            found.harmed.append("no rank was signalled")
        return found

    def _named(self, result: Result, *, told: bool) -> Outcome:
        """The rank that stalled is named, or both where it did so twice."""
        whom = (self.stall, self.again) if self.how == "again-long" else (self.stall,)
        outcomes = []
        for rank in whom:
            others = {self.stall, self.again} - {rank}
            reports = [
                one for one in result.reports if not set(one["verdict"]["culprits"]) <= others
            ]
            outcomes.append(oracle.named(replace(result, reports=reports), rank))
        outcome = merged(outcomes)
        return outcome if told else Outcome(harmed=outcome.harmed)

    def _signalled(self) -> dict[int, float]:
        return self._marks("signalled")

    def _marks(self, name: str) -> dict[int, float]:
        paths = {rank: self.where / f"{name}-{rank}" for rank in range(RANKS)}
        return {rank: float(path.read_text()) for rank, path in paths.items() if path.exists()}

    # What it is made of.

    def _env(self) -> dict[str, str]:
        on_term = {"term-held": "go on", "term": "go on", "ignored": "ignore"}
        return {
            "STALL": str(self.stall),
            "WAIT_IN": str(self.drawn["wait_in"]),
            "AGAIN": str(self.again),
            "AGAIN_IN": str(self.drawn.get("again_in", "pair")),
            "ON_TERM": on_term.get(self.how, "end"),
        }

    def _bare(self) -> Result:
        """The same without hangwatch, where nothing waits for long."""

        def run(where: Path) -> Result:
            env = self._env()
            with Job(where, watched=False, program="recover.py", env=env) as job:
                for name in ("gate", "release", "release-again", "finish"):
                    job.touch(name)
                return job.finish()

        twice = self.again >= 0
        return oracle.bare(f"recover {twice}", run)

    def _script(self, name: str, then: str) -> Path:
        """A program that says that it came and waits while it is held."""
        path = self.where / name
        path.write_text(SCRIPT.format(where=self.where, name=name, then=then))
        path.chmod(0o755)
        return path

    def _beside_slow_py_spy(self) -> str:
        """Our Python in an environment of its own, with a py-spy that waits first."""
        ours = Path(sys.executable).parent
        real = shutil.which("py-spy", path=str(ours)) or shutil.which("py-spy")
        environment = self.where / "environment"
        (environment / "bin").mkdir(parents=True)
        python = environment / "bin" / "python"
        python.symlink_to(Path(sys.executable).resolve())
        if (ours.parent / "pyvenv.cfg").exists():
            shutil.copy(ours.parent / "pyvenv.cfg", environment)
            (environment / "lib").symlink_to(ours.parent / "lib")
        stand_in = self._script("py-spy", f'exec "{real}" "$@"')
        stand_in.rename(environment / "bin" / "py-spy")
        return str(python)
