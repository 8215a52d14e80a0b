"""Reads c10d's counters into the page: what C++ issues by itself is seen so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangwatch.agent.exception_text import type_name
from hangwatch.agent.record.groups import NO_SLOT
from hangwatch.agent.sample.exceptions import handled_by_main_thread
from hangwatch.agent.sample.stillness import Stillness
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.record.groups import Groups, Known
    from hangwatch.agent.record.recorder import Recorder
    from hangwatch.agent.sample.exceptions import Exceptions
    from hangwatch.agent.sample.flight import FlightRecorder

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
        self._told = 0

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
        if id(error) == before != self._told:
            self._told = before
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
