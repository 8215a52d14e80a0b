"""Any two lines of any program are told apart, or not; nothing of its text does harm."""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import subprocess
import typing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.source.paths import ways
from hangwatch.diagnosis.source.program import Line, Position

if TYPE_CHECKING:
    from types import ModuleType

MODULES = (contextlib, difflib, inspect, subprocess, typing)
TRIES = 12


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_what_is_found_are_lines_of_the_program(module: ModuleType) -> None:
    file = str(module.__file__)
    text = Path(file).read_text()
    source, rng = Source({file: text}), Random(module.__name__)  # noqa: S311 (no secrets)
    last = text.count("\n") + 1

    def near(line: int) -> Line:
        return Line(file, max(1, min(last, line + rng.randrange(-20, 21))))

    def place(line: int) -> Position:
        return Position(tuple(near(line) for _ in range(rng.choice((0, 1, 1, 2)))))

    for _ in range(TRIES):
        line = rng.randrange(1, last)
        start = rng.choice((None, near(line)))
        calls = {near(line) for _ in range(2)}
        places = place(line), place(line)
        found = ways(source.program, start, places, calls, lambda _: False)
        if found is None:
            continue
        for choice in (*found.decisive, *found.before, *found.around, *found.others):
            assert 1 <= source.line_of(file, choice.node) <= last
            if choice.test is not None:
                assert isinstance(choice.test, ast.expr)
                assert source.holds_for(file, choice.test, 1) in (True, False, None)
                assert source.is_settled(file, choice.test) in (True, False)
