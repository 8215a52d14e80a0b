"""The firewall around our own statements, and the turns that no one waits for."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from hangwatch.agent.guard import LIMIT, Guard, Ticket, Turn
from hangwatch.agent.inject.post_import import keep_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def guard(told: list[str]) -> Guard:
    return Guard(lambda: told.append("counted"), told.append)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_an_error_of_ours_never_gets_out_and_is_counted(guard: Guard, told: list[str]) -> None:
    with guard:
        raise KeyError("ours")
    assert told == ["counted"]
    assert (guard.swallowed, guard.last) == (1, "KeyError: 'ours'")
    assert guard.open


def test_after_a_few_it_disarms_once_and_says_why(guard: Guard, told: list[str]) -> None:
    for number in range(LIMIT + 2):
        with guard:
            raise ValueError(number)
    assert [word for word in told if word != "counted"] == [
        f"{LIMIT} errors of our own, the last of them ValueError: {LIMIT - 1}"
    ]
    assert not guard.open


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_passes(guard: Guard, told: list[str], kind: type) -> None:
    with pytest.raises(kind), guard:
        raise kind
    assert told == []


class Callable:
    """A signal handler that is no function."""

    def __call__(self, *_: object) -> None:
        raise TimeoutError

    def method(self, *_: object) -> None:
        raise TimeoutError


def plain(*_: object) -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    "handler", [plain, Callable(), Callable().method, functools.partial(plain, 1)]
)
def test_what_a_users_signal_handler_raises_passes(
    guard: Guard, told: list[str], handler: signal._HANDLER
) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeoutError), guard:
        signal.raise_signal(signal.SIGUSR1)
    assert told == []


def handler_of_one_shot(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeoutError


def handler_of_all_arguments(*_: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeoutError


@pytest.mark.parametrize("handler", [handler_of_one_shot, handler_of_all_arguments])
def test_what_a_handler_raises_that_is_no_longer_installed_passes(
    guard: Guard, handler: signal._HANDLER
) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeoutError), guard:
        signal.raise_signal(signal.SIGUSR1)
    assert guard.swallowed == 0


class Stop(Exception):  # noqa: N818 (as a notebook or a library of time-outs has it)
    """What another thread sends."""


class Told(Exception):  # noqa: N818 (as above)
    """The same, with a text of its own."""

    def __init__(self) -> None:
        super().__init__("time is over")


@pytest.mark.parametrize("kind", [Stop, Told, TimeoutError, KeyboardInterrupt])
def test_what_another_thread_sends_into_our_code_passes(guard: Guard, kind: type) -> None:
    from hangwatch.agent.call_site import Prefixes, user_site  # noqa: PLC0415 (code of ours to be struck)

    class Frame:
        """A stack without an end, all of it ours."""

        f_code = user_site.__code__
        f_back: Frame

    Frame.f_back = frame = Frame()
    walked: Any = frame
    main = ctypes.c_ulong(threading.get_ident())
    sender = threading.Timer(
        0.05, ctypes.pythonapi.PyThreadState_SetAsyncExc, [main, ctypes.py_object(kind)]
    )
    sender.start()
    with pytest.raises(kind), guard:
        user_site(walked, Prefixes(("/",)))
    sender.join()
    assert guard.swallowed == 0


class Sent(Exception):  # noqa: N818 (the name says it)
    """A class that is neither Python's nor ours."""


@pytest.mark.parametrize("file", [os.__file__, "<frozen importlib._bootstrap>"])
def test_what_is_sent_to_python_that_ours_had_called_passes(guard: Guard, file: str) -> None:
    raising = compile("raise error", file, "exec")
    error = Sent("as a time-out would")
    with pytest.raises(Sent), guard:
        exec(raising, {"error": error})  # noqa: S102 (our own line)
    assert guard.swallowed == 0
    with guard:
        exec(raising, {"error": ValueError("of Python's own")})  # noqa: S102
    assert guard.swallowed == 1


def test_what_is_sent_to_torch_that_ours_had_called_passes(guard: Guard) -> None:
    file = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
    for raised, passes in ((Sent("as a time-out would"), True), (ValueError("no group"), False)):
        names = {"__name__": "torch.distributed.distributed_c10d", "error": raised}
        with pytest.raises(Sent) if passes else nullcontext(), guard:
            exec(compile("raise error", file, "exec"), names)  # noqa: S102 (our own line)
    assert guard.swallowed == 1


class Pair(NamedTuple):
    """Python generates what makes one."""

    one: int


def test_what_is_sent_to_code_that_python_has_generated_passes(guard: Guard) -> None:
    generated = Pair.__new__.__globals__
    with pytest.raises(Sent), guard:
        exec("raise Sent", {**generated, "Sent": Sent})  # noqa: S102 (our own line)
    with guard:
        exec("raise Sent", {"__name__": "__main__", "Sent": Sent})  # noqa: S102 (python -c)
    assert guard.swallowed == 1


@pytest.mark.parametrize("file", ["/srv/train.py", "/usr/lib/python3/site-packages/it/it.py"])
def test_what_the_programs_own_objects_raise_at_ours_does_not_get_out(
    guard: Guard, file: str
) -> None:
    with guard:
        exec(compile("raise error", file, "exec"), {"error": Sent("from __len__")})  # noqa: S102
    assert guard.swallowed == 1


def test_errors_are_kept_with_their_place(tmp_path: Path) -> None:
    guard = Guard(keep=partial(keep_fault, str(tmp_path)))
    with guard:
        raise LookupError("ours")
    (log,) = tmp_path.iterdir()
    assert log.name == f"faults-{os.getpid()}.log"
    first, *lines = log.read_text().splitlines()
    assert first == "LookupError: ours"
    assert lines[-1].endswith("test_errors_are_kept_with_their_place")


def test_an_error_of_ours_that_cannot_be_told_is_swallowed_all_the_same() -> None:
    class Untold(Exception):  # noqa: N818 (the name says it)
        def __str__(self) -> str:
            raise RuntimeError

    guard = Guard()
    with guard:
        raise Untold
    assert not guard.open


def test_a_counter_that_fails_closes_the_guard() -> None:
    def count() -> None:
        raise OSError

    guard = Guard(count)
    with guard:
        raise ValueError
    assert not guard.open


def test_one_at_a_time_has_the_turn() -> None:
    turn = Turn()
    first, second = Ticket(), Ticket()
    assert turn.take(first)
    assert not turn.take(second)
    assert not turn.take(first)
    first.over = True
    assert turn.take(second)
    second.over = True
    assert turn.take(Ticket())


def test_who_leaves_by_an_exception_loses_the_turn_without_giving_it_back() -> None:
    turn = Turn()

    def interrupted() -> None:
        ticket = Ticket()
        assert turn.take(ticket)
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        ticket = Ticket()
        assert turn.take(ticket)
        ticket.over = True


def test_threads_exclude_each_other() -> None:
    turn = Turn()
    inside: list[int] = []
    had: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        tries = 0
        # No turn is waited for: one that is held while its thread does not run refuses thousands.
        while tries < 3000 or number not in had:
            tries += 1
            ticket = Ticket()
            try:
                if turn.take(ticket):
                    inside.append(number)
                    most.append(len(inside))
                    had.append(number)
                    inside.pop()
            finally:
                ticket.over = True

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert set(had) == {0, 1, 2, 3}
