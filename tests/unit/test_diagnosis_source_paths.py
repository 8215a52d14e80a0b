"""Where two ways through a program part: by its text alone."""

from __future__ import annotations

import ast
import re
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from hangwatch.diagnosis.source import flow
from hangwatch.diagnosis.source.paths import Ways, ways
from hangwatch.diagnosis.source.program import Line, Position, Program

if TYPE_CHECKING:
    from hangwatch.diagnosis.source.flow import Choice

FILE = "/home/u/train.py"


def marked(text: str, marker: str) -> int:
    """The number of the line that ends in a comment ``# marker``."""
    (found,) = (
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"# (?:\w+ )*{marker}\b", line)
    )
    return found


def place(text: str, marker: str) -> Position:
    """A marked line; the end of the program where there is none."""
    if f" {marker}" not in text:
        return Position()
    return Position((Line(FILE, marked(text, marker)),))


def parted(text: str, *calls: int) -> Ways | None:
    """How one comes from the line ``start``, or the beginning, to ``mine``, not ``theirs``."""
    start = Line(FILE, marked(text, "start")) if " start" in text else None
    places = place(text, "mine"), place(text, "theirs")
    known = {Line(FILE, call) for call in calls}
    return ways(Program({FILE: ast.parse(text)}), start, places, known, lambda _: False)


def between(text: str, start: int, mine: Position, theirs: Position) -> Ways | None:
    program = Program({FILE: ast.parse(text)})
    return ways(program, Line(FILE, start), (mine, theirs), (), lambda _: False)


def line_of(choice: Choice) -> int:
    return int(getattr(choice.node, "lineno", 0))


def told(choices: tuple[Choice, ...]) -> list[tuple[str, int, bool]]:
    return [(choice.kind.value, line_of(choice), choice.taken) for choice in choices]


