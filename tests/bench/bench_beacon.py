"""What stream beacons cost a collective: host time, and on a GPU the device's as well.

Blocks of calls with and without beacons take turns, each with a page of its own; told
are the median of the blocks without, and of the differences between neighbours. On a
stub in the place of torch's class against the tests' fake driver: that is all of ours,
and next to nothing of the driver's. Where torch finds a CUDA device, also on NCCL's
all_reduce of one rank, which is the real cost.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import stub

from hangwatch import _native
from hangwatch.evidence.pages.reader import parse_page

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 2000
"""In a block."""


class Pages:
    """Gives this process a page, with beacons or without, and takes it away."""

    def __init__(self, directory: Path, streams: Callable[[int], int], library: str) -> None:
        self._path = directory / "bench.page"
        self._streams = streams
        self._library = library

    def open(self, *, beacons: bool) -> None:
        """A new page."""
        self._path.unlink(missing_ok=True)
        _native.open_page(str(self._path), {"pid": os.getpid(), "rank": 0, "world_size": 1})
        if beacons:
            _native.use_streams(self._streams, self._library)
        _native.define_group(0, "0", "", [0], 0, "nccl")

    def close(self) -> str:
        """Close it; returns why it had no beacons."""
        page = parse_page(self._path.read_bytes())
        _native.close_page()
        return page.beacons


def measure(
    what: str, block: Callable[[], float], pages: Pages, blocks: int, settle: Callable[[], object]
) -> None:
    """Run blocks by turns and print a line. block returns the time of one call in us."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(-2, 2 * blocks):
        on = number % 2 == 0
        pages.open(beacons=on)
        block()  # the first collective pins the page
        settle()
        spent = block()
        settle()
        why = pages.close()
        if on and why:
            print(f"{what:34} no beacons: {why}")
            return
        if number >= 0:
            times[on].append(spent)
    without = statistics.median(times[False])
    added = statistics.median(a - b for a, b in zip(times[True], times[False], strict=True))
    print(f"{what:34} {without:8.3f} us {added:+7.3f} us for both beacons of a call")


def host_block(call: Callable[[], object], calls: int) -> float:
    """Host time of a call in us."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


def on_the_fake(directory: Path, blocks: int) -> None:
    """The stub's calls, whose beacons a fake driver takes."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
    fake_cuda = importlib.import_module("fake_cuda")
    library = fake_cuda.build(directory)
    fake = fake_cuda.FakeCuda(library)
    sys.modules["torch"] = stub.torch()
    group, tensors = stub.Group(), [stub.OnDevice()]
    _native.wrap_methods(stub.Group, stub.Work, lambda _: 0)

    def call() -> None:
        group.allreduce(tensors).wait()

    # A function written in C, as torch's is.
    pages = Pages(directory, {0: 0}.__getitem__, str(library))
    measure("stub, fake driver", lambda: host_block(call, CALLS), pages, blocks, fake.run)
    _native.unwrap_methods()
    del sys.modules["torch"]


def on_a_gpu(directory: Path, blocks: int) -> None:
    """NCCL's all_reduce of one rank, small and on its way."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        print("NCCL: not measured, torch finds no CUDA device on this machine")
        return
    dist = importlib.import_module("torch.distributed")
    c10d = torch._C._distributed_c10d  # noqa: SLF001 (the classes that the agent wraps)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(1024, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    _native.wrap_methods(c10d.ProcessGroup, c10d.Work, lambda _: 0)
    streams = torch._C._cuda_getCurrentRawStream  # noqa: SLF001 (as the agent does)
    pages = Pages(directory, streams, "libcuda.so.1")
    settle = torch.cuda.synchronize
    calls = CALLS // 10  # fewer than a stream takes before it makes the host wait

    def call() -> None:
        dist.all_reduce(tensor)

    def device_block() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / CALLS * 1e3

    def wait_block() -> float:
        work = None
        begin = time.perf_counter()
        for _ in range(calls):
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
        return (time.perf_counter() - begin) / calls * 1e6

    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
    measure("NCCL all_reduce, host", lambda: host_block(call, calls), pages, blocks, settle)
    measure("NCCL all_reduce async, host", wait_block, pages, blocks, settle)
    measure("NCCL all_reduce, stream", device_block, pages, blocks, settle)
    big = torch.ones(64 << 20, dtype=torch.bfloat16, device="cuda")
    weights = torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda")

    def step_block() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            torch.mm(weights, weights)
            dist.all_reduce(big)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / calls * 1e3

    measure("matmul and all_reduce, stream", step_block, pages, blocks // 4 + 1, settle)
    _native.unwrap_methods()
    dist.destroy_process_group()


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100)
    blocks = parser.parse_args().blocks
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        on_a_gpu(Path(directory), blocks)
        on_the_fake(Path(directory), blocks)  # whose libcuda.so.1 torch would take for the driver


if __name__ == "__main__":
    main()
