"""The connection to the watchdogs of the other nodes, over the restarts of the job.

A node is lost if its watchdog is silent and its machine does not answer either: a machine that
lives refuses a connection to a port that no process listens on, whatever has become of its
processes; a lost one sends nothing. Machines are asked only in an incident.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hangwatch.console import News
from hangwatch.evidence.background import Tasks
from hangwatch.evidence.pages.look import Look
from hangwatch.evidence.timing import QUIET_S
from hangwatch.model.kinds import Phase
from hangwatch.model.page import Identity
from hangwatch.model.snapshot import RankSnapshot
from hangwatch.run.handshake import Hello
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers.comparison import Comparison
from hangwatch.watchdog.peers.exchange import Exchange
from hangwatch.watchdog.peers.messages import Gathered, Local, Node, Published
from hangwatch.watchdog.peers.rounds import node_text

PORT = 9
"""discard (RFC 863), which no service of our time listens on."""
AT_ONCE = 500
"""Below the usual limit of open files."""
CONTROLS = 3
"""Nodes that did answer, to see whether this network passes such refusals on."""
_NAMED = 8


@dataclass(slots=True)
class Peers:
    """Joins the watchdogs of the other nodes, and asks them.

    answer, heard: called with their questions and verdicts.
    """

    node: str
    hello: Hello
    answer: Callable[[bool], Awaitable[Local]]
    heard: Callable[[Published], None]
    news: News
    comparison: Comparison | None = None
    exchange: Exchange | None = None
    """None before they are joined, and if all ranks of the job are on this node."""
    store_address: str = ""
    """The IP address of the host that has the job's store, empty while unknown."""
    _all_here_ns: int = 0
    _joined_ns: int = 0
    _tasks: Tasks = field(default_factory=Tasks)
    _join: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name of this watchdog among those of all nodes."""
        return f"{self.node}:{self.hello.run_dir.name}"

    @property
    def can_be_asked(self) -> bool:
        """True if there are others, and they are in reach as far as known."""
        return self.exchange is not None and self.exchange.joined

    def under_way(self, now_ns: int) -> bool:
        """Return True if the others can be asked in a moment: a verdict should wait for them."""
        if self.exchange is None:
            since_ns, due = self._all_here_ns, self._all_here_ns > 0
        else:
            since_ns, due = self._joined_ns, self._is_joining()
        return due and now_ns - since_ns < timing.HOLD_VERDICT_S * 1e9

    async def ask(self, *, full: bool) -> Gathered | None:
        """Gather the other nodes' evidence; None if there are none that could be asked."""
        if self.exchange is None or not self.exchange.joined:
            return None
        if full:
            self.news.debug("asking the other nodes for all evidence")
        return await self.exchange.ask(full=full)

    async def compare(self) -> str:
        """Have the moments of all nodes compared; return why that cannot be, for people."""
        if self.exchange is None:
            return "the other nodes have not been joined"
        return await self.exchange.compare()

    async def missing(self, gathered: Gathered | None) -> Missing:
        """Find out which of the nodes that were not heard are lost."""
        roster = self.exchange.roster if self.exchange is not None else ()
        own = next((node for node in roster if node.node == self.name), None)
        silent = gathered.silent if gathered is not None and gathered.round > 0 else None
        return await missing(own, roster, silent, self.store_address) if own else Missing()

    def look(self, look: Look) -> None:
        """Join once the ranks of this node run, and again if the store was lost since."""
        running = [
            seen.light.identity
            for seen in look.seen.values()
            if seen.light.phase is Phase.RUNNING and seen.light.identity.store_port
        ]
        if not running or running[0].world_size <= len(look.seen):
            return  # all ranks are here
        if self.exchange is not None:
            self._join_again(self.exchange, running[0], look)
            return
        self._all_here_ns = self._all_here_ns or look.now_ns
        waited_s = (look.now_ns - self._all_here_ns) / 1e9
        if len(look.seen) == self._expected(running[0]) or waited_s >= timing.JOIN_AFTER_S:
            self._begin(Node(self.name, self.node, tuple(look.seen)), running[0], look)

    def leave(self) -> None:
        """Leave the conversation of this incarnation: the next one has another."""
        self._all_here_ns = 0
        if self._join is not None:
            self._join.cancel()
        old, self.exchange = self.exchange, None
        if old is not None:
            self._tasks.start(old.close())

    async def close(self) -> None:
        """Leave for good."""
        self.leave()
        await self._tasks.settle()

    def _is_joining(self) -> bool:
        return self._join is not None and not self._join.done()

    def _expected(self, rank: Identity) -> int:
        """Return the number of ranks of this node, as far as that is known."""
        hello = self.hello
        if rank.local_world_size <= 0 and hello.facts.shared and not hello.self_started:
            return len(hello.commands())  # each a rank; now that one runs, all are there
        return rank.local_world_size

    def _join_again(self, lost: Exchange, rank: Identity, look: Look) -> None:
        """Join again: a network may come back. The store is missed only while ranks wait."""
        rested = (look.now_ns - self._joined_ns) / 1e9 >= timing.REJOIN_S
        if lost.joined or self._is_joining() or not rested or look.longest_wait_s < QUIET_S:
            return
        self._tasks.start(lost.close())
        (own,) = (node for node in lost.roster if node.node == self.name)
        self._begin(own, rank, look).roster = lost.roster

    def _begin(self, node: Node, rank: Identity, look: Look) -> Exchange:
        exchange = Exchange(node, self.news, self.answer, self.heard, self.comparison)
        self.exchange = exchange
        self._joined_ns = look.now_ns
        self._join = self._tasks.start(self._connect(exchange, rank))
        return exchange

    async def _connect(self, exchange: Exchange, rank: Identity) -> None:
        with suppress(OSError):
            loop = asyncio.get_running_loop()
            addresses = await loop.getaddrinfo(rank.store_host, rank.store_port)
            self.store_address = str(addresses[0][4][0])
        prefix = f"hangwatch/{rank.run_id or 'job'}/{rank.world_size}"
        await exchange.join(rank.store_host, rank.store_port, prefix, rank.world_size)


