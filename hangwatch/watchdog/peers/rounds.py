"""The conversation of the watchdogs as calls on a store.

Keys, below ``hangwatch/<run>/<world size>``. They may outlive an incarnation of the job: torchrun
keeps its store when it restarts the ranks, and its count of restarts is not the same on all
nodes. So each watchdog joins again, and of nodes that claim the same ranks the last one to join
has them.

    joined          how many watchdogs have joined
    node/<n>        Node: the n-th of them
    ranks           how many ranks they have, those of one that joined again twice
    roster          all Nodes, once every rank of the job is on one of them
    rounds          how many incidents there have been
    incident/<k>    Incident: the k-th; the node that sets it first (compare_set) owns it
    answer/<k>/<node>   Answer: the evidence of a node
    blob/<hash>     frames or a source file, once each
    verdict/<k>     Published: the owner's conclusion

All functions raise StoreLostError.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from hangwatch.evidence.background import in_thread
from hangwatch.model import codec
from hangwatch.model.codec import without_collections
from hangwatch.text import fold_ranks
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers.messages import (
    MAX_BLOB_BYTES,
    MAX_HEADLINE,
    MAX_INCIDENT_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_NAME,
    MAX_NODE_BYTES,
    MAX_PLAIN_BYTES,
    MAX_VERDICTS,
    Gathered,
    Groups,
    Incident,
    Library,
    Local,
    Node,
    Published,
    Received,
    Room,
    complete,
    slim,
    unpack,
)
from hangwatch.watchdog.peers.store import Store, StoreLostError

CHUNK = 64
"""Answers that are read at once: of a large job not all are held at the same time."""
PASSED_OVER = 64
"""Numbers of questions for moments in a row, at most: anyone may set some."""
_REJOINED = 4
"""So many times over the nodes of a job are looked for among all entries."""
_KEPT = 4
"""Rounds whose answers and verdicts are kept in the store."""


_incident = "incident/{}".format
_answer = "answer/{}/{}".format
_verdict = "verdict/{}".format
_blob = "blob/{}".format


async def join(store: Store, node: Node, world_size: int) -> tuple[int, tuple[Node, ...]]:
    """Make a node known; return the number of the next incident, and the nodes so far."""
    number = await store.add("joined", 1)
    await store.delete_key("roster")  # it may be of the incarnation before
    await store.set(f"node/{number}", codec.dumps(node))
    nodes: tuple[Node, ...] = (node,)
    # Of a thousand nodes only the last one reads the entries of all.
    if await store.add("ranks", len(node.ranks)) >= world_size:
        nodes = await known_nodes(store, world_size)
        if sum(len(known.ranks) for known in nodes) >= world_size:
            await store.set("roster", codec.compress(codec.dumps(nodes)))
    return await store.add("rounds", 0) + 1, nodes


async def roster(store: Store, world_size: int) -> tuple[Node, ...]:
    """Return all nodes; none if they have not all joined."""
    with suppress(codec.CodecError):
        most = min(MAX_PLAIN_BYTES, MAX_NODE_BYTES * (world_size + 1))
        data = codec.decompress(await store.get("roster", MAX_MESSAGE_BYTES) or b"", most)
        values = 16 * (world_size + 1)
        found: tuple[Node, ...] = codec.loads(tuple[Node, ...], data, most, values)
        return tuple(node for node in found[:world_size] if _is_sound(node, world_size))
    return ()


async def known_nodes(store: Store, world_size: int) -> tuple[Node, ...]:
    """Return the nodes that have joined, except nodes that another one has replaced.

    Anyone may have set the counter: it says where to look, and not for how long.
    """
    most = _REJOINED * (world_size + 1)
    last = max(0, await store.add("joined", 0))
    # The newest, and the first: those are there if the counter was set to a wrong number.
    numbers = [*range(last, max(last - most, most), -1), *range(min(last, most), 0, -1)]
    nodes: list[Node] = []
    names: set[str] = set()
    taken: set[int] = set()
    for start in range(0, len(numbers), CHUNK):
        keys = [f"node/{number}" for number in numbers[start : start + CHUNK]]
        keys = await store.present(keys)
        most_bytes = MAX_NODE_BYTES + 8 * world_size
        for data in await store.multi_get(keys, most_bytes) if keys else ():
            with suppress(codec.CodecError):
                node = codec.loads(Node, data, most_bytes, 16 + world_size)
                newer = node.node in names or not taken.isdisjoint(node.ranks)
                if _is_sound(node, world_size) and not newer:
                    nodes.append(node)
                    names.add(node.node)
                    taken.update(node.ranks)
        if len(taken) >= world_size:
            break  # all that joined before have been replaced
    return tuple(reversed(nodes))


async def await_incident(store: Store, number: int) -> bytes | None:
    """Return the incident once there is one, None if there is none for a long time."""
    key = _incident(number)
    came = await store.wait([key], timing.INCIDENT_WAIT_S)
    return await store.get(key, MAX_INCIDENT_BYTES) if came else None


async def claim(store: Store, number: int, incident: Incident) -> bool:
    """Set the incident unless another node has; return True if it is this node's."""
    ours = codec.dumps(incident)
    held = await store.compare_set(_incident(number), b"", ours)
    if not held:  # if it was not set, or set to nothing, it is ours now
        raise StoreLostError("the store's answer makes no sense")
    # Only the libuv server wakes the clients that wait if it is a compare_set that sets the
    # key; to set it again wakes them always.
    await store.set(_incident(number), held)
    if held == ours:
        await store.add("rounds", 1)
    return held == ours


