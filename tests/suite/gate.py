"""Makes targets of the Makefile one after the other, and prints what each took.

    gate.py [--minutes M] [--cpu-minutes M] NAME TARGET...
    gate.py --soak ROUNDS NAME TARGET...

All targets are made, also after one has failed; TARGET+TARGET are made side by side. --soak makes
them again and again beside two busy processes, and says which tests answered late or wrong, and
how often.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from late import ANSWERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
BARE_JOB = (str(HERE.parent / "integration" / "forked.py"), "2", str(HERE / "bare_job.py"))
IDLE_S = 1.8
"""What the bare job takes on two idle cores of a server of 2024."""
JOBS = {"real", "quiet", "everything", "apart"}
"""Targets that start real jobs, whose bounds are scaled by what a bare one takes."""
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Step:
    """What came of one target."""

    target: str
    code: int
    seconds: float
    cpu_s: float

    def __str__(self) -> str:
        passed = "passed" if self.code == 0 else f"FAILED with exit code {self.code}"
        return f"{self.target:16}{self.seconds:6.0f} s {self.cpu_s / 60:6.1f} min of CPU  {passed}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("targets", nargs="+", metavar="target")
    parser.add_argument("--minutes", type=float, help="what all of it should take at most")
    parser.add_argument("--cpu-minutes", type=float, help="the same, of processor time")
    parser.add_argument("--soak", type=int, metavar="ROUNDS")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.soak:
            for _ in range(2):
                busy = subprocess.Popen([sys.executable, "-c", BUSY])  # noqa: S603 (ours)
                stack.callback(busy.wait)
                stack.callback(busy.kill)
        if JOBS.intersection(options.targets):
            os.environ["TEST_SLOWNESS"] = f"{slowness():.2f}"
            _print(f"a bare job takes {os.environ['TEST_SLOWNESS']} times as long as on idle cores")
        if options.soak:
            return soak(options.targets, options.soak)
        return once(options)


def once(options: argparse.Namespace) -> int:
    """Make the targets and hold what they took against the budget."""
    steps = list(make(options.targets))
    _print(*(f"  {step}" for step in steps))
    seconds, cpu_s = sum(s.seconds for s in steps), sum(s.cpu_s for s in steps)
    of = f" of {options.minutes:g}" if options.minutes else ""
    of_cpu = f" of {options.cpu_minutes:g}" if options.cpu_minutes else ""
    _print(f"make {options.name}: {seconds / 60:.1f}{of} min, {cpu_s / 60:.1f}{of_cpu} min of CPU")
    return int(any(step.code for step in steps))


def make(targets: Sequence[str]) -> Iterator[Step]:
    """Make each target, whatever became of those before."""
    for target in targets:
        began, before = time.monotonic(), _cpu_s()
        several = target.split("+")
        options = ("-kj", "--output-sync") if len(several) > 1 else ()
        command = ("make", "--no-print-directory", *options, *several)
        code = subprocess.run(command, check=False).returncode  # noqa: S603 (ours)
        yield Step(target, code, time.monotonic() - began, _cpu_s() - before)


def slowness() -> float:
    """How many times longer than on idle cores a bare job of two ranks takes here and now.

    The second one: in a new environment the first compiles what it imports.
    """
    began = 0.0
    for _ in range(2):
        began = time.monotonic()
        subprocess.run([sys.executable, *BARE_JOB], check=True)  # noqa: S603 (ours)
    return max(1.0, (time.monotonic() - began) / IDLE_S)


def soak(targets: Sequence[str], rounds: int) -> int:
    """Make the targets so many times, and count whose answers were late or wrong."""
    answers: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    red = 0
    for number in range(1, rounds + 1):
        ANSWERS.unlink(missing_ok=True)
        steps = list(make(targets))
        red += any(step.code for step in steps)
        _print(f"round {number} of {rounds}", *(f"  {step}" for step in steps))
        for line in ANSWERS.read_text().splitlines() if ANSWERS.exists() else ():
            for how, tests in json.loads(line).items():
                answers[how].update(tests)
                _print(*(f"  {how}: {test}" for test in tests))
    for how, counter in answers.items():
        _print(*(f"{how} {count} of {rounds}: {test}" for test, count in counter.most_common()))
    _print(f"{rounds} rounds, {red} of them red")
    return 1 if red else 0


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _print(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
