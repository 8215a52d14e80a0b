"""The firewall around our own statements."""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING

import pytest

from hangwatch.agent.guard import LIMIT, Guard

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_an_error_of_ours_that_cannot_be_told_is_swallowed_all_the_same() -> None:
    class Untold(Exception):  # noqa: N818 (the name says it)
        def __str__(self) -> str:
            raise RuntimeError

    guard = Guard(lambda: None, lambda _: None)
    with guard:
        raise Untold
    assert not guard.open


def test_a_counter_that_fails_closes_the_guard() -> None:
    def count() -> None:
        raise OSError

    guard = Guard(count, lambda _: None)
    with guard:
        raise ValueError
    assert not guard.open
