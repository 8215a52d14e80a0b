"""The methods of torch.distributed.ProcessGroup that issue communication.

The same table as in native/signature.hpp, for the wrappers that are written in
Python: those of the Python recorder, and those around process groups that are
themselves written in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Method(NamedTuple):
    """One method: the position and names of what tells calls apart; -1 for none."""

    name: str
    wire: str
    tensor: int = -1
    keywords: tuple[str, ...] = ()
    options: int = -1
    rooted: bool = False
    peer: int = -1
    tag: int = -1

    @property
    def p2p(self) -> bool:
        """Whether it is point-to-point."""
        return self.tag >= 0

    @property
    def places(self) -> int:
        """How many places it takes in its group.

        The Flight Recorder counts a monitored_barrier twice, on every rank.
        """
        return 0 if self.p2p else 2 if self.wire == "monitored_barrier" else 1


_TENSORS = ("tensors", "tensor")
_OUTPUTS = ("output_tensors", "output_tensor", "output")
_INPUTS = ("input_tensors", "input_tensor")
_COALESCED = ("inputs", "input_list", "inputTensors")
_SINGLE = ("input", "inputTensor")

METHODS: tuple[Method, ...] = (
    Method("allreduce", "all_reduce", 0, _TENSORS, 1),
    Method("allreduce_coalesced", "all_reduce_coalesced", 0, _TENSORS, 1),
    Method("broadcast", "broadcast", 0, _TENSORS, 1, rooted=True),
    Method("reduce", "reduce", 0, _TENSORS, 1, rooted=True),
    Method("allgather", "all_gather", 1, _INPUTS, 2),
    Method("allgather_coalesced", "all_gather_coalesced", 1, _COALESCED, 2),
    Method("_allgather_base", "all_gather_into_tensor", 1, _SINGLE, 2),
    Method("all_gather_single", "all_gather_into_tensor", 1, _SINGLE, 2),
    Method("all_gather_single_coalesced", "all_gather_into_tensor_coalesced", 1, _COALESCED, 2),
    Method("allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", 1, _COALESCED, 2),
    Method("gather", "gather", 1, _INPUTS, 2, rooted=True),
    Method("gather_single", "gather_single", 1, _SINGLE, 2, rooted=True),
    Method("gather_into_tensor", "gather_single", 1, _SINGLE, 2, rooted=True),
    # Where only the root has an input, or the inputs are a list, the output is what must agree.
    Method("scatter", "scatter", 0, _OUTPUTS, 2, rooted=True),
    Method("reduce_scatter", "reduce_scatter", 0, _OUTPUTS, 2),
    Method("_reduce_scatter_base", "reduce_scatter_tensor", 1, _SINGLE, 2),
    Method("reduce_scatter_single", "reduce_scatter_tensor", 1, _SINGLE, 2),
    Method("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", 1, _COALESCED, 2),
    Method("reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", 1, _COALESCED, 2),
    Method("alltoall", "all_to_all", 1, _INPUTS, 2),
    Method("alltoall_base", "all_to_all_single", 1, _SINGLE, 4),
    Method("all_to_all_single", "all_to_all_single", 1, _SINGLE, 4),
    Method("barrier", "barrier", options=0),
    Method("monitored_barrier", "monitored_barrier"),
    Method("send", "send", 0, _TENSORS, peer=1, tag=2),
    Method("recv", "recv", 0, _TENSORS, peer=1, tag=2),
    Method("recv_anysource", "recv", 0, _TENSORS, tag=1),
)


class Signature(NamedTuple):
    """What a call works on. Ranks are global, -1 for none."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int = -1
    peer: int = -1
    tag: int = 0
    is_async: bool = False


def read_signature(
    method: Method, args: Sequence[Any], kwargs: dict[str, Any], ranks: Sequence[int]
) -> Signature:
    """The signature of a call; args are those after self, ranks the group's members."""
    tensor = _first(_argument(args, kwargs, method.tensor, method.keywords))
    options = _argument(args, kwargs, method.options, ("opts", "root"))
    root = getattr(options, "rootRank", options) if method.rooted else None
    peer = _argument(args, kwargs, method.peer, ("dstRank", "srcRank"))
    tag = _argument(args, kwargs, method.tag, ("tag",))
    return Signature(
        str(getattr(tensor, "dtype", "")).removeprefix("torch."),
        tuple(getattr(tensor, "shape", ())),
        _global(root, ranks),
        _global(peer, ranks),
        tag if isinstance(tag, int) else 0,
        bool(getattr(options, "asyncOp", False)),
    )


def _argument(
    args: Sequence[Any], kwargs: dict[str, Any], position: int, names: tuple[str, ...]
) -> Any:
    if 0 <= position < len(args):
        return args[position]
    if position < 0:
        return None
    return next((kwargs[name] for name in names if name in kwargs), None)


def _first(value: Any) -> Any:
    """The first tensor of a list, or of a list of lists."""
    for _ in range(2):
        if isinstance(value, list | tuple):
            value = value[0] if value else None
    return value


def _global(rank: Any, ranks: Sequence[int]) -> int:
    if isinstance(rank, int) and 0 <= rank < len(ranks):
        return ranks[rank]
    return -1