@dataclass(slots=True)
class LastWords:
    """The other nodes' evidence when the first rank of this one failed; asked for once.

    A job falls apart in moments, and the store with it: once the command has ended, no other
    node may be left to be asked which rank failed first.

    conclude: returns the conclusion to publish. is_reported: True if the failure was announced.
    """

    conclude: Callable[[Gathered], Awaitable[Published]]
    is_reported: Callable[[], bool]
    _asked: asyncio.Task[Gathered] | None = None
    _at_s: float = 0.0

    def ask(self, exchange: Exchange) -> None:
        """Ask all other nodes, unless that is done, and publish the conclusion.

        If another node was faster, that one concludes. If it was not sure enough to report the
        failure, this one asks after all: else each would report it for itself.
        """
        if self._asked is None:
            self._asked = asyncio.ensure_future(self._ask(exchange))

    async def heard(self, timeout_s: float) -> Gathered | None:
        """Return the answers, as old as they are by now; None if there are none in time."""
        if self._asked is None:
            return None
        await asyncio.wait({self._asked}, timeout=timeout_s)
        if not self._asked.done() or self._asked.cancelled() or self._asked.exception():
            return None
        gathered = self._asked.result()
        age_s = time.monotonic() - self._at_s
        others = tuple(
            replace(local, ranks=tuple(aged(rank, age_s) for rank in local.ranks))
            for local in gathered.others
        )
        return replace(gathered, others=others) if gathered.owner else None

    def forget(self) -> None:
        """Forget the answers: the ranks were restarted."""
        if self._asked is not None:
            self._asked.cancel()
        self._asked = None

    async def _ask(self, exchange: Exchange) -> Gathered:
        gathered = await exchange.ask(full=False)
        if not gathered.owner and not self.is_reported():
            gathered = await exchange.ask(full=False)
        self._at_s = time.monotonic()
        if gathered.owner and gathered.round:
            await exchange.publish(gathered.round, await self.conclude(gathered))
        return gathered


def aged(rank: RankSnapshot, by_s: float) -> RankSnapshot:
    """Return the same rank a while later, in which nothing was seen of it."""

    def older(age_s: float | None) -> float | None:
        return None if age_s is None else age_s + by_s

    return replace(
        rank,
        process=replace(rank.process, gone_age_s=older(rank.process.gone_age_s)),
        phase_age_s=rank.phase_age_s + by_s,
        ops=tuple(
            replace(op, issued_age_s=op.issued_age_s + by_s, blocked_age_s=older(op.blocked_age_s))
            for op in rank.ops
        ),
        new_groups=tuple(replace(call, age_s=call.age_s + by_s) for call in rank.new_groups),
        marks=tuple(replace(mark, age_s=mark.age_s + by_s) for mark in rank.marks),
        in_call_age_s=rank.in_call_age_s + by_s if rank.in_call else 0.0,
        exception_age_s=older(rank.exception_age_s),
        abort_age_s=older(rank.abort_age_s),
        pending_age_s=older(rank.pending_age_s),
        born_age_s=older(rank.born_age_s),
        groups=tuple(
            replace(
                group,
                made_age_s=older(group.made_age_s),
                ended_age_s=older(group.ended_age_s),
                changed_age_s=older(group.changed_age_s),
            )
            for group in rank.groups
        ),
    )


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
    """Look for the nodes that were not heard; takes at most REACH_ALL_S.

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
    done, late = await asyncio.wait(tasks, timeout=timing.REACH_ALL_S)
    for task in late:
        task.cancel()
    return frozenset(task.result() for task in done) - {""}


async def _answers(address: str, port: int) -> bool:
    """Return True if anything comes back from a machine, even a refusal."""
    try:
        async with asyncio.timeout(timing.REACH_S):
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