async def asks_for_moments(store: Store, number: int) -> bool:
    """Return True if what was opened under this number is no incident (comparison.py)."""
    data = await store.get(_incident(number), MAX_INCIDENT_BYTES) or b""
    with suppress(codec.CodecError):
        incident: Incident = codec.loads(Incident, data, MAX_INCIDENT_BYTES)
        return incident.moments
    return False


async def taken_over_by(store: Store, number: int) -> int | None:
    """Return the next incident, if another node has opened it: this one took too long."""
    for later in range(number + 1, number + 1 + PASSED_OVER):
        if not await store.check([_incident(later)]):
            break
        if not await asks_for_moments(store, later):
            return later
    return None


async def send(
    store: Store, number: int, node: str, message: bytes, blobs: Mapping[str, bytes]
) -> None:
    """Answer an incident; blobs that the store has are not sent."""
    there = set(await store.present([_blob(name) for name in blobs]))
    for name, blob in blobs.items():
        if _blob(name) not in there:
            await store.set(_blob(name), blob)
    await store.set(_answer(number, node), message)


async def gather(
    store: Store,
    number: int,
    patience_s: Mapping[Node, float],
    roster: Sequence[Node],
    world_size: int,
) -> Gathered:
    """Return the answers that came in time, and the nodes that sent none.

    patience_s: the nodes that are asked, and how long each is waited for.
    """
    began = time.monotonic()
    keys = {node: _answer(number, node.node) for node in patience_s}
    all_there = True
    for limit_s in sorted(set(patience_s.values()), reverse=True):
        some = [keys[node] for node, seconds in patience_s.items() if seconds == limit_s]
        left_s = limit_s - (time.monotonic() - began)
        all_there = await wait_for(store, some, left_s) and all_there
    there = {n: key for n, key in keys.items() if all_there or await store.check([key])}
    silent = tuple(node for node in keys if node not in there)
    unseen = [f"{node_text(node)} did not answer within {patience_s[node]:g} s" for node in silent]
    others: list[Local] = []
    library, groups, room = Library(), Groups(), Room.of(world_size)
    owners = {rank: node for node in roster for rank in node.ranks}
    answered = list(there)
    for start in range(0, len(answered), CHUNK):
        chunk = answered[start : start + CHUNK]
        answers = await store.multi_get([there[node] for node in chunk], MAX_MESSAGE_BYTES)
        received, unread = await in_thread(
            partial(_unpacked, dict(zip(chunk, answers, strict=True)), world_size, groups, room),
            timing.UNPACKING_S,
        )
        unseen += unread
        names = set().union(*(answer.blobs() for answer in received.values()))
        library.add(await _blobs(store, library.missing(names), room))
        for node, one in received.items():
            mine = tuple(rank for rank in one.ranks if owners.get(rank.rank, node) == node)
            try:
                others.append(complete(replace(one, ranks=mine), library))
            except codec.CodecError as error:
                unseen.append(f"stacks of {node_text(node)} cannot be read: {error}")
    return Gathered(
        owner=True,
        round=number,
        others=tuple(others),
        silent=silent,
        unseen=tuple(unseen),
    )


