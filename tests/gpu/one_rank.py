"""What beacons tell on a real GPU, in a process of its own: python one_rank.py CASE.

NCCL with one rank. Each case ends with an assertion that fails, or prints "good".
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "suite"))

import pynvml
from waiting import until

from hangwatch import _native
from hangwatch.agent.sample.flight import FlightRecorder
from hangwatch.agent.torch_api import GENERAL, NCCL, Recorders, backends
from hangwatch.evidence.flight import parse_dump
from hangwatch.evidence.pages.reader import parse_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.model.page import PageGroup, RankPage

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")
SLEEP_CYCLES = 4_000_000_000
"""Some two seconds."""


def device_memory() -> int:
    """What the driver says that this process has of the GPU, in bytes; others may use it too."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return sum(one.usedGpuMemory or 0 for one in running if one.pid == os.getpid())


class Rank:
    """A rank whose calls are recorded."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "r0-0-1.page"
        _native.open_page(str(self.path), {"pid": os.getpid(), "rank": 0, "world_size": 1})
        c10d = torch._C._distributed_c10d  # noqa: SLF001 (as the agent)
        _native.wrap_methods(c10d.ProcessGroup, c10d.Work, lambda _: 0)
        _native.use_streams(torch._C._cuda_getCurrentRawStream)  # noqa: SLF001 (as the agent)
        _native.define_group(0, "0", "default_pg", [0], 0, "nccl")
        self.tensor = torch.ones(1024, device="cuda")

    @property
    def page(self) -> RankPage:
        """As the watchdog reads it."""
        return parse_page(self.path.read_bytes())

    @property
    def told(self) -> PageGroup:
        """What is known of the group."""
        return self.page.groups[0]

    def warm_up(self) -> int:
        """Make NCCL's communicator; returns how many calls there were."""
        for _ in range(3):
            dist.all_reduce(self.tensor)
        torch.cuda.synchronize()
        assert self.page.beacons == "", self.page.beacons
        told = self.told
        assert told.reached == told.passed == told.enqueued, told
        return told.enqueued

    def until(self, condition: Callable[[PageGroup], bool]) -> None:
        """Wait for what the GPU writes; nothing is asked of CUDA."""
        until(lambda: condition(self.told), lambda: str(self.told))


def stuck_before(rank: Rank) -> None:
    """A long kernel before the call: it is enqueued, and not reached."""
    done = rank.warm_up()
    torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 (a kernel that runs for so long)
    work = dist.all_reduce(rank.tensor, async_op=True)
    assert (rank.told.enqueued, rank.told.reached) == (done + 1, done)
    work.wait()
    assert (rank.told.reached, rank.told.passed) == (done, done)
    rank.until(lambda told: told.reached == told.passed == done + 1)


def stuck_behind(rank: Rank) -> None:
    """A long kernel between the call and its wait: the call is reached and not passed."""
    done = rank.warm_up()
    work = dist.all_reduce(rank.tensor, async_op=True)
    rank.until(lambda told: told.reached == done + 1)
    torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 (as above)
    work.wait()
    assert (rank.told.reached, rank.told.passed) == (done + 1, done)
    rank.until(lambda told: told.passed == done + 1)


def streams(rank: Rank) -> None:
    """Of two streams of one rank one is stuck: the call on it is not told as reached."""
    done = rank.warm_up()
    stuck, free = torch.cuda.Stream(), torch.cuda.Stream()
    other = rank.tensor.clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(stuck):
        torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 (as above)
        first = dist.all_reduce(rank.tensor, async_op=True)
    with torch.cuda.stream(free):
        second = dist.all_reduce(other, async_op=True)
    time.sleep(0.2)
    assert rank.told.reached == done, rank.told
    first.wait()
    second.wait()
    torch.cuda.synchronize()
    rank.until(lambda told: told.reached == told.passed == done + 2)


def graph(rank: Rank) -> None:
    """What is captured has no beacons, and does what it should."""
    rank.warm_up()
    static = torch.ones(8, device="cuda")
    captured = torch.cuda.CUDAGraph()
    before = rank.told
    with torch.cuda.graph(captured):
        static.mul_(2)
        dist.all_reduce(static)
    assert (rank.told.reached, rank.told.passed) == (before.reached, before.passed)
    static.fill_(1.0)
    for _ in range(3):
        captured.replay()
    torch.cuda.synchronize()
    assert static.tolist() == [8.0] * 8
    assert rank.page.beacons == "", rank.page.beacons
    dist.all_reduce(rank.tensor)
    torch.cuda.synchronize()
    rank.until(lambda told: told.reached == told.passed == told.enqueued)


def compiled(rank: Rank) -> None:
    """torch.compile is left alone: functional collectives have no beacons."""
    rank.warm_up()
    functional = importlib.import_module("torch.distributed._functional_collectives")

    def body(tensor: Any) -> Any:
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    function = torch.compile(body, fullgraph=True)
    for _ in range(3):
        assert function(torch.ones(4, device="cuda")).tolist() == [3.0] * 4
    assert rank.page.beacons == "", rank.page.beacons
    assert rank.page.swallowed == 0


def many(rank: Rank) -> None:
    """A hundred thousand calls leave neither host nor device memory behind."""
    done = rank.warm_up()
    calls = 100_000
    for number in range(calls):
        dist.all_reduce(rank.tensor)
        if number == calls // 10:
            torch.cuda.synchronize()
            held = device_memory()
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.cuda.synchronize()
    assert abs(device_memory() - held) < 32 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss < 32 << 10  # KiB
    rank.until(lambda told: told.reached == told.passed == done + calls)


def barrier(rank: Rank) -> None:
    """A barrier is on the device of the calls before it."""
    rank.warm_up()
    dist.barrier()
    torch.cuda.synchronize()
    rank.until(lambda told: told.reached == told.passed == told.enqueued)


def recorder(rank: Rank) -> None:
    """The recorder is read during a capture, and while the GIL is held, and harms neither.

    NCCL's own, or from torch 2.15 on that of the backend which ``nccl`` stands for.
    """
    rank.warm_up()
    page = str(rank.path)
    recorders = Recorders(torch._C._distributed_c10d)  # noqa: SLF001 (as the agent)
    flight = FlightRecorder(recorders)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        rank.tensor.mul_(2)
        reader = threading.Thread(target=flight.leave, args=(page,))
        reader.start()
        reader.join()
    captured.replay()
    torch.cuda.synchronize()
    answer = Path(page + ".flight")
    entries = parse_dump(answer.read_bytes()).entries
    numbers = [(entry.wire, entry.seq) for entry in entries]
    assert {entry.backend for entry in entries} == {backends(dist.group.WORLD)["cuda"]}
    answer.unlink()
    assert _native.use_dumps(NCCL in recorders.dumps, GENERAL in recorders.dumps)
    _native.start_heartbeat(50)
    Path(page + ".req").touch()
    ctypes.PyDLL(None).sleep(2)
    # c10d's watchdog may have retired some of them since.
    later = parse_dump(answer.read_bytes()).entries
    assert [(entry.wire, entry.seq) for entry in later] == numbers
    _native.stop_heartbeat()


CASES = {
    case.__name__: case
    for case in (stuck_before, stuck_behind, streams, graph, compiled, many, barrier, recorder)
}


def main() -> None:
    """Run one case."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        CASES[sys.argv[1]](Rank(Path(directory)))
        dist.destroy_process_group()
    sys.stdout.write("good\n")


if __name__ == "__main__":
    main()
