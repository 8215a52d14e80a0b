"""What the other nodes knew when the first rank of this one failed.

A job falls apart in moments, and the store with it: who waits for the command to end
has nobody left to ask who was first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from hangwatch.model.snapshot import RankSnapshot
from hangwatch.watchdog.peers.exchange import Exchange, Gathered
from hangwatch.watchdog.peers.messages import Published


@dataclass(slots=True)
class LastWords:
    """Asks once for each incarnation of the job."""

    _asked: asyncio.Task[Gathered] | None = None
    _at_s: float = 0.0

    def ask(
        self,
        exchange: Exchange,
        conclude: Callable[[Gathered], Awaitable[Published]],
        is_told: Callable[[], bool],
    ) -> None:
        """Ask all other nodes, unless that is done, and tell them what comes of it.

        Where another node was faster, that one tells. If it was not sure enough to do so
        (is_told), this one asks after all: each would tell it for itself in the end.
        """
        if self._asked is None:
            self._asked = asyncio.ensure_future(self._ask(exchange, conclude, is_told))

    async def heard(self, timeout_s: float) -> Gathered | None:
        """What was said, as old as it is by now; None where nobody was asked in time."""
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
        """The ranks were started anew."""
        if self._asked is not None:
            self._asked.cancel()
        self._asked = None

    async def _ask(
        self,
        exchange: Exchange,
        conclude: Callable[[Gathered], Awaitable[Published]],
        is_told: Callable[[], bool],
    ) -> Gathered:
        gathered = await exchange.ask(full=False)
        if not gathered.owner and not is_told():
            gathered = await exchange.ask(full=False)
        self._at_s = time.monotonic()
        if gathered.owner and gathered.round:
            await exchange.publish(gathered.round, await conclude(gathered))
        return gathered


def aged(rank: RankSnapshot, by_s: float) -> RankSnapshot:
    """The same rank a while later, in which nothing was seen of it."""

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
