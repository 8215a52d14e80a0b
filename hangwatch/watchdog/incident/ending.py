"""Ends processes, each by a handle on it, and only while it is where it has to be."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping

from hangwatch.console import News
from hangwatch.evidence.processes import PROC, alive, takes
from hangwatch.run.test_hooks import Point, reach

TERM_S = 2.0
"""How long a process may take to end after a signal."""
SAVE_S = 30.0
"""How long where one does something of its own with SIGTERM: it may save a checkpoint.
torchrun waits as long."""
_LOOK_S = 0.05
_STILL_S = 1.0
"""So much later than it meant to look it was held up, and the rank as likely with it."""
_SIGNALS = (signal.SIGTERM, Point.BEFORE_TERM), (signal.SIGKILL, Point.BEFORE_KILL)


async def end_ranks(
    ranks: Mapping[int, tuple[int, int]],
    standing: Callable[[Collection[int]], Awaitable[Collection[int]]],
    begin: Callable[[], None],
    news: News,
    proc: str = PROC,
) -> int:
    """SIGTERM, then SIGKILL, to ranks known by pid and start; how many have ended of it.

    standing: looks anew which of some ranks are still to be ended; it is asked right
    before each signal. begin is called before the first one is sent.
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
            still = await standing(left)
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
            await _over([handles[rank] for rank in signalled], SAVE_S if taken else TERM_S)
        return sum(_is_over(handles[rank]) for rank in signalled)
    finally:
        for handle in handles.values():
            os.close(handle)


def _handle(pid: int, start_ticks: int, news: News, proc: str) -> int | None:
    """A handle on a process that lives and is the one that is meant, else None."""
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
    """Send a signal; whether that could be done."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except OSError as error:
        news.lose("abort", f"rank {rank} cannot be ended ({error.strerror}): end the job by hand")
        return False
    return True


def _is_over(handle: int) -> bool:
    """Whether its process has ended, reaped or not."""
    looking = select.poll()
    looking.register(handle, select.POLLIN)
    return bool(looking.poll(0))


async def _over(handles: Collection[int], limit_s: float) -> None:
    """Wait until all have ended, for limit_s at most in which they could.

    Not counted is what passes while the machine, or a control group, stands still.
    """
    loop, waited_s = asyncio.get_running_loop(), 0.0
    while not all(map(_is_over, handles)) and waited_s < limit_s:
        before = loop.time()
        await asyncio.sleep(_LOOK_S)
        waited_s += min(loop.time() - before, _STILL_S)
