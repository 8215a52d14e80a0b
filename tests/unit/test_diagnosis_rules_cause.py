"""Why it came to a finding, and how sure that is."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from snapshots import (
    BACKWARD,
    PAIR,
    SCRIPT,
    THRESHOLDS,
    TORCH,
    W,
    blocked,
    exited,
    frame,
    job,
    killed,
    main_thread,
    only,
    op,
    raised,
    rank,
    source,
    world,
)

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.facts.history import HANDLES, THREAD_DIED
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Certainty, Kind, OpState, What
from hangwatch.model.snapshot import Frame, Mark, OpRecord, ProcessState, RankSnapshot

if TYPE_CHECKING:
    from hangwatch.model.verdict import RootCause, Verdict

TRIO = world(3)
NAMES = {"reduce": "all_reduce", "gather": "all_gather", "barrier": "barrier", "cast": "broadcast"}


def rank_at(number: int, text: str, *calls: str, ends: bool = False) -> RankSnapshot:
    """A rank that made these calls of the text, each by its name, and waits in the last one."""
    lines = [
        next(at for at, line in enumerate(text.splitlines(), 1) if f"{call}(" in line)
        for call in calls
    ]
    made = [
        op(TRIO, seq, NAMES[call], line=line)
        for seq, (call, line) in enumerate(zip(calls, lines, strict=True), 1)
    ]
    if ends:
        return rank(number, TRIO, *made, **exited())
    last = replace(made[-1], state=blocked(TRIO, 1).state, blocked_age_s=20.0)
    stack = main_thread(frame(lines[-1]), frame(99, "<module>"))
    return rank(number, TRIO, *made[:-1], last, threads=stack)


def verdict(text: str, usual: str, odd: str, *, ends: bool = False) -> Verdict:
    """What is said of three ranks, of which the last did otherwise."""
    text = dedent(text).removeprefix("\n")
    ranks = [rank_at(number, text, *usual.split()) for number in (0, 1)]
    ranks.append(rank_at(2, text, *odd.split(), ends=ends))
    return only(job(*ranks, sources={SCRIPT: text}))


def cause(*arguments: Any, **options: Any) -> RootCause:
    found = verdict(*arguments, **options).cause
    assert found is not None
    return found


CONDITION = """
def main():
    for step in range(10):
        reduce()
        if {condition}:
            gather()
"""


def test_a_condition_on_the_rank_is_the_cause_and_its_line_is_the_first_advice() -> None:
    told = verdict(
        CONDITION.format(condition="rank == 2 and step == 1"), "reduce reduce", "reduce gather"
    )
    found = told.cause
    assert found is not None
    assert (found.what, found.certainty) == (What.RANK_CONDITION, Certainty.LIKELY)
    assert found.site is not None
    assert (found.site.line, found.site.source) == (4, "if rank == 2 and step == 1:")
    assert found.why == ("`if rank == 2 and step == 1` at train.py:4 depends on the rank.")
    assert found.evidence == (
        "Rank 2: from `reduce()` at train.py:3 to `gather()` at train.py:5.",
        "Rank 0: from `reduce()` at train.py:3 to `reduce()` at train.py:3.",
    )
    assert told.advice[0].startswith(
        "Have all ranks of the group take the same branch of `if rank == 2 and step == 1` at "
        "train.py:4"
    )


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("step % 2 and rank > 1", What.RANK_CONDITION),
        ("rank != 0 and not rank == 1", What.RANK_CONDITION),
        ("loss.isnan()", What.DATA_CONDITION),
        ("load(rank).bad", What.RANK_CONDITION),
        ("config.rank_of_adapter", What.DATA_CONDITION),
    ],
)
def test_a_condition_is_on_the_rank_where_it_asks_for_it(condition: str, what: What) -> None:
    found = cause(CONDITION.format(condition=condition), "reduce reduce", "reduce gather")
    assert found.what is what


@pytest.mark.parametrize("condition", ["rank == 1", "rank < 2", "rank in (0, 1)", "not rank"])
def test_a_condition_that_the_culprit_does_not_meet_is_not_the_cause(condition: str) -> None:
    found = cause(CONDITION.format(condition=condition), "reduce reduce", "reduce gather")
    assert (found.what, found.certainty) == (What.UNKNOWN, Certainty.POSSIBLE)


def test_what_a_function_made_of_the_rank_is_data() -> None:
    text = """
    def main():
        batch = load(rank)
        for step in range(10):
            reduce()
            if batch.bad:
                gather()
    """
    assert cause(text, "reduce reduce", "reduce gather").what is What.DATA_CONDITION


LOOP = """
def main():
    for batch in {over}:
        reduce()
    barrier()
