"""A DDP training step, 2 ranks, several buckets: ratio of medians with and without.

Twice. *Within one job* under watch everything of hangwatch is turned off and on again
every few steps: wrappers off, sampler idle, watchdog stopped. *Whole jobs* with and
without hangwatch take turns (A B B A ...); they differ by some per cent without any
cause, so many pairs are needed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

from bench_all_reduce import Switch, quartiles

WARM_UP = 20
BLOCK = 25
"""Steps. At some 15 ms each a block is as long as the sampler's and the watchdog's half
second, so that one that is on pays for both."""


class Everything:
    """Turns all of hangwatch off and on in this rank, and its watchdog."""

    def __init__(self) -> None:
        self._switch = Switch()
        sampler: Any = importlib.import_module("hangwatch.agent.sample.sampler").Sampler
        self._sample = sampler.sample
        self._on = True
        sampler.sample = self._sample_if_on

    def _sample_if_on(self, *arguments: Any) -> None:
        if self._on:
            self._sample(*arguments)

    def turn(self, *, on: bool, watchdog: int) -> None:
        """Make all of it work, or rest. watchdog: its pid, 0 to leave it alone."""
        self._on = on
        self._switch.turn(on=on)
        if watchdog:
            os.kill(watchdog, signal.SIGCONT if on else signal.SIGSTOP)


def watchdog_pid() -> int:
    """The watchdog of the supervisor that is the parent of our parent, torchrun."""
    supervisor = _stat(os.getppid())[1]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"hangwatch.watchdog" in words and _stat(int(path.name))[1] == supervisor:
                return int(path.name)
        except OSError:
            continue
    raise LookupError("no watchdog: is this run by python -m hangwatch torchrun?")


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def train(steps: int, out: Path, *, alternate: bool) -> None:
    """A rank: train, and let rank 0 write the seconds of each step."""
    everything = Everything() if alternate else None
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    dist.init_process_group("gloo")
    watchdog = watchdog_pid() if alternate and dist.get_rank() == 0 else 0
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(64, 512)
    times = []
    for step in range(steps + WARM_UP):
        if everything and (step - WARM_UP) % BLOCK == 0:
            everything.turn(on=(step - WARM_UP) // BLOCK % 2 == 0, watchdog=watchdog)
            dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    if everything:
        everything.turn(on=True, watchdog=watchdog)
    dist.barrier()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(times[WARM_UP:]))
    dist.destroy_process_group()


def job(steps: int, *, watched: bool, alternate: bool = False) -> list[float]:
    """Seconds of each step of one job."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "times")
        launcher = Path(sys.executable).with_name("torchrun")
        words = [str(launcher), "--standalone", "--nproc-per-node=2", __file__]
        words += ["--child", str(steps), "--out", str(out)]
        words += ["--alternate"] if alternate else []
        if watched:
            words = [sys.executable, "-m", "hangwatch", "--report-dir", directory, *words]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, check=True, env=environ, stderr=subprocess.PIPE)  # noqa: S603
        times: list[float] = json.loads(out.read_bytes())
        return times


def within_one_job(blocks: int) -> None:
    """Print the ratio of blocks that alternate within one job."""
    times = job(2 * blocks * BLOCK, watched=True, alternate=True)
    parts = [times[at : at + BLOCK] for at in range(0, len(times), BLOCK)]
    on, off = parts[::2], parts[1::2]
    alone = statistics.median(chain.from_iterable(off))
    ratio = statistics.median(chain.from_iterable(on)) / alone
    pairs = [statistics.median(a) / statistics.median(b) for a, b in zip(on, off, strict=True)]
    print(
        f"within one job, {blocks} pairs of {BLOCK} steps: {alone * 1e3:.3f} ms "
        f"without, ratio of medians {ratio:.4f}; pairs {quartiles(pairs)}",
        flush=True,
    )


def whole_jobs(steps: int, pairs: int) -> None:
    """Print the ratios of jobs with and without."""
    pooled: dict[bool, list[float]] = {True: [], False: []}
    ratios = []
    for number in range(pairs):
        pair = {}
        for watched in (True, False) if number % 2 else (False, True):
            times = job(steps, watched=watched)
            pooled[watched] += times
            pair[watched] = statistics.median(times)
        ratios.append(pair[True] / pair[False])
    ratio = statistics.median(pooled[True]) / statistics.median(pooled[False])
    print(
        f"whole jobs, {pairs} pairs of {steps} steps: "
        f"{statistics.median(pooled[False]) * 1e3:.3f} ms without, ratio of medians {ratio:.4f}; "
        f"pairs {quartiles(ratios)}"
    )


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--alternate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options.child, options.out, alternate=options.alternate)
        return
    print("DDP step, 2 ranks, 6 buckets")
    within_one_job(options.blocks)
    whole_jobs(options.steps, options.pairs)


if __name__ == "__main__":
    main()