TEXTS = [
    pytest.param(
        """
        for batch in loader:
            reduce(batch)  # start theirs
            if batch.bad:  # here
                log(batch)
                gather(batch)  # mine
        """,
        ("condition", True),
        id="a call below a condition",
    ),
    pytest.param(
        """
        for batch in loader:
            gather(batch)  # start mine
            if batch.good:  # here
                reduce(batch)  # theirs
        """,
        ("condition", False),
        id="a call left out below a condition",
    ),
    pytest.param(
        """
        for batch in loader:  # here
            reduce(batch)  # start theirs
        barrier()  # mine
        """,
        ("loop", False),
        id="a loop that ends",
    ),
    pytest.param(
        """
        for batch in loader:  # here
            reduce(batch)  # start mine
        barrier()  # theirs
        """,
        ("loop", True),
        id="a loop that goes on",
    ),
    pytest.param(
        """
        while True:
            reduce(batch)  # start theirs
            if batch.last:  # here
                break
        barrier()  # mine
        """,
        ("condition", True),
        id="a loop that is left",
    ),
    pytest.param(
        """
        def main():
            for batch in range(10):
                if not step(batch):
                    print(batch)
                gather(batch)  # start mine

        def step(batch):
            if batch.bad:  # here
                return False
            reduce(batch)  # theirs
            return True

        main()
        """,
        ("condition", True),
        id="a helper that returns early",
    ),
    pytest.param(
        """
        def main():
            for batch in range(10):
                try:
                    step(batch)
                except ValueError:  # here
                    print("skipped")
                gather(batch)  # start mine

        def step(batch):
            loss = model(batch)
            reduce(loss)  # theirs

        main()
        """,
        ("exception", True),
        id="an exception that is caught two functions away",
    ),
    pytest.param(
        """
        with suppress(ValueError):  # here
            for batch in range(10):
                reduce(batch)  # start theirs
            leave()
        barrier()  # mine
        """,
        ("exception", True),
        id="an exception that is suppressed",
    ),
    pytest.param(
        """
        gather()  # start
        if first and save():  # here
            pass
        barrier()  # theirs

        def save():
            reduce()  # mine
        """,
        ("condition", True),
        id="the second part of a condition",
    ),
    pytest.param(
        """
        gather()  # start
        found = reduce() if first else 0  # here mine
        barrier()  # theirs
        """,
        ("condition", True),
        id="a conditional expression",
    ),
    pytest.param(
        """
        gather()  # start
        match mode:
            case "fast":  # here
                reduce()  # mine
            case _:
                barrier()  # theirs
        """,
        ("condition", True),
        id="a case",
    ),
    pytest.param(
        """
        class Trainer:
            def __init__(self):
                gather()  # start
                self.fit()

            def fit(self):
                for _ in self.epochs:  # here
                    reduce()  # theirs
                barrier()  # mine

        trainer = Trainer()
        """,
        ("loop", False),
        id="a class that is made",
    ),
    pytest.param(
        """
        @lru_cache(maxsize=None)  # here
        def scale(length):
            return reduce(length)  # theirs

        for batch in loader:
            gather(scale(len(batch)))  # start mine
        """,
        ("call", False),
        id="a call that is answered from a cache",
    ),
    pytest.param(
        """
        class Balancer:
            def __init__(self, size):
                self.weights = lru_cache(maxsize=size)(self._weights)  # here

            def _weights(self, stage):
                return reduce(stage)  # theirs

        for stage in stages:
            gather(balancer.weights(stage))  # start mine
        """,
        ("call", False),
        id="a cache around a method",
    ),
    pytest.param(
        """
        class Worker:
            def on_end(self):
                reduce()  # theirs

            def run(self):
                for phase in phases:
                    gather()  # start mine
                    self.on_end()

        class Judge(Worker):
            def on_end(self):  # here
                log()

        class Learner(Worker):
            def on_end(self):
                super().on_end()

        class Other:
            def on_end(self):
                log()

        make(role).run()
        """,
        ("call", True),
        id="a method that stands in for another",
    ),
    pytest.param(
        """
        def on_main(function):
            def wrapper(*args):
                if rank != 0:  # here
                    return None
                return function(*args)
            return wrapper

        @on_main
        def save(state):
            reduce(state)  # mine

        gather()  # start
        save(state)
        barrier()  # theirs
        """,
        ("condition", False),
        id="what a decorator of the program decides",
    ),
    pytest.param(
        """
        def repeated(times):
            def decorate(function):
                def attempts(*args):
                    for _ in range(times):
                        try:
                            return function(*args)
                        except OSError:  # here
                            pass
                    raise OSError
                return attempts
            return decorate

        @repeated(3)
        def log(loss):
            reduce(loss)  # start mine
            write(loss)

        log(loss)
        barrier()  # theirs
        """,
        ("exception", True),
        id="what a decorator with arguments repeats",
    ),
    pytest.param(
        """
        class Timed:
            def __exit__(self, kind, error, trace):
                if kind is not None:  # here
                    return True
                reduce(self.seconds)  # theirs

        gather()  # start
        with Timed():
            step()
        barrier()  # mine
        """,
        ("condition", True),
        id="how a block of a context manager is left",
    ),
    pytest.param(
        """
        @rank_zero_only  # here
        def save(state):
            reduce(state)  # mine

        gather()  # start
        save(state)
        barrier()  # theirs
        """,
        ("condition", True),
        id="a decorator that is known",
    ),
    pytest.param(
        """
        def save(part):
            gather(part)  # theirs

        reduce(x)  # start
        saved = [save(part) for part in parts]  # here
        barrier()  # mine
        """,
        ("loop", False),
        id="a comprehension that ends",
    ),
    pytest.param(
        """
        try:
            while step < 100:
                reduce(load(step))  # start theirs
        finally:
            barrier()  # mine
        """,
        ("exception", True),
        id="what is done in any case",
    ),
    pytest.param(
        """
        gather()  # start
        if done:  # here
            sys.exit(0)
        reduce()  # theirs
        """,
        ("condition", True),
        id="the end of the program",
    ),
]


@pytest.mark.parametrize(("text", "choice"), TEXTS)
def test_the_choice_at_which_two_ways_part_is_found(text: str, choice: tuple[str, bool]) -> None:
    text = dedent(text)
    found = parted(text)
    assert found is not None
    ((turn, line, taken), *_) = told(found.decisive)
    assert (turn, taken) == choice
    if "# here" in text:
        assert line == marked(text, "here")


