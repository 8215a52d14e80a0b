"""Wrappers that look like what they stand for, and that no warning takes for its caller."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from hangwatch.agent.record.hidden_wrappers import standing_for, uncounted

if TYPE_CHECKING:
    import pytest


def library() -> None:
    warnings.warn("call something else", FutureWarning, stacklevel=2)


def test_a_warning_names_the_line_that_called_the_wrapper() -> None:
    @uncounted
    def inner() -> None:
        library()

    @uncounted
    def wrapper() -> None:
        inner()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapper()
    assert [warning.filename for warning in caught] == [__file__]


class Parallel:
    def __init__(self, module: object, *, find_unused_parameters: bool = False) -> None:
        """Take a module."""


def test_it_takes_what_the_function_takes_to_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = inspect.getfullargspec, inspect.signature
    before = [look(Parallel) for look in looks]
    original: Any = Parallel.__init__

    @standing_for(original)
    @uncounted
    def wrapper(self: Parallel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)

    monkeypatch.setattr(Parallel, "__init__", wrapper)
    assert [look(Parallel) for look in looks] == before
    assert Parallel.__init__.__doc__ == "Take a module."


def test_what_a_function_of_c_takes_need_not_be_known() -> None:
    @standing_for(vars)
    def wrapper(*args: object) -> object:
        return args

    assert wrapper.__name__ == "vars"
