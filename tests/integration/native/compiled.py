"""Compile over a collective, with the wrappers on torch's classes.

Started by test_native_torch.py. Raises if anything differs from torch without us.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from hangwatch import _native
from hangwatch.evidence.pages.reader import parse_page


class OwnWork(c10d.Work):
    """A Work that is done from the start."""

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        del timeout
        return True

    def get_future(self) -> Any:
        """Give the future that C++ waits for."""
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


class OwnGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of one rank, written in Python, that keeps nothing but its calls."""

    def __init__(self) -> None:
        """Make it rank 0 of 1."""
        super().__init__(0, 1)
        self.calls: list[str] = []

    def allreduce(self, tensors: Any, opts: Any = None) -> OwnWork:
        """Do nothing: one rank's sum is its own."""
        del tensors, opts
        self.calls.append("allreduce")
        return OwnWork()


def main() -> None:
    """Run all of it."""
    path = Path(tempfile.mkdtemp()) / "rank.page"
    _native.open_page(str(path), {"pid": os.getpid(), "rank": 0, "world_size": 1})
    library = [sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib")]
    _native.set_prefixes(library, [])
    _native.define_group(0, "0", "default_pg", [0], 0, "gloo")
    _native.wrap_methods(c10d.ProcessGroup, c10d.Work, lambda _: 0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    @torch.compile(fullgraph=True, backend="aot_eager")  # type: ignore[untyped-decorator]
    def step(values: torch.Tensor) -> torch.Tensor:
        doubled = values * 2
        dist.all_reduce(doubled)
        return doubled + 1

    for size in (4, 8):
        assert torch.equal(step(torch.ones(size)), torch.full((size,), 3.0))
    # The graph calls c10d from C++: its number knows it, the wrapper cannot.
    assert _native.sample_number(0, dist.group.WORLD) == 2
    assert parse_page(path.read_bytes()).events == ()

    own = OwnGroup()
    own.allreduce([torch.ones(1)]).wait()
    assert own.calls == ["allreduce"]
    # What it lacks falls through torch's own class to C++, as without us.
    refused = ""
    try:
        own.broadcast([torch.ones(1)])
    except RuntimeError as error:
        refused = str(error)
    assert "No backend" in refused

    wrapped = dist.ProcessGroup.allreduce
    assert wrapped.__name__ == "allreduce"
    assert (wrapped.__doc__ or "").startswith("allreduce(")
    group = dist.group.WORLD
    group.allreduce(tensors=[torch.ones(2)], opts=c10d.AllreduceOptions()).wait()
    group.allreduce(torch.ones(2)).wait()
    assert [event.shape for event in parse_page(path.read_bytes()).events][-2:] == [(2,), (2,)]
    dist.destroy_process_group()
    sys.stdout.write("good\n")


if __name__ == "__main__":
    main()