"""


def test_a_loop_over_data_may_end_earlier() -> None:
    found = cause(LOOP.format(over="loader"), "reduce reduce reduce", "reduce reduce barrier")
    assert (found.what, found.certainty) == (What.UNEVEN_LOOP, Certainty.LIKELY)
    assert found.site is not None
    assert found.site.line == 2


@pytest.mark.parametrize("over", ["range(40)", "model.parameters()"])
def test_one_that_is_as_long_on_all_ranks_may_not(over: str) -> None:
    found = cause(LOOP.format(over=over), "reduce reduce reduce", "reduce reduce barrier")
    assert found.what is What.UNKNOWN


def test_of_several_that_may_be_each_is_possible_and_told() -> None:
    text = """
    def main():
        for batch in loader:
            if batch.empty:
                continue
            if batch.last:
                break
            reduce()
        barrier()
    """
    found = cause(text, "reduce reduce reduce", "reduce reduce barrier")
    told = [found, *found.others]
    assert {one.what for one in told} == {
        What.UNEVEN_LOOP,
        What.EARLY_EXIT,
        What.SKIPPED_ITERATION,
    }
    assert {one.certainty for one in told} == {Certainty.POSSIBLE}


def test_the_end_of_a_program_is_a_place_as_well() -> None:
    found = cause(
        """
        def main():
            for batch in range(10):
                reduce()
                if batch.last:
                    return

        main()
        """,
        "reduce reduce reduce",
        "reduce reduce",
        ends=True,
    )
    assert found.what is What.EARLY_EXIT
    assert found.evidence[0].endswith("to the end of the program.")


def test_an_exception_that_is_caught_is_told_with_its_handler() -> None:
    found = cause(
        """
        def main():
            for batch in range(10):
                try:
                    loss = model(batch)
                    reduce()
                except ValueError:
                    print("skipped")
                gather()
        """,
        "reduce gather reduce",
        "reduce gather gather",
    )
    assert found.what is What.SWALLOWED_EXCEPTION
    assert found.site is not None
    assert found.site.source == "except ValueError:"


def test_the_end_of_an_iterator_is_that_of_the_loop() -> None:
    found = cause(
        """
        def main():
            try:
                while True:
                    batch = next(batches)
                    reduce()
            except StopIteration:
                barrier()
        """,
        "reduce reduce reduce",
        "reduce reduce barrier",
    )
    assert found.what is What.UNEVEN_LOOP
    assert found.site is not None
    assert found.site.source == "while True:"


def test_it_is_never_surer_than_who_did_it() -> None:
    text = dedent(LOOP.format(over="loader")).removeprefix("\n")
    early = rank(1, PAIR, *(op(PAIR, n, line=3) for n in (1, 2)), **exited())
    late = rank(0, PAIR, *(op(PAIR, n, line=3) for n in (1, 2)), blocked(PAIR, 3, line=3))
    found = only(job(early, late, sources={SCRIPT: text}))
    assert found.certainty is Certainty.POSSIBLE
    assert found.cause is not None
    assert found.cause.certainty is Certainty.POSSIBLE


def test_where_nothing_was_left_out_the_line_is_what_is_stuck() -> None:
    stuck = rank(3, W, op(W, 1), threads=main_thread(frame(12, "load"), frame(40)))
    ranks = [rank(n, W, op(W, 1), blocked(W, 2)) for n in (0, 1, 2)]
    found = diagnose(job(*ranks, stuck), THRESHOLDS)[0]
    assert found.cause is not None
    assert (found.kind, found.cause.what) == (Kind.NEVER_ENTERED, What.STUCK_LINE)
    assert found.cause.site == found.site
    assert found.cause.evidence == ()


def test_only_an_exception_tells_the_line_of_a_process_that_is_gone() -> None:
    ranks = [rank(n, W, op(W, 1), blocked(W, 2)) for n in (0, 1, 2)]
    for how, line in ((raised("ValueError", "no", line=33), 33), (killed(9), None)):
        found = only(job(*ranks, rank(3, W, op(W, 1, line=20), **how))).cause
        assert found is not None
        assert found.what is What.PROCESS_GONE
        assert (found.site.line if found.site else None) == line


def test_other_arguments_may_be_those_of_another_call_where_a_line_has_several() -> None:
    def of(*sizes: int) -> list[OpRecord]:
        return [op(W, n, shape=(size,), line=7) for n, size in enumerate(sizes, 1)]

    def told(*usual: int) -> Certainty:
        last = blocked(W, len(usual) + 1, shape=(8,), line=7)
        ranks = [rank(n, W, *of(*usual), last) for n in (0, 1, 2)]
        odd = rank(3, W, *of(*usual), replace(last, shape=(9,)))
        found = only(job(*ranks, odd)).cause
        assert found is not None
        assert found.what is What.DIFFERENT_ARGUMENT
        return found.certainty

    assert told(8, 8) is Certainty.LIKELY
    assert told(8, 9) is Certainty.POSSIBLE


def test_that_all_came_and_nothing_moves_does_not_prove_the_network() -> None:
    found = only(job(*(rank(n, W, op(W, 1), blocked(W, 2)) for n in range(4))))
    assert found.kind is Kind.COLLECTIVE_STUCK
    assert found.cause is not None
    assert (found.cause.what, found.cause.certainty) == (What.NETWORK, Certainty.POSSIBLE)


def test_a_stopped_rank_is_stuck_where_it_stands() -> None:
    stopped: dict[str, Any] = {"process": ProcessState(alive=True, state="T")}
    ranks = [rank(n, W, op(W, 1), blocked(W, 2)) for n in (0, 1, 2)]
    found = diagnose(job(*ranks, rank(3, W, op(W, 1), **stopped)), THRESHOLDS)[0].cause
    assert found is not None
    assert found.what is What.STUCK_LINE


NEGATIVES = """
def refresh(pool):
    if pool.too_small():
        return None
    dist.all_reduce(score)

