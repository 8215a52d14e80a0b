"""Time that the native wrapper adds to one call, in its parts.

On a stub in the place of torch's class, whose methods do next to nothing, and on a
real gloo all_reduce of one rank. Blocks of calls with and without the wrapper take
turns. Told are the median of the blocks without, and of the differences between
neighbours, so that what else the machine does falls out.
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
from typing import TYPE_CHECKING

from stub import Group, Work

from hangwatch import _native

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 2000
"""In a block of the stub's calls: a fraction of a millisecond."""


def measure(
    what: str,
    call: Callable[[], object],
    blocks: int,
    calls: int,
    wrap: Callable[[], object],
) -> None:
    """Run blocks by turns and print a line. The methods are unwrapped afterwards."""
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
        if block >= 0:  # one warm-up of each
            times[on].append(spent)
    _native.unwrap_methods()
    without = statistics.median(times[False])
    added = statistics.median(a - b for a, b in zip(times[True], times[False], strict=True))
    print(f"{what:32} {without:8.3f} us {added:+7.3f} us, ratio {1 + added / without:.4f}")


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=300)
    blocks = parser.parse_args().blocks
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory) / "bench.page"
        _native.open_page(str(path), {"pid": os.getpid(), "rank": 0, "world_size": 1})
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    library = [f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib")]
    _native.set_prefixes(library, [])
    torch.set_num_threads(1)
    # gloo works in a thread of its own; on one CPU the hand-over takes one fixed way.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    tensor = torch.ones(4)
    c10d = torch._C._distributed_c10d  # noqa: SLF001 (the classes that the agent wraps)

    def wrap_torch() -> None:
        _native.wrap_methods(c10d.ProcessGroup, c10d.Work, lambda _: 0)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _native.define_group(0, "0", "default_pg", [0], 0, "gloo")
    measure("gloo all_reduce", lambda: dist.all_reduce(tensor), blocks, CALLS // 10, wrap_torch)
    dist.destroy_process_group()

    group, tensors = Group(), [tensor]

    def wrap_stub() -> None:
        _native.wrap_methods(Group, Work, lambda _: 0)

    def call() -> None:
        group.allreduce(tensors)

    def call_and_wait() -> None:
        group.allreduce(tensors).wait()

    _native.define_group(0, "0", "stub", [0], 0, "gloo")
    measure("stub, with c10d's number", call, blocks, CALLS, wrap_stub)
    measure("stub, with number and wait", call_and_wait, blocks, CALLS, wrap_stub)
    _native.define_group(0, "0", "stub", [0], 0, "custom")
    measure("stub, own count", call, blocks, CALLS, wrap_stub)
    _native.disarm()
    measure("stub, disarmed", call, blocks, CALLS, wrap_stub)


if __name__ == "__main__":
    main()
