"""What watchdogs tell each other through the store, and how it is packed.

Ten thousand ranks have few different stacks and run the same files: frames and
sources travel apart from the snapshots, once each, under the hash of their
content. Everything is bounded in size.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hangwatch.types import Frame, RankSnapshot, ThreadStack, Verdict
from hangwatch.watchdog import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hangwatch.types import Child

MAX_MESSAGE_BYTES = 4 << 20
"""TCPStore drops the connection of whoever sends 8 MiB (TCPStoreLibUvBackend.cpp)."""
MAX_BLOB_BYTES = 256 << 10
_KEPT_OPS = (64, 16, 4, 0)


@dataclass(frozen=True, slots=True)
class Node:
    """A watchdog that has joined."""

    node: str
    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Incident:
    """A request for evidence. ``nonce`` makes each claim's text unlike any other's."""

    owner: str
    nonce: str
    full: bool
    """With stacks and recorders; else what the pages and /proc say."""


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """A ThreadStack whose frames travel as the blob ``frames``."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    frames: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What one node knows."""

    node: str
    ranks: tuple[RankSnapshot, ...]
    """Without threads, which are in ``threads``; so are those of children."""
    threads: dict[str, tuple[ThreadRef, ...]] = field(default_factory=dict)
    """``RANK`` or ``RANK/PID`` for a child, to its threads."""
    sources: dict[str, str] = field(default_factory=dict)
    """File to the blob that holds its text."""
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """What the owner of an incident has concluded; no verdicts if nothing is wrong."""

    node: str
    verdicts: tuple[Verdict, ...]
    report: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """A node's evidence before packing and after unpacking."""

    ranks: tuple[RankSnapshot, ...]
    sources: dict[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()


Blobs = dict[str, bytes]


def pack(node: str, local: Local) -> tuple[bytes, Blobs]:
    """An answer as bytes of at most MAX_MESSAGE_BYTES, and the blobs that it names."""
    blobs: Blobs = {}
    threads: dict[str, tuple[ThreadRef, ...]] = {}
    ranks = []
    for snapshot in local.ranks:
        if snapshot.threads is not None:
            threads[f"{snapshot.rank}"] = tuple(_refer(t, blobs) for t in snapshot.threads)
        for child in snapshot.children:
            if child.threads:
                key = f"{snapshot.rank}/{child.pid}"
                threads[key] = tuple(_refer(t, blobs) for t in child.threads)
        bare = tuple(replace(child, threads=()) for child in snapshot.children)
        ranks.append(replace(snapshot, threads=None, children=bare))
    sources = {}
    for file, text in local.sources.items():
        name = _keep(codec.dumps(text), blobs)
        if name:
            sources[file] = name
    answer = Answer(node, tuple(ranks), threads, sources, local.unseen)
    return _bounded(answer), blobs


def unpack(data: bytes, fetch: Callable[[Iterable[str]], Mapping[str, bytes]]) -> tuple[str, Local]:
    """The node that answered and what it knows. Raises CodecError.

    fetch gets the blobs of these names; one that it lacks leaves a gap.
    """
    answer = codec.loads(Answer, data, MAX_MESSAGE_BYTES)
    names = {ref.frames for refs in answer.threads.values() for ref in refs}
    blobs = fetch(sorted(names | set(answer.sources.values())))
    frames = {name: _frames(blobs[name]) for name in names if name in blobs}
    threads = {
        key: tuple(
            ThreadStack(r.name, r.tid, r.active, r.owns_gil, frames.get(r.frames, ())) for r in refs
        )
        for key, refs in answer.threads.items()
    }

    def whole(child: Child, rank: int) -> Child:
        return replace(child, threads=threads.get(f"{rank}/{child.pid}", ()))

    ranks = tuple(
        replace(
            snapshot,
            threads=threads.get(f"{snapshot.rank}"),
            children=tuple(whole(child, snapshot.rank) for child in snapshot.children),
        )
        for snapshot in answer.ranks
    )
    sources = {
        file: codec.loads(str, blobs[name], MAX_BLOB_BYTES)
        for file, name in answer.sources.items()
        if name in blobs
    }
    return answer.node, Local(ranks, sources, answer.unseen)


def _refer(thread: ThreadStack, blobs: Blobs) -> ThreadRef:
    name = _keep(codec.dumps(thread.frames), blobs)
    return ThreadRef(thread.name, thread.tid, thread.active, thread.owns_gil, name)


def _keep(data: bytes, blobs: Blobs) -> str:
    """Put a blob where it belongs; its name, empty if it is too large."""
    if len(data) > MAX_BLOB_BYTES:
        return ""
    name = hashlib.blake2b(data, digest_size=12).hexdigest()
    blobs[name] = data
    return name


def _frames(data: bytes) -> tuple[Frame, ...]:
    frames: tuple[Frame, ...] = codec.loads(tuple[Frame, ...], data, MAX_BLOB_BYTES)
    return frames


def _bounded(answer: Answer) -> bytes:
    """The answer, with as much of each rank's history as fits."""
    data = codec.dumps(answer)
    for kept in _KEPT_OPS:
        if len(data) <= MAX_MESSAGE_BYTES:
            break
        ranks = tuple(replace(r, ops=r.ops[-kept:] if kept else ()) for r in answer.ranks)
        data = codec.dumps(replace(answer, ranks=ranks))
    return data if len(data) <= MAX_MESSAGE_BYTES else codec.dumps(Answer(answer.node, ()))