def main():
    for step in range(60):
        loss.backward()
        if step % 5 == 4:
            refresh(pool)
"""


def test_a_bucket_that_cpp_issued_has_the_line_of_the_only_backward() -> None:
    text = NEGATIVES.removeprefix("\n")

    def bucket(seq: int) -> OpRecord:
        return replace(op(TRIO, seq, shape=(577,), source="flight"), site=None)

    failed = {"ended": True, "exit_code": 1}
    ranks = [
        rank(number, TRIO, bucket(1), blocked(TRIO, 2, line=4, shape=()), **raised("E", "x", 4))
        for number in (0, 1)
    ]
    gone = rank(2, TRIO, bucket(1), replace(bucket(2), state=blocked(TRIO, 1).state), **killed(6))
    told = only(job(*ranks, gone, sources={SCRIPT: text}, **failed))
    assert told.culprits == (2,)
    assert told.cause is not None
    assert told.cause.what is What.EARLY_EXIT
    assert told.cause.site is not None
    assert told.cause.site.source == "return None"
    twice = only(job(*ranks, gone, sources={SCRIPT: text + "other.backward()\n"}, **failed))
    assert twice.cause is not None
    assert twice.cause.what is What.UNKNOWN


def test_a_loop_that_may_have_ended_is_told_beside_a_condition_that_leaves_it() -> None:
    text = """
        def main():
            for i, item in enumerate(items):
                if i >= limit:
                    break
                gather()
            reduce()
        """
    found = cause(text, "gather gather reduce", "gather gather gather")
    told = {one.what for one in (found, *found.others)}
    assert What.UNEVEN_LOOP in told
    assert len(told) > 1
    assert {one.certainty for one in (found, *found.others)} == {Certainty.POSSIBLE}


def test_in_a_callback_of_a_library_that_both_are_in_it_is_what_leads_to_the_call() -> None:
    text = """
    class Push(TrainerCallback):
        def on_step_end(self, args, state, control):
            if state.is_world_process_zero and state.global_step == 5:
                self.upload(state)
        def upload(self, state):
            dist.broadcast(flag, src=0)

    trainer = Trainer(net, callbacks=[Push()])
    trainer.train()
    """
    text = dedent(text).removeprefix("\n")
    library = Frame(
        f"{TORCH.removesuffix('/torch')}/transformers/trainer.py", 1576, "Trainer.train"
    )
    train = (library, frame(9, "<module>"))
    stack = main_thread(frame(6, "Push.upload"), frame(4, "Push.on_step_end"), *train)
    bucket = op(PAIR, 14, source="flight", state=OpState.ISSUED, issued_age_s=20.0)
    alone = rank(0, PAIR, blocked(PAIR, 14, "broadcast", line=6), threads=stack, flight=True)
    other = rank(1, PAIR, bucket, threads=main_thread(*BACKWARD, *train), flight=True)
    told = only(job(alone, other, sources={SCRIPT: text}))
    assert (told.culprits, told.certainty) == ((0,), Certainty.LIKELY)
    assert told.cause is not None
    assert told.cause.site is not None
    assert (told.cause.what, told.cause.site.line) == (What.RANK_CONDITION, 3)


@pytest.mark.parametrize(
    ("condition", "usual", "odd", "leaves"),
    [
        ("rank == 2", "reduce gather", "reduce barrier", True),
        ("rank != 2", "reduce barrier", "reduce gather", False),
    ],
)
def test_a_condition_by_which_a_rank_leaves_is_advised_on_as_such(
    condition: str, usual: str, odd: str, *, leaves: bool
) -> None:
    text = f"""
    def main():
        reduce()
        if {condition}:
            return
        gather()
    main()
    barrier()
    """
    told = verdict(text, usual, odd)
    assert told.culprits == (2,)
    said = f"`return` below `if {condition}` at train.py:3 makes rank 2 skip calls"
    assert told.advice[0].startswith(said) is leaves


def test_a_branch_is_not_left_yet_where_the_rank_is_still_in_it() -> None:
    text = """
        def save():
            barrier()
        def main():
            for step in range(10):
                reduce()
                if preempted():
                    save()
                    return
        """
    text = dedent(text).removeprefix("\n")
    ranks = [rank_at(number, text, "reduce", "reduce") for number in (0, 1)]
    odd = rank_at(2, text, "reduce", "barrier")
    stack = main_thread(frame(2, "save"), frame(7), frame(99, "<module>"))
    found = only(job(*ranks, replace(odd, threads=stack), sources={SCRIPT: text})).cause
    assert found is not None
    assert (found.what, found.site and found.site.line) == (What.DATA_CONDITION, 6)


def test_a_turn_that_is_cut_short_is_told_before_a_loop_with_fewer_turns() -> None:
    text = """
        def main():
            for batch in loader:
                if bad(batch):
                    continue
                reduce()
            gather()
        """
    told = verdict(text, "reduce reduce", "reduce gather")
    found = told.cause
    assert found is not None
    assert (found.what, found.certainty) == (What.SKIPPED_ITERATION, Certainty.POSSIBLE)
    assert [other.what for other in found.others] == [What.UNEVEN_LOOP]
    assert told.kind is Kind.FINISHED_EARLY


UNWINDING = """
def main():
    with stack:
        stack.callback(barrier)
        for step in range(10):
            reduce()
            check(step)