def _unpacked(
    answers: Mapping[Node, bytes], world_size: int, groups: Groups, room: Room
) -> tuple[dict[Node, Received], list[str]]:
    """Return the answers of nodes without their blobs, and which of them cannot be read."""
    received: dict[Node, Received] = {}
    unread = []
    with without_collections():
        for node, data in answers.items():
            try:
                received[node] = unpack(data, node, world_size, groups, room)
            except codec.CodecError as error:
                unread.append(f"the answer of {node_text(node)} cannot be read: {error}")
    return received, unread


async def publish(store: Store, number: int, published: Published, nodes: Sequence[Node]) -> None:
    """Publish the conclusion of an incident of this node, and remove those of old ones."""
    data = codec.dumps(slim(published))
    if len(data) > MAX_MESSAGE_BYTES:
        data = codec.dumps(Published(published.node, ()))
    await store.set(_verdict(number), data)
    old = number - _KEPT
    if old >= 1:  # its incident stays, for nodes that lag behind
        for node in nodes:
            await store.delete_key(_answer(old, node.node))
        await store.delete_key(_verdict(old))


async def await_verdict(
    store: Store, number: int, timeout_s: float, world_size: int
) -> Published | None:
    """Return the conclusion of another node's incident, None if it does not come in time.

    Raises CodecError.
    """
    if not await wait_for(store, [_verdict(number)], timeout_s):
        return None
    data = await store.get(_verdict(number), MAX_MESSAGE_BYTES) or b""
    published: Published = codec.loads(Published, data, MAX_MESSAGE_BYTES)
    verdicts = published.verdicts
    shown = [published.node, published.report, *(verdict.headline for verdict in verdicts)]
    if len(verdicts) > MAX_VERDICTS or max(map(len, shown)) > MAX_HEADLINE:
        raise codec.CodecError("it says more than a verdict does")
    named = {rank for verdict in verdicts for rank in (*verdict.culprits, *verdict.victims)}
    if not all(0 <= rank < world_size for rank in named):
        raise codec.CodecError("it names ranks that there are not")
    return published


def node_text(node: Node) -> str:
    """Return a node and its ranks, for people."""
    return f"{node.host} (rank{'s' if len(node.ranks) != 1 else ''} {fold_ranks(node.ranks)})"


async def wait_for(store: Store, keys: list[str], timeout_s: float) -> bool:
    """Wait until all keys are set; False if they are not in time. Others can use the store."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        if await store.wait(keys, min(left_s, timing.WAIT_SLICE_S)):
            return True
    return False


async def _blobs(store: Store, names: Sequence[str], room: Room) -> dict[str, bytes]:
    named = {_blob(name): name for name in room.names(names)}
    keys = await store.present(list(named))
    blobs = await store.multi_get(keys, MAX_BLOB_BYTES, room.blob_bytes) if keys else []
    room.blob_bytes -= sum(map(len, blobs))
    return {named[key]: blob for key, blob in zip(keys, blobs, strict=True)}


def _is_sound(node: Node, world_size: int) -> bool:
    named = max(map(len, (node.node, node.host, node.address))) <= MAX_NAME
    once = len(set(node.ranks)) == len(node.ranks)
    return named and once and all(0 <= rank < world_size for rank in node.ranks)
