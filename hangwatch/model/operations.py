"""The operations and backends of torch.distributed, and the methods that issue operations.

One table for the recorders, the reader of Flight Recorder dumps and the diagnosis. The C++
side is generated from it: ``python native/methods.py > native/methods.hpp``. Backends are named
as ``Backend.name()`` returns them (torch/csrc/distributed/c10d); NCCL's names are also in
native/groups.cpp.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

NCCL_OLD = "nccl"
"""NCCL's only backend before torch 2.15, which is built as ``nccl-legacy`` from then on."""
NCCL = (NCCL_OLD, "nccl2", "nccl-lazy")
RECORD_THEMSELVES = frozenset({"gloo", NCCL_OLD, "xccl"})
"""Backends that have a Flight Recorder of their own, so that a hook of torch's skips them."""
ON_HOST = frozenset({"gloo", "mpi"})


def ran_on_host(hooked: Sequence[tuple[int, bool]], by_host: Sequence[int]) -> list[bool]:
    """Return for each call that a hook recorded in a group True if the host ran it, a barrier.

    A barrier has no tensor to show the hook where it runs: in a group of two backends
    (``cpu:gloo,cuda:nccl2``) the hook takes it for one of the device's, whose completion it never
    hears of. gloo has recorded the same call a moment later.

    hooked: the time of each call, in that order, and True for a barrier. by_host: the time of each
    barrier that the host's backend recorded in the group, in that order. All in ns of one clock.
    """
    ends = [made for made, _ in hooked[1:]] + [sys.maxsize]
    return [
        barrier and bisect_left(by_host, made) < bisect_left(by_host, end)
        for (made, barrier), end in zip(hooked, ends, strict=True)
    ]


class Operation(NamedTuple):
    """One operation, by the name that hangwatch uses on the wire and in its output.

    also: its other names in recorders, lower case: the ``profiling title`` of
        ProcessGroupNCCL.cpp and ProcessGroupGloo.cpp. Methods' names need not stand there.
    by_gloo: its name in gloo's Flight Recorder, empty where that is this name.
    run_as: the operation that backends run it as, so that members may issue either, empty where it
        is one of its own. Seen on gloo; NCCL makes the same call for both (ProcessGroupNCCL.cpp).
    rooted: one rank of the group is its root.
    equal_sizes: the tensors have one size and dtype on all ranks. The list forms may be uneven.
    one_tensor: each rank has one tensor, so that all sources describe the same one. Else one
        may have the input's size and another the output's.
    needs_all: no rank completes it before all have entered it.
    copies: it computes nothing, so that a dtype of the same size does as well.
    """

    name: str
    also: tuple[str, ...] = ()
    by_gloo: str = ""
    run_as: str = ""
    rooted: bool = False
    equal_sizes: bool = False
    one_tensor: bool = False
    needs_all: bool = False
    copies: bool = False


_ALL = (
    Operation(
        "all_reduce",
        ("sparse_all_reduce", "all_reduce_sparse"),
        equal_sizes=True,
        one_tensor=True,
        needs_all=True,
    ),
    Operation("all_reduce_coalesced", needs_all=True),
    Operation(
        "broadcast",
        ("_broadcast_oop",),
        rooted=True,
        equal_sizes=True,
        one_tensor=True,
        copies=True,
    ),
    Operation("reduce", ("_reduce_oop",), rooted=True, equal_sizes=True, one_tensor=True),
    Operation("all_gather", needs_all=True),
    Operation("all_gather_coalesced", needs_all=True),
    Operation(
        "all_gather_into_tensor",
        ("_all_gather_base", "all_gather_base"),
        by_gloo="all_gather",
        run_as="all_gather",
        equal_sizes=True,
        needs_all=True,
        copies=True,
    ),
    Operation(
        "all_gather_into_tensor_coalesced",
        by_gloo="all_gather",
        run_as="all_gather",
        needs_all=True,
    ),
    Operation("gather", rooted=True, equal_sizes=True, copies=True),
    Operation("gather_single", rooted=True, equal_sizes=True, copies=True),
    Operation("scatter", rooted=True),
    Operation("reduce_scatter", by_gloo="all_reduce", needs_all=True),
    Operation(
        "reduce_scatter_tensor",
        ("reduce_scatter_base",),
        by_gloo="all_reduce",
        equal_sizes=True,
        needs_all=True,
    ),
    Operation("reduce_scatter_tensor_coalesced", by_gloo="all_reduce", needs_all=True),
    Operation("all_to_all", needs_all=True),
    Operation(
        "all_to_all_single",
        ("all_to_allv",),
        by_gloo="all_to_all",
        run_as="all_to_all",
        needs_all=True,
    ),
    Operation("barrier", ("all_reduce_barrier",), needs_all=True),
    Operation("monitored_barrier"),
    Operation("coalesced", needs_all=True),
    Operation("send"),
    Operation("recv", ("recvanysource", "recv_any_source")),
)
OPERATIONS = {operation.name: operation for operation in _ALL}


class Parameter(NamedTuple):
    """An argument of a method: its position without self, or its names."""

    position: int
    names: tuple[str, ...] = ()