def check(step):
    raise ValueError("odd")
"""


@pytest.mark.parametrize("others_too", [False, True])
def test_an_exception_on_its_way_out_is_the_cause(*, others_too: bool) -> None:
    text = UNWINDING.removeprefix("\n").replace("stack.callback(barrier)", "barrier()")
    raised_at = Site(SCRIPT, 8, "check")
    mark = Mark(HANDLES, "ValueError: odd", 1, 19.0, raised_at)
    usual = [rank_at(number, text, "reduce", "reduce") for number in (0, 1)]
    if others_too:
        usual[0] = replace(usual[0], handling="ValueError")
    odd = replace(rank_at(2, text, "reduce", "barrier"), handling="ValueError", marks=(mark,))
    told = only(job(*usual, odd, sources={SCRIPT: text}))
    assert told.cause is not None
    is_told = told.cause.what is What.SWALLOWED_EXCEPTION
    assert is_told is not others_too
    if is_told:
        assert told.cause.site is not None
        assert told.cause.site.line == raised_at.line
        assert told.cause.why == (
            "Rank 2 is handling ValueError: odd, which was raised at train.py:8."
        )
        assert told.advice[0].startswith("Fix the ValueError that was raised at train.py:8")


def test_what_is_only_registered_on_some_ranks_is_told_at_that_condition() -> None:
    text = """
        class Average:
            def after(self, step):
                if step % 2 == 0:
                    gather()
        def hooks(rank):
            return [Average()] if rank == 2 else []
        def main(rank):
            every = hooks(rank)
            for step in range(10):
                reduce()
                for hook in every:
                    hook.after(step)
        """
    found = cause(text, "reduce reduce", "reduce gather")
    assert found.site is not None
    assert (found.what, found.certainty) == (What.RANK_CONDITION, Certainty.LIKELY)
    assert found.site.source == "return [Average()] if rank == 2 else []"


def test_callers_of_a_call_for_more_ranks_are_told_the_group_that_they_are() -> None:
    group = GroupKey((0, 2), "dp")
    text = source(
        """
        def main(rank):
            for step in range(10):
                reduce()
                if rank % 2 == 0:
                    gather()
        """
    )["sources"]
    few = [
        rank(n, W, op(W, 1, line=3), op(group, 1, line=3), blocked(W, 2, "all_gather", line=5))
        for n in (0, 2)
    ]
    most = [rank(n, W, op(W, 1, line=3), blocked(W, 2, line=3)) for n in (1, 3)]
    told = only(job(*few, *most, sources=text))
    assert told.kind is Kind.SUBSET_ENTERED
    assert told.advice[0].startswith("Pass group dp to the `all_gather` at train.py:5")


GENERATOR = """
def clean(rows):
    for row in rows:
        if odd(row):
            return
        yield row
def main():
    batches = clean(load())
    for batch in enumerate(batches):
        reduce()
    gather()
