"""Whether the nodes that do not answer are still there.

A machine that lives refuses a connection to a port where nothing listens, whatever has
become of the processes on it; one that is lost says nothing. Asked only in an incident,
of nodes whose watchdog is silent: who is there and silent is no lost node.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hangwatch.watchdog.peers.exchange import Exchange
from hangwatch.watchdog.peers.messages import Node
from hangwatch.watchdog.peers.rounds import said

PORT = 9
"""discard (RFC 863), which no service of our time listens on."""
REACH_S = 2.0
MOST_S = 5.0
AT_ONCE = 500
"""Below the usual limit of open files."""
WITNESSES = 3
"""Nodes that did answer, to see whether this network passes such refusals on."""
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Missing:
    """What is known of the nodes that were not heard."""

    lost: tuple[Node, ...] = ()
    """Those whose machine cannot be reached."""
    cut_off: bool = False
    """No other node can be reached: this one may be the lost one itself."""
    notes: tuple[str, ...] = ()
    """The same for people."""


async def missing(
    own: Node,
    roster: Collection[Node],
    silent: Collection[Node] | None,
    store_host: str,
    port: int = PORT,
) -> Missing:
    """Look for nodes; takes at most MOST_S.

    silent: those that did not answer, None where the store is lost and nobody was asked.
    """
    others = [node for node in roster if node.node != own.node]
    unheard = others if silent is None else [node for node in others if node in silent]
    if not unheard:
        return Missing()
    heard = [node for node in others if node not in unheard and node.address][:WITNESSES]
    store_here = store_host in (own.address, own.host, "localhost")
    gone = await unreachable({node.address for node in [*unheard, *heard]} | {store_host}, port)
    if heard and all(node.address in gone for node in heard):
        return Missing(notes=("whether the silent nodes still run cannot be seen: a firewall",))
    lost = tuple(node for node in unheard if node.address in gone)
    alone = len(lost) == len(others)
    store_gone = silent is None and store_host in gone
    cut_off = alone and (store_gone or (store_here and len(_hosts(others)) > 1))
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
    """Those of some IP addresses from which nothing comes back. What is no address is left out."""
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
    """Whether anything comes back from a machine, be it that it refuses."""
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


def _hosts(nodes: Iterable[Node]) -> set[str]:
    return {node.address for node in nodes}


def _listed(nodes: Sequence[Node]) -> str:
    """``node-1 (ranks 2-3), node-2 (ranks 4-5)``, cut where it gets long."""
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(map(said, nodes[:_NAMED])) + more


@dataclass(slots=True)
class Peers:
    """Written by Joining (joining.py) alone; read where the other nodes are asked."""

    exchange: Exchange | None = None
    """None before they are joined, and where all ranks of the job are of this node."""
    store_address: str = ""
    """The IP address of the host that has the job's store, empty while unknown."""

    @property
    def can_be_asked(self) -> bool:
        """Whether there are others, and they are in reach as far as is known."""
        return self.exchange is not None and self.exchange.joined
