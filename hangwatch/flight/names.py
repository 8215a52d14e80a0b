"""One vocabulary for what c10d's recorders, backends and Python call the same thing."""

from __future__ import annotations

import re

_WIRES = {
    "_all_gather_base": "all_gather_into_tensor",
    "all_gather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "sparse_all_reduce": "all_reduce",
    "all_reduce_sparse": "all_reduce",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_allv": "all_to_all_single",
    "recvanysource": "recv",
    "recv_any_source": "recv",
}
"""Other names of an operation, lower case, and the name that hangwatch uses.

From torch/csrc/distributed/c10d: the ``profiling title`` of ProcessGroupNCCL.cpp
and ProcessGroupGloo.cpp, and the methods of ProcessGroup in init.cpp.
"""

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
    "complexhalf": "complex32",
}
"""Names of c10::ScalarType (c10/core/ScalarType.h), lower case, as torch.dtype."""

_PEERS = re.compile(r"^(send|recv) +(\d{1,9}) *(->|<-) *(\d{1,9})$")


def wire_name(profiling_name: str) -> tuple[str, int, int]:
    """(operation, source, destination) of a recorder's ``profiling_name``.

    ``nccl:send 0->3`` and ``nccl:recv 3<-0`` name ranks local to the group
    (ProcessGroupNCCL.cpp, pointToPoint); elsewhere both are -1.
    """
    bare = profiling_name.partition(":")[2] or profiling_name
    peers = _PEERS.match(bare)
    if peers:
        left, right = int(peers[2]), int(peers[4])
        return (peers[1], left, right) if peers[3] == "->" else (peers[1], right, left)
    name = bare.strip().lower()
    return _WIRES.get(name, name), -1, -1


def dtype_name(name: str) -> str:
    """A dtype as torch prints it without its ``torch.``: ``Float`` is ``float32``."""
    bare = name.removeprefix("torch.").lower()
    return _DTYPES.get(bare, bare)
