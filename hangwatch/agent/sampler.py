"""Reads c10d's counters into the page: what C++ issues by itself is seen so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.agent.exceptions import handled_by_main_thread
from hangwatch.agent.groups import NO_SLOT

if TYPE_CHECKING:
    from hangwatch.agent.exceptions import Exceptions
    from hangwatch.agent.flight import FlightRecorder
    from hangwatch.agent.groups import Groups
    from hangwatch.agent.recorder import Recorder

PERIOD_S = 0.5


class Sampler:
    """One sample at a time, for the thread that takes one every PERIOD_S."""

    def __init__(
        self,
        recorder: Recorder,
        groups: Groups,
        flight: FlightRecorder,
        exceptions: Exceptions,
        page: str,
    ) -> None:
        self._recorder = recorder
        self._groups = groups
        self._flight = flight
        self._exceptions = exceptions
        self._page = page
        self.leave_groups_alone = False
        """Set while groups are destroyed: a reference held here would outlive them."""

    def sample(self) -> None:
        """Read everything once; the beat shows that the GIL can be had."""
        pending, changed = self.sample_groups()
        self._exceptions.record_uncaught()
        self._recorder.beat(handled_by_main_thread(), pending, changed)
        self._flight.answer(self._page)

    def sample_groups(self) -> tuple[bool, bool]:
        """Read how far the groups have come. No reference to one is kept beyond this call.

        Returns whether c10d has unfinished work, and whether it is other work than
        the last time.
        """
        numbers = self._numbers()
        pending, changed = self._flight.progress()
        for slot, (group, number) in numbers.items():
            # The number was read before the status: all it counts is complete.
            self._recorder.sample_number(slot, group, number if pending is False else -1)
        return bool(pending), changed

    def _numbers(self) -> dict[int, tuple[object, int]]:
        """For each slot its group and c10d's number, -1 where it has none."""
        numbers: dict[int, tuple[object, int]] = {}
        if self.leave_groups_alone:
            return numbers
        for known in self._groups.known():
            group = known.group()
            if group is None or known.slot == NO_SLOT or known.python:
                continue
            try:
                numbers[known.slot] = group, group._get_sequence_number_for_group()
            except RuntimeError:  # a backend without numbers
                numbers[known.slot] = group, -1
        return numbers
