"""The table of operations, against torch, and against what C++ is built from."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch.distributed import ProcessGroup

from hangwatch.model.operations import METHODS, OPERATIONS, WIRES, Method, Parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
HERE = [method for method in METHODS if hasattr(ProcessGroup, method.name)]


def overloads(method: Method) -> Iterator[list[str]]:
    """The names of the parameters in each form, as pybind11 writes them into the docstring."""
    said = getattr(ProcessGroup, method.name).__doc__
    for signature in re.findall(rf"{method.name}\(self: [^,)]*(.*)\) ->", said):
        yield re.findall(r", (\w+): ", signature)


def stands_in(parameter: Parameter | None, names: list[str]) -> bool:
    """Return True if a form has a parameter where the table says, by a name that it knows."""
    if parameter is None or parameter.position >= len(names):
        return True
    name = names[parameter.position]
    return name in parameter.names or name.startswith("arg")


def test_cpp_is_built_from_this_table() -> None:
    made = subprocess.run(  # noqa: S603 (our own script)
        [sys.executable, ROOT / "native/methods.py"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "native/methods.hpp").read_text() == made.stdout


def test_each_name_stands_there_once() -> None:
    assert len({method.name for method in METHODS}) == len(METHODS)
    assert {method.wire for method in METHODS} <= OPERATIONS.keys()
    assert set(WIRES.values()) <= OPERATIONS.keys()
    assert all(WIRES.get(name, name) == name for name in OPERATIONS)
    assert {operation.by_gloo for operation in OPERATIONS.values()} <= {"", *OPERATIONS}


def test_torch_has_what_every_version_has() -> None:
    assert {method.name for method in METHODS if method.core} <= {method.name for method in HERE}


@pytest.mark.parametrize("method", HERE, ids=lambda method: method.name)
def test_arguments_are_where_torch_has_them(method: Method) -> None:
    forms = list(overloads(method))
    assert forms
    for names in forms:
        for parameter in (method.tensor, method.peer, method.tag):
            assert stands_in(parameter, names), names
        if method.rooted:
            assert stands_in(method.options, names), names
