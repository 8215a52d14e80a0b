"""How long a test waits for what it has started, and what it raises where nothing comes."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

SLOWNESS = max(1.0, float(os.environ.get("TEST_SLOWNESS", "1")))
"""How many times longer a job takes here and now than on two idle cores (tests/suite/gate.py)."""
BOUND_S = 120.0 * SLOWNESS
"""How long anything may take; seven times what it needs."""


class NoAnswerError(TimeoutError):
    """Nothing came in time. The test is asked once more, alone (tests/suite/late.py)."""


def until(
    condition: Callable[[], T | None],
    what: object = "",
    bound_s: float = BOUND_S,
    poll_s: float = 0.02,
) -> T:
    """Wait until a condition is true, and return what it gave.

    what: names it in the error; called where it is a function. Raises NoAnswerError.
    """
    deadline = time.monotonic() + bound_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            told = what() if callable(what) else what
            raise NoAnswerError(f"waited {bound_s:.0f} s for {told or condition}")
        time.sleep(poll_s)
    return value


def until_in_job(
    job: subprocess.Popen[bytes],
    condition: Callable[[], T | None],
    what: str,
    said: Callable[[], str],
) -> T:
    """Wait until a condition is true, which must be before a job ends; said: all its output.

    Raises NoAnswerError, and AssertionError where it has ended.
    """

    def holds() -> T | None:
        value = condition()
        if not value and job.poll() is not None:
            value = condition()  # it may have come just before the end
            assert value, f"ended before {what}:\n{said()}"
        return value

    return until(holds, lambda: f"{what}:\n{said()}")


def in_time(began: float, bound_s: float) -> None:
    """Raise NoAnswerError where it took longer than so many seconds, scaled to this machine.

    began: by time.monotonic().
    """
    took_s = time.monotonic() - began
    if took_s > bound_s * SLOWNESS:
        raise NoAnswerError(f"it took {took_s:.1f} s, of {bound_s * SLOWNESS:.1f}")


async def within(answer: Awaitable[T], bound_s: float = BOUND_S) -> T:
    """Await an answer. Raises NoAnswerError."""
    bound = asyncio.timeout(bound_s)
    try:
        async with bound:
            return await answer
    except TimeoutError:
        if bound.expired():
            raise NoAnswerError(f"waited {bound_s:.0f} s") from None
        raise