class Method(NamedTuple):
    """A method of torch.distributed.ProcessGroup (torch/csrc/distributed/c10d/init.cpp).

    wire: the name of the operation that it issues.
    tensor: the tensor, or list of tensors, by which ranks are compared: what a rank gives, as
        that must agree; but the output where only the root has an input (scatter) or where the
        inputs are a list (reduce_scatter).
    options: the options, or in the forms without them the root.
    peer, tag: of point-to-point calls.
    sends, receives: lists of how many rows go to each member, and come from it; empty lists mean
        that it is as many for all.
    core: every version of torch since 2.4 has it.
    """

    name: str
    wire: str
    tensor: Parameter | None = None
    options: Parameter | None = None
    peer: Parameter | None = None
    tag: Parameter | None = None
    sends: Parameter | None = None
    receives: Parameter | None = None
    core: bool = False

    @property
    def rooted(self) -> bool:
        """True if the operation has a root."""
        return OPERATIONS[self.wire].rooted

    @property
    def p2p(self) -> bool:
        """True if it is point-to-point."""
        return self.tag is not None

    @property
    def seq_count(self) -> int:
        """Number of sequence numbers that a call takes in its group.

        The Flight Recorder counts a monitored_barrier twice, on every rank.
        """
        return 0 if self.p2p else 2 if self.wire == "monitored_barrier" else 1


_TENSORS = Parameter(0, ("tensors", "tensor"))
_OUTPUTS = Parameter(0, ("output_tensors", "output_tensor", "output"))
_INPUTS = Parameter(1, ("input_tensors", "input_tensor"))
_LISTS = Parameter(1, ("inputs", "input_list", "inputTensors"))
_INPUT = Parameter(1, ("input", "inputTensor"))
_OPTIONS = (
    Parameter(0, ("opts",)),
    Parameter(1, ("opts", "root")),
    Parameter(2, ("opts", "root")),
)
_SPLIT_OPTIONS = Parameter(4, ("opts",))
_SENDS = Parameter(3, ("input_split_sizes",))
_RECEIVES = Parameter(2, ("output_split_sizes",))
_TAG = Parameter(2, ("tag",))

METHODS = (
    Method("allreduce", "all_reduce", _TENSORS, _OPTIONS[1], core=True),
    Method("allreduce_coalesced", "all_reduce_coalesced", _TENSORS, _OPTIONS[1]),
    Method("broadcast", "broadcast", _TENSORS, _OPTIONS[1], core=True),
    Method("reduce", "reduce", _TENSORS, _OPTIONS[1], core=True),
    Method("allgather", "all_gather", _INPUTS, _OPTIONS[2], core=True),
    Method("allgather_coalesced", "all_gather_coalesced", _LISTS, _OPTIONS[2]),
    Method("_allgather_base", "all_gather_into_tensor", _INPUT, _OPTIONS[2], core=True),
    Method("all_gather_single", "all_gather_into_tensor", _INPUT, _OPTIONS[2]),
    Method("all_gather_single_coalesced", "all_gather_into_tensor_coalesced", _LISTS, _OPTIONS[2]),
    Method(
        "allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", _LISTS, _OPTIONS[2]
    ),
    Method("gather", "gather", _INPUTS, _OPTIONS[2], core=True),
    Method("gather_single", "gather_single", _INPUT, _OPTIONS[2]),
    Method("gather_into_tensor", "gather_single", _INPUT, _OPTIONS[2]),
    Method("scatter", "scatter", _OUTPUTS, _OPTIONS[2], core=True),
    Method("reduce_scatter", "reduce_scatter", _OUTPUTS, _OPTIONS[2], core=True),
    Method("_reduce_scatter_base", "reduce_scatter_tensor", _INPUT, _OPTIONS[2], core=True),
    Method("reduce_scatter_single", "reduce_scatter_tensor", _INPUT, _OPTIONS[2]),
    Method(
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", _LISTS, _OPTIONS[2]
    ),
    Method(
        "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", _LISTS, _OPTIONS[2]
    ),
    Method("alltoall", "all_to_all", _INPUTS, _OPTIONS[2], core=True),
    Method(
        "alltoall_base",
        "all_to_all_single",
        _INPUT,
        _SPLIT_OPTIONS,
        sends=_SENDS,
        receives=_RECEIVES,
        core=True,
    ),
    Method(
        "all_to_all_single",
        "all_to_all_single",
        _INPUT,
        _SPLIT_OPTIONS,
        sends=_SENDS,
        receives=_RECEIVES,
    ),
    Method("barrier", "barrier", options=_OPTIONS[0], core=True),
    Method("monitored_barrier", "monitored_barrier"),
    Method("send", "send", _TENSORS, peer=Parameter(1, ("dstRank",)), tag=_TAG, core=True),
    Method("recv", "recv", _TENSORS, peer=Parameter(1, ("srcRank",)), tag=_TAG, core=True),
    Method("recv_anysource", "recv", _TENSORS, tag=Parameter(1, ("tag",)), core=True),
)

WIRES = {
    **{method.name.lower(): method.wire for method in METHODS},
    **{name: operation.name for operation in _ALL for name in operation.also},
}
"""Other names of an operation, lower case, and the name that hangwatch uses."""
