"""Ends the hung ranks of this node if the user wants that (``--on-hang abort``).

A verdict is only the occasion. It may rest on what came over the store, which anyone may have
written who reaches that port, and the job may have recovered while its report was written. So a
rank is ended only as long as its own page shows that it has not gone on, by any means that is
counted, for as long as a hang takes (``--hang-after``): it waits in one call, or it is named as
the culprit, and others wait. If this node can prove the hang by its own pages alone, it need not
have lasted that long; the waits that prove it have to last for PROVED_S: a proof is a
conclusion, too, and has been wrong about calls that backends let through.

The position of each rank is remembered, and has to be the same when it is looked at again. If
any of them has gone on, the hang is another one: the rest are given the whole time again, from
that moment. A process is ended by a handle on it, never by its pid.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from hangwatch.console import News
from hangwatch.evidence.pages.look import RankStatus
from hangwatch.evidence.processes import PROC, alive, takes
from hangwatch.model.verdict import Verdict
from hangwatch.run.handshake import Hello
from hangwatch.run.shared_run import ABORTED
from hangwatch.run.test_hooks import Point, reach
from hangwatch.settings.config import OnHang
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident.evidence import Gatherer

_SIGNALS = (signal.SIGTERM, Point.BEFORE_TERM), (signal.SIGKILL, Point.BEFORE_KILL)


@dataclass(slots=True)
class Abort:
    """Decides which ranks of this node to end for a hang, and when. Pure.

    Times are CLOCK_MONOTONIC in ns.
    """

    culprits: frozenset[int]
    """Culprits of the verdict, of all nodes."""
    not_before_ns: int = 0
    proving: frozenset[int] = frozenset()
    """The ranks of this node whose waits prove it, by the pages of this node alone."""
    ended_any: bool = False
    _remembered: dict[int, RankStatus] = field(default_factory=dict)
    """Last positions of the ranks that may be ended, and of the culprits."""
    _held_since_ns: int = 0
    _alone_since_ns: int = 0

    def begin(self, seen: Mapping[int, RankStatus], now_ns: int, patience_ns: int) -> None:
        """Remember the positions of the ranks of this node at the verdict."""
        for rank, at in seen.items():
            named = rank in self.culprits or rank in self.proving
            if named or _waits_long(at, now_ns, patience_ns):
                self._remembered[rank] = at

    def due(self, seen: Mapping[int, RankStatus], now_ns: int, patience_ns: int) -> frozenset[int]:
        """Return the ranks that are to be ended now.

        seen: all ranks of this node that live. patience_ns: how long a hang takes.
        """
        before = {rank: at for rank, at in self._remembered.items() if rank in seen}
        if any(not seen[rank].is_where(at) for rank, at in before.items()):
            self._remembered.clear()
            self._alone_since_ns = 0
            self.proving, self.not_before_ns = frozenset(), now_ns + patience_ns
            return frozenset()
        waiting = {rank for rank, at in seen.items() if _waits_long(at, now_ns, patience_ns)}
        idle = {
            rank
            for rank in self.culprits & seen.keys()
            if not seen[rank].waits
            and now_ns - seen[rank].moved_ns >= patience_ns
            and (waiting or self.ended_any or seen[rank].has_page)
        }
        if waiting or self.ended_any:
            self._alone_since_ns = 0
        elif idle:
            self._alone_since_ns = self._alone_since_ns or now_ns
            if now_ns - self._alone_since_ns < timing.ALONE_S * 1e9:
                idle = set()
        self._remembered = {**{rank: seen[rank] for rank in waiting | idle}, **before}
        least_ns = min(patience_ns, int(timing.PROVED_S * 1e9))
        proved = {
            rank for rank in self.proving & seen.keys() if _waits_long(seen[rank], now_ns, least_ns)
        }
        due = (waiting | idle | proved) & before.keys()
        if not due or now_ns < self.not_before_ns:
            return frozenset()
        return frozenset() if self._holds(seen, due, now_ns, patience_ns) else frozenset(due)

    def unmoved(self, ranks: Collection[int], seen: Mapping[int, RankStatus]) -> frozenset[int]:
        """Return the ranks that are still where they were when they came due."""
        at = self._remembered
        return frozenset(
            rank for rank in ranks if rank in seen and rank in at and seen[rank].is_where(at[rank])
        )

    def _holds(
        self, seen: Mapping[int, RankStatus], due: set[int], now_ns: int, patience_ns: int
    ) -> bool:
        """Return True if others come due in a moment: a launcher ends the ranks that are left."""
        late = any(
            rank not in due
            and (at.waits or rank in self.culprits)
            and now_ns - at.moved_ns >= patience_ns - timing.TOGETHER_S * 1e9
            for rank, at in seen.items()
        )
        self._held_since_ns = self._held_since_ns or now_ns
        return late and now_ns - self._held_since_ns < timing.TOGETHER_S * 1e9


def _waits_long(at: RankStatus, now_ns: int, patience_ns: int) -> bool:
    """Return True if it waits, and has done nothing else for as long as a hang takes."""
    return bool(at.waits) and now_ns - max(at.since_ns, at.moved_ns) >= patience_ns


@dataclass(frozen=True, slots=True)
class SavedAborting:
    """The part of an Aborting that outlives its watchdog: positions have to be seen again."""

    incarnation: int
    culprits: tuple[int, ...] | None
    """None if no ranks are to be ended."""
    not_before_ns: int = 0
    ended_any: bool = False


@dataclass(slots=True)
class Aborting:
    """Ends the ranks of one incarnation, from the verdict on."""

    hello: Hello
    gatherer: Gatherer
    news: News
    keep: Callable[[], None] = lambda: None
    """Saves the state of the watchdog, for the next one should this one be killed."""
    now_ns: Callable[[], int] = time.monotonic_ns
    incarnation: int = -1
    """The incarnation of which ranks were ended, -1 for none."""
    _abort: Abort | None = None
    _ending: asyncio.Task[None] | None = None

    @property
    def pending(self) -> bool:
        """True if ranks would be ended once their pages showed that they hang."""
        return self._abort is not None

    def begin(self, verdict: Verdict, patience_s: float, proved_ns: int = 0) -> None:
        """Begin with a verdict that the job hangs.

        proved_ns: when the pages were read that prove it by themselves, 0 if it takes more than
        the pages of this node to prove it.
        """
        if self.hello.config.on_hang is not OnHang.ABORT:
            return
        seen = self.gatherer.standings()
        named = {*verdict.culprits, *verdict.victims, *(wait.rank for wait in verdict.waits)}
        proving = {r for r in named & seen.keys() if seen[r].waits and seen[r].moved_ns < proved_ns}
        self._abort = Abort(frozenset(verdict.culprits), proving=frozenset(proving))
        self._abort.begin(seen, self.now_ns(), int(patience_s * 1e9))

    def forget(self) -> bool:
        """Forget the hang, which is over; True if ranks were to be ended and none has been."""
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
        seen = self.gatherer.standings()
        due = abort.due(seen, self.now_ns(), int(patience_s * 1e9))
        if due:
            reach(Point.BEFORE_ABORT)
            ranks = {rank: seen[rank].process for rank in due}
            self._ending = asyncio.ensure_future(self._end(abort, ranks))

    async def settle(self, timeout_s: float) -> None:
        """Wait for an ending of ranks that has begun."""
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=timeout_s)

    def take_back(self) -> None:
        """Give the job its own exit code again: ranks of a later incarnation work."""
        self._unflag()
        self.incarnation = -1

    def export(self) -> SavedAborting:
        """Return the state for restore()."""
        if (at := self._abort) is None:
            return SavedAborting(self.incarnation, None)
        culprits = tuple(sorted(at.culprits))
        return SavedAborting(self.incarnation, culprits, at.not_before_ns, at.ended_any)

    def restore(self, saved: SavedAborting) -> None:
        """Continue with the abort of an earlier watchdog."""
        self.incarnation, self._abort = saved.incarnation, None
        if saved.culprits is not None:
            culprits = frozenset(saved.culprits)
            self._abort = Abort(culprits, saved.not_before_ns, ended_any=saved.ended_any)

    async def _end(self, abort: Abort, ranks: Mapping[int, tuple[int, int]]) -> None:
        before, flagged = self.incarnation, (self.hello.run_dir / ABORTED).exists()
        incarnation = self.gatherer.incarnation

        def begin() -> None:
            self.incarnation, abort.ended_any = incarnation, True
            try:
                (self.hello.run_dir / ABORTED).touch(mode=0o600)
            except OSError as error:
                self.news.lose("aborted", f"the exit code will not be 75: {error.strerror}")
            self.keep()

        count = await end_ranks(ranks, partial(self._hung, abort), begin, self.news)
        if count:
            ended = "1 rank" if count == 1 else f"{count} ranks"
            self.news.say(f"ended {ended} of this node (--on-hang abort)")
            reach(Point.ENDED)
        else:
            abort.ended_any = False
            self.incarnation = before
            if not flagged:
                self._unflag()

    def _unflag(self) -> None:
        with suppress(OSError):
            (self.hello.run_dir / ABORTED).unlink(missing_ok=True)

    async def _hung(self, abort: Abort, ranks: Collection[int]) -> frozenset[int]:
        """Return the ranks that still hang, by what their pages say from now on.

        What C++ issues and completes is on a page only when its sampler has written.
        """
        asked_ns = self.now_ns()
        while True:
            if self._abort is not abort:
                return frozenset()  # that hang is over
            seen = self.gatherer.standings()
            still = abort.unmoved(ranks, seen)
            written_ns = asked_ns + timing.SAMPLE_AGE_S * 1e9
            late = any(0 < seen[rank].beat_ns < written_ns for rank in still)
            if not late or self.now_ns() - asked_ns > timing.SAMPLER_BEAT_S * 1e9:
                return still
            await asyncio.sleep(timing.POLL_S)


async def end_ranks(
    ranks: Mapping[int, tuple[int, int]],
    hung: Callable[[Collection[int]], Awaitable[Collection[int]]],
    begin: Callable[[], None],
    news: News,
    proc: str = PROC,
) -> int:
    """Send SIGTERM, then SIGKILL, to ranks known by pid and start; return how many ended of it.

    hung: looks again which of some ranks are still to be ended; it is asked right before each
    signal. begin is called before the first one is sent.
    """
    handles: dict[int, int] = {}
    signalled: set[int] = set()
    try:
        for rank, (pid, start_ticks) in ranks.items():
            handle = _handle(pid, start_ticks, news, proc)
            if handle is not None:
                handles[rank] = handle
        for number, point in _SIGNALS:
            candidates = signalled or handles.keys()
            left = [rank for rank in candidates if not _is_over(handles[rank])]
            if not left:
                break
            reach(point)
            still = await hung(left)
            # Nothing is awaited from here to the signal: what was seen holds. A handler may
            # take itself away as the first thing that it does.
            taken = any(takes(ranks[rank][0], number, proc) for rank in still)
            for rank in still:
                if not signalled:
                    begin()
                if _send(handles[rank], number, rank, news):
                    signalled.add(rank)
            if not signalled:
                break
            limit_s = timing.CHECKPOINT_S if taken else timing.TERM_S
            await _wait([handles[rank] for rank in signalled], limit_s)
        return sum(_is_over(handles[rank]) for rank in signalled)
    finally:
        for handle in handles.values():
            os.close(handle)


def _handle(pid: int, start_ticks: int, news: News, proc: str) -> int | None:
    """Return a handle on the process if it lives and is the one that is meant."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        news.lose(
            "abort",
            "the ranks are not ended: this kernel gives no safe handle on a process "
            f"(pidfd_open: {error.strerror}; Linux 5.3 does); end the job by hand",
        )
        return None
    # Looked at only now: the handle stays with the process, the number may not.
    if alive(pid, start_ticks, proc):
        return handle
    os.close(handle)
    return None


def _send(handle: int, number: signal.Signals, rank: int, news: News) -> bool:
    """Send a signal; return True if that could be done."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except OSError as error:
        news.lose("abort", f"rank {rank} cannot be ended ({error.strerror}): end the job by hand")
        return False
    return True


def _is_over(handle: int) -> bool:
    """Return True if the process has ended, reaped or not."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


async def _wait(handles: Collection[int], limit_s: float) -> None:
    """Wait until all have ended, for limit_s at most.

    Time in which the machine, or a control group, stands still does not count.
    """
    loop, waited_s = asyncio.get_running_loop(), 0.0
    while not all(map(_is_over, handles)) and waited_s < limit_s:
        before = loop.time()
        await asyncio.sleep(timing.POLL_S)
        waited_s += min(loop.time() - before, timing.STANDSTILL_S)