def test_what_leads_nowhere_else_is_no_choice() -> None:
    found = parted(
        dedent("""
        for batch in loader:
            reduce(batch)  # start theirs
            if batch.odd:
                log(batch)
            if verbose:
                print(batch)
        barrier()  # mine
        """)
    )
    assert found is not None
    assert told(found.decisive) == [("loop", 2, False)]


EXIT = """
class Timed:
    def __exit__(self, kind, error, trace):
        reduce(self.seconds)  # {exit}
        {returns}

gather()  # start
with Timed():  # here
    step()
    reduce(loss)  # theirs
barrier()  # {after}
"""


@pytest.mark.parametrize("returns", ["return None", "return self.quiet"])
def test_an_exception_leads_to_what_the_exit_of_its_block_calls(returns: str) -> None:
    text = EXIT.format(exit="mine", returns=returns, after="later")
    found = parted(text)
    assert found is not None
    assert told(found.decisive) == [("exception", marked(text, "here"), True)]


@pytest.mark.parametrize(("returns", "goes_on"), [("return None", False), ("return True", True)])
def test_only_an_exit_that_swallows_it_leads_from_there_past_the_block(
    returns: str, *, goes_on: bool
) -> None:
    text = EXIT.format(exit="known", returns=returns, after="mine")
    found = parted(text, marked(text, "known"))
    assert (found is not None and bool(found.decisive)) is goes_on


PHASES = """
class Phase:
    def __init__(self, name, optional=False):
        self.name, self.optional = name, optional
    def __exit__(self, kind, error, trace):
        print(self.name)
        return self.optional and issubclass(kind, ArithmeticError)

for epoch in range(3):
    gather()  # start
    with Phase("quality"{quality}):  # here
        measure()
        reduce()  # theirs
    with Phase("save"{save}):
        barrier()  # mine
"""


@pytest.mark.parametrize(
    ("quality", "save", "known"),
    [(", optional=True", "", True), (", True", "", True), ("", "", False)],
)
def test_so_does_an_exit_that_makes_no_calls_where_its_setting_is_on(
    quality: str, save: str, *, known: bool
) -> None:
    text = PHASES.format(quality=quality, save=save)
    found = parted(text, marked(text, "start"))
    decisive = told(found.decisive) if found is not None else []
    assert decisive == ([("exception", marked(text, "here"), True)] if known else [])


def test_a_turn_in_which_it_is_left_out_is_a_way_around() -> None:
    found = parted(
        dedent("""
        for batch in loader:
            if batch.bad:
                continue
            reduce(batch)  # start theirs
        barrier()  # mine
        """)
    )
    assert found is not None
    assert told(found.decisive) == [("loop", 2, False)]
    assert told(found.around) == [("condition", 3, True)]


def test_no_way_goes_by_a_call_that_is_known() -> None:
    text = dedent("""
        gather()  # start
        if early:
            reduce()  # theirs
        elif late:
            scatter()
        barrier()  # mine
        """)
    without, known = parted(text), parted(text, 6)
    assert without is not None
    assert known is not None
    assert told(without.decisive) == [("condition", 3, False)]
    assert told(known.decisive) == [("condition", 3, False)]
    back = parted(text.replace("# mine", "# theirs").replace("# theirs", "# mine", 1), 6)
    assert back is not None
    assert told(back.decisive) == [("condition", 3, True)]


def test_what_all_ways_to_the_choice_have_taken_is_told_too() -> None:
    found = parted(
        dedent("""
        for step in range(10):
            reduce()  # start theirs
            if rank == 0:
                if full:
                    gather()  # mine
        """)
    )
    assert found is not None
    assert told(found.before) == [("condition", 4, True)]
    assert told(found.decisive) == [("condition", 5, True)]


