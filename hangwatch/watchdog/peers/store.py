"""A connection to the job's TCPStore, as a client that the job does not notice.

It speaks the protocol of torch/csrc/distributed/c10d/TCPStore.cpp itself: to import torch for it
would cost each watchdog 2.5 s and 220 MB, and threads for calls that block. The protocol has been
the same since torch 2.1; a server that does not know its opening drops the connection, and keeps
nothing.

A request waits for the one before it, so a request that may wait for long needs a connection of
its own. A connection on which anything went wrong is closed. Each connection costs the store a
question to the name service, in its only thread: if that does not answer, some stall it for 5 s
(glibc's resolver, seen with torch 2.13).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from hangwatch.errors import HangwatchError
from hangwatch.watchdog import timing

MAX_VALUE_BYTES = 8 << 20
"""The server drops a connection on which more is sent (TCPStoreLibUvBackend.cpp)."""

_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _CHECK, _WAIT = range(7)
_DELETE_KEY, _MULTI_GET, _CANCEL_WAIT = 8, 10, 12
"""QueryType of TCPStoreBackend.hpp."""
_PASSED_OVER = 1 << 16
"""Bytes that are read at once of a value that is too large."""
_MAGIC = 0x3C85F7CE
_READY = _STOP_WAITING = 0
_U64 = struct.Struct("=Q")
_I64 = struct.Struct("=q")


class StoreLostError(HangwatchError):
    """The store cannot be reached, or no longer."""


class Store:
    """The keys below a prefix, as torch.distributed.PrefixStore names them.

    All methods raise StoreLostError.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prefix: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._prefix = f"/{prefix}/" if prefix else "/"
        self._turn = asyncio.Lock()

    @property
    def address(self) -> str:
        """The address of this end, as the store's host sees it."""
        name = self._writer.get_extra_info("sockname")
        return str(name[0]) if name else ""

    def close(self) -> None:
        """End the connection; a request that is under way fails."""
        self._writer.close()

    async def set(self, key: str, value: bytes) -> None:
        """Set a key, also while another task waits. The server does not confirm it."""
        # Without its turn: the transport buffers the whole request at once (one write()).
        async with self._asking(_SET, self._key(key), _sized(value), turn=nullcontext()):
            pass

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a key that has the expected value (empty: none); return what it has then."""
        async with self._asking(_COMPARE_SET, self._key(key), _sized(expected), _sized(desired)):
            return await self._value(MAX_VALUE_BYTES)

    async def get(self, key: str, max_bytes: int = MAX_VALUE_BYTES) -> bytes | None:
        """Return the value of a key, None if it is not set (some servers drop the connection).

        One of more than max_bytes is passed over, and comes as if it were empty.
        """
        if not await self.check([key]):
            return None
        async with self._asking(_GET, self._key(key)):
            return await self._value(max_bytes)

    async def multi_get(
        self,
        keys: Sequence[str],
        max_bytes: int = MAX_VALUE_BYTES,
        total_bytes: int | None = None,
    ) -> list[bytes]:
        """Return the values of keys that are known to be set.

        A value of more than max_bytes, or one that makes all of them more than total_bytes, is
        passed over, and comes as if it were empty.
        """
        values: list[bytes] = []
        left = max_bytes * len(keys) if total_bytes is None else total_bytes
        async with self._asking(_MULTI_GET, self._keys(keys)):
            for _ in keys:
                values.append(await self._value(min(max_bytes, left)))
                left -= len(values[-1])
        return values

    async def add(self, key: str, amount: int) -> int:
        """Add to a counter, 0 if it is not set; return its new value."""
        async with self._asking(_ADD, self._key(key), _I64.pack(amount)):
            return await self._integer()

    async def check(self, keys: Sequence[str]) -> bool:
        """Return True if all keys are set."""
        async with self._asking(_CHECK, self._keys(keys)):
            return (await self._reader.readexactly(1))[0] == _READY

    async def present(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that are set; it takes one question if all are."""
        if not keys or await self.check(keys):
            return list(keys)
        return [key for key in keys if await self.check([key])]

    async def delete_key(self, key: str) -> bool:
        """Remove a key; return True if it was there."""
        async with self._asking(_DELETE_KEY, self._key(key)):
            return await self._integer() == 1

    async def wait(self, keys: Sequence[str], timeout_s: float) -> bool:
        """Wait in the server until all keys are set; False if they are not in time."""
        async with self._asking(_WAIT, self._keys(keys), wait_s=timeout_s):
            try:
                async with asyncio.timeout(timeout_s):
                    await self._reader.readexactly(1)
            except TimeoutError:
                self._writer.write(bytes([_CANCEL_WAIT]))
                stopped = (await self._reader.readexactly(1))[0] == _STOP_WAITING
                if stopped:  # it was set in this very moment; that it is cancelled comes as well
                    await self._reader.readexactly(1)
                return stopped
            return True

    async def validate(self) -> None:
        """Open the conversation."""
        async with self._asking(_VALIDATE, struct.pack("=I", _MAGIC)):
            pass

    @asynccontextmanager
    async def _asking(
        self,
        query: int,
        *parts: bytes,
        wait_s: float = 0.0,
        turn: AbstractAsyncContextManager[None] | None = None,
    ) -> AsyncIterator[None]:
        """Send a request, and have the connection until its answer is read."""
        timeout_s = wait_s + timing.STORE_CALL_S
        async with turn or self._turn:
            done = False
            try:
                async with asyncio.timeout(timeout_s):
                    self._writer.write(b"".join([bytes([query]), *parts]))
                    await self._writer.drain()
                    yield
                    done = True
            except TimeoutError as error:
                raise StoreLostError(f"the store does not answer within {timeout_s:g} s") from error
            except RuntimeError as error:  # of the transport
                raise StoreLostError("the connection to the store was closed") from error
            except (OSError, EOFError) as error:
                raise StoreLostError(f"the store is gone ({first_line(error)})") from error
            finally:
                if not done:
                    self.close()

    async def _integer(self) -> int:
        return int(_I64.unpack(await self._reader.readexactly(_I64.size))[0])

    async def _value(self, max_bytes: int) -> bytes:
        (size,) = _U64.unpack(await self._reader.readexactly(_U64.size))
        if size > MAX_VALUE_BYTES:
            raise EOFError(f"a value of {size} bytes")
        if size <= max_bytes:
            return await self._reader.readexactly(size)
        while size:
            size -= len(await self._reader.readexactly(min(size, _PASSED_OVER)))
        return b""

    def _key(self, key: str) -> bytes:
        return _sized(f"{self._prefix}{key}".encode())

    def _keys(self, keys: Sequence[str]) -> bytes:
        return b"".join([_U64.pack(len(keys)), *map(self._key, keys)])


async def connect(host: str, port: int, prefix: str) -> Store:
    """Open a connection. Raises StoreLostError if there is no store."""
    try:
        async with asyncio.timeout(timing.STORE_CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    except (OSError, ValueError) as error:  # OSError: TimeoutError as well
        raise StoreLostError(f"no store at {host}:{port} ({first_line(error)})") from error
    store = Store(reader, writer, prefix)
    await store.validate()
    return store


def _sized(value: bytes) -> bytes:
    return _U64.pack(len(value)) + value


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut where it gets long."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
