"""The format of the Python recorder's page, and of the field for a chain of exceptions.

A file of fixed size: the magic number, then two buffers that are written in
turn. Each has a header (generation, length, CRC-32 of both and of the text)
before its JSON text, so that a reader always finds one whole buffer, also while the other
is being written and after the writer was killed. Little endian.

The separator is taken out of each text.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from mmap import mmap
from typing import Any

MAGIC = b"HWJSON\0\1"
PAGE_BYTES = 1 << 20
"""Size of the file: room for the ring of events and for large groups."""
_HEADER = struct.Struct("<QII")
_BUFFER_BYTES = (PAGE_BYTES - len(MAGIC)) // 2
ROOM_BYTES = _BUFFER_BYTES - _HEADER.size
"""Longest text that fits."""


def encode(values: Mapping[str, Any]) -> bytes:
    """Return the text for one buffer. Raises ValueError if it does not fit."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > ROOM_BYTES:
        raise ValueError(f"{len(text)} bytes do not fit into a page of {ROOM_BYTES}")
    return text


def write(page: bytearray | mmap, generation: int, text: bytes) -> None:
    """Put the text of ``encode`` into the buffer whose turn it is.

    page has PAGE_BYTES; generation grows by one from call to call.
    """
    at = _buffer_at(generation % 2)
    page[at + _HEADER.size : at + _HEADER.size + len(text)] = text
    # The header last: until it is there, the checksum of the buffer does not match.
    page[at : at + _HEADER.size] = _HEADER.pack(
        generation, len(text), _checksum(generation, len(text), text)
    )
    page[: len(MAGIC)] = MAGIC


def decode(data: Any) -> dict[str, Any]:
    """Return the newest whole text in an object with the buffer protocol.

    Raises ValueError, and nothing else, for bytes that are no such page.
    """
    with memoryview(data) as view, view.cast("B") as page:
        if bytes(page[: len(MAGIC)]) != MAGIC:
            raise ValueError("it is no JSON page")
        texts = [text for text in (_buffer(page, 0), _buffer(page, 1)) if text is not None]
    if not texts:
        raise ValueError("neither of its buffers is whole")
    try:
        values = json.loads(max(texts)[1])
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it holds no object")  # noqa: TRY004 (it is the bytes that are wrong)
    return values


def _buffer_at(number: int) -> int:
    return len(MAGIC) + number * _BUFFER_BYTES


def _buffer(page: memoryview, number: int) -> tuple[int, bytes] | None:
    """Return (generation, text) of a buffer if it is there and whole."""
    at = _buffer_at(number)
    if len(page) < at + _HEADER.size:
        return None
    generation, length, checksum = _HEADER.unpack(page[at : at + _HEADER.size])
    text = bytes(page[at + _HEADER.size : at + _HEADER.size + min(length, ROOM_BYTES)])
    if len(text) != length or _checksum(generation, length, text) != checksum:
        return None
    return generation, text


def _checksum(generation: int, length: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(_HEADER.pack(generation, length, 0)))


SEPARATOR = "\x1e"
"""ASCII's record separator."""


def packed(message: str, thrown: str, sent: str, after: Iterable[str]) -> str:
    """Return the field.

    message: the exception's text. thrown: the exception of torch's last call that failed. sent:
    the signal whose handler has raised it. after: the exceptions before it.
    """
    parts = [part.replace(SEPARATOR, " ") for part in (message, thrown, sent, *after)]
    return SEPARATOR.join(parts if any(parts[1:]) else parts[:1])


def unpacked(field: str) -> tuple[str, str, str, tuple[str, ...]]:
    """Return (message, thrown, sent, after) of what ``packed`` has made."""
    parts = field.split(SEPARATOR)
    message, thrown, sent = (*parts[:3], "", "")[:3]  # a text alone is a field, too
    return message, thrown, sent, tuple(parts[3:])
