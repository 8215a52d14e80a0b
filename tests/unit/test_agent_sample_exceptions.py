"""The exceptions that end a rank, or that it is handling."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.sample.exceptions import (
    MESSAGE_CHARS,
    Exceptions,
    at_end_of_child,
    handled_by_main_thread,
    message,
    type_name,
)
from hangwatch.types.page import ExceptionRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection


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

    class Leaving(Exception):  # noqa: N818 (as above)
        def __str__(self) -> str:
            raise SystemExit(0)

    assert message(Untold()) == "<its text cannot be had: RuntimeError>"
    assert message(Leaving()) == "<its text cannot be had: SystemExit>"


def _told(raises: Callable[[], object]) -> str:
    """What is recorded of the exception that it raises."""
    recorder: Any = Recorder()
    try:
        raises()
    except Exception as error:  # noqa: BLE001 (whichever it is)
        Exceptions(recorder, ()).record(error)
    ((_, text, *_),) = recorder.told
    return str(text)


def test_what_led_to_an_exception_is_told_also_where_the_program_hides_it() -> None:
    def fails() -> None:
        raise RuntimeError("Connection closed by peer")

    def wraps() -> None:
        try:
            fails()
        except RuntimeError as error:
            raise ValueError("step 5 failed") from error

    def hides() -> None:
        try:
            fails()
        except RuntimeError:
            raise ValueError("step 5 failed") from None

    def wraps_twice() -> None:
        try:
            wraps()
        except ValueError:
            raise OSError("no training")  # noqa: B904 (a chain without a cause)

    once = "step 5 failed (after RuntimeError: Connection closed by peer)"
    assert _told(fails) == "Connection closed by peer"
    assert _told(wraps) == once
    assert _told(hides) == once
    twice = "no training (after ValueError: step 5 failed; RuntimeError: Connection closed by peer)"
    assert _told(wraps_twice) == twice
    record = ExceptionRecord("ValueError", once)
    assert (record.last_words, record.is_raised_anew) == ("step 5 failed", True)
    assert not ExceptionRecord("ValueError", "step 5 failed").is_raised_anew


def test_of_many_that_led_to_an_exception_the_latest_and_the_first_are_told() -> None:
    def nested(depth: int) -> None:
        try:
            if depth:
                nested(depth - 1)
        finally:
            raise ValueError(f"{depth} {'x' * 600}")

    told = _told(lambda: nested(9))
    assert len(told) <= MESSAGE_CHARS
    assert [part[:1] for part in told.split("ValueError: ")[1:]] == ["8", "7", "0"]


def test_exceptions_that_lead_back_to_one_another_are_followed_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    def raises() -> None:
        raise first

    assert _told(raises) == "first (after ValueError: second)"
    third = ValueError("third")
    third.__cause__ = first

    def enters() -> None:
        raise third

    assert _told(enters).startswith("third (after ValueError: first; ")


def test_what_a_class_makes_of_its_cause_is_not_asked() -> None:
    class Asked(Exception):  # noqa: N818 (the name says it)
        @property
        def __cause__(self) -> None:  # type: ignore[override]
            pytest.fail("asked")

        def __bool__(self) -> bool:
            return bool(pytest.fail("asked"))

    def raises() -> None:
        raise Asked("alone")

    def wraps() -> None:
        try:
            raises()
        except Asked as error:
            raise ValueError("more") from error

    assert _told(raises) == "alone"
    assert _told(wraps).startswith("more (after ")


def test_a_signal_handler_may_end_the_program_while_a_text_is_taken() -> None:
    class Signalled(Exception):  # noqa: N818 (as above)
        def __str__(self) -> str:
            os.kill(os.getpid(), signal.SIGUSR1)
            return ""

    def leave(*_: object) -> None:
        sys.exit(5)

    before = signal.signal(signal.SIGUSR1, leave)
    try:
        with pytest.raises(SystemExit, match="5"):
            message(Signalled())
    finally:
        signal.signal(signal.SIGUSR1, before)


def _ends_well() -> None:
    pass


def _raises() -> None:
    raise ValueError("bad batch")


def _gives_up() -> None:
    sys.exit(3)


def _gives_up_for_what_it_handles() -> None:
    try:
        _raises()
    except ValueError:
        sys.exit(1)


def _begins_amid_an_error(said: Connection) -> None:
    try:
        int("none")
    except ValueError:
        _child(_ends_well, said)


def _child(program: Callable[[], None], said: Connection) -> None:
    told: list[BaseException] = []
    multiprocessing.util.Finalize(None, lambda: said.send(repr(told)), exitpriority=-1)
    at_end_of_child(told.append)
    program()


@pytest.mark.parametrize("program", [_raises, _gives_up, _gives_up_for_what_it_handles, _ends_well])
def test_what_ends_a_child_of_multiprocessing_is_told(program: Callable[[], None]) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_child, args=(program, there))
    child.start()
    there.close()
    known = program is _raises and sys.version_info < (3, 13)
    assert here.recv() == ("[ValueError('bad batch')]" if known else "[]")
    child.join()


def test_what_the_parent_was_handling_does_not_end_a_child_that_it_forked() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    children = [context.Process(target=_begins_amid_an_error, args=(there,))]
    try:
        _raises()
    except ValueError:
        children.append(context.Process(target=_child, args=(_ends_well, there)))
        for child in children:
            child.start()
            assert here.recv() == "[]"
            child.join()


def test_the_end_of_another_process_is_left_to_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(multiprocessing.util, "Finalize")
    at_end_of_child(print)
