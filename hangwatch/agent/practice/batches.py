"""Tells batches of data apart without running anything of the program's.

What is asked of a batch is asked of Python's and torch's own classes only: a subclass may
count, draw or load where it is looked at, and so may a mode (TorchFunctionMode).
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LEAVES = 16
MAX_LOOKS = 64
"""Most values that are looked at, containers included, which may hold themselves."""
_CHUNKS = 4
_CHUNK_BYTES = 4096
_DICTS = frozenset({dict, OrderedDict, defaultdict})
_WORD = (1 << 64) - 1


def digest(batch: Any) -> str:
    """Return a digest of some bytes of each part of a batch; empty if none can be read."""
    with unseen():
        contents = [content for leaf in _leaves(batch) if (content := _content(leaf))]
    return hashlib.blake2b(b"".join(contents), digest_size=8).hexdigest() if contents else ""


def largest_tensor(value: Any) -> int:
    """Return the size of the largest tensor in nested lists, tuples and dicts, 0 if none."""
    with unseen():
        return max((_elements(leaf) for leaf in _leaves(value)), default=0)


def unseen() -> Any:
    """Return a context in which no mode of the program's sees what is asked of tensors."""
    torch: Any = sys.modules["torch"]
    return torch._C.DisableTorchFunction()


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values that a batch is made of, up to MAX_LEAVES."""
    todo, left = [value], MAX_LEAVES
    for _ in range(MAX_LOOKS):
        if not todo or not left:
            return
        part = todo.pop()
        kind = type(part)
        if kind in _DICTS:
            todo.extend(value for value, _ in zip(dict.values(part), range(left), strict=False))
        elif kind is list:
            todo.extend(part[:left])
        elif tuple in kind.__mro__:  # named tuples, too
            todo.extend(tuple.__getitem__(part, slice(left)))
        else:
            left -= 1
            yield part


def _is_tensor(leaf: Any) -> bool:
    return type(leaf) is sys.modules["torch"].Tensor


def _elements(leaf: Any) -> int:
    return int(leaf.numel()) if _is_tensor(leaf) else 0


def _content(leaf: Any) -> bytes:
    """Return some bytes that tell a leaf from another one.

    Empty for a tensor that is not in main memory: to read it is to wait for the device.
    """
    kind = type(leaf)
    if kind in (bytes, str):
        return repr(leaf[:_CHUNK_BYTES]).encode("utf-8", "replace")
    if kind in (bool, int, float):
        return repr(leaf & _WORD if kind is int else leaf).encode()
    torch: Any = sys.modules["torch"]
    plain = _is_tensor(leaf) and leaf.layout is torch.strided
    if not plain or leaf.device.type != "cpu" or not leaf.is_contiguous():
        return b""
    size, start = leaf.numel() * leaf.element_size(), leaf.data_ptr()
    if not size or not start:
        return b""
    step = max(_CHUNK_BYTES, size // _CHUNKS)
    shape = f"{tuple(leaf.shape)} {leaf.dtype} ".encode()
    offsets = range(0, min(size, _CHUNKS * step), step)
    chunks = (ctypes.string_at(start + at, min(_CHUNK_BYTES, size - at)) for at in offsets)
    return shape + b"".join(chunks)
