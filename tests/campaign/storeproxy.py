"""A proxy before a job's store, that lets ranks pass and tampers with watchdogs.

It reads the protocol as far as watchdogs speak it (TCPStore.cpp): each query is given a
name such as "get incident", by which a fault says where it happens.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from harness import POLL_S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    Forge = Callable[["Query", random.Random], bytes]

UPSTREAM_S = 60.0
"""How long a client waits at the proxy for the store to come up."""
FLOOD_BYTES, SUDDEN_BYTES = 100 << 20, 32 << 20
_CHUNK = 1 << 16
_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _CHECK, _WAIT = range(7)
_DELETE_KEY, _MULTI_GET, _CANCEL_WAIT, _PING = 8, 10, 12, 13
"""QueryType of TCPStoreBackend.hpp."""
_NAMES = {
    _VALIDATE: "validate",
    _SET: "set",
    _COMPARE_SET: "compare_set",
    _GET: "get",
    _ADD: "add",
    _CHECK: "check",
    _WAIT: "wait",
    _DELETE_KEY: "delete",
    _MULTI_GET: "multi_get",
    _CANCEL_WAIT: "cancel",
}
_SILENT = (_VALIDATE, _SET)
"""Those that are not answered."""
_COUNTED = (_ADD, _DELETE_KEY)
_LISTED = (_CHECK, _WAIT, _MULTI_GET)
_U64 = struct.Struct("=Q")
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a connection that is closed is reset."""


@dataclass(frozen=True, slots=True)
class Query:
    """One of a watchdog, as it came."""

    node: int
    code: int
    keys: tuple[str, ...]
    raw: bytes

    @property
    def name(self) -> str:
        """What it asks, and the class of key: add joined, wait incident."""
        return f"{_NAMES[self.code]} {self.key}".strip()

    @property
    def key(self) -> str:
        """The class of its key, empty where it has none."""
        # /hangwatch/<run>/<world size>/<class>[/...]
        return self.keys[0].split("/")[4] if self.keys else ""

    @property
    def values(self) -> int:
        """How many sized values its answer has."""
        if self.code == _MULTI_GET:
            return len(self.keys)
        return int(self.code in (_GET, _COMPARE_SET))

    @property
    def is_answered(self) -> bool:
        """Whether the store answers at all."""
        return self.code not in _SILENT


@dataclass(slots=True)
class Tampering:
    """What is done to the query ``name`` when it comes for the ``nth`` time once armed."""

    name: str
    nth: int
    action: str
    seconds: float = 0.0
    """Of a delay."""
    forge: Callable[[Query], bytes] = lambda _: b""
    """Bytes instead of the answer."""
    lasting: bool = False
    """Done each time from then on."""
    node: int | None = None
    armed: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    """It has happened."""
    done_at: float = 0.0
    """When that was noticed (time.monotonic)."""
    _come: int = 0

    def strikes(self, query: Query) -> bool:
        """Whether it is this one; counts."""
        if not self.armed.is_set() or self.name not in (query.name, "any"):
            return False
        if self.node is not None and query.node != self.node:
            return False
        self._come += 1
        if self._come == self.nth or (self.lasting and self._come > self.nth):
            self.done.set()
            return True
        return False


class CutError(Exception):
    """The connection was closed on purpose."""


class Proxy:
    """Listens on ``port``; what it forwards to is named by a file that may come later.

    node_of: the number of the node whose watchdog has a client's port, None for others.
    """

    def __init__(
        self, named: Path, node_of: Callable[[int], int | None], tampering: Tampering | None
    ) -> None:
        self._named, self._node_of, self._tampering = named, node_of, tampering
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.asked: list[str] = []
        """The names of all queries of watchdogs, with their node."""
        self.prefix = ""
        """Of the keys, once a watchdog has used it: /hangwatch/<run>/<size>/."""
        self._earlier: dict[int, bytes] = {}
        self._open: set[_Tampered] = set()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def store_port(self) -> int | None:
        """That of the store itself, None while it is not known."""
        with suppress(OSError, ValueError):
            return int(self._named.read_text())
        return None

    def count(self, name: str) -> int:
        """How often watchdogs have asked this so far."""
        return Counter(line.partition(" ")[2] for line in list(self.asked))[name]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._guarded, sock=self._listener)
        await self._over.wait()
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError, CutError):
            await self._connection(reader, writer)
        writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        node = await self._loop.run_in_executor(None, self._node_of, port)
        async with asyncio.timeout(UPSTREAM_S):
            while (to := self.store_port()) is None:  # noqa: ASYNC110 (a file of another process)
                await asyncio.sleep(POLL_S)
        answers, upstream = await asyncio.open_connection("127.0.0.1", to)
        try:
            if node is None:
                work = [_pump(reader, upstream), _pump(answers, writer)]
            else:
                one = _Tampered(self, node, reader, writer, answers, upstream)
                self._open.add(one)
                work = [one.ask(), one.answer()]
            tasks = [asyncio.ensure_future(each) for each in work]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._open = {one for one in self._open if not one.is_over()}
            upstream.close()

    def strike(self, action: str, forge: Forge | None, dice: random.Random) -> None:
        """Do something at once to all connections of watchdogs, which may have asked nothing."""

        def strike_all() -> None:
            for one in self._open:
                with suppress(CutError, OSError):
                    one.strike(action, forge, dice)

        self._loop.call_soon_threadsafe(strike_all)

    def strikes(self, query: Query) -> Tampering | None:
        """What is to be done with a query, if anything; notes that it came."""
        self.asked.append(f"{query.node} {query.name}")
        if query.keys:
            self.prefix = "/".join(query.keys[0].split("/")[:4]) + "/"
        one = self._tampering
        return one if one is not None and one.strikes(query) else None

    def earlier(self, query: Query) -> bytes:
        """An earlier answer, to the same kind of query if there was one."""
        known = self._earlier
        return known.get(query.code) or next(iter(known.values()), b"\0")

    def remember(self, query: Query, answer: bytes) -> None:
        """Keep the first answer to each kind of query."""
        self._earlier.setdefault(query.code, answer)


