"""A loop over a set, or over the files of a directory, has another order in each process."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangwatch.diagnosis.source.alike import Unordered, loop_without_order
from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.source.program import Line

FILE = "/home/u/train.py"


def over(text: str) -> Unordered | None:
    """What the loop of a text goes over whose line is that of ``reduce()``."""
    text = dedent(text)
    program = Source({FILE: text}).program
    number = next(at for at, line in enumerate(text.splitlines(), 1) if "reduce()" in line)
    found = loop_without_order(program, Line(FILE, number))
    return found[1] if found is not None else None


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("{'a', 'b'}", Unordered.SET),
        ("{name(x) for x in rows}", Unordered.SET),
        ("set(rows) - {1}", Unordered.SET),
        ("frozenset(rows)", Unordered.SET),
        ("list({'a', 'b'})", Unordered.SET),
        ("enumerate(set(rows))", Unordered.SET),
        ("set(rows).union(more)", Unordered.SET),
        ("{x: 1 for x in set(rows)}.items()", Unordered.SET),
        ("[f(x) for x in set(rows)]", Unordered.SET),
        ("ordered if fast else set(rows)", Unordered.SET),
        ("os.listdir(path)", Unordered.FILES),
        ("Path(path).glob('*.pt')", Unordered.FILES),
        ("sorted(set(rows))", None),
        ("sorted(os.listdir(path))", None),
        ("{1, 2, 3}", None),
        ("{'a': 1, 'b': 2}", None),
        ("a - b", None),
        ("rows.union(more)", None),
        ("model.parameters()", None),
    ],
)
def test_an_expression_has_an_order_or_has_none(expression: str, found: Unordered | None) -> None:
    assert over(f"for x in {expression}:\n    reduce()\n") is found


def test_of_several_callers_the_one_on_the_stack_gives_what_a_loop_goes_over() -> None:
    text = """
        def sync(tensors):
            for tensor in tensors:
                reduce()
        def main():
            sync(list(model))
            sync({"a", "b"})
        """
    program = Source({FILE: dedent(text)}).program
    found = [
        loop_without_order(program, Line(FILE, 4), above) is not None
        for above in ((), (Line(FILE, 6),), (Line(FILE, 7),), (Line(FILE, 9),))
    ]
    assert found == [False, False, True, False]


@pytest.mark.parametrize(
    "text",
    [
        """
        NAMES = {"a", "b"}
        def sync():
            for name in NAMES:
                reduce()
        """,
        """
        def sync(names):
            for name in names:
                reduce()
        def main():
            chosen = pick()
            sync(chosen)
        def pick():
            return set(load())
        """,
        """
        class Sync:
            def __init__(self, rows):
                self.names: set[str] = set(rows)
            def step(self):
                self.run(names=self.names)
            def run(self, names):
                for step in range(3):
                    for name in names:
                        reduce()
        """,
    ],
)
def test_names_are_followed_to_what_they_stand_for(text: str) -> None:
    assert over(text) is Unordered.SET


@pytest.mark.parametrize(
    "text",
    [
        """
        class A:
            def __init__(self, rows):
                self.names = set(rows)
        class B:
            def __init__(self, rows):
                self.names = list(rows)
            def run(self):
                for name in self.names:
                    reduce()
        """,
        """
        def sync(names):
            for name in names:
                reduce()
        sync({"a"} | more)
        sync(["a"])
        """,
        """
        def loop(names):
            return loop(names)
        for name in loop(loop):
            reduce()
        """,
        """
        for name in set(rows):
            prepare()
        reduce()
        """,
    ],
)
def test_what_may_be_something_else_is_not_told(text: str) -> None:
    assert over(text) is None