def test_both_in_either_order_are_told_from_one_left_out() -> None:
    text = dedent("""
        def clip():
            gather()  # mine

        for step in range(10):
            reduce()  # start
            if at_once:
                clip()
            scatter()  # theirs
            if not at_once:
                clip()
        """)
    found = parted(text)
    assert found is not None
    assert found.turned_round
    found = parted(text.replace("    if not at_once:\n        clip()\n", ""))
    assert found is not None
    assert not found.turned_round


def test_a_choice_that_is_never_made_is_left_out() -> None:
    text = dedent("""
        for step in range(10):
            if rank > 0:
                reduce()  # start theirs
        barrier()  # mine
        """)
    places = place(text, "mine"), place(text, "theirs")
    start = Line(FILE, marked(text, "start"))
    program = Program({FILE: ast.parse(text)})
    found = ways(
        program, start, places, (), lambda choice: line_of(choice) == 3 and not choice.taken
    )
    assert found is not None
    assert told(found.around) == []


def test_a_stack_tells_one_call_of_a_helper_from_another() -> None:
    text = dedent("""
        def sync(x):
            dist.all_reduce(x)

        def main():
            sync(1)
            if late:
                sync(2)
            sync(3)

        main()
        """)
    here, there = (Position((Line(FILE, 11), Line(FILE, line), Line(FILE, 3))) for line in (8, 9))
    found = ways(Program({FILE: ast.parse(text)}), None, (here, there), (), lambda _: False)
    assert found is not None
    assert ("condition", 7, True) in told(found.decisive)


def test_a_function_that_a_library_calls_is_known_from_the_stack() -> None:
    text = dedent("""
        def hook(module):
            if first:
                dist.all_gather(module)

        model.register(hook)
        for batch in loader:
            model(batch)
            dist.all_reduce(batch)
        """)
    mine = Position((Line(FILE, 8), Line(FILE, 4)))
    theirs = Position((Line(FILE, 9),))
    found = ways(
        Program({FILE: ast.parse(text)}), Line(FILE, 9), (mine, theirs), (), lambda _: False
    )
    assert found is not None
    assert told(found.decisive) == [("condition", 3, True)]


def test_what_a_library_calls_back_may_come_after_calls_of_its_own() -> None:
    text = dedent("""
        class Model(Module):
            def on_validation_end(self):
                self.report()
            @rank_zero_only
            def report(self):
                self.all_gather(loss)
        trainer.fit(Model())
        trainer.strategy.barrier()
        """)
    mine = Position((Line(FILE, 8), Line(FILE, 4), Line(FILE, 7)))
    found = between(text, 8, mine, Position((Line(FILE, 9),)))
    assert found is not None
    assert told(found.decisive) == [("condition", 5, True)]


def test_nor_does_one_come_by_the_call_again_to_what_it_calls_back() -> None:
    text = dedent("""
        class Net(Module):
            def forward(self, x, more):
                x = self.first(x)
                if more:
                    x = self.spare(x)
                return x
        for step in range(10):
            x = engine(x, more)
            if step != 5:
                engine.backward(x)
        """)
    mine = Position((Line(FILE, 9), Line(FILE, 6)))
    program, theirs = Program({FILE: ast.parse(text)}), Position((Line(FILE, 11),))
    known = {Line(FILE, at) for at in (4, 9, 11)}
    found = ways(program, Line(FILE, 9), (mine, theirs), known, lambda _: False)
    assert found is not None
    assert told(found.decisive) == [("condition", 5, True)]
    assert found.around == ()


def test_a_loop_that_others_left_tells_by_what_they_did() -> None:
    text = dedent("""
        for trial in range(10):
            reduce(trial)  # start mine
            if better:
                break
        gather()  # theirs
        """)
    found = parted(text)
    assert found is not None
    assert ("condition", 4, True) in told(found.others)


def test_a_property_may_be_called_by_its_name() -> None:
    found = parted(
        dedent("""
        class Meter:
            @property
            def value(self):
                return reduce(self.sum)  # mine

        gather()  # start
        if first:
            print(f"{meter.value:.2f}")
        barrier()  # theirs
        """)
    )
    assert found is not None
    assert told(found.others) == [("condition", 8, False)]


