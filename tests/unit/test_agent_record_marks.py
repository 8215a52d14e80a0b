"""What a rank does besides its calls of groups is counted by the line of the user's."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from hangwatch.agent.call_site import Prefixes
from hangwatch.agent.record.marks import (
    AWAITS_KEY,
    HANDLES,
    MOST,
    NO_SYNC,
    SETS_KEY,
    THREAD_DIED,
    Marks,
)
from hangwatch.agent.record.python_page import MARKS
from hangwatch.diagnosis.facts import history as facts
from hangwatch.diagnosis.facts.wait_points import STORE
from hangwatch.model.calls import OF_A_STORE

PREFIXES = Prefixes(("/usr/lib/",))


class FakeRecorder:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.marks: dict[int, tuple[Any, ...]] = {}

    def set_mark(self, index: int, *values: Any) -> None:
        self.marks[index] = values

    def count_swallowed(self) -> None:
        raise AssertionError


@pytest.fixture
def recorder() -> FakeRecorder:
    return FakeRecorder()


@pytest.fixture
def marks(recorder: Any) -> Marks:
    return Marks(recorder, PREFIXES)


def died(marks: Marks, error: BaseException, name: str = "fill") -> None:
    """Have a thread end by an exception."""
    told: list[threading.ExceptHookArgs] = []

    def raises() -> None:
        raise error

    before, threading.excepthook = threading.excepthook, told.append
    try:
        thread = threading.Thread(target=raises, name=name)
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    marks.thread_died(told[0])


def test_the_page_and_the_diagnosis_know_marks_as_the_agent_does() -> None:
    assert MOST == MARKS
    assert (NO_SYNC, THREAD_DIED) == (facts.NO_SYNC, facts.THREAD_DIED)
    assert (AWAITS_KEY, SETS_KEY) == (facts.AWAITS_KEY, facts.SETS_KEY)
    assert facts.HANDLES == HANDLES
    assert f"{STORE}." == OF_A_STORE


def test_each_line_has_a_count_of_its_own(marks: Marks, recorder: FakeRecorder) -> None:
    for _ in range(3):
        marks.no_sync(sys._getframe())  # noqa: SLF001 (as the hooks do)
    marks.no_sync(sys._getframe())  # noqa: SLF001
    assert [(one[0], one[2]) for one in recorder.marks.values()] == [(NO_SYNC, 3), (NO_SYNC, 1)]
    assert {one[3] for one in recorder.marks.values()} == {__file__}


def test_no_more_lines_are_told_than_a_page_has_room_for(
    marks: Marks, recorder: FakeRecorder
) -> None:
    calls = "marks.no_sync(sys._getframe())\n" * (MOST + 3)
    exec(compile(calls, __file__, "exec"), {"marks": marks, "sys": sys})  # noqa: S102 (many lines)
    assert len(recorder.marks) == MOST


def test_what_ended_a_thread_is_told_with_its_name_and_line(
    marks: Marks, recorder: FakeRecorder
) -> None:
    died(marks, KeyError("x"))
    kind, text, count, file, line, function = recorder.marks[0]
    assert (kind, text, count, file) == (THREAD_DIED, "fill: KeyError: 'x'", 1, __file__)
    assert (function, line > 0) == ("raises", True)


def test_a_secret_in_the_text_of_an_exception_is_not_told(
    marks: Marks, recorder: FakeRecorder
) -> None:
    died(marks, ValueError("no access with password=hunter2hunter2"))
    assert "hunter2" not in recorder.marks[0][1]


def test_an_exception_that_is_handled_is_told_with_the_line_that_raised_it(
    marks: Marks, recorder: FakeRecorder
) -> None:
    def load() -> None:
        raise OSError("no shard, token=hunter2hunter2")

    try:
        load()
    except OSError as error:
        marks.handles(error)
    kind, text, count, file, _, function = recorder.marks[0]
    assert (kind, count, file, function) == (HANDLES, 1, __file__, "load")
    assert text.startswith("OSError: no shard")
    assert "hunter2" not in text


def test_a_thread_that_ends_itself_has_not_died(marks: Marks, recorder: FakeRecorder) -> None:
    died(marks, SystemExit(1))
    assert recorder.marks == {}
