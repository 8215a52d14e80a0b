"""Compares the ranks of all nodes, to find who makes the job slow (efficiency/nodes.py).

It is asked for by an incident like any other (rounds.py), and is none: it holds up no incident.

    moments/<k>/<node>   NodeMoments: what a node tells when the k-th one asks for it
    slow/<k>             SlowNodes: what they show together
    like/<k>             Profile of a rank that is not slow, for a node that has none
    why/<k>              Why: what the slow ones do
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from hangwatch.efficiency.nodes import KEPT, MOST_GROUPS, MOST_RANKS, NodeMoments, SlowNodes
from hangwatch.evidence.background import in_thread
from hangwatch.model import codec
from hangwatch.model.profile import Profile
from hangwatch.model.report import Why
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers.messages import MAX_HEADLINE, MAX_NAME, Node
from hangwatch.watchdog.peers.rounds import CHUNK, node_text, wait_for
from hangwatch.watchdog.peers.store import Store, StoreLostError

_T = TypeVar("_T", Profile, Why)

_MAX_PACKED, _MAX_BYTES = 64 << 10, 1 << 20
"""Of a message as it is sent, and unpacked."""
_MAX_FOUND_BYTES = 16 << 10
"""Of what is found, and why."""
_MOST = 1 << 20
"""Moments, parts or seconds."""

_moments = "moments/{}/{}".format
_slow = "slow/{}".format


@dataclass(frozen=True, slots=True)
class Talk:
    """What the nodes say to each other about stragglers that they have found."""

    store: Store
    number: int

    async def say(self, what: str, message: Profile | Why) -> None:
        """Tell the others something. They do without it if the store is lost."""
        data = codec.compress(codec.dumps(message))
        if len(data) <= _MAX_PACKED:
            with suppress(StoreLostError):
                await self.store.set(f"{what}/{self.number}", data)

    async def hear(self, what: str, kind: type[_T], after_s: float, timeout_s: float) -> _T | None:
        """Return what another node says, None if it does not in time, or makes no sense.

        after_s: for how long it is not looked for.
        """
        key = f"{what}/{self.number}"
        await asyncio.sleep(after_s)  # that of a thousand nodes would keep the store busy
        with suppress(StoreLostError, codec.CodecError):
            if await wait_for(self.store, [key], timeout_s):
                data = await self.store.get(key, _MAX_PACKED) or b""
                most = _MAX_FOUND_BYTES if kind is Why else _MAX_BYTES
                message: _T = codec.loads(kind, codec.decompress(data, most), most)
                return message
        return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One watchdog's part in it. All methods raise StoreLostError.

    tell: returns what this node tells. find: returns what all of them show, in a thread. heard:
    called with that, and with the talk about it.
    """

    tell: Callable[[], NodeMoments]
    find: Callable[[Sequence[NodeMoments]], SlowNodes]
    heard: Callable[[SlowNodes, Talk], None]

    async def lead(
        self, store: Store, number: int, own: str, nodes: Sequence[Node], world_size: int
    ) -> None:
        """Gather the moments of all nodes, and tell all what they show."""
        told = self.tell()
        others = [node for node in nodes if node.node != own]
        answers, missing = await _gather(store, number, others)
        if missing:
            found = SlowNodes(unknown=missing)
        elif sum(len(node.ranks) for node in nodes) < world_size:
            found = SlowNodes(unknown="some ranks are on no node that is known")
        else:
            try:
                found = await in_thread(partial(self.find, (told, *answers)), timing.COMPARING_S)
            except TimeoutError:
                found = SlowNodes(unknown="it takes too long to compare the nodes")
        await store.set(_slow(number), codec.dumps(found))
        self.heard(found, Talk(store, number))
        for node in others:
            await store.delete_key(_moments(number, node.node))

    async def follow(self, store: Store, number: int, own: str, world_size: int) -> None:
        """Tell the moments of this node, and hear what those of all nodes show.

        Raises CodecError.
        """
        await store.set(_moments(number, own), codec.compress(codec.dumps(self.tell())))
        limit_s = timing.GATHER_S + timing.COMPARING_S
        if await wait_for(store, [_slow(number)], limit_s):
            data = await store.get(_slow(number), _MAX_FOUND_BYTES) or b""
            found: SlowNodes = codec.loads(SlowNodes, data, _MAX_FOUND_BYTES)
            _check(found, world_size)
            self.heard(found, Talk(store, number))


async def _gather(
    store: Store, number: int, nodes: Sequence[Node]
) -> tuple[list[NodeMoments], str]:
    """(what nodes tell, why one does not)."""
    keys = {_moments(number, node.node): node for node in nodes}
    if not await wait_for(store, list(keys), timing.GATHER_S):
        there = set(await store.present(list(keys)))
        silent = next((node for key, node in keys.items() if key not in there), None)
        if silent is not None:
            return [], f"{node_text(silent)} did not answer within {timing.GATHER_S:g} s"
    answers = []
    names = list(keys)
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        for key, data in zip(chunk, await store.multi_get(chunk, _MAX_PACKED), strict=True):
            try:
                answers.append(_unpacked(data, keys[key]))
            except codec.CodecError as error:
                return [], f"the answer of {node_text(keys[key])} cannot be read: {error}"
    return answers, ""


def _unpacked(data: bytes, node: Node) -> NodeMoments:
    plain = codec.decompress(data, _MAX_BYTES)
    told: NodeMoments = codec.loads(NodeMoments, plain, _MAX_BYTES)
    sets = 1 << min(len(told.ranks), MOST_RANKS)
    if not (
        (set(told.ranks) == set(node.ranks) or told.unknown)
        and len(told.parts) <= KEPT
        and all(len(part) % 2 == 0 for part in told.parts)
        and all(0 <= ranks < sets for part in told.parts for ranks in part[::2])
        and max(len(told.groups), len(told.peers)) <= MOST_GROUPS
        and all(0 < group < sets for group in told.groups)
        and all(0 < count < _MOST for part in told.parts for count in part[1::2])
        and 0 < told.part_s < _MOST
        and 0 < told.turn_parts < _MOST
        and len(told.unknown) <= MAX_HEADLINE
    ):
        raise codec.CodecError("it makes no sense")
    return replace(told, host=node.host)


def _check(found: SlowNodes, world_size: int) -> None:
    named = (*found.ranks, found.like)
    texts = (found.unknown, found.host)
    if not (
        all(0 <= rank < world_size for rank in named)
        and 0 <= found.fraction <= 1
        and 0 <= min(found.since_s, found.window_s) <= max(found.since_s, found.window_s) < _MOST
        and all(len(text) <= MAX_HEADLINE + MAX_NAME for text in texts)
    ):
        raise codec.CodecError("it names ranks that there are not, or says too much")
