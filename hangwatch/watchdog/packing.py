"""Packs a node's evidence for the store, and unpacks that of others.

Ten thousand ranks have few different stacks and run the same files: frames and
sources travel apart from the snapshots, once each, under the hash of their
content. A group is sent once an answer, and its ranks as runs: the default group
of ten thousand is three numbers. Everything is bounded in size, and checked
against the job.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hangwatch.types import Frame, GroupKey, OpState, RankSnapshot, Site, ThreadStack
from hangwatch.watchdog import codec
from hangwatch.watchdog.messages import MAX_MESSAGE_BYTES, Answer, Group, Local, Runs, ThreadRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangwatch.types import Child, OpRecord
    from hangwatch.watchdog.messages import Node

MAX_PLAIN_BYTES = 16 << 20
"""Of a message when it is unpacked."""
MAX_BLOB_BYTES = 256 << 10
MAX_GROUPED = 1 << 20
"""Ranks in all groups of one answer together."""
_JOB_BYTES = 48 << 20
_LEAST_BYTES = 32 << 10
_JOB_OPS = {False: 50_000, True: 100_000}
"""Calls of all ranks together, in an incident that is not and one that is full."""
_KEPT_OPS = (64, 32, 16, 8, 4, 0)
_LEAST_OPS = 4

Blobs = dict[str, bytes]
Groups = dict[Group, GroupKey]


@dataclass(frozen=True, slots=True)
class Received:
    """An answer that is unpacked but for its blobs."""

    answer: Answer
    ranks: tuple[RankSnapshot, ...]

    def blobs(self) -> set[str]:
        """The names of the blobs that it needs."""
        refs = (ref.frames for refs in self.answer.threads.values() for ref in refs)
        return {*refs, *self.answer.sources.values()} - {""}


class Library:
    """Blobs that have come, each decoded once."""

    def __init__(self) -> None:
        self._frames: dict[str, tuple[Frame, ...]] = {}
        self._data: Blobs = {}

    def missing(self, names: set[str]) -> list[str]:
        """Those of some names that are not there yet."""
        return sorted(names - self._data.keys())

    def add(self, blobs: Mapping[str, bytes]) -> None:
        """Take in blobs; one whose content is not what its name says is left out."""
        self._data.update((name, data) for name, data in blobs.items() if name == _name(data))

    def frames(self, name: str) -> tuple[Frame, ...]:
        """The frames of a stack, empty where they are missing. Raises CodecError."""
        found = self._frames.get(name)
        if found is None:
            data = self._data.get(name)
            found = codec.loads(tuple[Frame, ...], data, MAX_BLOB_BYTES) if data else ()
            self._frames[name] = found
        return found

    def text(self, name: str) -> str | None:
        """A file, None where it is missing. Raises CodecError."""
        data = self._data.get(name)
        found: str | None = codec.loads(str, data, MAX_BLOB_BYTES) if data else None
        return found


def pack(node: str, local: Local, world_size: int, *, full: bool = True) -> tuple[bytes, Blobs]:
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
    answer = Answer(node, threads=threads, sources=sources, unseen=local.unseen)
    most_ops = max(_LEAST_OPS, _JOB_OPS[full] // max(1, world_size))
    return _bounded(answer, ranks, max(1, world_size), most_ops), blobs


def unpack(data: bytes, node: Node, world_size: int, groups: Groups) -> Received:
    """What a node has answered, but for its blobs. Raises CodecError.

    groups: those of other answers, to which those of this one are added.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise codec.CodecError(f"{len(data)} bytes, more than {MAX_MESSAGE_BYTES}")
    plain = codec.parse(codec.decompress(data, MAX_PLAIN_BYTES), MAX_PLAIN_BYTES)
    if type(plain) is not dict or plain.keys() != {"answer", "ranks"}:
        raise codec.CodecError("it is no answer")
    answer: Answer = codec.decode(Answer, plain["answer"])
    if answer.node != node.node:
        raise codec.CodecError(f"it is that of {answer.node:.60}")
    known = {GroupKey: _keys(answer.groups, world_size, groups), Site: answer.sites}
    ranks: tuple[RankSnapshot, ...] = codec.decode(tuple[RankSnapshot, ...], plain["ranks"], known)
    strange = [rank.rank for rank in ranks if not 0 <= rank.rank < world_size]
    if strange or len({rank.rank for rank in ranks}) < len(ranks):
        raise codec.CodecError(f"it tells of ranks {strange[:4] or 'twice'}")
    return Received(answer, ranks)


