"""Reads c10d's counters into the page, which count what C++ issues by itself.

It also finds that the main thread waits for what C++ issued where no recorder of c10d shows it:
gloo has no Flight Recorder before torch 2.8, nor has a job with a buffer of size 0. There a
rank that waits in ``loss.backward()`` for DDP's reducer shows no call of its own, and no work
that is unfinished. It shows that its main thread is in a function of torch's which may wait for
communication, uses no CPU, and that no group has issued anything meanwhile.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

from hangwatch.agent.exception_text import type_name
from hangwatch.agent.record.groups import NO_SLOT
from hangwatch.agent.sample.exceptions import handled_by_main_thread, innermost_frame_of_main_thread
from hangwatch.safety.foreign import Ignoring, is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from hangwatch.agent.record.groups import Groups, Known
    from hangwatch.agent.record.recorder import Recorder
    from hangwatch.agent.sample.exceptions import Exceptions
    from hangwatch.agent.sample.flight import FlightRecorder

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
"""The progress of the groups: id and c10d's number of each."""


def main_thread_cpu_s() -> float:
    """Return the CPU time of the main thread so far; NaN, never idle, where it is not known.

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


PERIOD_S = 0.5


class Sampler:
    """One sample at a time, for the thread that takes one every PERIOD_S."""

    def __init__(  # noqa: PLR0913 (what it reads, and where it writes)
        self,
        recorder: Recorder,
        groups: Groups,
        flight: FlightRecorder,
        exceptions: Exceptions,
        page: str,
        leave_groups_alone: Callable[[], bool],
        handles: Callable[[BaseException], None],
    ) -> None:
        """leave_groups_alone: True while a reference to a group would outlive it.

        handles: called with an exception that the main thread goes on handling.
        """
        self._recorder = recorder
        self._groups = groups
        self._flight = flight
        self._exceptions = exceptions
        self._page = page
        self._leave_groups_alone = leave_groups_alone
        self._stillness = Stillness()
        self._handles = handles
        self._handled = 0
        """The id of the exception that was being handled the last time; no reference is kept."""
        self._noted = 0

    def sample(self) -> None:
        """Read everything once; the beat shows that the GIL can be had."""
        pending, changed = self.sample_groups()
        self._exceptions.record_uncaught()
        self._recorder.beat(self._sample_handled(), pending, changed)
        self._flight.answer(self._page)

    def _sample_handled(self) -> str:
        """Return the type of the exception that is being handled, or empty."""
        error = handled_by_main_thread()
        before, self._handled = self._handled, id(error)
        if error is None:
            return ""
        if id(error) == before != self._noted:
            self._noted = before
            self._handles(error)
        return type_name(type(error))

    def sample_groups(self) -> tuple[bool, bool]:
        """Read how far the groups have come. No reference to one is kept beyond this call.

        Returns (c10d has unfinished work, it is other work than the last time).
        """
        numbers = self._numbers()
        pending, changed = self._flight.progress()
        waits = bool(pending)
        if pending is None:
            seen = tuple((known.identity, number) for known, _, number in numbers)
            waits, changed = self._stillness.look(seen)
        for known, group, number in numbers:
            # The number was read before the status: all it counts is complete.
            if self._groups.has(known):
                completed = number if pending is False else -1
                self._recorder.sample_number(known.slot, group, completed)
        return waits, changed

    def sample_one(self, group: Any) -> None:
        """Read how far a group has come, without asking what is complete."""
        known = self._groups.find(group)
        if known is not None and known.slot != NO_SLOT and not known.python:
            self._recorder.sample_number(known.slot, group, -1)

    def _numbers(self) -> list[tuple[Known, object, int]]:
        """Return the groups with c10d's number for each, -1 where it has none."""
        numbers: list[tuple[Known, object, int]] = []
        if self._leave_groups_alone():
            return numbers
        for known in self._groups.known():
            group = known.group()
            if group is None or known.slot == NO_SLOT or known.python:
                continue
            try:
                numbers.append((known, group, group._get_sequence_number_for_group()))
            except RuntimeError as error:  # a backend without numbers
                if is_foreign(error):
                    raise
                numbers.append((known, group, -1))
        return numbers
