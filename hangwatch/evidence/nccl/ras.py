"""The answer of NCCL's RAS service.

From NCCL 2.24 on every process of a job has a thread for it, and those of a node listen
on one port together, ``localhost:28028`` unless NCCL_RAS_ADDR says otherwise
(docs.nvidia.com/deeplearning/nccl, "RAS"). The protocol is lines of text, as in
src/ras/client.cc and client_support.cc of NCCL:

    CLIENT PROTOCOL 2    SERVER PROTOCOL <n>
    TIMEOUT <s>          OK
    SET FORMAT json      OK, or "ERROR: Unknown command ..." before 2.28
    VERBOSE STATUS       the answer, and the end of the connection

Two jobs of one user share the port, and the kernel chooses who answers: whoever has
accepted the connection must be one of our ranks.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection
from contextlib import suppress

from hangwatch.errors import EvidenceError
from hangwatch.evidence.sockets import holds, sockets
from hangwatch.model.report import RasAnswer


def listens(port: int, pid: int, proc: str) -> bool:
    """Return True if any process listens on a port, in the network of a process."""
    return any(one.listens and one.port == port for one in sockets(f"{proc}/{pid}"))


def accepted_by(own_port: int, port: int, pids: Collection[int], proc: str) -> bool:
    """Return True if one of these processes accepted our connection from own_port to port."""
    inodes = {
        one.inode
        for one in sockets(f"{proc}/{next(iter(pids))}")
        if one.is_connected and (one.port, one.peer_port) == (port, own_port)
    }
    return any(holds(pid, inodes, proc) for pid in pids)


def listened_by(port: int, pids: Collection[int], proc: str) -> bool:
    """Return True if one of these processes listens on a port."""
    found = sockets(f"{proc}/{next(iter(pids))}")
    inodes = {one.inode for one in found if one.listens and one.port == port}
    return any(holds(pid, inodes, proc) for pid in pids)


PORT = 28028
MAX_BYTES = 16 << 20
"""1,000 ranks in ten communicators are about 5 MB of JSON."""
LEG_S = 1
"""How long RAS waits for processes that do not answer it; it adds up to 5 s where it must."""
TRIES = 4
"""Connections that may reach another job's process."""
_MARGIN_S = 0.2
_ADDRESS = "NCCL_RAS_ADDR"
_ENABLED = "NCCL_RAS_ENABLE"
_TLS_ALERT = "\x15"
"""What a record of TLS begins with that refuses a connection (RFC 8446, 5.1: ContentType)."""
_HOST_PORT = re.compile(r"\[?([^\[\]]*?)\]?:(\d{1,5})")


class _NotOursError(Exception):
    """The connection was accepted by a process that is no rank of ours."""


class _NoGreetingError(Exception):
    """The connection was closed, or answered by an alert of TLS, before a word was said."""


async def ask(
    pids: Collection[int], variables: dict[str, str], timeout_s: float, proc: str = "/proc"
) -> RasAnswer | None:
    """What RAS says of the job; None where there is no such service, or it does not answer.

    pids: of this node's ranks. variables: NCCL's, of one of them. Raises EvidenceError where
    the service closes each connection without a word, as one that speaks TLS alone.
    """
    if variables.get(_ENABLED) == "0" or not pids:
        return None
    given = _HOST_PORT.fullmatch(variables.get(_ADDRESS, ""))
    host, port = (given[1], int(given[2])) if given else ("localhost", PORT)
    if not listens(port, next(iter(pids)), proc):
        return None
    deadline = time.monotonic() + timeout_s
    closed = 0
    for _ in range(TRIES):
        with suppress(OSError, TimeoutError, ValueError, _NotOursError):
            async with asyncio.timeout(deadline - time.monotonic()):
                try:
                    return await _converse(host, port, pids, deadline, proc)
                except _NoGreetingError:
                    closed += 1
    if closed == TRIES and listened_by(port, pids, proc):
        raise EvidenceError(
            f"NCCL's RAS service at {host}:{port} closes each connection without an answer: it may "
            "ask for TLS (from NCCL 2.32 on, where a key is configured), which hangwatch does not "
            "speak"
        )
    return None


async def _converse(
    host: str, port: int, pids: Collection[int], deadline: float, proc: str
) -> RasAnswer:
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 16)
    try:
        hello = await _greet(reader, writer)
        if not hello.upper().startswith("SERVER PROTOCOL "):
            raise ValueError(hello)
        if not accepted_by(writer.get_extra_info("sockname")[1], port, pids, proc):
            raise _NotOursError
        await _answer(reader, writer, f"TIMEOUT {LEG_S}")
        is_json = await _answer(reader, writer, "SET FORMAT json") == "OK"
        writer.write(b"VERBOSE STATUS\n")
        data, complete = await _rest(reader, deadline)
    finally:
        writer.close()
    if not data:
        raise ValueError("no answer")
    return RasAnswer(data, is_json=is_json, complete=complete)


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    try:
        hello = await _answer(reader, writer, "CLIENT PROTOCOL 2")
    except ConnectionError as error:
        raise _NoGreetingError from error
    if not hello or hello.startswith(_TLS_ALERT):
        raise _NoGreetingError
    return hello


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> str:
    writer.write(f"{line}\n".encode())
    return (await reader.readline()).decode("utf-8", "replace").strip()


async def _rest(reader: asyncio.StreamReader, deadline: float) -> tuple[bytes, bool]:
    """What comes until the end of the connection, and whether that is all of it."""
    parts: list[bytes] = []
    room = MAX_BYTES
    with suppress(TimeoutError, OSError):
        # A little before the deadline of all: what has come by then is worth keeping.
        async with asyncio.timeout(max(0.0, deadline - time.monotonic() - _MARGIN_S)):
            while room > 0:
                part = await reader.read(min(room, 1 << 16))
                if not part:
                    return b"".join(parts), True
                parts.append(part)
                room -= len(part)
    return b"".join(parts), False


def is_variable(name: str) -> bool:
    """Whether a variable says where RAS listens."""
    return name in (_ADDRESS, _ENABLED)
