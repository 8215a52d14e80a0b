"""The exceptions that end a rank, or that it is handling."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hangwatch.agent.exceptions import (
    MESSAGE_CHARS,
    Exceptions,
    handled_by_main_thread,
    message,
    type_name,
)


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def set_exception(self, *values: Any) -> None:
        self.told.append(values)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def raised() -> ValueError:
    """An exception with a traceback that ends in this file."""
    with pytest.raises(ValueError, match="a") as caught:
        raise ValueError("a" * (MESSAGE_CHARS + 1))
    return caught.value


def test_the_uncaught_exception_is_recorded_once(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", raised(), raising=False)
    exceptions = Exceptions(recorder, (), lambda: None)
    assert exceptions.record_uncaught()
    assert exceptions.record_uncaught()
    ((kind, text, file, line, function),) = recorder.told
    assert (kind, text) == ("ValueError", "a" * MESSAGE_CHARS)
    assert (file, function) == (__file__, "raised")
    assert line > 0


def test_without_one_nothing_is_recorded(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert not Exceptions(recorder, (), lambda: None).record_uncaught()
    assert recorder.told == []


def test_an_interactive_session_goes_on_after_its_errors(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", raised(), raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not Exceptions(recorder, (), lambda: None).record_uncaught()


def test_a_test_runner_goes_on_after_its_errors(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", raised(), raising=False)
    assert not Exceptions(recorder, ()).record_uncaught()


def test_the_exception_that_the_main_thread_handles_is_told_by_its_type() -> None:
    assert handled_by_main_thread() == ""
    try:
        int("no number")
    except ValueError:
        handled = handled_by_main_thread()
    assert handled == "ValueError"
    assert handled_by_main_thread() == ""


def test_types_are_named_as_in_a_traceback() -> None:
    class Local(Exception):  # noqa: N818 (only its name matters)
        pass

    assert type_name(KeyError) == "KeyError"
    assert type_name(Local).startswith(f"{__name__}.test_types")


def test_an_exception_that_cannot_be_printed_says_so() -> None:
    class Untold(Exception):  # noqa: N818 (the name says it)
        def __str__(self) -> str:
            raise RuntimeError

    assert message(Untold()) == "<its text cannot be had: RuntimeError>"
