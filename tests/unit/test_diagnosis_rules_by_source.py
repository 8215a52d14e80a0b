"""What the source adds to a finding: which of several sides it was, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING

from snapshots import PAIR, SCRIPT, blocked, frame, job, main_thread, only, op, rank

from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.snapshot import Frame

if TYPE_CHECKING:
    from hangwatch.model.snapshot import OpRecord, RankSnapshot
    from hangwatch.model.verdict import Verdict


def told(text: str, *ranks: RankSnapshot) -> Verdict:
    return only(job(*ranks, size=2, sources={SCRIPT: dedent(text).removeprefix("\n")}))


def in_line(number: int, line: int, *before: OpRecord, wire: str = "all_reduce") -> RankSnapshot:
    seq = len(before) + 1
    stack = main_thread(frame(line), frame(99, "<module>"))
    return rank(number, PAIR, *before, blocked(PAIR, seq, wire, line=line), threads=stack)


BELOW = """
    def main():
        for step in range(10):
            dist.all_reduce(loss)
            if {condition}:
                dist.broadcast(best, 0)
            dist.all_gather(sizes, size)
    """
STEP = (op(PAIR, 1, line=3),)


def test_of_two_the_one_below_a_condition_on_its_rank_is_named_and_called_likely() -> None:
    ranks = in_line(0, 6, *STEP, wire="all_gather"), in_line(1, 5, *STEP, wire="broadcast")
    verdict = told(BELOW.format(condition="rank == 1 and step == 3"), *ranks)
    assert (verdict.kind, verdict.culprits) == (Kind.SUBSET_ENTERED, (1,))
    assert (verdict.certainty, verdict.certainty_of_hang) == (Certainty.LIKELY, Certainty.LIKELY)
    assert verdict.headline == (
        "Only rank 1 entered broadcast #2 of group default_pg at train.py:5; rank 0 is in "
        "all_gather at train.py:6."
    )
    assert verdict.cause is not None
    assert verdict.cause.what is What.RANK_CONDITION


def test_so_is_the_one_in_what_is_decorated_for_one_rank() -> None:
    text = """
    @rank_zero_only
    def report():
        dist.broadcast(best, 0)
    def main():
        for step in range(10):
            dist.all_reduce(loss)
            report()
            dist.all_gather(sizes, size)
    """
    step = op(PAIR, 1, line=6)
    stack = main_thread(frame(3, "report"), frame(7), frame(99, "<module>"))
    below = replace(in_line(1, 3, step, wire="broadcast"), threads=stack)
    verdict = told(text, in_line(0, 8, step, wire="all_gather"), below)
    assert (verdict.culprits, verdict.certainty) == ((1,), Certainty.LIKELY)
    assert verdict.cause is not None
    assert verdict.cause.what is What.RANK_CONDITION


def test_of_the_one_that_is_named_what_it_has_called_is_known() -> None:
    inside = Frame("/usr/lib/site-packages/accelerate/accelerator.py", 9, "Accelerator.gather")
    below = in_line(1, 5, *STEP, wire="broadcast")
    below = replace(below, threads=main_thread(inside, frame(5), frame(99, "<module>")))
    text = BELOW.format(condition="rank == 1 and step == 3")
    verdict = told(text, in_line(0, 6, *STEP, wire="all_gather"), below)
    assert verdict.culprits == (1,)
    assert verdict.site is not None
    assert verdict.site.call is not None
    assert verdict.site.call.function == "Accelerator.gather"
    assert verdict.site.function == "main"


def test_of_two_a_condition_for_all_but_one_names_the_one_that_passed_it_by() -> None:
    ranks = in_line(0, 6, *STEP, wire="all_gather"), in_line(1, 5, *STEP, wire="broadcast")
    verdict = told(BELOW.format(condition="rank != 0 or step != 3"), *ranks)
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.LIKELY)


def test_who_asks_below_its_rank_for_what_all_asked_elsewhere_before_is_named() -> None:
    text = """
    class Meter:
        @property
        def total(self):
            dist.all_reduce(count)
    def main():
        for step in range(10):
            dist.all_gather(sizes, size)
            if step % 5 == 0:
                total = meter.total
            if rank == 0 and step > 3:
                log(meter.total)
    """
    before = (op(PAIR, 1, "all_gather", line=7), op(PAIR, 2, line=4))
    stack = main_thread(frame(4, "total"), frame(11), frame(99, "<module>"))
    logs = rank(0, PAIR, *before, blocked(PAIR, 3, line=4), threads=stack)
    verdict = told(text, logs, in_line(1, 7, *before, wire="all_gather"))
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.LIKELY)
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.site and verdict.cause.site.line) == (
        What.RANK_CONDITION,
        10,
    )


def test_of_two_a_condition_on_local_data_names_both_and_is_the_possible_cause() -> None:
    ranks = in_line(0, 6, *STEP, wire="all_gather"), in_line(1, 5, *STEP, wire="broadcast")
    verdict = told(BELOW.format(condition="loss < best"), *ranks)
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.certainty) == (
        What.DATA_CONDITION,
        Certainty.POSSIBLE,
    )


INSTEAD = """
    def main():
        for step in range(10):
            dist.all_reduce(loss)
            if rank == 1 and step == 3:
                dist.broadcast(best, 0)
            else:
                dist.all_gather(sizes, size)
    """


def test_who_makes_another_call_by_its_rank_instead_of_that_of_all_is_named() -> None:
    ranks = in_line(0, 7, *STEP, wire="all_gather"), in_line(1, 5, *STEP, wire="broadcast")
    verdict = told(INSTEAD, *ranks)
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (1,))
    assert verdict.headline == (
        "Rank 1 left the common sequence of calls: it called broadcast at train.py:5, but rank 0 "
        "called all_gather at train.py:7."
    )


def test_of_two_that_each_have_their_part_at_a_condition_nobody_is_named_alone() -> None:
    parts = INSTEAD.replace("best, 0)", "best, 0)\n            dist.barrier()")
    ranks = in_line(0, 8, *STEP, wire="all_gather"), in_line(1, 5, *STEP, wire="broadcast")
    assert told(parts, *ranks).culprits == (0, 1)


SENDS = """
    def main():
        for step in range(10):
            if rank != 1 or step != 0:
                dist.all_reduce(loss)
            if rank == 1:
                dist.recv(x, 0)
            else:
                dist.send(x, 1)
    """


def test_where_the_waiting_rank_is_at_fault_the_text_is_about_it() -> None:
    receiving = main_thread(frame(6), frame(99, "<module>"))
    ranks = (
        in_line(0, 4),
        rank(1, PAIR, blocked(PAIR, 1, "recv", line=6, peer=0), threads=receiving),
    )
    verdict = told(SENDS, *ranks)
    assert verdict.culprits == (1,)
    assert verdict.headline == (
        "Rank 1 left the common sequence of calls: it called recv at train.py:6, but rank 0 called "
        "all_reduce at train.py:4."
    )
    assert "One of ranks 0 and 1" not in verdict.explanation


def test_a_rank_that_is_still_in_the_first_part_of_a_call_was_not_there_before() -> None:
    text = """
        def main():
            dist.all_reduce(loss)
            if rank == 1:
                dist.all_gather_object(objects, rank)
            dist.barrier()
        """
    sizes = op(PAIR, 2, "all_gather_object", line=4, wire="all_gather")
    stack = main_thread(frame(4), frame(99, "<module>"))
    gathering = blocked(PAIR, 3, "all_gather_object", line=4, wire="all_gather")
    made = op(PAIR, 1, line=2)
    alone = rank(1, PAIR, made, sizes, gathering, threads=stack)
    verdict = told(text, in_line(0, 5, made, wire="barrier"), alone)
    assert verdict.cause is not None
    assert verdict.cause.what is What.RANK_CONDITION


HELPERS = """
    def coordinate():
        dist.broadcast(plan, 0)

    def follow():
        try:
            receive()
        except OSError:
            pass

    def receive():
        read(path)
        dist.broadcast(plan, 0)

    def main():
        for step in range(10):
            dist.all_reduce(loss)
            if rank == 0:
                coordinate()
            else:
                follow()
    """


def test_a_condition_whose_other_way_communicates_in_a_helper_singles_nobody_out() -> None:
    # Rank 1 swallowed an exception: who waits where its part is may be the victim.
    made = (op(PAIR, 1, line=16),)
    inside = main_thread(frame(2, "coordinate"), frame(18), frame(99, "<module>"))
    waiting = rank(0, PAIR, *made, blocked(PAIR, 2, "broadcast", line=2), threads=inside)
    verdict = told(HELPERS, waiting, in_line(1, 16, *made))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)


SHARDS = """
    def main():
        dist.all_reduce(loss)
        {given}
        for item in {over}:
            dist.all_reduce(hits)
        dist.barrier()
    """


def shards(given: str, over: str) -> Verdict:
    """Two ranks, of which the second has come past a loop that the first is in."""
    made = (op(PAIR, 1, line=2), op(PAIR, 2, line=5))
    text = SHARDS.format(given=given, over=over)
    return told(text, in_line(0, 5, *made), in_line(1, 6, *made, wire="barrier"))


def test_of_two_whose_data_come_of_their_rank_neither_has_too_few_for_sure() -> None:
    verdict = shards("items = shard(30, rank)", "items")
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert verdict.cause is not None
    assert verdict.cause.what is What.UNEVEN_LOOP


def test_who_has_fewer_turns_by_its_rank_itself_has_finished_early() -> None:
    verdict = shards("turns = 30 - (rank == 1)", "range(turns)")
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (1,))
    assert verdict.certainty is Certainty.LIKELY


def test_who_gets_data_by_its_rank_has_no_fewer_turns_for_sure() -> None:
    verdict = shards("turns = 30", "shard(rank)")
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
