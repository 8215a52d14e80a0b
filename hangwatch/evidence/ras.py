"""Asks NCCL's RAS service on this node what it knows of the whole job.

From NCCL 2.24 on every process of a job has a thread for it, and those of a node listen
on one port together, ``localhost:28028`` unless NCCL_RAS_ADDR names another one
(docs.nvidia.com/deeplearning/nccl, "RAS"). The protocol is lines of text, as in
src/ras/client.cc and client_support.cc of NCCL:

    CLIENT PROTOCOL 2    SERVER PROTOCOL <n>
    TIMEOUT <s>          OK
    SET FORMAT json      OK, or "ERROR: Unknown command ..." before 2.28
    VERBOSE STATUS       the answer, and the end of the connection

Two jobs of one user share the port, and the kernel chooses who answers: the process that has
accepted the connection, by /proc (proc(5)), must be one of our ranks.

RAS counts the calls that programs have launched, without sends and recvs: a communicator
whose GPUs are stuck in a kernel looks well to it. So its answer is reported, and decides nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from hangwatch.errors import EvidenceError
from hangwatch.evidence import timing
from hangwatch.evidence.processes import PROC
from hangwatch.evidence.sockets import holds, sockets
from hangwatch.model.report import RasAnswer
from hangwatch.model.snapshot import JobSnapshot
from hangwatch.text import fold_ranks

PORT = 28028
MAX_BYTES = 16 << 20
"""1,000 ranks in ten communicators are about 5 MB of JSON."""
TRIES = 4
"""Connections that may reach another job's process."""
_ADDRESS = "NCCL_RAS_ADDR"
_ENABLED = "NCCL_RAS_ENABLE"
_TLS_ALERT = "\x15"
"""First byte of a record of TLS that refuses a connection (RFC 8446, 5.1: ContentType)."""
_HOST_PORT = re.compile(r"\[?([^\[\]]*?)\]?:(\d{1,5})")
MAX_FINDINGS = 32
MAX_CHARS = 300
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}
"""ncclResult_t, without success (0) and in progress (7)."""
_NO_COMMA = re.compile(rb'("nvml_dev": ?-?\d+)(\s+"status")')
_TEXT_VERSION = re.compile(r"^NCCL version (\S{1,40})", re.MULTILINE)
_TEXT_FINDINGS = re.compile(
    r"^(Errors|Warnings)\n=+\n(.*?)(?=^Warnings\n=+\n|\Z)", re.MULTILINE | re.DOTALL
)


class _NotOursError(Exception):
    """The connection was accepted by a process that is no rank of ours."""


class _NoGreetingError(Exception):
    """The connection was closed, or answered by an alert of TLS, before any greeting."""


async def ask(
    pids: Collection[int], variables: dict[str, str], timeout_s: float, proc: str = PROC
) -> RasAnswer | None:
    """Return what RAS says of the job; None where there is no service, or no answer.

    pids: of this node's ranks. variables: NCCL's, of one of them. Raises EvidenceError where
    the service closes each connection at once, as one that speaks TLS alone.
    """
    if variables.get(_ENABLED) == "0" or not pids:
        return None
    given = _HOST_PORT.fullmatch(variables.get(_ADDRESS, ""))
    host, port = (given[1], int(given[2])) if given else ("localhost", PORT)
    if not any(s.listens and s.port == port for s in sockets(f"{proc}/{next(iter(pids))}")):
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
    if closed == TRIES and _has_open(pids, proc, port):
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
        own_port = writer.get_extra_info("sockname")[1]
        if not _has_open(pids, proc, port, own_port):
            raise _NotOursError
        await _answer(reader, writer, f"TIMEOUT {timing.RAS_LEG_S}")
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
    """Return what comes until the end of the connection, and True if that is all of it."""
    parts: list[bytes] = []
    room = MAX_BYTES
    with suppress(TimeoutError, OSError):
        # A little before the deadline of all: what has come by then is worth keeping.
        async with asyncio.timeout(max(0.0, deadline - time.monotonic() - timing.RAS_MARGIN_S)):
            while room > 0:
                part = await reader.read(min(room, 1 << 16))
                if not part:
                    return b"".join(parts), True
                parts.append(part)
                room -= len(part)
    return b"".join(parts), False


def is_variable(name: str) -> bool:
    """True if a variable sets where RAS listens."""
    return name in (_ADDRESS, _ENABLED)


