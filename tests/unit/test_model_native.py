"""Which interpreters may load the native module."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from hangwatch.model import native

if TYPE_CHECKING:
    from pathlib import Path

REASON = "the native module needs a Python with the GIL, and this one is free-threaded"


def test_this_interpreter_may() -> None:
    assert native.reason_against() == ""
    assert native.load().MAX_GROUPS >= 512


@pytest.mark.parametrize(
    ("abiflags", "disabled", "why"),
    [
        ("", None, ""),
        ("d", 0, ""),
        ("t", 1, REASON),
        ("td", None, REASON),
        ("", 1, REASON),  # where there are no flags, as its build says
    ],
)
def test_a_free_threaded_one_may_not(abiflags: str, disabled: int | None, why: str) -> None:
    asked = {"Py_GIL_DISABLED": disabled}
    assert native.reason_against(abiflags, asked.get, "cpython") == why


def test_another_implementation_may_not() -> None:
    why = native.reason_against("", lambda _: None, "pypy")
    assert why == "the native module needs CPython, and this is pypy"


STAND_IN = """
    import os, sys
    sys.abiflags = "t"  # stands for a free-threaded interpreter, of which there is none here
    from hangwatch import _native as there
    file = there.__file__
    del there, sys.modules["hangwatch._native"]
    from hangwatch.agent.record.recorder import choose
    recorder = choose({"HANGWATCH_NATIVE": file})
    print(type(recorder).__name__, recorder._reason)
    from hangwatch.evidence.pages.reader import PageError, parse_page
    try:
        parse_page(open(sys.argv[1], "rb").read())
    except PageError as error:
        print(error)
    from hangwatch.evidence.flight import request
    from pathlib import Path
    request.ring(Path(sys.argv[1]))
    print("hangwatch._native" in sys.modules)
"""


def test_nothing_loads_it_in_a_stand_in_for_a_free_threaded_interpreter(tmp_path: Path) -> None:
    page = tmp_path / "some.page"
    page.write_bytes(b"\x89HWPAGE1" + bytes(4096))
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", textwrap.dedent(STAND_IN), page],
        capture_output=True,
        text=True,
        check=True,
    )
    recorder, read, loaded = done.stdout.splitlines()
    assert recorder == f"PythonRecorder the native module cannot be loaded: {REASON}"
    assert REASON in read
    assert loaded == "False"
