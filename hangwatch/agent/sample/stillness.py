"""Finds that the main thread waits for what C++ issued, where no recorder of c10d tells.

gloo has no Flight Recorder before torch 2.8, nor has a job with a buffer of size 0. There a
rank that waits in ``loss.backward()`` for DDP's reducer shows no call of its own, and no work
that is unfinished. What it shows is that its main thread is in a function of torch's which
may wait for communication, uses no CPU, and that no group has issued anything meanwhile.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from hangwatch.agent.sample.exceptions import innermost_frame_of_main_thread
from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_FUNCTIONAL = "/torch/distributed/_functional_collectives.py"
MAY_WAIT = (
    "/torch/autograd/graph.py",
    "/torch/autograd/__init__.py",
    "/torch/_tensor.py",
    "/torch/nn/parallel/distributed.py",
    "/torch/distributed/utils.py",
    _FUNCTIONAL,
)
"""Files of torch whose functions are innermost while C++ waits for a collective: backward, a
functional collective, the buffers and the construction of a DistributedDataParallel."""
_OPERATORS = "/torch/_ops.py"
"""Innermost while a functional collective waits, and in operators of other libraries, too."""
SHORTEST_S = 0.2
"""Time between two looks that can be compared."""
IDLE = 0.05
"""Share of a CPU that a thread which waits may use."""

Position = tuple[tuple[int, int], ...]
"""How far the groups have come: id and c10d's number of each."""


def main_thread_cpu_s() -> float:
    """Return the CPU time of the main thread so far; NaN, never idle, where it is not told.

    Its clock is made of its thread id, which is the process id (MAKE_THREAD_CPUCLOCK in Linux'
    include/linux/posix-timers.h): unlike pthread_getcpuclockid() this reads no memory of it.
    """
    with Ignoring(OSError):  # not each sandbox has the clocks of threads
        return time.clock_gettime(~os.getpid() << 3 | 6)
    return math.nan


class Stillness:
    """Compares each look with the one before. now and cpu are clocks in seconds."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = main_thread_cpu_s,
        frame: Callable[[], FrameType | None] = innermost_frame_of_main_thread,
    ) -> None:
        self._now = now
        self._cpu = cpu
        self._frame = frame
        self._before: tuple[float, float, Position] | None = None
        self._waits = False

    def look(self, position: Position) -> tuple[bool, bool]:
        """Return (the main thread waits, it is another wait than at the last look)."""
        now, cpu = self._now(), self._cpu()
        if self._before is None:
            self._before = now, cpu, position
            return False, False
        then, used, passed = self._before
        if now - then < SHORTEST_S and position == passed:
            return self._waits, False
        idle = cpu - used < IDLE * (now - then)
        waits = idle and position == passed and self._may_wait()
        changed = not (waits and self._waits)
        self._before, self._waits = (now, cpu, position), waits
        return waits, changed

    def _may_wait(self) -> bool:
        frame = self._frame()
        if frame is not None and frame.f_code.co_filename.endswith(_OPERATORS):
            frame = frame.f_back
            return frame is not None and frame.f_code.co_filename.endswith(_FUNCTIONAL)
        return frame is not None and frame.f_code.co_filename.endswith(MAY_WAIT)
