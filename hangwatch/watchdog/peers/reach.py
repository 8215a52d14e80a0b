"""Finds out which of the nodes that do not answer are lost.

A machine that lives refuses a connection to a port that no process listens on, whatever has
become of its processes; a lost one sends nothing. It is asked only in an incident, and only if
its watchdog is silent: a node that is there and silent is not lost.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hangwatch.watchdog.peers.messages import Node
from hangwatch.watchdog.peers.rounds import node_text

PORT = 9
"""discard (RFC 863), which no service of our time listens on."""
REACH_S = 2.0
MOST_S = 5.0
AT_ONCE = 500
"""Below the usual limit of open files."""
CONTROLS = 3
"""Nodes that did answer, to see whether this network passes such refusals on."""
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Missing:
    """The nodes that were not heard, as far as known."""

    lost: tuple[Node, ...] = ()
    """Nodes whose machine cannot be reached."""
    cut_off: bool = False
    """No other node can be reached: it may be this one that is lost."""
    notes: tuple[str, ...] = ()
    """The same for people."""


async def missing(
    own: Node,
    roster: Collection[Node],
    silent: Collection[Node] | None,
    store_host: str,
    port: int = PORT,
) -> Missing:
    """Look for the nodes that were not heard; takes at most MOST_S.

    silent: nodes that did not answer, None if the store is lost and none was asked.
    """
    others = [node for node in roster if node.node != own.node]
    unheard = others if silent is None else [node for node in others if node in silent]
    if not unheard:
        return Missing()
    heard = [node for node in others if node not in unheard and node.address][:CONTROLS]
    store_here = store_host in (own.address, own.host, "localhost")
    gone = await unreachable({node.address for node in [*unheard, *heard]} | {store_host}, port)
    if heard and all(node.address in gone for node in heard):
        return Missing(notes=("whether the silent nodes still run cannot be seen: a firewall",))
    lost = tuple(node for node in unheard if node.address in gone)
    alone = len(lost) == len(others)
    store_gone = silent is None and store_host in gone
    cut_off = alone and (store_gone or (store_here and len({node.address for node in others}) > 1))
    there = [node for node in unheard if node.address and node not in lost]
    notes = []
    if cut_off:
        notes.append(f"this node ({own.host}) cannot reach any other")
    elif lost:
        notes.append(f"{_listed(lost)} cannot be reached any more")
    if there and silent is not None:
        notes.append(f"{_listed(there)} can be reached, and the watchdog there does not answer")
    return Missing(lost, cut_off, tuple(notes))


async def unreachable(addresses: Iterable[str], port: int = PORT) -> frozenset[str]:
    """Return the IP addresses from which nothing comes back. Other texts are left out."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def look(address: str) -> str:
        async with turn:
            return "" if await _answers(address, port) else address

    tasks = [asyncio.ensure_future(look(address)) for address in set(addresses) if _is_ip(address)]
    if not tasks:
        return frozenset()
    done, late = await asyncio.wait(tasks, timeout=MOST_S)
    for task in late:
        task.cancel()
    return frozenset(task.result() for task in done) - {""}


async def _answers(address: str, port: int) -> bool:
    """Return True if anything comes back from a machine, even a refusal."""
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(address, port)
    except (ConnectionError, PermissionError):
        return True  # PermissionError: it is our own machine that refuses to ask
    except OSError:  # TimeoutError, and what a router says: no such host, no such network
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _listed(nodes: Sequence[Node]) -> str:
    """``node-1 (ranks 2-3), node-2 (ranks 4-5)``, cut where it gets long."""
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(map(node_text, nodes[:_NAMED])) + more
