"""A DDP training step, 2 ranks, several buckets: ratio of medians with and without.

Processes with and without hangwatch take turns (A B B A ...): the ratio of each pair
is printed, and the ratio of the medians over all steps.
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

WARM_UP = 20


def train(steps: int, out: Path) -> None:
    """A rank: train, and let rank 0 write the seconds of each step."""
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(64, 512)
    times = []
    for _ in range(steps + WARM_UP):
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    dist.barrier()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(times[WARM_UP:]))
    dist.destroy_process_group()


def job(steps: int, *, watched: bool) -> list[float]:
    """Seconds of each step of one job."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "times")
        launcher = Path(sys.executable).with_name("torchrun")
        words = [str(launcher), "--standalone", "--nproc-per-node=2", __file__]
        words += ["--child", str(steps), "--out", str(out)]
        if watched:
            words = [sys.executable, "-m", "hangwatch", "--report-dir", directory, *words]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, check=True, env=environ, stderr=subprocess.PIPE)  # noqa: S603
        times: list[float] = json.loads(out.read_bytes())
        return times


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options.child, options.out)
        return
    pooled: dict[bool, list[float]] = {True: [], False: []}
    ratios = []
    for number in range(options.pairs):
        pair = {}
        for watched in (True, False) if number % 2 else (False, True):
            times = job(options.steps, watched=watched)
            pooled[watched] += times
            pair[watched] = statistics.median(times)
        ratios.append(pair[True] / pair[False])
        alone_ms = pair[False] * 1e3
        print(f"  pair {number + 1}: {alone_ms:.3f} ms, ratio {ratios[-1]:.4f}", flush=True)
    ratio = statistics.median(pooled[True]) / statistics.median(pooled[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"DDP step, 2 ranks, 6 buckets, {options.pairs} pairs of {options.steps} steps: "
        f"{statistics.median(pooled[False]) * 1e3:.3f} ms without, ratio of medians {ratio:.4f}; "
        f"median of pairs {middle:.4f} ({low:.4f} to {high:.4f})"
    )


if __name__ == "__main__":
    main()
