"""What the user's source says of its lines and conditions, and what cannot be known."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.source.names import for_one_rank
from hangwatch.diagnosis.source.program import Fork, Line, Position, fork
from hangwatch.diagnosis.source.syntax import (
    MAX_SOURCE_CHARS,
    has_time_limit,
    other_branch,
)

FILE = "/home/u/train.py"


def source(text: str) -> Source:
    return Source({FILE: dedent(text).removeprefix("\n")})


def tree_of(found: Source) -> ast.Module:
    tree = found.tree(FILE)
    assert tree is not None
    return tree


def parted(found: Source, here: tuple[int, ...], there: tuple[int, ...]) -> Fork | None:
    """Where two stacks part, by their lines from the outermost one in."""
    stacks = (Position(tuple(Line(FILE, line) for line in lines)) for lines in (here, there))
    return fork(found.program, *stacks)


def condition_of(found: Source) -> ast.expr:
    """The first condition of a source."""
    return next(node.test for node in ast.walk(tree_of(found)) if isinstance(node, ast.If))


# --- Where two stacks part ----------------------------------------------------------------------

LOOPS = source(
    """
    def main():
        for epoch in range(3):
            for batch in loader:
                loss.backward()
            else:
                validate()
            scheduler.step()
        while more():
            tune()
        dist.barrier()
    """
)


@pytest.mark.parametrize(
    ("here", "there", "lines", "in_one_loop"),
    [
        (6, 4, [3], True),  # the else of a loop runs after it
        (7, 4, [3], True),
        (9, 4, [3, 2], False),
        (10, 4, [3, 2], False),
        (10, 9, [8], False),
        (4, 3, [], True),
        (4, 7, [], True),
        (4, 10, [], False),
        (9, 10, [], False),
    ],
)
def test_the_loops_that_are_left_are_those_of_the_one_line_before_the_other(
    here: int, there: int, lines: list[int], *, in_one_loop: bool
) -> None:
    found = parted(LOOPS, (here,), (there,))
    assert found is not None
    assert [loop.lineno for loop in found.left] == lines
    assert found.in_one_loop is in_one_loop


CALLS = source(
    """
    def step(batch):
        if batch.ok:
            dist.all_reduce(x)

    def main():
        for batch in loader:
            step(batch)
        dist.barrier()

    main()
    """
)


def test_stacks_part_where_their_lines_first_differ() -> None:
    found = parted(CALLS, (10, 8), (10, 7, 3))
    assert found is not None
    assert (found.here, found.there) == (8, 7)
    assert [loop.lineno for loop in found.left] == [6]
    assert not found.back.left


def test_without_callers_the_only_call_of_a_function_stands_for_it() -> None:
    found, back = parted(CALLS, (8,), (3,)), parted(CALLS, (3,), (10, 8))
    assert found is not None
    assert (found.here, found.there) == (8, 7)
    assert back is not None
    assert (back.here, back.there) == (7, 8)


def test_functions_that_do_not_call_each_other_do_not_part() -> None:
    assert parted(source("def a():\n    x()\ndef b():\n    y()\n"), (2,), (4,)) is None


def test_equal_lines_do_not_part() -> None:
    assert parted(CALLS, (8,), (8,)) is None
    assert parted(CALLS, (8,), ()) is None


def test_lines_beyond_the_file_are_no_error() -> None:
    found = parted(LOOPS, (400,), (4,))
    assert found is None or found.in_one_loop is False


@pytest.mark.parametrize("text", ["def (", "x = '\0'", "(" * 2000, "#" * (MAX_SOURCE_CHARS + 1)])
def test_a_source_that_does_not_parse_says_nothing(text: str) -> None:
    broken = Source({FILE: text})
    assert broken.tree(FILE) is None
    assert parted(broken, (1,), (2,)) is None


def test_a_source_that_python_warns_of_is_read_in_silence() -> None:
    odd = source("pattern = '\\d'\nif rank is 0:\n    dist.barrier()\n")
    assert odd.asks_for_rank(FILE, condition_of(odd))


def test_a_source_that_is_not_at_hand_says_nothing() -> None:
    assert Source({}).tree(FILE) is None
    assert parted(Source({}), (1,), (2,)) is None


# --- Conditions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("    return\nelse:\n    gather()\nreduce()", [4]),
        ("    return\nreduce()\ngather()", [3, 4]),
        ("    save()\nreduce()", []),
    ],
)
def test_the_other_branch_of_one_that_leaves_is_what_comes_after_it(
    body: str, lines: list[int]
) -> None:
    text = "if flag:\n" + body
    found = source("def main():\n" + "\n".join(f"    {line}" for line in text.splitlines()))
    (scope,) = tree_of(found).body
    assert isinstance(scope, ast.FunctionDef)
    node = next(node for node in ast.walk(scope) if isinstance(node, ast.If))
    assert [one.lineno - 1 for one in other_branch(scope, node)] == lines


@pytest.mark.parametrize(
    ("loop", "ends"),
    [
        ("for i in range(2 * 50)", "no"),
        ("for i in range(n)", "yes"),
        ("for i in itertools.count()", "no"),
        ("for batch in loader", "yes"),
        ("for p in model.parameters()", "no"),
        ("while not False", "no"),
        ("while left()", "yes"),
    ],
)
def test_the_text_may_show_that_a_loop_has_as_many_turns_on_all_ranks(loop: str, ends: str) -> None:
    known = source(f"{loop}:\n    f()\n")
    (node,) = tree_of(known).body
    assert known.has_same_turns(FILE, node) is (ends == "no")


@pytest.mark.parametrize(
    "test",
    [
        "rank == 0",
        "self.is_main_process",
        "int(os.environ['RANK']) < 2",
        "args.local_rank",
        "args.process_index == 0",
        "state.is_world_process_zero",
        "trainer.is_global_zero",
        "not self.isMainProcess",
        "dp_rank == 0",
        "rank0",
        "os.environ.get('LOCAL_RANK') == '0'",
        "is_master",
        "stage.is_last",
        "parallel_state.is_pipeline_last_stage()",
        "utils.is_rank_zero()",
    ],
)
def test_conditions_on_the_rank_are_recognised(test: str) -> None:
    found = source(f"if {test}:\n    dist.barrier()\n")
    assert found.asks_for_rank(FILE, condition_of(found))


@pytest.mark.parametrize(
    "test",
    [
        "use_low_rank",
        "config.lora_rank > 8",
        "config.lora.rank > 8",
        "os.environ['LORA_RANK'] != '0'",
        "rank_loss > 0",
        "ranking",
        "batch.is_last_batch",
        "is_first_epoch",
        "max_rank",
        "process(batch)",
        "step % 10 == 0",
    ],
)
def test_conditions_on_something_that_is_only_called_alike_are_none_on_the_rank(test: str) -> None:
    found = source(f"if {test}:\n    dist.barrier()\n")
    assert not found.asks_for_rank(FILE, condition_of(found))


@pytest.mark.parametrize("given", ["r = dist.get_rank()", "r, n = dist.get_rank(), 4"])
def test_a_variable_that_was_given_the_rank_is_recognised(given: str) -> None:
    found = source(f"{given}\nif r == 0:\n    dist.barrier()\n")
    assert found.asks_for_rank(FILE, condition_of(found))
    found = source(f"{given}\nif n:\n    dist.barrier()\n")
    assert not found.asks_for_rank(FILE, condition_of(found))


@pytest.mark.parametrize(
    ("given", "on_rank"),
    [
        ("rank = config.lora_r", False),
        ("rank = 8", False),
        ("rank = 0\nrank = dist.get_rank()", True),
        ("rank = setup()", True),
        ("rank, size = setup()", True),
    ],
)
def test_a_name_for_the_rank_that_is_given_something_else_is_none(
    given: str, *, on_rank: bool
) -> None:
    found = source(f"{given}\nif rank == 0:\n    dist.barrier()\n")
    assert found.asks_for_rank(FILE, condition_of(found)) is on_rank


@pytest.mark.parametrize(
    "decorator",
    [
        "rank_zero_only",
        "pl.utilities.rank_zero_only",
        "accelerator.on_main_process",
        "master_only",
        "accelerator.on_process(process_index=0)",
        "PartialState().on_local_main_process",
    ],
)
def test_a_function_that_a_decorator_lets_one_rank_run_is_under_a_condition_on_it(
    decorator: str,
) -> None:
    (scope,) = tree_of(source(f"@{decorator}\ndef report():\n    dist.barrier()\n")).body
    assert isinstance(scope, ast.FunctionDef)
    found = for_one_rank(scope)
    assert found is not None
    assert ast.unparse(found) == decorator


@pytest.mark.parametrize("decorator", ["record", "torch.no_grad()", "ranked", "time_per_rank"])
def test_other_decorators_say_nothing_of_the_rank(decorator: str) -> None:
    (scope,) = tree_of(source(f"@{decorator}\ndef report():\n    dist.barrier()\n")).body
    assert isinstance(scope, ast.FunctionDef)
    assert for_one_rank(scope) is None


@pytest.mark.parametrize(
    ("over", "on_rank"),
    [
        ("batches[:-1] if rank == 1 else batches", True),
        ("range(steps_of(rank))", True),
        ("batches", False),
        ("range(low_rank)", False),
    ],
)
def test_a_loop_over_what_depends_on_the_rank_is_known(over: str, *, on_rank: bool) -> None:
    found = source(f"for batch in {over}:\n    step(batch)\n")
    (loop,) = tree_of(found).body
    assert isinstance(loop, ast.For)
    assert found.asks_for_rank(FILE, loop.iter) is on_rank


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("rank == 2", (False, False, True)),
        ("2 == rank", (False, False, True)),
        ("rank != 0", (False, True, True)),
        ("not rank", (True, False, False)),
        ("dist.get_rank() > 1", (False, False, True)),
        ("self.rank % 2 == 0", (True, False, True)),
        ("rank in (0, 1)", (True, True, False)),
        ("rank == 0 or rank == 2", (True, False, True)),
        ("rank == 0 and step == 3", (None, False, False)),
        ("step == 3 or rank == 1", (None, True, None)),
        ("local_rank == 0", (None, None, None)),
        ("dist.get_rank(group) == 0", (None, None, None)),
        ("rank == first", (None, None, None)),
        ("rank == 'zero'", (False, False, False)),
        ("rank < 'zero'", (None, None, None)),
        ("is_main_process", (None, None, None)),
    ],
)
def test_for_which_ranks_a_condition_holds(condition: str, holds: tuple[bool | None, ...]) -> None:
    found = source(f"if {condition}:\n    pass\n")
    test = condition_of(found)
    assert tuple(found.holds_for(FILE, test, rank) for rank in range(3)) == holds


@pytest.mark.parametrize(
    ("condition", "is_settled"),
    [
        ("rank == 0", "yes"),
        ("dist.get_rank() < last", "yes"),
        ("LIMIT > 3", "yes"),
        ("rank == 0 and step == 3", "no"),
        ("rank == chosen", "no"),
        ("loss.isnan()", "no"),
    ],
)
def test_a_condition_is_settled_where_it_is_the_same_each_time(
    condition: str, is_settled: str
) -> None:
    found = source(
        f"""
        LIMIT = 4
        def main(rank, chosen):
            last = dist.get_world_size() - 1
            for step in range(LIMIT):
                if {condition}:
                    pass
        """
    )
    assert found.is_settled(FILE, condition_of(found)) is (is_settled == "yes")


@pytest.mark.parametrize(
    ("condition", "is_settled"),
    [
        ("self.rank < self.world", "yes"),  # both are given values in one statement
        ("norm > self.limit", "no"),
        ("early > 1", "no"),  # by a function that one in the loop calls
        ("once > 1", "yes"),
    ],
)
def test_what_a_function_computes_varies_where_a_loop_calls_it(
    condition: str, is_settled: str
) -> None:
    found = source(
        f"""
        class Clip:
            def __init__(self, rank, world, limit):
                self.rank, self.world, self.limit = rank, world, limit
            def __call__(self, gradient):
                norm = gradient.norm()
                return stop(norm)
        def stop(norm):
            early = norm.item()
        def prepare():
            once = load()
        def main():
            prepare()
            for step in range(9):
                clip(step)
        if {condition}:
            pass
        """
    )
    assert found.is_settled(FILE, condition_of(found)) is (is_settled == "yes")


def test_what_the_names_of_a_file_are_given() -> None:
    given = source(
        """
        STEPS = 30
        rank = int(os.environ["RANK"])
        first = rank == 0
        batch = load(rank)
        shard = shards[0] if rank else shards
        count = 0
        for step in range(STEPS):
            count += 1
        """
    ).given(FILE)
    assert {"rank", "first", "batch", "shard"} <= given.ranks
    assert {"rank", "first"} <= given.computed
    assert not {"batch", "shard"} & given.computed
    assert given.constants == {"STEPS"}
    assert {"step", "count"} <= given.varying
    assert not {"STEPS", "first"} & given.varying


# --- What is the same on all ranks ----------------------------------------------------------

SETTINGS = """
count = 5
class Config:
    depth: int = 3
    steps: int = 12
    rows: int = 40
