"""Time that the native wrapper adds to one call, in its parts.

On a stub in the place of torch's class, whose methods do nothing, and on a real
gloo all_reduce of one rank. Blocks of calls with and without the wrapper take
turns; what is told is the median of the blocks, and the medians' difference.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangwatch import _native

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 2000
"""In a block of the stub's calls: about a millisecond."""


class Work:
    """A stub of torch's Work."""

    def wait(self) -> bool:
        """Return at once."""
        return True


class Options:
    """A stub of AllreduceOptions."""

    asyncOp = False  # noqa: N815 (as torch has it)


class Tensor:
    """A stub that torch.Tensor is not: its dtype and shape are not looked at."""


class Group:
    """A stub of torch's ProcessGroup, whose number costs next to nothing."""

    def __init__(self) -> None:
        self.number = 0
        self.work = Work()

    def allreduce(self, tensors: list[Any], opts: Options) -> Work:  # noqa: ARG002 (as torch has it)
        """Count, and do nothing."""
        self.number += 1
        return self.work

    def _get_sequence_number_for_group(self) -> int:
        return self.number


def measure(call: Callable[[], object], blocks: int, calls: int, wrap: Callable[[], object]) -> str:
    """Run blocks by turns; microseconds per call."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for block in range(-2, 2 * blocks):
        on = block % 2 == 0
        if on:
            wrap()
        else:
            _native.unwrap_methods()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        spent = (time.perf_counter() - begin) / calls * 1e6
        if block >= 0:
            times[on].append(spent)
    _native.unwrap_methods()
    with_, without = statistics.median(times[True]), statistics.median(times[False])
    added = statistics.median(a - b for a, b in zip(times[True], times[False], strict=True))
    return (
        f"{without:8.3f} us without, {with_:8.3f} us with: "
        f"{added:+.3f} us, ratio {with_ / without:.4f}"
    )


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=200)
    blocks = parser.parse_args().blocks
    page = Path(tempfile.mkdtemp(dir="/dev/shm")) / "bench.page"  # noqa: S108 (where pages lie)
    _native.open_page(str(page), {"pid": os.getpid(), "rank": 0, "world_size": 1})
    page.unlink()
    page.parent.rmdir()
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    stdlib, packages = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    _native.set_internal_prefixes([f"{stdlib}/", f"{packages}/"])

    group, tensors, options = Group(), [torch.ones(4)], Options()

    def stub() -> None:
        group.allreduce(tensors, options)

    def stub_wait() -> None:
        group.allreduce(tensors, options).wait()

    def wrap_stub() -> None:
        _native.wrap_methods(Group, Work, lambda _: 0)

    for backend, what in (("custom", "own count"), ("gloo", "c10d's number")):
        _native.define_group(0, "0", "stub", [0], 0, backend)
        if backend == "custom":
            _native.disarm()
            print(f"disarmed:                {measure(stub, blocks, CALLS, wrap_stub)}")
            _native.close_page()
            _native.open_page(str(page.parent) + ".page", {"pid": os.getpid()})
            Path(str(page.parent) + ".page").unlink()
            _native.define_group(0, "0", "stub", [0], 0, backend)
        print(f"stub, {what:14s}     {measure(stub, blocks, CALLS, wrap_stub)}")
        print(f"stub with wait, {what:14s}{measure(stub_wait, blocks, CALLS, wrap_stub)}")

    torch.set_num_threads(1)
    # gloo works in a thread of its own; on one CPU the hand-over takes one fixed way.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(4)
    c10d = torch._C._distributed_c10d  # noqa: SLF001 (the classes that the agent wraps)
    _native.define_group(0, "0", "default_pg", [0], 0, "gloo")

    def wrap_torch() -> None:
        _native.wrap_methods(c10d.ProcessGroup, c10d.Work, lambda _: 0)

    print(
        f"all_reduce, one rank:    "
        f"{measure(lambda: dist.all_reduce(tensor), blocks, CALLS // 10, wrap_torch)}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
