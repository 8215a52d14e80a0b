"""One vocabulary for what c10d's recorders, backends and Python call the same thing."""

from __future__ import annotations

import re

from hangwatch.model.operations import WIRES

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

_PEERS = re.compile(r"^(send|recv) +(\d{1,9}) *(->|<-) *(\d{1,9}|\?)$")


def wire_name(profiling_name: str) -> tuple[str, int, int]:
    """(operation, source, destination) of a recorder's ``profiling_name``.

    ``nccl:send 0->3`` and ``nccl:recv 3<-0`` name ranks local to the group
    (ProcessGroupNCCL.cpp, pointToPoint); elsewhere both are -1, and so is a source that may be
    any (``<-?``, FlightRecorderHook.cpp).
    """
    bare = profiling_name.partition(":")[2] or profiling_name
    peers = _PEERS.match(bare)
    if peers:
        left, right = int(peers[2]), -1 if peers[4] == "?" else int(peers[4])
        return (peers[1], left, right) if peers[3] == "->" else (peers[1], right, left)
    name = bare.strip().lower()
    return WIRES.get(name, name), -1, -1


def dtype_name(name: str) -> str:
    """A dtype as torch prints it without its ``torch.``: ``Float`` is ``float32``."""
    bare = name.removeprefix("torch.").lower()
    return _DTYPES.get(bare, bare)