class Trainer:
    def __init__(self, cfg, turns, names, loader):
        self.cfg, self.turns, self.names = cfg, turns, names
        self.total = len(loader)
        self.kept = []
        self.kept.append(1)
    def run(self, args, step):
        limit = min(self.cfg.steps, 8) * 2
        self.cfg.depth += len(self.loader)
        for count in sizes:
            prepare(count)
        many = 4
        many += len(sizes)
        sampled = DataLoader(rows, sampler=DistributedSampler(rows))
        counted, used = self.batches(5), self.batches(5)
        show(used)
        for turn in {over}:
            if {condition}:
                reduce()
    def batches(self, count):
        for at in range(count):
            yield self.rows[at]
    def odd(self, count):
        for at in range(count):
            if self.rows[at]:
                yield at
Trainer(Config(rows=len(data)), 5, ["a", "b"], loader).run(parse_args(), rank)
"""


@pytest.mark.parametrize(
    ("over", "alike"),
    [
        ("range(self.cfg.steps)", True),
        ("range(args.epochs * 2)", True),
        ("range(limit)", True),
        ("range(self.turns)", True),
        ("range(len(self.names))", True),
        ("range(CONFIG['steps'])", True),
        ("range(self.cfg.rows)", False),  # set by what a rank has of data
        ("range(self.total)", False),
        ("range(len(self.kept))", False),
        ("range(step)", False),
        ("range(count)", False),  # the loop's, not the module's
        ("range(many)", False),
        ("range(self.cfg.depth)", False),
        ("range(self.unknown)", False),
        ("self.names", True),
        ("enumerate(self.batches(self.cfg.steps))", True),
        ("counted", True),
        ("sampled", False),  # its dataset may be the rank's own
        ("loader", False),
        ("used", False),  # what shows it takes from it
        ("self.batches(len(loader))", False),
        ("self.odd(5)", False),
    ],
)
def test_a_loop_has_as_many_turns_where_all_that_it_counts_is_alike(
    over: str,
    alike: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    found = source(SETTINGS.format(over=over, condition="True"))
    loops = [node for node in ast.walk(tree_of(found)) if isinstance(node, ast.For)]
    loop = next(node for node in loops if ast.unparse(node.target) == "turn")
    assert found.has_same_turns(FILE, loop) is alike


@pytest.mark.parametrize(
    ("condition", "of_turns"),
    [
        ("turn % self.cfg.steps == 0", True),
        ("turn > limit and not args.quick", True),
        ("turn % self.total == 0", False),
        ("turn == step", False),
        ("self.cfg.steps > 3", False),  # nothing tells that settings are alike but the turn
    ],
)
def test_a_condition_on_the_turn_and_on_settings_is_not_decided_otherwise(
    condition: str,
    of_turns: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    found = source(SETTINGS.format(over="range(9)", condition=condition))
    assert found.is_of_turns(FILE, condition_of(found)) is of_turns


def test_an_attribute_that_a_constructor_is_given_of_the_rank_is_on_the_rank() -> None:
    text = """
        class Bar:
            def __init__(self, data, enabled, loud):
                self.data, self.enabled = data, enabled
                self.loud = loud
            def update(self):
                if self.{name}:
                    reduce()
        Bar(data, rank == 0, loud=load(rank))
        """
    for name, on_rank in (("enabled", True), ("loud", False), ("data", False)):
        found = source(text.format(name=name))
        assert found.asks_for_rank(FILE, condition_of(found), strictly=True) is on_rank


def test_so_is_one_that_is_computed_of_it_in_another_file() -> None:
    layout = """
        @dataclass
        class Layout:
            stages: int
            def __post_init__(self):
                self.rank = dist.get_rank()
                self.stage, self.replica = divmod(self.rank, 2)
                self.last = self.stage == self.stages - 1
                self.width = load(self.rank)
        """
    for name, on_rank in (("last", True), ("stage", True), ("width", False), ("stages", False)):
        text = f"if self.layout.{name}:\n    reduce()\n"
        found = Source({"layout.py": dedent(layout), FILE: text})
        assert found.asks_for_rank(FILE, condition_of(found), strictly=True) is on_rank


@pytest.mark.parametrize(
    ("call", "limited"),
    [
        ("work.wait()", False),
        ("work.wait(limit)", True),
        ("dist.barrier(group)", False),
        ("dist.monitored_barrier(timeout=limit)", True),
        ("self.store.wait(['ready'])", False),
        ("self.store.wait(['ready'], limit)", True),
    ],
)
def test_a_call_with_a_time_limit_is_known(
    call: str,
    limited: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    assert has_time_limit(ast.parse(f"begin()\n{call}\n"), 2) is limited
