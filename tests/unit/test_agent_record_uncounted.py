"""Wrappers that a library's warnings do not take for its caller."""

from __future__ import annotations

import warnings

from hangwatch.agent.record.uncounted import uncounted


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
