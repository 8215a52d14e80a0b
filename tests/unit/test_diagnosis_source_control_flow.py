"""What the user's source says of two lines, and what cannot be known."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from hangwatch.diagnosis.source.control_flow import LeftLoop, Source
from hangwatch.diagnosis.source.syntax import MAX_SOURCE_CHARS
from hangwatch.types.snapshot import Frame

FILE = "/home/u/train.py"


def source(text: str) -> Source:
    return Source({FILE: dedent(text).removeprefix("\n")})


def at(line: int, function: str = "main") -> Frame:
    return Frame(FILE, line, function)


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
    ("here", "there", "line", "returns"),
    [
        (6, 4, 3, True),  # the else of a loop runs after it
        (7, 4, 3, True),
        (9, 4, 3, False),
        (10, 4, 3, False),
        (10, 9, 8, False),
    ],
)
def test_a_line_after_a_loop_has_left_it(here: int, there: int, line: int, returns: bool) -> None:  # noqa: FBT001
    fork = LOOPS.fork([at(here)], [at(there)])
    assert fork is not None
    left = LOOPS.left_loop(fork)
    assert left is not None
    assert (left.line, left.returns) == (line, returns)


@pytest.mark.parametrize(("here", "there"), [(4, 3), (4, 7), (4, 10), (9, 10)])
def test_a_line_in_or_before_a_loop_has_not_left_it(here: int, there: int) -> None:
    fork = LOOPS.fork([at(here)], [at(there)])
    assert fork is not None
    assert LOOPS.left_loop(fork) is None


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
    outer = Frame(FILE, 10, "<module>")
    fork = CALLS.fork([outer, at(8)], [outer, at(7), at(3, "step")])
    assert fork is not None
    assert (fork.here, fork.there) == (8, 7)
    left = CALLS.left_loop(fork)
    assert left is not None
    assert left.text == "for batch in loader:"


def test_without_stacks_the_only_call_of_a_function_stands_for_it() -> None:
    fork = CALLS.fork_of_lines(at(8), at(3, "step"))
    assert fork is not None
    assert (fork.here, fork.there) == (8, 7)
    back = CALLS.fork_of_lines(at(3, "step"), at(8))
    assert back is not None
    assert (back.here, back.there) == (7, 8)


def test_functions_that_do_not_call_each_other_have_no_fork() -> None:
    apart = source("def a():\n    x()\ndef b():\n    y()\n")
    assert apart.fork_of_lines(at(2), at(4)) is None
    assert apart.fork([at(2)], [at(4)]) is None


def test_equal_lines_are_no_fork() -> None:
    assert CALLS.fork([at(8)], [at(8)]) is None
    assert CALLS.fork_of_lines(at(8), at(8)) is None


BRANCHES = source(
    """
    def main():
        if args.verbose:
            if dist.get_rank() == 0:
                dist.barrier()
            else:
                log()
        try:
            train()
        except ValueError:
            dist.broadcast(x, 0)
        if gradient > 3:
            dist.reduce(x, 0)
        else:
            dist.all_reduce(x)
        if rank in (0, 3): dist.gather(x)
        loss.backward()
    """
)


@pytest.mark.parametrize(
    ("here", "there", "text", "on_rank", "other"),
    [
        (4, 16, "if dist.get_rank() == 0:", True, False),
        (6, 16, "if dist.get_rank() == 0:", True, True),
        (10, 16, "except ValueError:", False, False),
        (12, 14, "if gradient > 3:", False, True),
        (14, 12, "if gradient > 3:", False, True),
        (12, 16, "if gradient > 3:", False, True),
        (15, 16, "if rank in (0, 3): dist.gather(x)", True, False),
    ],
)
def test_the_condition_of_a_line_is_found(
    here: int,
    there: int,
    text: str,
    on_rank: bool,  # noqa: FBT001
    other: bool,  # noqa: FBT001
) -> None:
    fork = BRANCHES.fork([at(here)], [at(there)])
    assert fork is not None
    guard = BRANCHES.guard(fork)
    assert guard is not None
    assert (guard.text, guard.on_rank, guard.other_branch_communicates) == (text, on_rank, other)


def test_a_condition_that_both_lines_stand_under_says_nothing() -> None:
    fork = BRANCHES.fork([at(16)], [at(4)])
    assert fork is not None
    assert BRANCHES.guard(fork) is None


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
    text = source(f"if {test}:\n    dist.barrier()\n")
    guard = text.rank_guard(at(2))
    assert guard is not None
    assert guard.on_rank


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
    ],
)
def test_conditions_on_something_that_is_only_called_alike_are_none_on_the_rank(test: str) -> None:
    text = source(f"if {test}:\n    dist.barrier()\n")
    assert text.rank_guard(at(2)) is None


@pytest.mark.parametrize("given", ["r = dist.get_rank()", "r, n = dist.get_rank(), 4"])
def test_a_variable_that_was_given_the_rank_is_recognised(given: str) -> None:
    text = source(f"{given}\nif r == 0:\n    dist.barrier()\nif n:\n    dist.barrier()\n")
    assert text.rank_guard(at(3)) is not None
    assert text.rank_guard(at(5)) is None


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
    text = source(f"{given}\nif rank == 0:\n    dist.barrier()\n")
    assert (text.rank_guard(at(given.count("\n") + 3)) is not None) is on_rank


CALLED = source(
    """
    def evaluate(model):
        for batch in data:
            if accelerator.is_main_process:
                accelerator.gather(model(batch))
    def exchange(tensor):
        if process_index == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
    evaluate(model)
    exchange(tensor)
    dist.barrier()
    """
)


def test_a_condition_in_a_function_that_only_one_of_two_is_in_is_found() -> None:
    guard = CALLED.guard_beyond([at(10), at(4)], [at(12)])
    assert guard is not None
    assert (guard.line, guard.on_rank, guard.for_few) == (3, True, True)


def test_a_condition_in_a_callback_is_found_beyond_what_two_stacks_share() -> None:
    assert CALLED.guard_beyond([at(10), at(4)], [at(10)]) is not None


def test_one_who_stands_under_no_condition_has_none_beyond() -> None:
    assert CALLED.guard_beyond([at(12)], [at(10), at(4)]) is None


def test_a_condition_of_which_both_branches_communicate_says_nothing_beyond() -> None:
    assert CALLED.guard_beyond([at(11), at(7)], [at(12)]) is None
    assert CALLED.guard_beyond([at(11), at(7)], [at(11), at(9)]) is None


def test_a_condition_that_both_stacks_stand_under_says_nothing_beyond() -> None:
    nested = source("if rank < 2:\n    one()\n    dist.barrier()\n")
    assert nested.guard_beyond([at(2)], [at(3)]) is None


def test_a_condition_on_something_else_is_none_on_the_rank() -> None:
    assert source("if step % 10 == 0:\n    dist.barrier()\n").rank_guard(at(2)) is None


JUMPS = source(
    """
    for batch in loader:
        if rank == 2 and batch.empty:
            continue
        dist.all_reduce(x)
        dist.barrier()
    """
)


def test_a_condition_that_jumps_over_a_line_is_found() -> None:
    fork = JUMPS.fork([at(5)], [at(4)])
    assert fork is not None
    jump = JUMPS.jump(fork)
    assert jump is not None
    assert (jump.line, jump.text) == (2, "if rank == 2 and batch.empty:")


def test_of_several_conditions_that_jump_over_a_line_none_is_named() -> None:
    several = source(
        """
        for batch in loader:
            if rank == 2 and batch.empty:
                continue
            if rank == 1 and batch.broken:
                continue
            dist.all_reduce(x)
            dist.barrier()
        """
    )
    fork = several.fork([at(7)], [at(6)])
    assert fork is not None
    assert several.jump(fork) is None


@pytest.mark.parametrize(("here", "found"), [(4, False), (6, True)])
def test_who_has_left_a_loop_by_a_condition_is_not_in_it(here: int, *, found: bool) -> None:
    leaving = source(
        """
        for batch in loader:
            if rank == 2 and batch.empty:
                break
            dist.all_reduce(x)
            dist.barrier()
        dist.all_gather(x)
        """
    )
    fork = leaving.fork([at(here)], [at(5)])
    assert fork is not None
    assert (leaving.jump(fork) is not None) is found


def test_a_condition_that_jumps_says_nothing_of_what_comes_after_its_loop() -> None:
    nested = source(
        """
        for batch in loader:
            for part in batch:
                if rank == 2:
                    continue
                dist.all_reduce(x)
            dist.barrier()
        """
    )
    fork = nested.fork([at(5)], [at(6)])
    assert fork is not None
    assert nested.jump(fork) is None


@pytest.mark.parametrize("text", ["def (", "x = '\0'", "(" * 2000, "#" * (MAX_SOURCE_CHARS + 1)])
def test_a_source_that_does_not_parse_says_nothing(text: str) -> None:
    broken = Source({FILE: text})
    assert broken.fork([at(1)], [at(2)]) is None
    assert broken.fork_of_lines(at(1), at(2)) is None
    assert broken.rank_guard(at(1)) is None


def test_a_source_that_python_warns_of_is_read_in_silence() -> None:
    odd = source("pattern = '\\d'\nif rank is 0:\n    dist.barrier()\n")
    assert odd.rank_guard(at(3)) is not None


def test_a_source_that_is_not_at_hand_says_nothing() -> None:
    assert Source({}).fork([at(1)], [at(2)]) is None
    assert Source({}).rank_guard(at(1)) is None


def test_lines_beyond_the_file_are_no_error() -> None:
    fork = LOOPS.fork([at(400)], [at(4)])
    assert fork is None or LOOPS.guard(fork) is None


def test_a_condition_that_both_stand_under_says_nothing_though_one_is_in_another_as_well() -> None:
    text = source("if rank != 1:\n    backward()\n    if rank != 2:\n        step()\n")
    assert text.guard_beyond([at(2)], [at(4)]) is None
    beyond = text.guard_beyond([at(4)], [at(2)])
    assert beyond is not None
    assert beyond.line == 3


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
    guard = source(f"@{decorator}\ndef report():\n    dist.barrier()\n").rank_guard(at(3))
    assert guard is not None
    assert (guard.line, guard.text, guard.for_few) == (1, f"@{decorator}", True)


@pytest.mark.parametrize("decorator", ["record", "torch.no_grad()", "ranked", "time_per_rank"])
def test_other_decorators_say_nothing_of_the_rank(decorator: str) -> None:
    text = source(f"@{decorator}\ndef report():\n    dist.barrier()\n")
    assert text.rank_guard(at(3)) is None


WAYS = source(
    """
    def main():
        try:
            while True:
                step()
                if done(): break
            for batch in loader:
                step()
                if bad(batch): return
                for item in batch:
                    if item: break
            for batch in range(10):
                step()
            while left():
                if a(): break
                if b(): break
        except ValueError:
            report()
        finally:
            close()
        last()
    """
)


@pytest.mark.parametrize(
    ("here", "there", "runs_out", "jumps", "swallows", "amid"),
    [
        (6, 4, False, (5,), 0, ""),
        (11, 7, True, (8,), 0, ""),
        (13, 12, False, (), 0, ""),
        (20, 14, True, (14, 15), 16, ""),
        (17, 12, False, (), 0, "except"),
        (19, 7, True, (8,), 16, "finally"),
        (20, 7, True, (8,), 16, ""),
    ],
)
def test_how_a_loop_may_have_been_left(  # noqa: PLR0913 (what is known of it)
    *, here: int, there: int, runs_out: bool, jumps: tuple[int, ...], swallows: int, amid: str
) -> None:
    fork = WAYS.fork([at(here)], [at(there)])
    assert fork is not None
    left = WAYS.left_loop(fork)
    assert left is not None
    assert (left.runs_out, left.jumps, left.swallows, left.amid) == (
        runs_out,
        jumps,
        swallows,
        amid,
    )


def left_last(text: str) -> LeftLoop:
    """How the loop in a text may have been left by a rank that is in its last line.

    The others are in the line below the loop's first one.
    """
    code = dedent(text).strip("\n")
    lines = code.splitlines()
    inside = next(n for n, line in enumerate(lines, 1) if line.strip().startswith(("for", "while")))
    found = source(code)
    fork = found.fork([at(len(lines))], [at(inside + 1)])
    assert fork is not None
    left = found.left_loop(fork)
    assert left is not None
    return left


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("for b in l:\n  f()\n  for c in b:\n    g()\n  else:\n    break\nh()", (True, (6,), 0)),
        ("for b in l:\n  f()\n  while c:\n    break\nh()", (True, (), 0)),
        ("for i in range(2 * 50):\n  f()\nh()", (False, (), 0)),
        ("for i in range(n):\n  f()\nh()", (True, (), 0)),
        ("for i in itertools.count():\n  f()\nh()", (False, (), 0)),
        ("while not False:\n  f()\nh()", (False, (), 0)),
        ("with suppress(OSError):\n  for b in l:\n    f()\nh()", (True, (), 1)),
        ("with open(x) as y:\n  for b in l:\n    f()\nh()", (True, (), 0)),
        ("try:\n  for b in l:\n    f()\nexcept* OSError:\n  g()\nh()", (True, (), 4)),
        ("try:\n  for b in l:\n    f()\nexcept OSError:\n  raise\nh()", (True, (), 0)),
    ],
)
def test_what_may_have_led_out_of_a_loop(
    text: str, ways: tuple[bool, tuple[int, ...], int]
) -> None:
    left = left_last(text)
    assert (left.runs_out, left.jumps, left.swallows) == ways


@pytest.mark.parametrize(
    ("text", "amid"),
    [
        ("try:\n  for b in l:\n    f()\nexcept* OSError:\n  h()", "except"),
        ("try:\n  for b in l:\n    f()\nfinally:\n  h()", "finally"),
        (
            "try:\n  for b in l:\n    f()\nfinally:\n  try:\n    g()\n  except OSError:\n    h()",
            "",
        ),
        (
            "try:\n  for b in l:\n    f()\nexcept A:\n  try:\n    g()\n  except B:\n    h()",
            "",
        ),
    ],
)
def test_a_handler_amid_a_cleanup_handles_something_else(text: str, amid: str) -> None:
    assert left_last(text).amid == amid


@pytest.mark.parametrize(
    ("over", "on_rank"),
    [
        ("batches[:-1] if rank == 1 else batches", True),
        ("range(steps_of(rank))", True),
        ("batches", False),
        ("range(low_rank)", False),
    ],
)
def test_a_loop_over_what_depends_on_the_rank_is_known(over: str, on_rank: bool) -> None:  # noqa: FBT001
    text = f"def main():\n    for batch in {over}:\n        step(batch)\n    dist.barrier()\n"
    found = source(text)
    fork = found.fork_of_lines(at(4), at(3))
    assert fork is not None
    left = found.left_loop(fork)
    assert left is not None
    assert left.on_rank is on_rank


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
    tree = found.tree(FILE)
    assert tree is not None
    (statement,) = tree.body
    assert isinstance(statement, ast.If)
    assert tuple(found.holds_for(FILE, statement.test, rank) for rank in range(3)) == holds


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
    tree = found.tree(FILE)
    assert tree is not None
    (test,) = (node.test for node in ast.walk(tree) if isinstance(node, ast.If))
    assert found.is_settled(FILE, test) is (is_settled == "yes")


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
