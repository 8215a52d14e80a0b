"""What the sampler makes of each group's number."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from hangwatch.agent.record.groups import Known
from hangwatch.agent.sample.sampler import Sampler


class Issued:
    """A group that has issued seven calls."""

    def _get_sequence_number_for_group(self) -> int:
        return 7


@pytest.mark.parametrize(("pending", "completed"), [(False, 7), (True, -1), (None, -1)])
def test_what_was_issued_is_complete_only_where_a_recorder_says_so(
    pending: bool | None,  # noqa: FBT001 (a parameter of the test)
    completed: int,
) -> None:
    made = Issued()
    told: list[tuple[int, Issued, int]] = []
    known = Known(weakref.ref(made), 0, (0, 1), python=False, counts={}, identity=id(made))
    groups: Any = SimpleNamespace(known=lambda: [known], has=lambda _: True)
    recorder: Any = SimpleNamespace(sample_number=lambda *call: told.append(call))
    flight: Any = SimpleNamespace(progress=lambda: (pending, False))
    exceptions: Any = None
    Sampler(recorder, groups, flight, exceptions, "", lambda: False, lambda _: None).sample_groups()
    assert told == [(0, made, completed)]


def test_an_exception_is_told_once_where_it_is_handled_for_longer_than_a_moment() -> None:
    groups: Any = SimpleNamespace(known=list, has=lambda _: True)
    recorder: Any = SimpleNamespace(beats=[], beat=lambda *beat: recorder.beats.append(beat[0]))
    flight: Any = SimpleNamespace(progress=lambda: (False, False), answer=lambda _: None)
    exceptions: Any = SimpleNamespace(record_uncaught=lambda: False)
    told: list[BaseException] = []
    sampler = Sampler(recorder, groups, flight, exceptions, "", lambda: False, told.append)
    sampler.sample()
    try:
        raise ValueError  # noqa: TRY301 (that it is handled is what matters)
    except ValueError as error:
        for expected in (0, 1, 1):
            sampler.sample()
            assert told == [error] * expected  # noqa: PT017
    sampler.sample()
    assert recorder.beats == ["", "ValueError", "ValueError", "ValueError", ""]