class _Tampered:
    """One connection of a watchdog."""

    def __init__(  # noqa: PLR0913 (both ends, and whose)
        self,
        proxy: Proxy,
        node: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> None:
        self._proxy, self._node = proxy, node
        self._reader, self._writer = reader, writer
        self._answers, self._upstream = answers, upstream
        self._pending: asyncio.Queue[tuple[Query, Tampering | None]] = asyncio.Queue()

    async def ask(self) -> None:
        """Forward what the watchdog asks."""
        while True:
            query = await _read_query(self._reader, self._node)
            tampering = self._proxy.strikes(query)
            if tampering is not None and await self._instead(query, tampering):
                continue
            if query.is_answered:
                self._pending.put_nowait((query, tampering))
            self._upstream.write(query.raw)
            await self._upstream.drain()
            if tampering is not None and not query.is_answered:
                await self._reply(query, tampering, b"")

    async def _instead(self, query: Query, tampering: Tampering) -> bool:
        """Do what is done before the store hears of it; whether it never does."""
        match tampering.action:
            case "drop-query":
                return True
            case "delay-query":
                await asyncio.sleep(tampering.seconds)
            case "reset-query":
                self._cut(reset=True)
            case "close-query":
                self._cut(reset=False)
            case "replay" if not query.is_answered:
                self._upstream.write(query.raw)
        return False

    async def answer(self) -> None:
        """Forward what the store answers."""
        while True:
            query, tampering = await self._pending.get()
            raw = await self._read_answer(query)
            if query.code == _WAIT and raw == b"\1":  # it was cancelled
                while (await self._pending.get())[0].code != _CANCEL_WAIT:
                    pass
            if tampering is None:
                self._writer.write(raw)
                await self._writer.drain()
            else:
                await self._reply(query, tampering, raw)
            self._proxy.remember(query, raw)

    async def _reply(self, query: Query, tampering: Tampering, raw: bytes) -> None:
        match tampering.action:
            case "drop-answer":
                return
            case "delay-answer":
                await asyncio.sleep(tampering.seconds)
                self._writer.write(raw)
            case "reset-answer":
                self._cut(reset=True)
            case "close-answer":
                self._cut(reset=False)
            case "replay" if query.is_answered:
                self._writer.write(self._proxy.earlier(query))
            case "twice":
                self._writer.write(raw + raw)
            case "forge":
                self._writer.write(tampering.forge(query))
            case "flood":
                await self._flood(query)
            case _:
                self._writer.write(raw)
        await self._writer.drain()

    def is_over(self) -> bool:
        """Whether it is closed."""
        return self._writer.is_closing() or self._upstream.is_closing()

    def strike(self, action: str, forge: Forge | None, dice: random.Random) -> None:
        """Do something that nothing asked for. Raises CutError."""
        if action in ("reset", "close"):
            self._cut(reset=action == "reset")
        query = Query(self._node, _WAIT, (f"{self._proxy.prefix}incident/1",), b"")
        data = forge(query, dice) if forge is not None else bytes(SUDDEN_BYTES)
        self._writer.write(data)

    async def _flood(self, query: Query) -> None:
        """A value as large as is allowed, and far more than that."""
        self._writer.write(_U64.pack(8 << 20) if query.values else b"\0")
        for _ in range(FLOOD_BYTES // _CHUNK):
            self._writer.write(bytes(_CHUNK))
            await self._writer.drain()

    def _cut(self, *, reset: bool) -> None:
        if reset:
            own: socket.socket = self._writer.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._writer.transport.abort()
        else:
            self._writer.close()
        raise CutError

    async def _read_answer(self, query: Query) -> bytes:
        read = self._answers.readexactly
        if query.code in _COUNTED:
            return await read(8)
        if not query.values:
            return await read(1)
        return b"".join([await _sized(self._answers) for _ in range(query.values)])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _read_query(reader: asyncio.StreamReader, node: int) -> Query:
    (code,) = head = await reader.readexactly(1)
    parts, keys = [head], []
    if code in _LISTED:
        parts.append(await reader.readexactly(8))
        (number,) = _U64.unpack(parts[-1])
        for _ in range(number):
            parts.append(await _sized(reader))
            keys.append(parts[-1][8:].decode())
    elif code == _VALIDATE:
        parts.append(await reader.readexactly(4))
    elif code in _NAMES and code != _CANCEL_WAIT:
        parts.append(await _sized(reader))
        keys.append(parts[-1][8:].decode())
        if code == _ADD:
            parts.append(await reader.readexactly(8))
        parts += [await _sized(reader) for _ in range({_SET: 1, _COMPARE_SET: 2}.get(code, 0))]
    elif code not in _NAMES:
        raise EOFError(f"a watchdog asks {code}, which the campaign does not know")
    return Query(node, code, tuple(keys), b"".join(parts))


async def _sized(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(8)
    return size + await reader.readexactly(_U64.unpack(size)[0])
