"""The backends of torch.distributed that are known by their names.

Names as ``Backend.name()`` returns them (torch/csrc/distributed/c10d). The C++ side has NCCL's
too, in native/groups.cpp.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence

NCCL_OLD = "nccl"
"""The one that was NCCL's alone before torch 2.15, and is built as ``nccl-legacy`` from then on."""
NCCL = (NCCL_OLD, "nccl2", "nccl-lazy")
RECORD_THEMSELVES = frozenset({"gloo", NCCL_OLD, "xccl"})
"""Those that have a Flight Recorder of their own, so that a hook of torch's leaves them alone."""
ON_HOST = frozenset({"gloo", "mpi"})


def ran_on_host(hooked: Sequence[tuple[int, bool]], by_host: Sequence[int]) -> list[bool]:
    """Of the calls that a hook recorded in one group, which are barriers that the host ran.

    A barrier has no tensor to tell the hook where it runs: in a group of two backends
    (``cpu:gloo,cuda:nccl2``) the hook takes it for one of the device's, whose completion it never
    hears of. gloo has recorded the same call a moment later.

    hooked: when each was made, in that order, and whether it is a barrier. by_host: when each
    barrier was made that the host's backend recorded in the group, in that order. All in ns of
    one clock.
    """
    ends = [made for made, _ in hooked[1:]] + [sys.maxsize]
    return [
        barrier and bisect_left(by_host, made) < bisect_left(by_host, end)
        for (made, barrier), end in zip(hooked, ends, strict=True)
    ]
