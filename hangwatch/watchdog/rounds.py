"""The conversation of the watchdogs as calls on a store; each of them blocks.

Keys, below ``hangwatch/<run>/<restart>``:

    joined          how many watchdogs have joined
    node/<n>        Node: the n-th of them
    rounds          how many incidents there have been
    incident/<k>    Incident: the k-th; whoever sets it first (compare_set) owns it
    answer/<k>/<node>   Answer: what a node knows
    blob/<hash>     frames or a source file, once each
    verdict/<k>     Published: what the owner has concluded

All functions raise StoreLostError, or what torch raises (RuntimeError), for a
store that fails.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hangwatch.report.sites import fold_ranks
from hangwatch.watchdog import codec
from hangwatch.watchdog.messages import (
    MAX_MESSAGE_BYTES,
    Incident,
    Local,
    Node,
    Published,
    unpack,
)
from hangwatch.watchdog.store import waited

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangwatch.watchdog.store import Store

VERDICT_S = 12.0
"""How long a node waits for the verdict of the owner of an incident."""
_INCIDENT_S = 600.0
"""The wait for the next incident is renewed this often."""
_KEPT = 4
"""Rounds whose answers and verdicts are kept in the store."""


def join(store: Store, node: Node) -> int:
    """Make a node known; the number of the next incident."""
    number = store.add("joined", 1)
    store.set(f"node/{number}", codec.dumps(node))
    return store.add("rounds", 0) + 1


def await_incident(store: Store, number: int) -> bytes | None:
    """The incident once there is one, None if there is none for a long time."""
    key = _incident(number)
    return store.get(key) if waited(store, [key], _INCIDENT_S) else None


def claim(store: Store, number: int, incident: Incident) -> bool:
    """Set the incident unless somebody has; whether it is ours."""
    ours = codec.dumps(incident).decode()
    held = store.compare_set(_incident(number), "", ours).decode("utf-8", "replace")
    # Only the libuv server wakes those that wait when it is a compare_set that
    # sets the key; setting it again does, whoever does it.
    store.set(_incident(number), held)
    if held == ours:
        store.add("rounds", 1)
    return held == ours


def send(store: Store, number: int, node: str, message: bytes, blobs: Mapping[str, bytes]) -> None:
    """Answer an incident; blobs that the store has are not sent."""
    for name, blob in blobs.items():
        if not store.check([_blob(name)]):
            store.set(_blob(name), blob)
    store.set(_answer(number, node), message)


def gather(
    store: Store, number: int, own: str, budget_s: float
) -> tuple[tuple[Local, ...], tuple[str, ...]]:
    """What the nodes but our own have answered in time, and who has not."""
    nodes = {name: node for name, node in _nodes(store).items() if name != own}
    if nodes:
        waited(store, [_answer(number, name) for name in nodes], budget_s)
    others, unseen = [], []
    for name, node in nodes.items():
        said = f"{node.host} ({_ranks(node.ranks)})"
        if not store.check([_answer(number, name)]):
            unseen.append(f"{said} did not answer within {budget_s:g} s")
            continue
        try:
            message = store.get(_answer(number, name))
            others.append(unpack(message, lambda names: _blobs(store, names))[1])
        except codec.CodecError as error:
            unseen.append(f"the answer of {said} cannot be read: {error}")
    return tuple(others), tuple(unseen)


def publish(store: Store, number: int, published: Published) -> None:
    """Tell what came of an incident of ours, and free what old ones left."""
    data = codec.dumps(published)
    if len(data) > MAX_MESSAGE_BYTES:
        data = codec.dumps(Published(published.node, ()))
    store.set(_verdict(number), data)
    old = number - _KEPT
    if old >= 1:  # its incident stays, for those that lag behind
        for name in _nodes(store):
            store.delete_key(_answer(old, name))
        store.delete_key(_verdict(old))


def await_verdict(store: Store, number: int) -> Published | None:
    """What came of another node's incident, None if it does not tell.

    Raises CodecError.
    """
    if not waited(store, [_verdict(number)], VERDICT_S):
        return None
    found: Published = codec.loads(Published, store.get(_verdict(number)), MAX_MESSAGE_BYTES)
    return found


def _nodes(store: Store) -> dict[str, Node]:
    """All that have joined, by name; one that was started again has joined again."""
    numbers = range(1, store.add("joined", 0) + 1)
    keys = [key for number in numbers if store.check([key := f"node/{number}"])]
    nodes: dict[str, Node] = {}
    for data in store.multi_get(keys):
        with suppress(codec.CodecError):
            node = codec.loads(Node, data, MAX_MESSAGE_BYTES)
            nodes[node.node] = node
    return nodes


def _blobs(store: Store, names: Iterable[str]) -> dict[str, bytes]:
    found = [name for name in names if name and store.check([_blob(name)])]
    return dict(zip(found, store.multi_get([_blob(name) for name in found]), strict=True))


def _incident(number: int) -> str:
    return f"incident/{number}"


def _answer(number: int, node: str) -> str:
    return f"answer/{number}/{node}"


def _verdict(number: int) -> str:
    return f"verdict/{number}"


def _blob(name: str) -> str:
    return f"blob/{name}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {fold_ranks(ranks)}"