def complete(received: Received, library: Library) -> Local:
    """An answer with the stacks and files that it names. Raises CodecError."""
    answer = received.answer
    threads = {
        key: tuple(
            ThreadStack(r.name, r.tid, r.active, r.owns_gil, library.frames(r.frames)) for r in refs
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
        for snapshot in received.ranks
    )
    texts = {file: library.text(name) for file, name in answer.sources.items()}
    sources = {file: text for file, text in texts.items() if text is not None}
    return Local(ranks, sources, answer.unseen)


def runs_of(ranks: tuple[int, ...]) -> Runs:
    """Ranks as runs, in their order."""
    if len(ranks) > 1 and (step := ranks[1] - ranks[0]):
        whole = tuple(range(ranks[0], ranks[0] + step * len(ranks), step))
        if ranks == whole:
            return ((ranks[0], len(ranks), step),)
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        found.append((ranks[at], end - at, step))
        at = end
    return tuple(found)


def ranks_of(runs: Runs, limit: int) -> tuple[int, ...]:
    """The ranks of runs. Raises CodecError for more than so many, or others than 0 to limit."""
    if sum(max(0, count) for _, count, _ in runs) > limit:
        raise codec.CodecError("a group of more ranks than there are")
    ranks = tuple(
        first + step * number for first, count, step in runs for number in range(max(0, count))
    )
    if ranks and not (min(ranks) >= 0 and max(ranks) < limit):
        raise codec.CodecError("a group with ranks that there are not")
    return ranks


def _keys(groups: tuple[Group, ...], world_size: int, known: Groups) -> list[GroupKey]:
    if sum(max(0, count) for group in groups for _, count, _ in group.runs) > MAX_GROUPED:
        raise codec.CodecError(f"groups of more than {MAX_GROUPED} ranks together")
    for group in groups:
        if group not in known:
            ranks = ranks_of(group.runs, world_size)
            known[group] = GroupKey(ranks, group.desc, group.index)
    return [known[group] for group in groups]


def _refer(thread: ThreadStack, blobs: Blobs) -> ThreadRef:
    name = _keep(codec.dumps(thread.frames), blobs)
    return ThreadRef(thread.name, thread.tid, thread.active, thread.owns_gil, name)


def _keep(data: bytes, blobs: Blobs) -> str:
    """Put a blob where it belongs; its name, empty if it is too large."""
    if len(data) > MAX_BLOB_BYTES:
        return ""
    name = _name(data)
    blobs[name] = data
    return name


def _name(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _bounded(answer: Answer, ranks: list[RankSnapshot], world_size: int, most_ops: int) -> bytes:
    """The answer, with as much of each rank's history as fits.

    The larger the job, the less of it: all answers go through one store into one process.
    """
    share = _JOB_BYTES // world_size * len(ranks)
    most_bytes = min(MAX_MESSAGE_BYTES, max(_LEAST_BYTES, share))
    for kept in (min(most_ops, _KEPT_OPS[0]), *_KEPT_OPS):
        if kept <= most_ops:
            data = _packed(answer, ranks, kept)
            if len(data) <= most_bytes:
                return data
    return _packed(Answer(answer.node, unseen=("its answer was too large",)), [], 0)


def _packed(answer: Answer, ranks: list[RankSnapshot], kept: int) -> bytes:
    tables: dict[type, dict[Any, int]] = {GroupKey: {}, Site: {}}
    shown = [replace(rank, ops=_latest(rank.ops, kept)) for rank in ranks]
    plain = codec.plain(shown, tables)
    groups = tuple(Group(runs_of(key.ranks), key.desc, key.index) for key in tables[GroupKey])
    answer = replace(answer, groups=groups, sites=tuple(tables[Site]))
    return codec.compress(codec.dumps({"answer": codec.plain(answer), "ranks": plain}))


def _latest(ops: tuple[OpRecord, ...], kept: int) -> tuple[OpRecord, ...]:
    """The last calls, and those before them that the rank is inside of."""
    start = max(0, len(ops) - kept)
    return tuple(op for op in ops[:start] if op.state is OpState.BLOCKED) + ops[start:]
