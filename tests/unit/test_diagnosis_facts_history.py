"""Ranks that fell out of step before anything got stuck, and calls nobody recorded."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from snapshots import (
    BACKWARD,
    SCRIPT,
    THRESHOLDS,
    W,
    blocked,
    exited,
    frame,
    job,
    main_thread,
    only,
    op,
    raised,
    rank,
    site,
)

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.desync import Drift, drift
from hangwatch.diagnosis.facts.history import Step, other_peers
from hangwatch.diagnosis.facts.job import index
from hangwatch.model.kinds import Certainty, Kind, State
from hangwatch.model.verdict import OK

if TYPE_CHECKING:
    from hangwatch.model.snapshot import OpRecord, RankSnapshot


def steps(lines: str) -> dict[int, Step]:
    """A sequence of calls, a letter each."""
    return {n: Step("all_reduce", letter) for n, letter in enumerate(lines, 1)}


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ("abcabcabc", "abcabcabc", None),
        ("abcacabcab", "abcabcabca", Drift(5, 1)),  # one left out
        ("abcabcbcabc", "abcabcabcabc", Drift(7, 1)),
        ("abcabcaabcabc", "abcabcabcabc", Drift(8, -1)),  # one made twice
        ("abxabcabcabc", "abcabcabcabc", None),  # one instead of another, then in step again
        ("aaaaaaaa", "aaaaaaaa", None),
        ("bcabca", "abcabc", None),  # nothing tells that they ever agreed
        ("", "abc", None),
    ],
)
def test_two_sequences_are_shifted_from_some_place_on(
    mine: str, theirs: str, found: Drift | None
) -> None:
    assert drift(steps(mine), steps(theirs)) == found


def calls(lines: str) -> list[OpRecord]:
    """all_reduce of one shape at lines 20 (a), 21 (b) and 22 (c)."""
    return [op(W, n, line=20 + "abc".index(letter)) for n, letter in enumerate(lines, 1)]


def test_a_rank_that_left_one_of_like_calls_out_long_ago_is_told_from_there() -> None:
    most = [rank(n, W, *calls("abcabcabcab"), blocked(W, 12, line=22)) for n in (0, 1, 3)]
    odd = rank(2, W, *calls("abcacabcabc"), **exited())
    verdict = only(job(*most, odd))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (2,))
    assert verdict.certainty is Certainty.PROVED
    assert verdict.collective is not None
    assert verdict.collective.seq == 5
    assert (verdict.site, verdict.victim_site) == (site(22), site(21))
    assert verdict.headline == (
        "Rank 2 is out of step with ranks 0, 1 and 3 since all_reduce #5 of group default_pg at "
        "train.py:21: it skipped one collective there."
    )
    assert (
        "The mismatch surfaced only now. Ranks 0, 1 and 3 wait in all_reduce #12"
        in verdict.explanation
    )


def counted(number: int, line: int = 3) -> RankSnapshot:
    """A rank in backward of which only the counters are known."""
    stack = main_thread(*BACKWARD, frame(line), frame(99, "<module>"))
    return rank(number, W, enqueued=7, completed=-1, pending_age_s=20.0, threads=stack)


def test_without_a_recorder_what_cpp_made_is_another_collective_than_pythons() -> None:
    text = """
        def main():
            for batch in loader:
                loss.backward()
            dist.barrier()
        """
    stack = main_thread(frame(4), frame(99, "<module>"))
    done = rank(1, W, blocked(W, 7, "barrier", line=4), threads=stack)
    sources = {SCRIPT: dedent(text).removeprefix("\n")}
    verdict = only(job(done, *map(counted, (0, 2, 3)), sources=sources))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (1,))
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.SLOW)
    assert "a collective issued by C++ #7" in verdict.headline


def test_where_the_ring_has_wrapped_nothing_is_made_of_an_unknown_call() -> None:
    later = [op(W, n) for n in (9, 10)]
    unknown = [rank(n, W, *later, blocked(W, 11)) for n in (0, 2, 3)]
    stuck = rank(1, W, blocked(W, 7), enqueued=11)
    assert only(job(stuck, *unknown)).kind is Kind.COLLECTIVE_STUCK


def test_a_healthy_job_that_is_being_interrupted_is_no_news() -> None:
    going = [rank(n, W, blocked(W, 2, age=1.5), **raised("KeyboardInterrupt", "")) for n in (0, 1)]
    waiting = [rank(n, W, blocked(W, 2, age=1.5)) for n in (2, 3)]
    assert diagnose(job(*going, *waiting), THRESHOLDS) == (OK,)


@pytest.mark.parametrize(
    ("peers", "before"),
    [
        ((0, 2, 0, 2, 3), (0, 2)),
        ((0, 2, 0, 2, 2), ()),
        ((0, 2, 3), ()),  # too few to tell
    ],
)
def test_a_message_of_a_line_that_goes_to_somebody_else_is_known(
    peers: tuple[int, ...], before: tuple[int, ...]
) -> None:
    sent = [op(W, n, "send", peer=peer, age=30.0 - n) for n, peer in enumerate(peers)]
    sends = rank(1, W, *sent)
    assert other_peers(index(job(sends, size=4)), 1, sent[-1]) == before
