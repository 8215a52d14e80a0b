"""The messages between watchdogs, packed for the store of the job, and unpacked.

Ten thousand ranks have few different stacks and run the same files: frames and sources travel
apart from the snapshots, once each, under the hash of their content. A group is sent once an
answer, and its ranks as runs: the default group of ten thousand is three numbers. Everything is
bounded in size, and checked against the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hangwatch.model import codec
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState
from hangwatch.model.snapshot import Child, Frame, OpRecord, RankSnapshot, ThreadStack
from hangwatch.model.verdict import Verdict

MAX_MESSAGE_BYTES = 1 << 20
MAX_NODE_BYTES = 4 << 10
MAX_NAME = 256
"""Characters of a node's name, its host or its address."""
MAX_INCIDENT_BYTES = 4 << 10
MAX_VERDICTS = 16
MAX_HEADLINE = 4000
"""Characters of a text of another node's verdict that the terminal shows."""
MAX_SHOWN = 256
"""Culprits and candidates that are published by number."""
MAX_PLAIN_BYTES = 8 << 20
"""Of a message when it is unpacked."""
MAX_BLOB_BYTES = 256 << 10
MAX_BLOB_VALUES = 20_000
MAX_GROUPED = 1 << 20
"""Ranks in all groups of all answers together."""
MAX_SOURCES = 64
_JOB_BYTES = 48 << 20
_LEAST_BYTES = 32 << 10
_JOB_OPS = {False: 50_000, True: 100_000}
"""Calls of all ranks together, in an incident that is not full and in one that is."""
_KEPT_OPS = (64, 32, 16, 8, 4, 0)
_LEAST_OPS = 4
_BASE_VALUES, _RANK_VALUES, _MOST_VALUES = 8_000, 16_000, 500_000
_BASE_BYTES, _RANK_BYTES = 64 << 10, 256 << 10
_LATE_RANKS = 256
"""So many may start on a node after it has joined."""