"""


def test_what_ends_a_generator_is_told_where_a_loop_over_it_ended_earlier() -> None:
    told = verdict(GENERATOR, "reduce reduce", "reduce gather")
    found = told.cause
    assert found is not None
    assert (found.what, found.site and found.site.line) == (What.EARLY_EXIT, 4)
    assert [other.what for other in found.others] == [What.UNEVEN_LOOP]
    assert told.advice[0].startswith("Find out what led rank 2 to `return` at train.py:4")


def test_what_takes_from_an_iterator_before_the_loop_is_told() -> None:
    text = GENERATOR.replace(
        "    for batch in enumerate(batches)", "    show(batches)\n    for batch in batches"
    )
    told = verdict(text, "reduce reduce", "reduce gather")
    found = told.cause
    assert found is not None
    assert (found.what, found.site and found.site.line) == (What.UNEVEN_LOOP, 8)
    assert [other.site and other.site.line for other in found.others] == [9]
    assert told.advice[0].startswith("Give `show(batches)` at train.py:8 its own iterator")


@pytest.mark.parametrize(
    ("sampler", "lines"), [(", sampler=DistributedSampler(data)", [6, 4]), ("", [4])]
)
def test_a_loader_that_is_evened_is_told_after_another_way(sampler: str, lines: list[int]) -> None:
    text = f"""
    def main(cfg):
        loader = DataLoader(data{sampler})
        for epoch in range(cfg.epochs):
            for batch in loader:
                gather()
            for row in rows():
                reduce()
    """
    found = cause(text, "gather reduce", "gather gather")
    assert [one.site.line for one in (found, *found.others) if one.site is not None] == lines
    assert found.what is What.UNEVEN_LOOP


def test_a_cache_and_an_override_by_which_a_rank_comes_past_a_call_are_told() -> None:
    cached = """
    class Balancer:
        def __init__(self):
            self.weights = lru_cache(4)(self._weights)
        def _weights(self, stage):
            reduce()
    def main(cfg):
        for epoch in range(cfg.epochs):
            balancer.weights(epoch)
            for step in range(cfg.steps):
                gather()
    """
    told = verdict(cached, "gather reduce", "gather gather")
    assert told.cause is not None
    assert (told.cause.what, told.cause.site and told.cause.site.line) == (What.DATA_CONDITION, 3)
    assert "caches a result: its function did not run again on rank 2" in told.cause.why
    assert told.advice[0].startswith("Do not cache a function that communicates")
    override = """
    class Worker:
        def on_end(self):
            reduce()
        def run(self, cfg):
            for phase in range(cfg.phases):
                for step in range(cfg.steps):
                    gather()
                self.on_end()
    class Judge(Worker):
        def on_end(self):
            log()
    """
    told = verdict(override, "gather reduce", "gather gather")
    assert told.cause is not None
    assert told.cause.site is not None
    assert told.cause.site.line == 10
    assert told.advice[0].startswith("Have `def on_end(self)` at train.py:10 call the method")


def test_a_thread_that_fed_a_loop_is_told_where_an_exception_has_ended_it() -> None:
    text = GENERATOR.removeprefix("\n").replace("            return\n", "            pass\n")
    ranks = [rank_at(number, text, "reduce", "reduce") for number in (0, 1)]
    mark = Mark(THREAD_DIED, "filler: KeyError: 'x'", 1, 25.0, Site(SCRIPT, 3, "clean"))
    odd = replace(rank_at(2, text, "reduce", "gather"), marks=(mark,))
    found = only(job(*ranks, odd, sources={SCRIPT: text})).cause
    assert found is not None
    assert (found.what, found.certainty) == (What.SWALLOWED_EXCEPTION, Certainty.LIKELY)
    ended = "Thread filler of rank 2 ended at train.py:3 with KeyError: 'x'"
    assert found.why == f"{ended} and did no more work."
    old = replace(odd, marks=(replace(mark, age_s=900.0),))
    found = only(job(*ranks, old, sources={SCRIPT: text})).cause
    assert found is not None
    assert found.certainty is Certainty.POSSIBLE


@pytest.mark.parametrize(
    ("loop", "repeats"), [("attempt in range(3)", True), ("batch in data", False)]
)
def test_what_repeats_a_step_is_possible_where_nothing_else_is_found(
    loop: str,
    repeats: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    text = """
        def train():
            for {loop}:
                try:
                    return step()
                except OSError:
                    continue
        def step():
            reduce()
        def main():
            for turn in range(10):
                train()
            barrier()
        """
    text = dedent(text).removeprefix("\n").format(loop=loop)
    done = [rank_at(number, text, "reduce", "barrier") for number in (0, 1)]
    behind = rank_at(2, text, "reduce", "reduce")
    stack = main_thread(frame(8, "step"), frame(4, "train"), frame(11), frame(99, "<module>"))
    told = only(job(*done, replace(behind, threads=stack), sources={SCRIPT: text}))
    assert told.cause is not None
    found = (told.cause.what, told.cause.certainty, told.cause.site and told.cause.site.line)
    assert (found == (What.SWALLOWED_EXCEPTION, Certainty.POSSIBLE, 5)) is repeats
    assert told.advice[0].startswith("Retry only what can fail on a single rank") is repeats


def test_a_call_that_a_finalizer_makes_has_no_order() -> None:
    text = """
        class Meter:
            def __del__(self):
                reduce()
        def main():
            gather()
        """
    text = dedent(text).removeprefix("\n")
    ends = [rank_at(number, text, "gather", "reduce") for number in (0, 1)]
    stack = main_thread(frame(3, "Meter.__del__"), frame(5), frame(99, "<module>"))
    ends = [replace(one, threads=stack) for one in ends]
    told = only(job(*ends, rank_at(2, text, "gather", "gather"), sources={SCRIPT: text}))
    assert told.cause is not None
    assert (told.cause.what, told.cause.site and told.cause.site.line) == (What.DIFFERENT_ORDER, 3)
    assert "`__del__`" in told.advice[0]


def test_a_rank_is_held_against_its_own_part_in_a_call_of_all() -> None:
    text = """
        def main(rank):
            for step in range(10):
                if rank == 2:
                    if same(step):
                        gather()
                        continue
                    cast(step)
                else:
                    cast()
                gather()
        """
    text = dedent(text).removeprefix("\n")
    lines = {"mine": 7, "theirs": 9, "early": 5, "late": 10}

    def made(number: int, *calls: tuple[str, str]) -> RankSnapshot:
        ops = [op(TRIO, n, name, line=lines[at]) for n, (name, at) in enumerate(calls, 1)]
        last = replace(ops[-1], state=blocked(TRIO, 1).state, blocked_age_s=20.0)
        stack = main_thread(frame(last.site.line if last.site else 0), frame(99, "<module>"))
        return rank(number, TRIO, *ops[:-1], last, threads=stack)

    usual = [("broadcast", "theirs"), ("all_gather", "late"), ("broadcast", "theirs")]
    odd = [("broadcast", "mine"), ("all_gather", "late"), ("all_gather", "early")]
    told = only(job(made(0, *usual), made(1, *usual), made(2, *odd), sources={SCRIPT: text}))
    assert told.cause is not None
    assert (told.cause.what, told.cause.site and told.cause.site.line) == (What.DATA_CONDITION, 4)


def test_a_loop_that_asks_for_a_number_has_to_begin_alike() -> None:
    text = """
        def main():
            while self.step < self.total:
                reduce()
            gather()
        """
    told = verdict(text, "reduce reduce", "reduce gather")
    assert told.advice[0].startswith("Have `while self.step < self.total` at train.py:2 end in")


def test_whether_a_file_is_the_program_is_never_decided_otherwise_on_a_rank() -> None:
    text = """
    def main():
        for batch in batches():
            reduce()
            show(batch)
        barrier()

    if __name__ == "__main__":
        main()
    """
    text = dedent(text).removeprefix("\n")
    calls = [op(PAIR, seq, line=3, device=True) for seq in range(1, 5)]
    waiting = op(PAIR, 5, state=OpState.ISSUED, source="flight", device=True)
    stack = main_thread(frame(4), frame(8, "<module>"))
    going = rank(0, PAIR, *calls, waiting, threads=stack, flight=True)
    over = rank(1, PAIR, *calls, op(PAIR, 5, "barrier", line=5, device=True), **exited())
    found = only(job(going, over, sources={SCRIPT: text})).cause
    assert found is not None
    assert [one.site.line for one in (found, *found.others) if one.site] == [2]
    assert found.what is What.UNEVEN_LOOP


TURNS = """
class Config:
    steps: int = 12
