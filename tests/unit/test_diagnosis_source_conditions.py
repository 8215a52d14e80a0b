"""Conditions below which alone a program makes an object, or hands a function over."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.source.origins import conditions_of
from hangwatch.diagnosis.source.program import Line

FILE = "/home/u/train.py"
HOOK = """
class Hook:
    def __call__(self):
        reduce()
"""
FUNCTION = """
def hook():
    reduce()
"""


def conditions(text: str) -> list[list[tuple[str, bool]]]:
    """(condition, whether it has to hold) around each mention of what holds ``reduce()``."""
    text = dedent(text)
    program = Source({FILE: text}).program
    number = next(at for at, line in enumerate(text.splitlines(), 1) if "reduce()" in line)
    found = conditions_of(program, Line(FILE, number))
    return [[(ast.unparse(one.test), one.taken) for one in some if one.test] for some in found]


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("if rank == 0:\n    hooks.append(Hook())\n", [[("rank == 0", True)]]),
        ("hooks = [Hook()] if rank == 0 else []\n", [[("rank == 0", True)]]),
        ("if rank:\n    pass\nelse:\n    Hook()\n", [[("rank", False)]]),
        (
            "def main():\n    if rank != 0:\n        return\n    run(Hook())\n",
            [[("rank != 0", False)]],
        ),
        ("run(Hook())\n", [[]]),
        ("if rank == 0:\n    Hook()\nHook()\n", [[], [("rank == 0", True)]]),
        ("isinstance(one, Hook)\n", []),
    ],
)
def test_a_class_is_made_below_conditions(use: str, found: list[list[tuple[str, bool]]]) -> None:
    assert conditions(HOOK + use) == found


def test_a_function_is_handed_over_below_conditions() -> None:
    use = "if rank == 0:\n    model.register_forward_hook(hook)\n"
    assert conditions(FUNCTION + use) == [[("rank == 0", True)]]


def test_a_line_outside_of_all_functions_belongs_to_nothing() -> None:
    assert conditions("if rank == 0:\n    reduce()\n") == []
