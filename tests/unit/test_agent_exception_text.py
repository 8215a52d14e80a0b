"""What an exception says, without running anything of the program's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hangwatch.agent.exception_text import text_of, type_name


class Custom(Exception):  # noqa: N818 (only its text matters)
    """Has a text of its own making."""

    def __str__(self) -> str:
        return pytest.fail("asked")


class Shown:
    """A value with a text."""

    def __repr__(self) -> str:
        return pytest.fail("asked")

    __str__ = __repr__


class Text(str):
    """A str that is none."""

    __slots__ = ()

    def __str__(self) -> str:
        return pytest.fail("asked")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError("bad", 7),
        ValueError(),
        KeyError("key"),
        OSError(2, "No such file", "/a"),
        OSError(5, "gone"),
        SystemExit(3),
        json.JSONDecodeError("bad", "{", 1),
        RuntimeError(["a", 1]),
    ],
)
def test_where_python_itself_makes_the_text_it_is_the_same(error: BaseException) -> None:
    assert text_of(error) == str(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Custom("a", 7), "a, 7"),
        (ValueError(Shown()), f"<{__name__}.Shown>"),
        (ValueError("bad", Shown()), f"bad, <{__name__}.Shown>"),
        (KeyError(Text("x")), f"<{__name__}.Text>"),
        (OSError(2, "No such file", Path("/a")), "2, No such file"),
        (RuntimeError([Shown()]), "<list>"),
        (subprocess.CalledProcessError(1, ["cmd"]), "1, ['cmd']"),
        (ValueError(*range(30)), ", ".join(map(str, range(20)))),
    ],
)
def test_else_its_arguments_are_told_as_far_as_they_are_plain(
    error: BaseException, text: str
) -> None:
    assert text_of(error) == text


def test_types_are_named_as_in_a_traceback() -> None:
    class Local(Exception):  # noqa: N818 (only its name matters)
        pass

    class Odd(Exception):  # noqa: N818 (as above)
        __module__: Any = 7

    assert type_name(KeyError) == "KeyError"
    assert type_name(json.JSONDecodeError) == "json.decoder.JSONDecodeError"
    assert type_name(Local).startswith(f"{__name__}.test_types")
    assert type_name(Odd).startswith("test_types")
