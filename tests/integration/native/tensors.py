"""Look at tensors of all kinds, without anybody noticing.

Started by test_native_torch.py. Raises if anything differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hangwatch import _native
from hangwatch.evidence.pages.reader import parse_page

if TYPE_CHECKING:
    from hangwatch.model.page import PageEvent


class Group:
    """Stands for torch's ProcessGroup with a number for each of its backends."""

    number = 0

    def allreduce(self, tensors: list[torch.Tensor]) -> None:
        """Count what is not on the CPU, as the number of NCCL does."""
        self.number += not tensors[0].is_cpu

    def _get_sequence_number_for_group(self) -> int:
        return self.number


class Work:
    """Stands for torch's Work, of which none is made."""

    def wait(self) -> None:
        """Return."""


class Watched(torch.Tensor):  # type: ignore[misc]
    """A tensor that notices whoever looks at it."""

    looks: list[Any] = []  # noqa: RUF012 (of the class, on purpose)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Note what is done."""
        cls.looks.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


class Plain(torch.Tensor):  # type: ignore[misc]
    """A tensor that does not care."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001 (as users have it)


def main() -> None:
    """Run all of it."""
    path = Path(tempfile.mkdtemp()) / "rank.page"
    _native.open_page(str(path), {"pid": os.getpid(), "rank": 0, "world_size": 1})
    _native.wrap_methods(Group, Work, lambda _: 0)
    _native.define_group(0, "0", "", [0], 0, "cpu:gloo,cuda:nccl")
    group = Group()

    def record(tensor: torch.Tensor) -> PageEvent:
        group.allreduce([tensor])
        return parse_page(path.read_bytes()).events[-1]

    ones = torch.ones(2, 3)
    for tensor in (ones, torch.nn.Parameter(ones), ones.as_subclass(Plain), ones.t().t()):
        event = record(tensor)
        assert (event.dtype, event.shape) == ("float32", (2, 3)), event
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.bfloat16):
        assert record(ones.to(dtype)).dtype == str(dtype).removeprefix("torch.")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.float16):
        assert record(ones.to(dtype)).dtype == str(dtype).removeprefix("torch.")
    assert record(torch.tensor(1)).shape == ()
    assert record(torch.ones([1] * 11)).shape == (1,) * 8
    # Not on the CPU, and without memory: DLPack has no such thing.
    event = record(torch.empty(5, device="meta"))
    assert (event.dtype, event.shape) == ("float32", (5,))
    event = record(ones)
    assert (event.dtype, event.shape) == ("float32", (2, 3))
    sparse = record(ones.to_sparse())
    assert sparse.shape == (2, 3)

    watched = ones.as_subclass(Watched)
    Watched.looks.clear()
    looked_at_by_the_group = 1
    event = record(watched)
    assert len(Watched.looks) == looked_at_by_the_group
    assert (event.dtype, event.shape) == ("", ())

    # What runs on gloo is not in NCCL's number, but has its place.
    page = parse_page(path.read_bytes())
    assert [event.seq for event in page.events] == list(range(1, len(page.events) + 1))
    assert _native.sample_number(0, group) == len(page.events)
    assert (page.swallowed, page.disarmed) == (0, "")
    sys.stdout.write("good\n")


if __name__ == "__main__":
    main()
