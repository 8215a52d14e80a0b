"""The exceptions that end a rank, or that it is handling."""

from __future__ import annotations

import functools
import multiprocessing.util
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hangwatch.agent.call_site import Prefixes
from hangwatch.agent.sample.exceptions import (
    MESSAGE_BYTES,
    Exceptions,
    at_end_of_child,
    error_of_child,
    fork_ends_well,
    handled_by_main_thread,
    has_other_threads,
)
from hangwatch.model.json_page import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection


TORCH = Path(torch.__file__).parent
PAGE_BYTES = 1024
"""The field of the page (native/page.hpp)."""


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.thrown = "", ""

    def set_exception(self, *values: Any) -> None:
        self.told.append(values)

    def last_thrown(self) -> tuple[str, str]:
        return self.thrown


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def raised() -> ValueError:
    """An exception with a traceback that ends in this file."""
    with pytest.raises(ValueError, match="a") as caught:
        raise ValueError("a" * (MESSAGE_BYTES + 1))
    return caught.value


def test_the_uncaught_exception_is_recorded_once(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", raised(), raising=False)
    exceptions = Exceptions(recorder, Prefixes(), lambda: None)
    assert exceptions.record_uncaught()
    assert exceptions.record_uncaught()
    ((kind, text, file, line, function),) = recorder.told
    assert (kind, text) == ("ValueError", "a" * MESSAGE_BYTES)
    assert (file, function) == (__file__, "raised")
    assert line > 0


def test_without_one_nothing_is_recorded(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert not Exceptions(recorder, Prefixes(), lambda: None).record_uncaught()
    assert recorder.told == []


def test_an_interactive_session_goes_on_after_its_errors(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", raised(), raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not Exceptions(recorder, Prefixes(), lambda: None).record_uncaught()


def test_a_test_runner_goes_on_after_its_errors(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", raised(), raising=False)
    assert not Exceptions(recorder, Prefixes()).record_uncaught()


def test_the_exception_is_known_that_the_main_thread_handles() -> None:
    assert handled_by_main_thread() is None
    try:
        int("no number")
    except ValueError as error:
        raised, handled = error, handled_by_main_thread()
    assert handled is raised
    assert handled_by_main_thread() is None


def _told(raises: Callable[[], object], thrown: tuple[str, str] = ("", "")) -> tuple[Any, ...]:
    """What is recorded of the exception that it raises: message, thrown, sent, after."""
    recorder: Any = Recorder()
    recorder.thrown = thrown
    try:
        raises()
    except Exception as error:  # noqa: BLE001 (whichever it is)
        Exceptions(recorder, Prefixes()).record(error)
    ((_, field, *_),) = recorder.told
    assert len(field.encode()) <= PAGE_BYTES
    return unpacked(field)


def fails() -> None:
    raise RuntimeError("no such row")


def fails_for(number: int, _: object) -> None:
    raise RuntimeError(f"asked to by {number}")


def fails_in_torch() -> None:
    exec(compile("raise RuntimeError('no peer')", f"{TORCH}/distributed/c10d.py", "exec"), {})  # noqa: S102 (as if torch did)


def wraps() -> None:
    try:
        fails()
    except RuntimeError as error:
        raise ValueError("step 5 failed") from error


def test_what_led_to_an_exception_is_told_as_a_traceback_does() -> None:
    def wraps_twice() -> None:
        try:
            wraps()
        except ValueError:
            raise OSError("no training")  # noqa: B904 (a chain without a cause)

    assert _told(fails) == ("no such row", "", "", ())
    assert _told(wraps) == ("step 5 failed", "", "", ("RuntimeError: no such row",))
    led = ("ValueError: step 5 failed", "RuntimeError: no such row")
    assert _told(wraps_twice) == ("no training", "", "", led)


def test_what_the_program_hides_is_told_only_where_torch_has_raised_it() -> None:
    def hides(call: Callable[[], None]) -> None:
        try:
            call()
        except RuntimeError:
            raise ValueError("step 5 failed") from None

    def wraps_what_hides() -> None:
        try:
            hides(fails)
        except ValueError as error:
            raise OSError("no training") from error

    assert _told(lambda: hides(fails)) == ("step 5 failed", "", "", ())
    assert _told(wraps_what_hides)[3] == ("ValueError: step 5 failed",)
    assert _told(lambda: hides(fails_in_torch))[3] == ("RuntimeError: no peer",)


def test_what_a_call_of_torchs_has_raised_is_told_whatever_the_program_made_of_it() -> None:
    told = _told(fails, ("DistBackendError", "NCCL error: password=hunter2"))
    assert told[1].startswith("DistBackendError: NCCL error")
    assert "hunter2" not in told[1]
    assert len(_told(fails, ("RuntimeError", "x" * 900))[1]) <= 200


def test_an_exception_of_a_signal_handler_is_told_with_the_signal() -> None:
    class Handler:
        def __call__(self, *_: object) -> None:
            fails()

        def stop(self, *_: object) -> None:
            fails()

        def __getattr__(self, name: str) -> object:
            return pytest.fail("asked")

    handlers: list[Any] = [fails_for, functools.partial(fails_for), Handler(), Handler().stop]
    for handler in handlers:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            before = signal.signal(number, handler)
            try:
                assert _told(functools.partial(signal.raise_signal, number))[2] == number.name
                assert _told(fails)[2] == ""
            finally:
                signal.signal(number, before)


@contextmanager
def handling(handler: Any, *numbers: int) -> Iterator[None]:
    """Handle these signals so, for a while."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def test_of_a_handler_of_several_signals_that_which_came_is_told() -> None:
    with handling(fails_for, signal.SIGUSR1, signal.SIGTERM):
        assert _told(lambda: signal.raise_signal(signal.SIGUSR1))[2] == "SIGUSR1"
        assert _told(lambda: signal.raise_signal(signal.SIGTERM))[2] == "SIGTERM"


def test_what_a_handler_raises_is_told_though_it_is_installed_no_more() -> None:
    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        fails_for(number, frame)

    with handling(stop, signal.SIGTERM):
        assert _told(lambda: signal.raise_signal(signal.SIGTERM))[2] == "SIGTERM"


def test_the_function_of_a_handler_that_the_program_calls_itself_is_none() -> None:
    def wrapped(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(*args: object) -> None:
            function(*args)

        return wrapper

    with handling(fails_for, signal.SIGTERM):
        assert _told(lambda: fails_for(signal.SIGTERM, None))[2] == ""
    with handling(wrapped(fails_for), signal.SIGTERM):
        assert _told(wrapped(fails))[2] == ""
        assert _told(lambda: signal.raise_signal(signal.SIGTERM))[2] == "SIGTERM"


def test_a_number_beside_a_frame_is_no_signal() -> None:
    def fails_in_common_helper(message: str, stacklevel: int = 1) -> None:
        caller = sys._getframe(stacklevel)  # noqa: SLF001 (as warnings do)
        raise ValueError(f"{message} in {caller.f_code.co_name}")

    with handling(fails_for, signal.SIGHUP):
        assert _told(lambda: fails_in_common_helper("bad"))[2] == ""


def test_of_many_that_led_to_an_exception_the_latest_the_first_and_torchs_are_told() -> None:
    def nested(depth: int, of_torch: int = -1) -> None:
        try:
            if depth == of_torch:
                fails_in_torch()
            elif depth:
                nested(depth - 1, of_torch)
        finally:
            raise ValueError(f"{depth} {'é' * 600}")

    message, _, _, after = _told(lambda: nested(9))
    assert message.startswith("9 é")
    assert [text[:13] for text in after] == ["ValueError: 8", "ValueError: 7", "ValueError: 0"]
    texts = _told(lambda: nested(9, of_torch=4))[3]
    assert [text[:13] for text in texts] == ["ValueError: 8", "RuntimeError:"]
    texts = _told(lambda: nested(9, of_torch=0))[3]
    assert texts[-1] == "RuntimeError: no peer"


def test_exceptions_that_lead_back_to_one_another_are_followed_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    def raises() -> None:
        raise first

    assert _told(raises)[3] == ("ValueError: second",)
    third = ValueError("third")
    third.__cause__ = first

    def enters() -> None:
        raise third

    assert _told(enters)[3][0] == "ValueError: first"


def test_nothing_of_the_programs_is_run_to_tell_of_its_exceptions() -> None:
    asked: list[str] = []

    def ask(what: Any, *_: Any) -> Any:
        asked.append(str(what))
        return ""

    careful = dict.fromkeys(("__repr__", "__bool__", "__eq__", "__hash__"), ask)
    watched = ("__getattribute__", "__instancecheck__", "__eq__", "__hash__")
    curious = type("Curious", (type,), dict.fromkeys(watched, ask))
    kind = curious("Careful", (Exception,), {**careful, "__getattribute__": ask})
    error = Exception.__new__(kind, "a", 7, object())

    def raises() -> None:
        raise error

    def wraps_it() -> None:
        try:
            raises()
        except Exception as inner:
            raise ValueError("more") from inner

    asked.clear()
    assert _told(raises)[0] == "a, 7, <object>"
    assert _told(wraps_it)[3] == (f"{__name__}.Careful: a, 7, <object>",)
    assert asked == []


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
    told: list[BaseException | None] = []
    multiprocessing.util.Finalize(None, lambda: said.send(repr(told)), exitpriority=-1)
    at_end_of_child(lambda: told.append(error_of_child()), lambda: None)
    program()


@pytest.mark.parametrize("program", [_raises, _gives_up, _gives_up_for_what_it_handles, _ends_well])
def test_what_ends_a_child_of_multiprocessing_is_told(program: Callable[[], None]) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_child, args=(program, there))
    child.start()
    there.close()
    known = program is _raises and sys.version_info < (3, 13)
    assert here.recv() == ("[ValueError('bad batch')]" if known else "[None]")
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
            assert here.recv() == "[None]"
            child.join()


def _leaves() -> None:
    sys.exit()


def _starts_another() -> None:
    child = multiprocessing.get_context("fork").Process(target=_raises)
    child.start()
    child.join()


def _fork(program: Callable[[], None], said: Connection) -> None:
    at_end_of_child(lambda: None, lambda: said.send((fork_ends_well(), has_other_threads())))
    program()


@pytest.mark.parametrize(
    ("method", "program", "well"),
    [
        *(("fork", program, True) for program in (_ends_well, _leaves, _starts_another)),
        *(("fork", program, False) for program in (_raises, _gives_up)),
        *(("forkserver", _ends_well, True), ("forkserver", _raises, False)),
        ("spawn", _ends_well, False),  # the interpreter tells of it
    ],
)
def test_the_good_end_of_a_fork_is_known(
    method: str, program: Callable[[], None], *, well: bool
) -> None:
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=_fork, args=(program, there))
    child.start()
    there.close()
    assert here.recv() == (well, False)
    child.join()


def _ends_in_turns(said: Connection) -> None:
    Finalize = multiprocessing.util.Finalize  # noqa: N806 (a class)
    for priority in (0, -100):
        Finalize(None, said.send, args=(f"own {priority}",), exitpriority=priority)
    at_end_of_child(lambda: said.send("raised"), lambda: said.send("over"))
    context = multiprocessing.get_context("fork")
    context.Process(target=said.send, args=("child",)).start()
    Finalize(None, said.send, args=("own later",), exitpriority=-100)


def test_the_end_of_a_child_is_told_after_its_own_finalizers_and_children() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_ends_in_turns, args=(there,))
    child.start()
    there.close()
    told = [here.recv() for _ in range(6)]
    child.join()
    assert told.index("raised") < told.index("own 0")
    assert told[-1] == "over"


def test_threads_that_a_process_waits_for_before_it_ends_are_seen() -> None:
    go = threading.Event()
    for daemon in (True, False):
        thread = threading.Thread(target=go.wait, daemon=daemon)
        thread.start()
        assert has_other_threads() is not daemon
    go.set()
    thread.join()
    assert not has_other_threads()


def test_the_end_of_another_process_is_left_to_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(multiprocessing.util, "Finalize")
    at_end_of_child(print, print)