def main(cfg):
    for step in range(cfg.steps):
        if batch.grad is not None:
            reduce()
    barrier()
"""


def test_a_call_left_out_in_a_loop_as_long_on_all_ranks_is_no_early_end() -> None:
    found = verdict(TURNS, "reduce reduce reduce", "reduce reduce barrier")
    assert found.kind is Kind.OP_MISMATCH
    assert found.cause is not None
    assert (found.cause.what, found.cause.others) == (What.DATA_CONDITION, ())


def test_what_a_stack_is_below_is_possible_where_no_way_is_known() -> None:
    text = dedent(
        """
        class Hooks:
            def fire(self, event):
                for hook in self.table.get(event, ()):
                    hook()
        def made():
            def changed():
                rate = current()
                if rate != seen["rate"]:
                    hooks.fire("drop")
            hooks.on("step", changed)
            hooks.on("drop", lambda: best.restore())
        class Best:
            def restore(self):
                cast()
        def main():
            for step in range(9):
                reduce()
                hooks.fire("step")
        """
    ).removeprefix("\n")
    lines = (
        (14, "restore"),
        (11, "<lambda>"),
        (4, "fire"),
        (9, "changed"),
        (4, "fire"),
        (18, "main"),
    )
    inside = main_thread(*(frame(*line) for line in lines), frame(99, "<module>"))

    def judged(condition: str) -> RootCause | None:
        known = text.replace('rate != seen["rate"]', condition)
        usual = [rank_at(number, known, "reduce", "reduce") for number in (0, 1)]
        odd = replace(rank_at(2, known, "reduce", "cast"), threads=inside)
        return only(job(*usual, odd, sources={SCRIPT: known})).cause

    found = judged('rate != seen["rate"]')
    assert found is not None
    assert found.site is not None
    assert (found.what, found.site.line) == (What.DATA_CONDITION, 8)
    assert found.certainty is Certainty.POSSIBLE
    for same in ("config.restores", "True"):
        without = judged(same)
        assert without is not None
        assert without.what is What.UNKNOWN


CALLBACKS = """
    class Stop(Callback):
        def __init__(self):
            self.best = None
        def on_step_end(self, args, state, control):
            if state.step >= {bound}:
                control.should_stop = True
            if args.verbose:
                self.best = state.loss
        def on_save(self, args, state, control):
            if state.loss < 1.0:
                {other}
    trainer.train()
    """


@pytest.mark.parametrize(
    ("bound", "other", "what"),
    [
        ("8 + rank", "control.saves = True", What.RANK_CONDITION),
        ("state.least", "pass", What.DATA_CONDITION),
        ("state.least", "control.saves = True", None),
    ],
)
def test_in_one_call_of_a_library_the_condition_of_a_callback_is_possible(
    bound: str, other: str, what: What | None
) -> None:
    inside = Frame("/usr/lib/site-packages/transformers/trainer.py", 9, "Trainer.train")
    stack = main_thread(inside, frame(12, "<module>"))
    ranks = [
        rank(number, PAIR, op(PAIR, 1, line=12), blocked(PAIR, 2, wire, line=12), threads=stack)
        for number, wire in enumerate(("barrier", "all_gather"))
    ]
    text = dedent(CALLBACKS.format(bound=bound, other=other)).removeprefix("\n")
    verdict = only(job(*ranks, size=2, sources={SCRIPT: text}))
    assert verdict.cause is not None
    if what is None:
        assert verdict.cause.what is What.UNKNOWN
        return
    assert verdict.cause.site is not None
    assert (verdict.cause.what, verdict.cause.site.line) == (what, 5)
    assert verdict.cause.certainty is Certainty.POSSIBLE
    assert verdict.advice[0].startswith("Decide `if state.step >=")


def test_what_an_object_is_called_with_tells_whether_an_argument_is_of_the_rank() -> None:
    text = """\
