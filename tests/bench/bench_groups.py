"""What many process groups cost: a rank that makes them, and the watchdog that looks at them.

Processes with and without the agent take turns in making and destroying groups of one
rank; told are the medians and their ratio, which stays where it is as the groups grow.
A look is the reading of the pages of 8 ranks without their events.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hangwatch.agent.environment import job_environment
from hangwatch.evidence.pages.reader import parse_page

PROGRAM = """\
import sys, time
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
begin = time.perf_counter()
groups = [dist.new_group([0]) for _ in range(int(sys.argv[1]))]
made = time.perf_counter()
for group in groups:
    dist.destroy_process_group(group)
print(made - begin, time.perf_counter() - made)
"""
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
RANKS = 8


def seconds(count: int, environ: dict[str, str]) -> tuple[float, float]:
    """What making and destroying so many groups take."""
    done = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-c", PROGRAM, str(count)],
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    made, destroyed = (float(word) for word in done.stdout.split())
    return made, destroyed


def measure_making(count: int, rounds: int) -> None:
    """Print a line each for the making and the destroying of so many groups."""
    bare = {**os.environ, **RANK, "OMP_NUM_THREADS": "1"}
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "watched": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            times["watched"].append(seconds(count, job_environment(bare, directory)))
        times["bare"].append(seconds(count, bare))
    for place, what in enumerate(("made", "destroyed")):
        without, with_us = (
            statistics.median(pair[place] for pair in times[how]) for how in ("bare", "watched")
        )
        print(
            f"{count:5} groups {what:10} {without:7.2f} s bare, {with_us:7.2f} s watched, "
            f"ratio {with_us / without:.2f}"
        )


def measure_look(count: int, looks: int) -> None:
    """Print how long it takes to read the pages of RANKS ranks with so many groups each."""
    native = importlib.import_module("hangwatch._native")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory) / "bench.page"
        native.open_page(str(path), {"pid": os.getpid(), "rank": 0, "world_size": RANKS})
        for slot in range(count):
            native.define_group(slot, str(slot), "mesh", range(RANKS), slot, "nccl")
        page = path.read_bytes()
        native.close_page()
    spent = []
    for _ in range(looks):
        begin = time.perf_counter()
        for _ in range(RANKS):
            parse_page(page, events=False)
        spent.append(time.perf_counter() - begin)
    print(f"{count:5} groups: a look at {RANKS} ranks {statistics.median(spent) * 1e3:.2f} ms")


def main() -> None:
    """Print one line for each number of groups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for count in (8, 64, 500):
        measure_look(count, 50)
    for count in (600, 2400):
        measure_making(count, options.rounds)


if __name__ == "__main__":
    main()
