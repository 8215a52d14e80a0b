"""Time added to one small gloo all_reduce by the whole agent.

Two figures. *Wrapping*: within one process under watch, blocks of calls alternate
between wrapped and unwrapped methods. *Whole*: processes with and without hangwatch
take turns, so that the sampler, the heartbeat and the watchdog are in it too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CALLS = 200
"""In a block: a few milliseconds."""


def blocks(count: int, *, wrap: bool) -> dict[str, list[float]]:
    """Microseconds per call of each block, by whether the methods were wrapped."""
    switch = Switch() if wrap else None
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    # gloo works in a thread of its own; on one CPU the hand-over takes one fixed way.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(4)
    times: dict[str, list[float]] = {"with": [], "without": []}
    for index in range(count + 2):
        if switch:
            switch.turn(on=index % 2 == 0)
        begin = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        spent = (time.perf_counter() - begin) / CALLS * 1e6
        if index >= 2:  # one warm-up block of each
            times["with" if index % 2 == 0 else "without"].append(spent)
    dist.destroy_process_group()
    return times


class Switch:
    """Takes the agent's wrappers off torch's classes and puts them on again.

    Made before torch is imported, so that it sees what the agent wraps, and how.
    """

    def __init__(self) -> None:
        self._native: Any = importlib.import_module("hangwatch._native")
        self._wrap = self._native.wrap_methods
        self._arguments: tuple[Any, ...] = ()
        setattr(self._native, "wrap_methods", self._note)  # noqa: B010 (mypy knows the module)

    def _note(self, *arguments: Any) -> list[str]:
        self._arguments = arguments
        names: list[str] = self._wrap(*arguments)
        return names

    def turn(self, *, on: bool) -> None:
        """Wrap or unwrap the methods."""
        if on:
            self._wrap(*self._arguments)
        else:
            self._native.unwrap_methods()


def child(count: int, *, watched: bool, wrap: bool) -> dict[str, list[float]]:
    """Run this file's blocks in a process of their own."""
    with tempfile.TemporaryDirectory() as directory:
        words = [sys.executable, __file__, "--child", str(count)]
        words += ["--wrap"] if wrap else []
        words += ["--out", f"{directory}/times"]
        if watched:
            words = [sys.executable, "-m", "hangwatch", "--report-dir", directory, *words]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
        subprocess.run(words, check=True, env=environ, stderr=subprocess.PIPE)  # noqa: S603
        times: dict[str, list[float]] = json.loads(Path(directory, "times").read_bytes())
        return times


def quartiles(values: list[float]) -> str:
    """Median and quartiles, for people."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2000, help="pairs of blocks are half of it")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of processes")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--wrap", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        times = blocks(options.child, wrap=options.wrap)
        Path(options.out).write_text(json.dumps(times))
        return
    inside = child(options.blocks, watched=True, wrap=True)
    added = [a - b for a, b in zip(inside["with"], inside["without"], strict=True)]
    print(f"all_reduce of 4 floats, gloo, 1 rank, us a call: median (quartiles), n={len(added)}")
    print(f"  wrapping, alternating blocks: without {quartiles(inside['without'])}")
    print(f"                                with    {quartiles(inside['with'])}")
    print(f"                                added   {quartiles(added)}")
    medians: dict[bool, list[float]] = {True: [], False: []}
    for number in range(options.rounds):
        for watched in (True, False) if number % 2 else (False, True):
            times = child(600, watched=watched, wrap=False)
            medians[watched].append(statistics.median([*times["with"], *times["without"]]))
    added = [a - b for a, b in zip(medians[True], medians[False], strict=True)]
    print(f"  whole processes, n={options.rounds}:       without {quartiles(medians[False])}")
    print(f"                                with    {quartiles(medians[True])}")
    print(f"                                added   {quartiles(added)}")


if __name__ == "__main__":
    main()