class Net(Module):
    def forward(self, x, more):
        if more:
            dist.gather(x)
engine, _ = initialize(model=Net())
for step in range(10):
    dist.reduce(x)
    engine(x, step == 5 and dist.get_rank() == 0)
"""
    gathers = rank_at(0, text, "reduce", "gather")
    stack = main_thread(frame(4, "forward"), frame(8, "<module>"))
    ranks = [rank_at(n, text, "reduce", "reduce") for n in (1, 2)]
    verdict = only(job(replace(gathers, threads=stack), *ranks, sources={SCRIPT: text}))
    assert verdict.cause is not None
    assert verdict.cause.site is not None
    assert (verdict.cause.what, verdict.cause.site.line) == (What.RANK_CONDITION, 3)


def test_of_several_conditions_one_that_holds_every_so_many_turns_is_told_last() -> None:
    text = """\
def on_end(step):
    if step % every == 0:
        dist.gather(x)
def main():
    for step in range(100):
        dist.reduce(x)
        if heard(step):
            on_end(step)
"""
    stack = main_thread(frame(3, "on_end"), frame(8), frame(99, "<module>"))
    alone = replace(rank_at(0, text, "reduce", "gather"), threads=stack)
    rest = [rank_at(number, text, "reduce", "reduce") for number in (1, 2)]
    verdict = only(job(alone, *rest, sources={SCRIPT: text}))
    assert verdict.cause is not None
    lines = [one.site and one.site.line for one in (verdict.cause, *verdict.cause.others)]
    assert lines == [7, 2]


def test_what_a_loop_over_callbacks_calls_on_one_rank_alone_is_no_turn_more_of_it() -> None:
    text = """\
