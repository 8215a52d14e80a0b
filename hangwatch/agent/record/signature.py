"""Reads the signature of a call of a method of ProcessGroup from its arguments.

For the wrappers that are written in Python: those of the Python recorder, and those
around process groups that are themselves written in Python. native/signature.cpp does the
same for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangwatch.model.operations import Method, Parameter


MAX_SPLITS = 128
"""Of larger groups they are not kept (native/page.hpp: kMaxSplits)."""
_MAX_SIZE = (1 << 31) - 1


class Signature(NamedTuple):
    """Tensor, root, peer and tag of a call. Ranks are global, -1 for none."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int = -1
    peer: int = -1
    tag: int = 0
    is_async: bool = False


def read_signature(
    method: Method, args: Sequence[Any], kwargs: dict[str, Any], ranks: Sequence[int]
) -> Signature:
    """Return the signature of a call; args are those after self, ranks the group's members."""
    tensor = _first(_argument(args, kwargs, method.tensor))
    options = _argument(args, kwargs, method.options)
    root = getattr(options, "rootRank", options) if method.rooted else None
    peer = _argument(args, kwargs, method.peer)
    tag = _argument(args, kwargs, method.tag)
    return Signature(
        str(getattr(tensor, "dtype", "")).removeprefix("torch."),
        tuple(getattr(tensor, "shape", ())),
        _global(root, ranks),
        _global(peer, ranks),
        tag if isinstance(tag, int) else 0,
        bool(getattr(options, "asyncOp", False)),
    )


def read_splits(
    method: Method, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, list[int]]:
    """Return how many rows a call sends to each member, and takes from each, where it says so."""
    given = {
        "sends": _argument(args, kwargs, method.sends),
        "receives": _argument(args, kwargs, method.receives),
    }
    return {
        name: sizes.copy()
        for name, sizes in given.items()
        if isinstance(sizes, list) and 0 < len(sizes) <= MAX_SPLITS and _are_sizes(sizes)
    }


def _are_sizes(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= _MAX_SIZE for value in values)


def _argument(args: Sequence[Any], kwargs: dict[str, Any], parameter: Parameter | None) -> Any:
    if parameter is None:
        return None
    if parameter.position < len(args):
        return args[parameter.position]
    return next((kwargs[name] for name in parameter.names if name in kwargs), None)


def _first(value: Any) -> Any:
    """Return the first tensor of a list, or of a list of lists."""
    for _ in range(2):
        if isinstance(value, list | tuple):
            value = value[0] if value else None
    return value


def _global(rank: Any, ranks: Sequence[int]) -> int:
    if isinstance(rank, int) and 0 <= rank < len(ranks):
        return ranks[rank]
    return -1
