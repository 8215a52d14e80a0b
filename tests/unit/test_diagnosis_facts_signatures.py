"""Which of two ranks came with what is usual at a line, by other pairs and by what was before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from snapshots import DP, TP, W, blocked, job, only, op, rank

from hangwatch.diagnosis.facts.job import index
from hangwatch.diagnosis.facts.signatures import split_of, usual_side
from hangwatch.diagnosis.facts.wait_points import Slot
from hangwatch.model.kinds import Certainty, Kind

if TYPE_CHECKING:
    from hangwatch.model.snapshot import JobSnapshot, RankSnapshot

HALF: dict[str, Any] = {"dtype": "float16"}


def in_pair(number: int, *calls: dict[str, Any], **last: Any) -> RankSnapshot:
    """A rank that waits in its pair, after other calls there. Each: fields of the call."""
    pair = TP[number // 2]
    made = [op(pair, seq, **one) for seq, one in enumerate(calls, 1)]
    return rank(number, W, *made, blocked(pair, len(made) + 1, **last))


def usual(found: JobSnapshot, seq: int = 1) -> tuple[int, ...] | None:
    """The side of the first pair that did as usual."""
    indexed = index(found)
    slot = Slot(indexed.gid(TP[0]), seq)
    split = split_of(indexed.slots(slot.gid)[seq])
    assert split is not None
    return usual_side(indexed, slot, split)


def test_the_other_pair_tells_who_came_with_another_dtype() -> None:
    others = [rank(n, W, op(TP[1], 1), blocked(W, 1, line=30)) for n in (2, 3)]
    found = job(in_pair(0), in_pair(1, **HALF), *others)
    assert usual(found) == (0,)
    verdict = only(found)
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (1,))
    assert verdict.certainty is Certainty.LIKELY
    assert "All other known calls of that line are like that of rank 0." in (verdict.explanation)


@pytest.mark.parametrize(
    ("mine", "theirs", "side"),
    [
        ({"shape": (8,)}, {}, (1,)),
        ({}, {"shape": (8,)}, (0,)),
        ({"name": "broadcast", "root": 0}, {"name": "broadcast", "root": 1}, (0,)),
    ],
)
def test_it_may_be_the_size_or_the_place_of_the_root(
    mine: dict[str, Any], theirs: dict[str, Any], side: tuple[int, ...]
) -> None:
    others = {"name": "broadcast", "root": 2} if "root" in mine else {}
    found = job(
        in_pair(0, **mine), in_pair(1, **theirs), in_pair(2, **others), in_pair(3, **others)
    )
    assert usual(found) == side


def test_pairs_that_differ_themselves_tell_nothing() -> None:
    found = job(in_pair(0), in_pair(1, **HALF), in_pair(2), in_pair(3, **HALF))
    assert usual(found) is None


def test_a_third_thing_tells_nothing() -> None:
    other = {"dtype": "bfloat16"}
    found = job(in_pair(0), in_pair(1, **HALF), in_pair(2, **other), in_pair(3, **other))
    assert usual(found) is None


def test_another_line_tells_nothing() -> None:
    found = job(in_pair(0), in_pair(1, **HALF), in_pair(2, line=30), in_pair(3, line=30))
    assert usual(found) is None


def test_groups_of_another_kind_tell_nothing() -> None:
    replicas = [rank(n, W, blocked(DP[n % 2], 1)) for n in (2, 3)]
    assert usual(job(in_pair(0), in_pair(1, **HALF), *replicas)) is None


def test_without_other_pairs_a_dtype_is_what_it_was_before() -> None:
    first = in_pair(0, {}, {}), in_pair(1, {}, {}, **HALF)
    assert usual(job(*first), seq=3) == (0,)


def test_a_size_may_differ_from_what_it_was_before() -> None:
    # It is the last batch, of which the other may have had a whole one too many.
    first = in_pair(0, {}, {}), in_pair(1, {}, {}, shape=(3,))
    assert usual(job(*first), seq=3) is None


def test_what_the_pair_did_before_belies_what_the_others_do() -> None:
    first = in_pair(0, HALF, HALF), in_pair(1, HALF, HALF, **HALF)
    others = [in_pair(n, {}, {}) for n in (2, 3)]
    assert usual(job(*first, *others), seq=3) is None
