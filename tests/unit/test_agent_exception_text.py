"""What an exception says, without running anything of the program's."""

from __future__ import annotations

import builtins
import json
import subprocess
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.exception_text import text_of, type_name

if TYPE_CHECKING:
    from collections.abc import Callable


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


def made(call: Callable[[], object]) -> Exception:
    """What it raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 (it is what is wanted)
        return error
    raise AssertionError("it has raised nothing")


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
        made(b"patient: \xff".decode),
        made(b"\xf0\x9f".decode),
        made(lambda: "\xfc".encode("ascii")),
        made(lambda: "\u20ac".encode("ascii")),
        made(lambda: "\U0001f600".encode("latin-1")),
        made(lambda: "\u20ac\u20ac".encode("ascii")),
    ],
)
def test_where_python_itself_makes_the_text_it_is_the_same(error: BaseException) -> None:
    assert text_of(error) == str(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Custom("a", 7), ""),
        (Custom(), ""),
        (ValueError(Shown()), f"<{__name__}.Shown>"),
        (ValueError("bad", Shown()), f"bad, <{__name__}.Shown>"),
        (KeyError(Text("x")), f"<{__name__}.Text>"),
        (OSError(2, "No such file", Path("/a")), "2, No such file"),
        (RuntimeError([Shown()]), "<list>"),
        (subprocess.CalledProcessError(1, ["cmd"]), ""),
        (ImportError("no module", name="a"), "no module"),
        (SyntaxError("bad", ("a.py", 1, 2, "x")), "bad"),
        (ExceptionGroup("several", [Custom("a")]), "several"),
        (ValueError(b"raw"), "<bytes>"),
        (ValueError(10**5000), "<int>"),
        (ValueError("x" * 9000), "x" * 4000),
        (ValueError("x" * 9000, 1), "x" * 4000 + ", 1"),
        (ValueError(["x" * 9000]), "<list>"),
        (
            UnicodeDecodeError("utf-8", b"a", 7, 8, "odd"),
            "'utf-8' codec can't decode bytes in position 7-7: odd",
        ),
        (UnicodeTranslateError("abc", 1, 2, "odd"), ""),
        (ValueError(*range(30)), ", ".join(map(str, range(20)))),
    ],
)
def test_else_its_arguments_are_told_as_far_as_they_are_plain(
    error: BaseException, text: str
) -> None:
    assert text_of(error) == text


def test_each_class_of_python_tells_what_it_was_made_with() -> None:
    made = []
    for kind in vars(builtins).values():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            with suppress(TypeError):  # one that takes more than a text
                made.append(kind("no such label"))
    assert len(made) > 50
    assert [error for error in made if "no such label" not in text_of(error)] == []


def test_a_class_of_the_programs_is_not_asked_whether_it_is_another() -> None:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            return pytest.fail("asked")

        def __hash__(cls) -> int:
            return pytest.fail("asked")

    class Value(metaclass=Meta):
        pass

    class Raised(Exception, metaclass=Meta):  # noqa: N818 (only its text matters)
        def __str__(self) -> str:
            return pytest.fail("asked")

    assert text_of(ValueError(Value(), [Value()])).endswith("Value>, <list>")
    assert text_of(Raised("a")) == ""


def test_what_cannot_be_decoded_is_not_copied_however_large_it_is() -> None:
    raw = bytes(50_000_000) + b"\xff"
    error = made(raw.decode)
    tracemalloc.start()
    assert text_of(error) == str(error)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_types_are_named_as_in_a_traceback() -> None:
    class Local(Exception):  # noqa: N818 (only its name matters)
        pass

    class Odd(Exception):  # noqa: N818 (as above)
        __module__: Any = 7

    assert type_name(KeyError) == "KeyError"
    assert type_name(json.JSONDecodeError) == "json.decoder.JSONDecodeError"
    assert type_name(Local).startswith(f"{__name__}.test_types")
    assert type_name(Odd).startswith("test_types")