def metric(step):
    dist.gather(x)
def emit(step):
    for callback in callbacks:
        callback(step)
def main():
    for step in range(100):
        dist.reduce(x)
        emit(step)
"""
    stack = main_thread(frame(2, "metric"), frame(5, "emit"), frame(9), frame(99, "<module>"))
    alone = replace(rank_at(0, text, "reduce", "gather"), threads=stack)
    rest = [rank_at(number, text, "reduce", "reduce") for number in (1, 2)]
    verdict = only(job(alone, *rest, sources={SCRIPT: text}))
    assert (verdict.kind, verdict.culprits) == (Kind.SUBSET_ENTERED, (0,))
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.site and verdict.cause.site.line) == (
        What.UNEVEN_LOOP,
        4,
    )
    assert verdict.advice[0].startswith("Check what `for callback in callbacks` at train.py:4")


def test_what_stops_at_the_first_that_decides_is_told_to_make_a_list() -> None:
    text = """\
CHECKS = [spike, norm]
def norm(state):
    dist.gather(state)
def bad(state):
    return any(check(state) for check in CHECKS)
def main():
    for step in range(9):
        dist.reduce(loss)
        bad(state)
"""
    ranks = [rank_at(n, text, "reduce", "gather") for n in (1, 2)]
    stack = main_thread(frame(3, "norm"), frame(5, "bad"), frame(9), frame(99, "<module>"))
    ranks = [replace(one, threads=stack) for one in ranks]
    verdict = only(job(rank_at(0, text, "reduce", "reduce"), *ranks, sources={SCRIPT: text}))
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.site and verdict.cause.site.line) == (
        What.DATA_CONDITION,
        5,
    )
    assert "with a list in the brackets (`any([...])`)" in verdict.advice[0]


STATE = """\
class Stopper:
    def __init__(self):
        self.stale = 0
    def update(self, value):
        self.stale = 0 if value < self.best else self.stale + 1
        return self.stale > 3
    def restore(self, state):
        self.stale = state
def load(stopper):
    state = None
    if rank == 0:
        {loads}
    {shares}
def train():
    for epoch in range(100):
        dist.reduce(loss)
        done = stopper.update(loss)
        if done:
            break
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("loads", "shares", "line"),
    [
        ("stopper.restore(read())", "dist.broadcast(model, 0)", 11),
        ("state = read()", "dist.broadcast(state, 0); stopper.restore(state)", 19),
    ],
)
def test_what_is_restored_on_one_rank_alone_is_told_where_a_loop_is_left_by_it(
    loads: str, shares: str, line: int
) -> None:
    text = STATE.format(loads=loads, shares=shares)
    ranks = [rank_at(number, text, "reduce", "reduce") for number in (1, 2)]
    verdict = only(job(rank_at(0, text, "reduce", "barrier"), *ranks, sources={SCRIPT: text}))
    assert verdict.cause is not None
    assert verdict.cause.site is not None
    assert verdict.cause.site.line == line
    if line == 11:
        assert (verdict.cause.what, verdict.cause.certainty) == (
            What.RANK_CONDITION,
            Certainty.POSSIBLE,
        )
        assert verdict.cause.others[0].what is What.EARLY_EXIT
        assert verdict.advice[0].startswith("Give all ranks what is set below `if rank == 0`")


def test_so_is_a_number_that_is_set_for_one_rank() -> None:
    text = """\
for step in range(100):
    count = 4
    if step == 9 and rank == 2:
        count = 3
    for part in range(count):
        dist.reduce(part)
    dist.barrier()
"""
    behind = [rank_at(number, text, "reduce", "reduce") for number in (0, 1)]
    verdict = only(job(*behind, rank_at(2, text, "reduce", "barrier"), sources={SCRIPT: text}))
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.site and verdict.cause.site.line) == (
        What.RANK_CONDITION,
        3,
    )


METER = """\
class Meter:
    def update(self, value):
        self.high = value
meter = Meter()
bar = tqdm(total=100)
def train():
    for step in range(100):
        dist.reduce(loss)
        {updates}
        if rank == 0:
            bar.update(1)
        if meter.high > limit(step):
            break
    dist.barrier()
"""


@pytest.mark.parametrize("updates", ["meter.update(loss)", "meters[step].update(loss)"])
def test_what_only_has_the_name_of_a_function_that_sets_it_is_no_such_condition(
    updates: str,
) -> None:
    text = METER.format(updates=updates)
    ranks = [rank_at(number, text, "reduce", "reduce") for number in (1, 2)]
    verdict = only(job(rank_at(0, text, "reduce", "barrier"), *ranks, sources={SCRIPT: text}))
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.site and verdict.cause.site.line) == (
        What.EARLY_EXIT,
        13,
    )