def _has_open(pids: Collection[int], proc: str, port: int, peer_port: int | None = None) -> bool:
    """True if one of these processes listens on a port, or is connected from peer_port to it."""
    inodes = {
        socket.inode
        for socket in sockets(f"{proc}/{next(iter(pids))}")
        if socket.port == port
        and (
            socket.listens
            if peer_port is None
            else socket.is_connected and socket.peer_port == peer_port
        )
    }
    return any(holds(pid, inodes, proc) for pid in pids)


def interpret(answer: RasAnswer, job: JobSnapshot) -> RasAnswer:
    """Return the answer with what it says of the ranks of a job, in sentences."""
    pids = Counter(rank.pid for rank in job.ranks)  # two nodes may have one of the same number
    rank_of = {rank.pid: rank.rank for rank in job.ranks if pids[rank.pid] == 1}
    if answer.is_json:
        return _of_json(answer, rank_of)
    text = answer.data.decode("utf-8", "replace")
    version = _TEXT_VERSION.search(text)
    lines = [
        line.strip()[:MAX_CHARS]
        for part in _TEXT_FINDINGS.finditer(text)
        for line in part[2].splitlines()
        if line.strip()
    ]
    return replace(answer, version=version[1] if version else "", findings=tuple(_bounded(lines)))


def _of_json(answer: RasAnswer, rank_of: Mapping[int, int]) -> RasAnswer:
    try:
        top = _loaded(answer.data)
        findings = [
            f"communicator {raw['hash']!s:.20} of {int(raw['size'])} ranks: {what}"
            for raw in top["communicators"]
            for what in _findings(raw["ranks"], raw["missing_ranks"], rank_of)
        ]
        version = str(top.get("nccl_version", ""))[:MAX_CHARS]
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError, AttributeError):
        return replace(answer, complete=False)
    return replace(answer, version=version, findings=tuple(_bounded(findings)))


def _loaded(data: bytes) -> Any:
    """Parse the JSON. NCCL 2.28.9 leaves a comma out for a rank that is missing."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(_NO_COMMA.sub(rb"\1,\2", data))


def _bounded(findings: list[str]) -> list[str]:
    more = len(findings) - MAX_FINDINGS
    return [*findings[:MAX_FINDINGS], f"and {more} more"] if more > 0 else findings


def _findings(
    ranks: list[Mapping[str, Any]], missing: list[Mapping[str, Any]], rank_of: Mapping[int, int]
) -> Iterator[str]:
    """Yield the findings of one communicator, whose ranks are numbered within it."""
    for member in missing:
        who, status = _name(member, rank_of), member["status"]
        if status["considered_dead"]:
            yield f"{who} is considered dead"
        elif status["unresponsive"]:
            yield f"{who} does not answer"
        else:
            yield f"{who} has left it"
    for member in ranks:
        status = member["status"]
        for field, when in (("init_state", " at its set-up"), ("async_error", "")):
            if status[field] in _ERRORS:
                yield f"{_name(member, rank_of)} reports: {_ERRORS[status[field]]}{when}"
        if status["abort_flag"]:
            yield f"{_name(member, rank_of)} has aborted it"
    for op in ranks[0]["collective_counts"] if ranks else ():
        launched = [int(member["collective_counts"][op]) for member in ranks]
        most = max(launched)
        for count in sorted(set(launched) - {most}):
            behind = [member for member, own in zip(ranks, launched, strict=True) if own == count]
            yield f"{_names(behind, rank_of)} launched {op!s:.40} {count} times, others {most}"


def _name(member: Mapping[str, Any], rank_of: Mapping[int, int]) -> str:
    pid = member["pid"]
    if pid in rank_of:
        return f"rank {rank_of[pid]}"
    return f"its rank {int(member['rank'])} (process {int(pid)} on {member['host']!s:.64})"


def _names(members: list[Mapping[str, Any]], rank_of: Mapping[int, int]) -> str:
    if len(members) == 1:
        return f"{_name(members[0], rank_of)} has"
    ranks = [rank_of[member["pid"]] for member in members if member["pid"] in rank_of]
    if len(ranks) == len(members):
        return f"ranks {fold_ranks(ranks)} have"
    return f"its ranks {fold_ranks(int(member['rank']) for member in members)} have"
