"""The backends of torch.distributed that are known by their names.

Names as ``Backend.name()`` returns them (torch/csrc/distributed/c10d). The C++ side has NCCL's
too, in native/groups.cpp.
"""

from __future__ import annotations

NCCL_OLD = "nccl"
"""The one that was NCCL's alone before torch 2.15, and is built as ``nccl-legacy`` from then on."""
NCCL = (NCCL_OLD, "nccl2", "nccl-lazy")
RECORD_THEMSELVES = frozenset({"gloo", NCCL_OLD, "xccl"})
"""Those that have a Flight Recorder of their own, so that a hook of torch's leaves them alone."""
ON_HOST = frozenset({"gloo", "mpi"})
