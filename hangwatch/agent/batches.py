"""Tells batches of data apart without calling any of torch's operations on them."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LEAVES = 16
_CHUNKS = 4
_CHUNK_BYTES = 4096


def digest(batch: Any) -> str:
    """Of some bytes of each part of a batch; empty where nothing of it can be read."""
    contents = [content for leaf in _leaves(batch) if (content := _content(leaf))]
    return hashlib.blake2b(b"".join(contents), digest_size=8).hexdigest() if contents else ""


def largest_tensor(value: Any) -> int:
    """Elements of the largest tensor in nested lists, tuples and dicts, 0 if there is none."""
    return max((_elements(leaf) for leaf in _leaves(value)), default=0)


def _leaves(value: Any) -> Iterator[Any]:
    """What a batch is made of, up to MAX_LEAVES things."""
    todo, left = [value], MAX_LEAVES
    while todo and left:
        one = todo.pop()
        if isinstance(one, dict):
            todo.extend(list(one.values())[:left])
        elif isinstance(one, (list, tuple)):
            todo.extend(one[:left])
        else:
            left -= 1
            yield one


def _elements(leaf: Any) -> int:
    tensor: Any = sys.modules["torch"].Tensor
    return int(leaf.numel()) if isinstance(leaf, tensor) else 0


def _content(leaf: Any) -> bytes:
    """Some bytes that tell it from another one.

    None of a tensor that is not in main memory: to read it is to wait for the device.
    """
    if isinstance(leaf, (str, int, float)):
        return repr(leaf)[:_CHUNK_BYTES].encode("utf-8", "replace")
    if isinstance(leaf, bytes):
        return leaf[:_CHUNK_BYTES]
    torch: Any = sys.modules["torch"]
    plain = type(leaf) is torch.Tensor and leaf.layout is torch.strided
    if not plain or leaf.device.type != "cpu" or not leaf.is_contiguous():
        return b""
    size, start = leaf.numel() * leaf.element_size(), leaf.data_ptr()
    if not size or not start:
        return b""
    step = max(_CHUNK_BYTES, size // _CHUNKS)
    shape = f"{tuple(leaf.shape)} {leaf.dtype} ".encode()
    places = range(0, min(size, _CHUNKS * step), step)
    chunks = (ctypes.string_at(start + at, min(_CHUNK_BYTES, size - at)) for at in places)
    return shape + b"".join(chunks)