Runs = tuple[tuple[int, int, int], ...]
"""(first, how many, step) of ranks that lie equally far apart."""
Blobs = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Node:
    """A watchdog that has joined."""

    node: str
    host: str
    ranks: tuple[int, ...]
    address: str = ""
    """Its own address as the store sees it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A request for evidence. ``nonce`` makes each claim's text unlike any other's."""

    owner: str
    nonce: str
    full: bool
    """With stacks and recorders; else only the pages and /proc."""
    moments: bool = False
    """No incident, but a question for the moments of the last minutes (comparison.py)."""


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """A ThreadStack whose frames travel as the blob ``frames``."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    frames: str


@dataclass(frozen=True, slots=True)
class Group:
    """A GroupKey as it is sent."""

    runs: Runs
    desc: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The evidence of one node, without its ranks."""

    node: str
    groups: tuple[Group, ...] = ()
    sites: tuple[Site, ...] = ()
    threads: dict[str, tuple[ThreadRef, ...]] = field(default_factory=dict)
    """``RANK`` or ``RANK/PID`` for a child, to its threads."""
    sources: dict[str, str] = field(default_factory=dict)
    """File to the blob that holds its text."""
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """The conclusion of an incident's owner; no verdicts if nothing is wrong."""

    node: str
    verdicts: tuple[Verdict, ...]
    report: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """A node's evidence before packing and after unpacking."""

    ranks: tuple[RankSnapshot, ...]
    sources: dict[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """The other nodes' evidence. ``owner`` is False if another node has diagnosed."""

    owner: bool
    round: int
    """Number of the incident, 0 if no other node has heard of it."""
    others: tuple[Local, ...] = ()
    silent: tuple[Node, ...] = ()
    """Nodes that joined and did not answer in time."""
    unseen: tuple[str, ...] = ()
    """Evidence that could not be had, for people."""


def slim(published: Published) -> Published:
    """Return the part of a conclusion that others print: without the waits of 10,000 ranks."""
    verdicts = tuple(
        replace(
            verdict,
            culprits=verdict.culprits[:MAX_SHOWN],
            victims=verdict.victims[:MAX_SHOWN],
            group=None,
            waits=(),
        )
        for verdict in published.verdicts
    )
    return replace(published, verdicts=verdicts)


Groups = dict[Group, GroupKey]


@dataclass(slots=True)
class Room:
    """The room that is left for the answers of one incident, in a job of a size.

    Ten times what real jobs need. An answer that claims more than there is gets nothing.
    """

    values: int
    plain_bytes: int
    grouped: int
    blobs: int
    blob_bytes: int

    @classmethod
    def of(cls, world_size: int) -> Room:
        """Return the room for all answers together."""
        return cls(
            values=min(4_000_000, _RANK_VALUES // 2 * (world_size + 8)),
            plain_bytes=min(64 << 20, _RANK_BYTES // 2 * (world_size + 8)),
            grouped=min(MAX_GROUPED, 1024 * (world_size + 1)),
            blobs=min(20_000, 256 + 64 * world_size),
            blob_bytes=min(32 << 20, (2 << 20) + (512 << 10) * world_size),
        )

    def take_answer(self, data: bytes, ranks: int) -> None:
        """Make room for an answer of so many ranks. Raises CodecError if there is none."""
        most_bytes, most_values = _most(ranks)
        values = codec.values_in(data)
        if len(data) > most_bytes or values > most_values:
            raise codec.CodecError(f"{len(data)} bytes and {values} values for {ranks} ranks")
        if len(data) > self.plain_bytes or values > self.values:
            raise codec.CodecError("the answers are too large for the job")
        self.plain_bytes -= len(data)
        self.values -= values

    def take_groups(self, groups: Iterable[Group], world_size: int) -> None:
        """Make room for the ranks of groups. Raises CodecError."""
        for group in groups:
            size = sum(max(0, count) for _, count, _ in group.runs)
            if size > min(world_size, self.grouped):
                raise codec.CodecError("groups of more ranks than there are")
            self.grouped -= size

    def names(self, wanted: Sequence[str]) -> Sequence[str]:
        """Return the names of the blobs for which there is room."""
        chosen = wanted[: self.blobs]
        self.blobs -= len(chosen)
        return chosen


def _most(ranks: int) -> tuple[int, int]:
    """Return the most bytes and values of an answer of so many ranks, unpacked."""
    return (
        min(MAX_PLAIN_BYTES, _BASE_BYTES + _RANK_BYTES * ranks),
        min(_MOST_VALUES, _BASE_VALUES + _RANK_VALUES * ranks),
    )


@dataclass(frozen=True, slots=True)
class Received:
    """An answer that is unpacked except for its blobs."""

    answer: Answer
    ranks: tuple[RankSnapshot, ...]

    def blobs(self) -> set[str]:
        """Return the names of the blobs that it needs."""
        refs = (ref.frames for refs in self.answer.threads.values() for ref in refs)
        return {*refs, *self.answer.sources.values()} - {""}


class Library:
    """Blobs that have come, each decoded once."""

    def __init__(self) -> None:
        self._frames: dict[str, tuple[Frame, ...]] = {}
        self._texts: dict[str, str] = {}
        self._data: Blobs = {}

    def missing(self, names: set[str]) -> list[str]:
        """Return the names of the blobs that are not there yet."""
        return sorted(names - self._data.keys())

    def add(self, blobs: Mapping[str, bytes]) -> None:
        """Take in blobs; one whose name is not the hash of its content is left out."""
        self._data.update((name, data) for name, data in blobs.items() if name == _name(data))

    def frames(self, name: str) -> tuple[Frame, ...]:
        """Return the frames of a stack, none if they are missing. Raises CodecError."""
        if name not in self._frames:
            data = self._data.get(name)
            self._frames[name] = (
                codec.loads(tuple[Frame, ...], data, MAX_BLOB_BYTES, MAX_BLOB_VALUES)
                if data
                else ()
            )
        return self._frames[name]

    def text(self, name: str) -> str | None:
        """Return a file's text, None if it is missing. Raises CodecError."""
        if name not in self._texts and (data := self._data.get(name)):
            if data[:1] != b'"':
                raise codec.CodecError("it is no text")
            self._texts[name] = codec.loads(str, data, MAX_BLOB_BYTES, MAX_BLOB_BYTES)
        return self._texts.get(name)


def pack(node: str, local: Local, world_size: int, *, full: bool = True) -> tuple[bytes, Blobs]:
    """Return an answer of at most MAX_MESSAGE_BYTES, and the blobs that it names."""
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
        if name := _keep(codec.dumps(text), blobs):
            sources[file] = name
    answer = Answer(node, threads=threads, sources=sources, unseen=local.unseen)
    most_ops = max(_LEAST_OPS, _JOB_OPS[full] // max(1, world_size))
    return _bounded(answer, ranks, max(1, world_size), most_ops), blobs


def unpack(
    data: bytes, node: Node, world_size: int, groups: Groups, room: Room | None = None
) -> Received:
    """Return the answer of a node without its blobs. Raises CodecError.

    groups: those of other answers, to which those of this one are added. room: for all answers
    together; nothing is built of an answer that finds none.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise codec.CodecError(f"{len(data)} bytes, more than {MAX_MESSAGE_BYTES}")
    room = Room.of(world_size) if room is None else room
    most_ranks = min(world_size, max(len(node.ranks), _LATE_RANKS))
    unpacked = codec.decompress(data, _most(most_ranks)[0])
    room.take_answer(unpacked, most_ranks)
    plain = codec.parse(unpacked, MAX_PLAIN_BYTES, _MOST_VALUES)
    if type(plain) is not dict or plain.keys() != {"answer", "ranks"}:
        raise codec.CodecError("it is no answer")
    if type(plain["ranks"]) is not list or len(plain["ranks"]) > most_ranks:
        raise codec.CodecError("it has more ranks than there are")
    answer: Answer = codec.decode(Answer, plain["answer"])
    if answer.node != node.node:
        raise codec.CodecError(f"it is that of {answer.node:.60}")
    if len(answer.sources) > MAX_SOURCES:
        raise codec.CodecError(f"it has {len(answer.sources)} source files")
    fresh = set(answer.groups) - groups.keys()
    room.take_groups(fresh, world_size)
    for group in fresh:
        ranks_of_group = ranks_of(group.runs, world_size)
        groups[group] = GroupKey(ranks_of_group, group.desc, group.index)
    known = {GroupKey: [groups[group] for group in answer.groups], Site: answer.sites}
    ranks: tuple[RankSnapshot, ...] = codec.decode(tuple[RankSnapshot, ...], plain["ranks"], known)
    strange = [rank.rank for rank in ranks if not 0 <= rank.rank < world_size]
    if strange or len({rank.rank for rank in ranks}) < len(ranks):
        raise codec.CodecError(f"it has ranks {strange[:4] or 'twice'}")
    return Received(answer, ranks)


def complete(received: Received, library: Library) -> Local:
    """Return an answer with the stacks and files that it names. Raises CodecError."""
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
    """Return ranks as runs, in their order."""
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
    """Return the ranks of runs. Raises CodecError for too many, or if one is not below limit."""
    if sum(max(0, count) for _, count, _ in runs) > limit:
        raise codec.CodecError("a group of more ranks than there are")
    ranks = tuple(
        first + step * number for first, count, step in runs for number in range(max(0, count))
    )
    if ranks and not (min(ranks) >= 0 and max(ranks) < limit):
        raise codec.CodecError("a group with ranks that there are not")
    return ranks


def _refer(thread: ThreadStack, blobs: Blobs) -> ThreadRef:
    name = _keep(codec.dumps(thread.frames), blobs)
    return ThreadRef(thread.name, thread.tid, thread.active, thread.owns_gil, name)


def _keep(data: bytes, blobs: Blobs) -> str:
    """Add a blob; return its name, empty if it is too large."""
    if len(data) > MAX_BLOB_BYTES:
        return ""
    name = _name(data)
    blobs[name] = data
    return name


def _name(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _bounded(answer: Answer, ranks: list[RankSnapshot], world_size: int, most_ops: int) -> bytes:
    """Return the answer, with as much of each rank's history as fits.

    The larger the job, the less of it: all answers go through one store into one process.
    """
    share = _JOB_BYTES // world_size * len(ranks)
    most_bytes = min(MAX_MESSAGE_BYTES, max(_LEAST_BYTES, share))
    for kept in (min(most_ops, _KEPT_OPS[0]), *_KEPT_OPS):
        if kept <= most_ops:
            data = _packed(answer, ranks, kept)
            if data and len(data) <= most_bytes:
                return data
    return _packed(Answer(answer.node, unseen=("its answer was too large",)), [], 0)


def _packed(answer: Answer, ranks: list[RankSnapshot], kept: int) -> bytes:
    """Return the answer with the last calls alone; empty if it is too large for so many ranks."""
    tables: dict[type, dict[Any, int]] = {GroupKey: {}, Site: {}}
    shown = [
        replace(
            rank,
            ops=_latest(rank.ops, kept),
            new_groups=rank.new_groups[-kept:] if kept else (),
            marks=rank.marks if kept else (),
        )
        for rank in ranks
    ]
    plain = codec.plain(shown, tables)
    groups = tuple(Group(runs_of(key.ranks), key.desc, key.index) for key in tables[GroupKey])
    answer = replace(answer, groups=groups, sites=tuple(tables[Site]))
    data = codec.dumps({"answer": codec.plain(answer), "ranks": plain})
    most_bytes, most_values = _most(len(ranks))
    fits = len(data) <= most_bytes and codec.values_in(data) <= most_values
    return codec.compress(data) if fits else b""


def _latest(ops: tuple[OpRecord, ...], kept: int) -> tuple[OpRecord, ...]:
    """Return the last calls, and those before them that the rank is inside of."""
    start = max(0, len(ops) - kept)
    return tuple(op for op in ops[:start] if op.state is OpState.BLOCKED) + ops[start:]
