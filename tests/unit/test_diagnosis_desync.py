"""Ranks that are out of step in a job that still runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from snapshots import W, job, op, rank, world

from hangwatch.diagnosis import find_desync
from hangwatch.model.kinds import Certainty, Kind, State

if TYPE_CHECKING:
    from hangwatch.model.snapshot import JobSnapshot, OpRecord, RankSnapshot

LOOP = ((20, "all_reduce"), (21, "all_gather"), (22, "all_reduce"))
"""One step of the program: line and operation."""


def calls(count: int, *, first: int = 1, left_out: int = 0, more: int = 0) -> list[OpRecord]:
    """What a rank issued at places from ``first`` on, if it left one call out or made one more."""
    program = [LOOP[n % len(LOOP)] for n in range(first + count + 3)]
    if left_out:
        del program[left_out - 1]
    if more:
        program.insert(more - 1, (40, "barrier"))
    return [
        op(W, n, program[n - 1][1], line=program[n - 1][0]) for n in range(first, first + count)
    ]


def running(*sequences: list[OpRecord]) -> JobSnapshot:
    return job(*(rank(n, W, *sequence) for n, sequence in enumerate(sequences)))


def test_ranks_that_agree_are_not_out_of_step() -> None:
    assert find_desync(running(calls(30), calls(28), calls(30), calls(29))) is None


def test_a_rank_that_left_one_call_out_is_named_with_the_call() -> None:
    found = find_desync(running(calls(30), calls(30), calls(30, left_out=14), calls(30)))
    assert found is not None
    assert (found.state, found.kind, found.culprits) == (State.DESYNC, Kind.OP_MISMATCH, (2,))
    assert found.certainty is Certainty.LIKELY
    assert found.collective is not None
    assert (found.collective.op, found.collective.seq) == ("all_gather", 14)
    assert found.victim_site is not None
    assert found.victim_site.line == 21
    assert "skipped one collective there" in found.headline
    assert "Nothing is stuck yet" in found.explanation


def test_a_rank_that_has_not_come_far_enough_to_tell_is_not_named_with_it() -> None:
    at = range(12, 26)
    for slow, left_out, fast in product(at, at, at):
        running_on = calls(slow), calls(slow), calls(left_out, left_out=14), calls(fast)
        found = find_desync(running(*running_on))
        assert found is None or found.culprits == (2,), (slow, left_out, fast)


def test_a_rank_that_made_one_call_more_is_named_with_it() -> None:
    found = find_desync(running(calls(30), calls(30, more=11), calls(30), calls(30)))
    assert found is not None
    assert (found.culprits, found.site and found.site.line) == ((1,), 40)
    assert "made one extra collective" in found.headline


def test_ranks_that_come_to_the_same_calls_from_another_line_at_the_end_are_in_step() -> None:
    # As under Join: who is out of inputs goes on to answer the others from another line.
    still = [op(W, n) for n in range(1, 60)]
    joined = [*still[:55], *(op(W, n, line=18) for n in range(56, 60))]
    assert find_desync(running(joined, joined, still, still)) is None


def test_where_the_rings_have_wrapped_it_began_before_them() -> None:
    late = [calls(40, first=500) for _ in range(3)]
    found = find_desync(running(*late, calls(40, first=500, left_out=14)))
    assert found is not None
    assert found.culprits == (3,)
    assert "since before" in found.headline
    assert found.headline.endswith("it has issued one fewer collective than ranks 0-2.")


def test_two_ranks_of_which_no_common_beginning_is_known_are_not_judged() -> None:
    late = [calls(40, first=500), calls(40, first=500, left_out=14)]
    assert find_desync(job(*(rank(n, W, *sequence) for n, sequence in enumerate(late)))) is None


def test_of_two_ranks_either_may_be_the_one() -> None:
    pair = job(rank(0, W, *calls(30)), rank(1, W, *calls(30, left_out=14)))
    found = find_desync(pair)
    assert found is not None
    assert (found.culprits, found.certainty) == ((0, 1), Certainty.POSSIBLE)


def test_two_of_four_ranks_are_no_minority() -> None:
    odd = calls(30, left_out=14)
    found = find_desync(running(calls(30), odd, odd, calls(30)))
    assert found is not None
    assert (found.culprits, found.certainty) == ((0, 1, 2, 3), Certainty.POSSIBLE)


def test_two_of_five_ranks_are_named_together() -> None:
    five = world(5)
    usual, odd = (
        [replace(call, group=five) for call in sequence]
        for sequence in (calls(30), calls(30, left_out=14))
    )
    ranks = [rank(n, five, *(odd if n in (1, 4) else usual)) for n in range(5)]
    found = find_desync(job(*ranks))
    assert found is not None
    assert (found.culprits, found.certainty) == ((1, 4), Certainty.LIKELY)


def test_a_rank_may_call_the_same_from_other_lines() -> None:
    own = [
        replace(call, site=replace(call.site, line=90)) if call.site else call for call in calls(30)
    ]
    assert find_desync(running(own, calls(30), calls(30), calls(30))) is None


@pytest.mark.parametrize(
    ("change", "what"),
    [({"shape": (5,)}, "shape [5]"), ({"dtype": "float16"}, "float16")],
)
def test_one_call_with_another_tensor_that_went_through_is_told(
    change: dict[str, object], what: str
) -> None:
    odd = calls(30)
    odd[9] = replace(odd[9], **change)  # type: ignore[arg-type]
    found = find_desync(running(calls(30), odd, calls(30), calls(30)))
    assert found is not None
    assert (found.kind, found.culprits) == (Kind.SIGNATURE_MISMATCH, (1,))
    assert what in found.headline


def test_uneven_lists_are_meant() -> None:
    odd = calls(30)
    odd[10] = replace(odd[10], shape=(7,))
    assert odd[10].op == "all_gather"
    assert find_desync(running(calls(30), odd, calls(30), calls(30))) is None


def test_no_snapshot_is_no_desync() -> None:
    nobody: RankSnapshot = rank(0, W)
    assert find_desync(job()) is None
    assert find_desync(job(nobody)) is None


def test_a_size_is_compared_only_with_what_was_called_at_the_same_line() -> None:
    # Which place a call has may be wrong where threads race.
    usual = [op(W, n) for n in range(1, 30)]

    def odd(line: int) -> list[OpRecord]:
        return [op(W, 9, shape=(9,), line=line) if call.seq == 9 else call for call in usual]

    assert find_desync(running(usual, usual, odd(40), usual)) is None
    found = find_desync(running(usual, usual, odd(20), usual))
    assert found is not None
    assert (found.kind, found.culprits) == (Kind.SIGNATURE_MISMATCH, (2,))


def test_ranks_that_take_turns_at_a_call_on_two_lines_are_in_step() -> None:
    warm_up = [op(W, n) for n in range(1, 5)]
    turns = [
        [*warm_up, *(op(W, n, line=22 if n % 2 == own else 24) for n in range(5, 60))]
        for own in (0, 1)
    ]
    assert find_desync(job(*(rank(n, W, *sequence) for n, sequence in enumerate(turns)))) is None


def test_what_only_copies_bytes_takes_a_dtype_of_the_same_size() -> None:
    def found(name: str, dtypes: tuple[str, str]) -> bool:
        sequences = [
            [op(W, n), op(W, n + 1, name, dtype=dtype, shape=(8,), root=0), *calls(6, first=n + 2)]
            for n, dtype in zip((1, 1), dtypes, strict=True)
        ]
        return find_desync(job(*(rank(n, W, *s) for n, s in enumerate(sequences)))) is not None

    assert not found("broadcast", ("bool", "uint8"))
    assert not found("broadcast", ("float32", "int32"))
    assert found("broadcast", ("float32", "float64"))
    assert found("broadcast", ("float32", "complex64"))
    assert found("all_reduce", ("float32", "int32"))