def test_which_function_a_table_holds_is_decided_as_the_program_runs() -> None:
    text = dedent("""
        def click(event):
            reduce(event)

        HANDLERS = {"click": click}
        for event in events:
            HANDLERS[event.kind](event)
        gather()
        """)
    mine, theirs = Position((Line(FILE, 8),)), Position((Line(FILE, 7), Line(FILE, 3)))
    found = between(text, 3, mine, theirs)
    assert found is not None
    assert told(found.decisive) == [("loop", 6, False)]
    assert told(found.around) == [("call", 7, False)]


def test_which_functions_a_comprehension_calls_is_decided_as_the_program_runs() -> None:
    text = dedent("""
        def spike(state):
            return state.loss > 4
        def norm(state):
            dist.all_reduce(state.norm)
        CHECKS = [spike, norm]
        def bad(state):
            return any(check(state) for check in CHECKS)
        for step in range(9):
            dist.broadcast(loss)
            bad(state)
        """)
    theirs = Position((Line(FILE, 11), Line(FILE, 8), Line(FILE, 8), Line(FILE, 5)))
    found = between(text, 10, Position((Line(FILE, 10),)), theirs)
    assert found is not None
    assert told(found.decisive) == [("call", 8, False)]


def test_compiled_code_is_at_the_line_of_its_def() -> None:
    text = dedent("""
        def step(batch):
            loss = batch.sum()
            return all_reduce(loss)

        compiled = torch.compile(step)
        for batch in loader:
            if batch.good:
                compiled(batch)
            dist.broadcast(batch)
        """)
    mine, theirs = Position((Line(FILE, 10),)), Position((Line(FILE, 9), Line(FILE, 2)))
    found = ways(
        Program({FILE: ast.parse(text)}), Line(FILE, 10), (mine, theirs), (), lambda _: False
    )
    assert found is not None
    assert told(found.decisive) == [("condition", 8, False)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("reduce()  # start theirs mine\n", id="one line"),
        pytest.param("barrier()  # start\nreturned = 1\nreduce()  # mine\n", id="no other way"),
        pytest.param("def f():\n    reduce()  # theirs\n\ngather()  # mine start\n", id="no way"),
    ],
)
def test_where_the_text_does_not_tell_there_is_no_answer(text: str) -> None:
    assert parted(text) is None


def test_a_program_without_its_text_has_none() -> None:
    places = Position((Line(FILE, 1),)), Position((Line(FILE, 2),))
    assert ways(Program({}), None, places, (), lambda _: False) is None


def test_a_program_that_is_too_large_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "for x in y:\n    reduce()  # start theirs\nbarrier()  # mine\n"
    assert parted(text) is not None
    monkeypatch.setattr(flow, "MOST_NODES", 2)
    assert parted(text) is None


def test_functions_that_call_each_other_come_to_an_end() -> None:
    text = dedent("""
        def a(n):
            if n:
                b(n)
            reduce()  # theirs

        def b(n):
            a(n)
            gather()  # mine

        a(3)
        """)
    found = parted(text)
    assert found is not None
    assert told(found.decisive) == [("condition", 3, True)]


RETURNED = (
    """
    def group_of(key):
        if key not in made:
            made[key] = new_group(key)  # theirs
        return made[key]
    for expert in experts:
        if rank not in users(expert):  # here
            continue
        all_reduce(expert, group_of(expert))  # start
    barrier()  # mine
    """,
    """
    def group_of(key):
        if key not in made:
            made[key] = new_group(key)  # theirs
        return made[key]
    class Average:
        def __call__(self):
            for expert in experts:
                if rank not in users(expert):  # here
                    continue
                dist.all_reduce(expert, group_of(expert))  # start
    average = Average()
    average()
    dist.barrier()  # mine
    """,
)


@pytest.mark.parametrize("text", RETURNED)
def test_from_a_call_on_the_functions_in_its_arguments_have_returned(text: str) -> None:
    text = dedent(text)
    found = parted(text, marked(text, "start"), marked(text, "mine"))
    assert found is not None
    assert marked(text, "here") in {line_of(one) for one in (*found.decisive, *found.around)}
    assert 3 not in {line_of(choice) for choice in found.decisive}
