"""Ranks that send each other other amounts than are taken (all_to_all_single)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from snapshots import THRESHOLDS, W, blocked, job, only, op, rank

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.facts.signatures import Misfit, misfits, odd_ones
from hangwatch.model.kinds import Certainty, Kind, OpState, State
from hangwatch.model.verdict import OK

if TYPE_CHECKING:
    from hangwatch.model.snapshot import JobSnapshot, OpRecord

Table = dict[int, list[int]]
FITS: Table = {sender: [(sender + taker) % 3 + 1 for taker in range(4)] for sender in range(4)}
"""What each rank sends to each, and so what each takes from each."""


def exchanges(taken: dict[tuple[int, int], int], **fields: str) -> dict[int, OpRecord]:
    """The calls of four ranks. taken: what a (sender, receiver) takes where it does not fit."""
    return {
        number: replace(
            blocked(W, 41, "all_to_all_single", **fields),
            sends=tuple(FITS[number]),
            receives=tuple(
                taken.get((sender, number), FITS[sender][number]) for sender in range(4)
            ),
        )
        for number in range(4)
    }


def stuck(taken: dict[tuple[int, int], int]) -> JobSnapshot:
    calls = exchanges(taken)
    return job(*(rank(number, W, op(W, 40), calls[number]) for number in range(4)))


def test_sizes_that_fit_are_no_dispute() -> None:
    assert misfits(exchanges({})) == []
    assert misfits({}) == []
    verdict = only(stuck({}))
    assert verdict.kind is Kind.COLLECTIVE_STUCK


def test_the_rank_in_all_pairs_that_do_not_fit_is_the_odd_one() -> None:
    verdict = only(stuck({(0, 2): 9, (3, 2): 0}))
    assert (verdict.kind, verdict.state) == (Kind.SIGNATURE_MISMATCH, State.HANG)
    assert (verdict.culprits, verdict.certainty) == ((2,), Certainty.LIKELY)
    assert verdict.headline == (
        "Rank 2 entered all_to_all_single #41 of group default_pg at train.py:20 with sizes that "
        "do not match those of ranks 0 and 3: rank 0 sends 3 rows to rank 2, which expects 9; rank "
        "3 sends 3 rows to rank 2, which expects 0."
    )
    assert "No other pair is known to mismatch." in verdict.explanation
    assert "output_split_sizes" in verdict.advice[0]


def test_of_one_pair_either_may_be_wrong() -> None:
    verdict = only(stuck({(0, 1): 1}))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert "rank 0 sends 2 rows to rank 1, which expects 1." in verdict.headline
    assert "Nothing shows which of them is wrong." in verdict.explanation


def test_a_sender_is_found_as_well_as_a_receiver() -> None:
    found = misfits(exchanges({(1, 0): 7, (1, 3): 8}))
    assert [(pair.sender, pair.receiver) for pair in found] == [(1, 0), (1, 3)]
    assert odd_ones(found) == (1,)


def test_of_pairs_that_have_nobody_in_common_any_rank_may_be_wrong() -> None:
    found = [Misfit(0, 1, 2, 1, "row"), Misfit(2, 3, 2, 1, "row")]
    assert odd_ones(found) == (0, 1, 2, 3)


def test_a_rank_may_not_even_fit_itself() -> None:
    verdict = only(stuck({(2, 2): 1}))
    assert (verdict.culprits, verdict.certainty) == ((2,), Certainty.LIKELY)
    assert "rank 2 sends 2 rows to itself, and expects 1." in verdict.headline
    assert "No other pair is known to mismatch." in verdict.explanation


def test_what_a_recorder_tells_is_counted_in_elements() -> None:
    (pair,) = misfits(exchanges({(0, 1): 16}, source="flight"))
    assert pair == Misfit(0, 1, 2, 16, "element")


@pytest.mark.parametrize("unknown", [{"sends": ()}, {"sends": (1, 2)}, {"source": "flight"}])
def test_sizes_that_cannot_be_compared_are_not(unknown: dict[str, object]) -> None:
    calls = exchanges({(0, 1): 1})
    calls[0] = replace(calls[0], **unknown)  # type: ignore[arg-type]
    assert misfits(calls) == []


def test_rows_of_two_sizes_are_compared_by_their_bytes() -> None:
    calls = exchanges({})
    calls[0] = replace(calls[0], shape=(8, 2))
    others = {n: replace(calls[n], shape=(8, 4)) for n in (1, 2, 3)}
    pairs = misfits({0: calls[0], **others})
    assert {pair.unit for pair in pairs} == {"byte"}
    assert odd_ones(pairs) == (0,)


def test_a_call_without_splits_divides_its_tensor_evenly() -> None:
    """Rank 3 skipped a call, and sends the counts for the next exchange instead."""
    calls = exchanges({})
    calls[3] = replace(calls[3], sends=(), receives=(), shape=(4,), dtype="int64")
    others = {n: replace(calls[n], shape=(8, 16)) for n in (0, 1, 2)}
    assert odd_ones(misfits({**others, 3: calls[3]})) == (3,)


def test_splits_that_are_not_kept_are_not_taken_for_even_ones() -> None:
    calls = exchanges({})
    unknown = {n: replace(calls[n], sends=(), receives=(), shape=(4 * n + 4, 2)) for n in range(4)}
    assert misfits(unknown) == []


def test_who_has_not_come_is_waited_for_whether_sizes_fit_or_not() -> None:
    calls = exchanges({(0, 1): 9})
    came = (rank(number, W, op(W, 40), calls[number]) for number in (0, 1, 2))
    verdict = only(job(*came, rank(3, W, op(W, 40))))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (3,))


def test_a_pair_that_has_both_passed_was_let_through() -> None:
    calls = exchanges({(0, 1): 9, (2, 3): 9})
    passed = {n: replace(calls[n], state=OpState.DONE) for n in (0, 1)}
    assert [(pair.sender, pair.receiver) for pair in misfits({**calls, **passed})] == [(2, 3)]


def test_nobody_is_stuck_in_one_that_went_through() -> None:
    calls = exchanges({(0, 1): 9})
    done = (
        rank(n, W, replace(calls[n], state=OpState.DONE), *(op(W, 42 + i) for i in range(4)))
        for n in range(4)
    )
    assert diagnose(job(*done), THRESHOLDS) == (OK,)
