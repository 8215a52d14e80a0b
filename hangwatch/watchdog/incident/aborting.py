"""Ends the hung ranks of this node where that was asked for (``--on-hang abort``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hangwatch.console import News
from hangwatch.model.verdict import Verdict
from hangwatch.run.handshake import Hello
from hangwatch.run.peers import ABORTED
from hangwatch.run.test_hooks import Point, reach
from hangwatch.settings.config import OnHang
from hangwatch.watchdog.incident.abort import Abort, restored
from hangwatch.watchdog.incident.ending import end_ranks
from hangwatch.watchdog.incident.evidence import Gatherer

BEAT_S = 1.5
"""A rank whose sampler has not written for so long cannot: it goes on as little."""
_SAMPLE_NS = 10**8
"""What a sampler writes may be as old as this when it is written."""
_LOOK_S = 0.05


@dataclass(slots=True)
class Aborting:
    """The end of the ranks of one incarnation, from the verdict on."""

    hello: Hello
    gatherer: Gatherer
    news: News
    keep: Callable[[], None] = lambda: None
    """Keeps the state of the watchdog, for the one that takes over should this be killed."""
    now_ns: Callable[[], int] = time.monotonic_ns
    incarnation: int = -1
    """The one of which we have ended ranks, -1 for none."""
    _abort: Abort | None = None
    _ending: asyncio.Task[None] | None = field(default=None)

    @property
    def pending(self) -> bool:
        """Whether ranks would be ended if their pages showed that they hang."""
        return self._abort is not None

    def begin(
        self,
        verdict: Verdict,
        patience_s: float,
        proved_ns: int = 0,
    ) -> None:
        """A verdict says that the job hangs.

        proved_ns: when the pages were read that prove it by themselves, 0 where it takes
        more than the pages of this node to prove it.
        """
        if self.hello.config.on_hang is not OnHang.ABORT:
            return
        seen = self.gatherer.standing()
        named = {*verdict.culprits, *verdict.victims, *(wait.rank for wait in verdict.waits)}
        proving = {r for r in named & seen.keys() if seen[r].waits and seen[r].moved_ns < proved_ns}
        self._abort = Abort(frozenset(verdict.culprits), proving=frozenset(proving))
        self._abort.begin(seen, self.now_ns(), _ns(patience_s))

    def forget(self) -> bool:
        """The hang is over; whether ranks were to be ended, and none has been."""
        spared = self._abort is not None and not self._abort.ended_any
        self._abort = None
        return spared

    def go_on(self, patience_s: float) -> None:
        """Begin to end the ranks whose pages show by now that they hang, if there are any.

        It may take half a minute, in which the job is looked at as before.
        """
        if self._ending is not None:
            if not self._ending.done():
                return
            done, self._ending = self._ending, None
            done.result()
        abort = self._abort
        if abort is None:
            return
        seen = self.gatherer.standing()
        due = abort.due(seen, self.now_ns(), _ns(patience_s))
        if not due:
            return
        reach(Point.BEFORE_ABORT)
        ranks = {rank: seen[rank].process for rank in due}
        self._ending = asyncio.ensure_future(self._end(abort, ranks))

    async def settle(self, timeout_s: float) -> None:
        """Let what was begun come to its end."""
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=timeout_s)

    def take_back(self) -> None:
        """Ranks of a later incarnation work: the exit code is the job's own again."""
        with suppress(OSError):
            (self.hello.run_dir / ABORTED).unlink(missing_ok=True)
        self.incarnation = -1

    def export(self) -> dict[str, Any]:
        """Plain values for restore()."""
        abort = self._abort.export() if self._abort is not None else None
        return {"incarnation": self.incarnation, "abort": abort}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over. Raises KeyError, TypeError or ValueError for what export() never gives."""
        self.incarnation = int(values["incarnation"])
        self._abort = restored(values["abort"])

    async def _end(self, abort: Abort, ranks: Mapping[int, tuple[int, int]]) -> None:
        before, flagged = self.incarnation, (self.hello.run_dir / ABORTED).exists()
        incarnation = self.gatherer.incarnation

        async def standing(some: Collection[int]) -> Collection[int]:
            return await self._stand(abort, some)

        def first() -> None:
            self.incarnation, abort.ended_any = incarnation, True
            try:
                (self.hello.run_dir / ABORTED).touch(mode=0o600)
            except OSError as error:
                self.news.lose("aborted", f"the exit code will not be 75: {error.strerror}")
            self.keep()

        count = await end_ranks(ranks, standing, first, self.news)
        if count:
            ranks_said = "1 rank" if count == 1 else f"{count} ranks"
            self.news.say(f"ended {ranks_said} of this node (--on-hang abort)")
            reach(Point.ENDED)
        else:
            abort.ended_any = False
            self.incarnation = before
            if not flagged:
                with suppress(OSError):
                    (self.hello.run_dir / ABORTED).unlink(missing_ok=True)

    async def _stand(self, abort: Abort, ranks: Collection[int]) -> frozenset[int]:
        """Those of some ranks that still hang, by what their pages say from now on.

        What C++ issues and completes is on a page only when its sampler has written.
        """
        asked_ns = self.now_ns()
        while True:
            if self._abort is not abort:
                return frozenset()  # that hang is over
            seen = self.gatherer.standing()
            still = abort.stand(ranks, seen)
            late = any(0 < seen[rank].beat_ns < asked_ns + _SAMPLE_NS for rank in still)
            if not late or self.now_ns() - asked_ns > BEAT_S * 1e9:
                return still
            await asyncio.sleep(_LOOK_S)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
