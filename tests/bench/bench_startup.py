"""Time that hangwatch adds to the start of a process that never imports torch.

``python -c pass`` in a job and out of one, in turns; what is told is the difference and the ratio
of the medians. The goal is 2 ms. Where hangwatch is installed and not wanted it is the time that
the line of hangwatch.pth takes; the goal is 0.05 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import TYPE_CHECKING

from hangwatch.agent.environment import job_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

PTH = Path(__file__).parents[2] / "native" / "hangwatch.pth"


def start_ms(environ: Mapping[str, str]) -> float:
    """How long an interpreter takes that does nothing."""
    before = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environ, check=True)
    return (time.perf_counter() - before) * 1e3


def unwanted_ms() -> float:
    """How long Python takes for the line of hangwatch.pth where HANGWATCH is not set."""
    line = PTH.read_text()
    os.environ.pop("HANGWATCH", None)
    times = timeit.repeat(lambda: exec(line, {}), number=1000, repeat=9)  # noqa: S102 (as site does)
    return statistics.median(times)


def main() -> None:
    """Print both medians, their difference and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HANGWATCH")}
    plain.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs
    with tempfile.TemporaryDirectory() as directory:
        injected = job_environment(plain, Path(directory))
        for environ in (plain, injected):
            start_ms(environ)  # compiles what is not compiled yet
        pairs = [(start_ms(plain), start_ms(injected)) for _ in range(rounds)]
    without, with_us = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = statistics.median(after - before for before, after in pairs)
    print(f"without    {without:8.2f} ms")
    print(f"injected   {with_us:8.2f} ms")
    print(f"added      {added:8.2f} ms   (median of the differences; goal: 2 ms)")
    print(f"ratio      {with_us / without:8.3f}")
    print(f"unwanted   {unwanted_ms():8.4f} ms   (goal: 0.05 ms)")


if __name__ == "__main__":
    main()
