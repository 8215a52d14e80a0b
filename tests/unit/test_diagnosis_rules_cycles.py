"""Cycles in which the source, or earlier calls of the ranks, show which left the program."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from snapshots import (
    SCRIPT,
    THRESHOLDS,
    W,
    blocked,
    frame,
    job,
    main_thread,
    only,
    op,
    rank,
    site,
)

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, Reason, State, What
from hangwatch.model.snapshot import GroupProgress, NewGroup, OpRecord, ProcessState, RankSnapshot

if TYPE_CHECKING:
    from hangwatch.model.verdict import Verdict

TP = {0: GroupKey((0, 1), "tp"), 1: GroupKey((0, 1), "tp")}
TP |= {2: GroupKey((2, 3), "tp"), 3: GroupKey((2, 3), "tp")}
DP = {0: GroupKey((0, 2), "dp"), 2: GroupKey((0, 2), "dp")}
TRIO = GroupKey((0, 1, 2), "default_pg")
DP |= {1: GroupKey((1, 3), "dp"), 3: GroupKey((1, 3), "dp")}


def steps(number: int, count: int) -> list[OpRecord]:
    """So many steps of a rank: tensor parallel, data parallel, norm of all."""
    calls = []
    for seq in range(1, count + 1):
        calls += [op(TP[number], seq, line=10), op(DP[number], seq, line=11)]
        calls.append(op(W, seq, line=12))
    return calls


def swapped() -> list[RankSnapshot]:
    """Rank 3 comes to the norm before its tensor parallel call."""
    return [
        rank(0, W, *steps(0, 5), op(TP[0], 6, line=10), blocked(DP[0], 6, line=11)),
        rank(1, W, *steps(1, 5), op(TP[1], 6, line=10), blocked(DP[1], 6, line=11)),
        rank(2, W, *steps(2, 5), blocked(TP[2], 6, line=10)),
        rank(3, W, *steps(3, 5), blocked(W, 6, line=12)),
    ]


def test_in_a_cycle_the_rank_that_does_what_it_never_did_at_this_point_is_the_culprit() -> None:
    verdict = only(job(*swapped()))
    assert (verdict.kind, verdict.state) == (Kind.ORDER_INVERSION, State.HANG)
    assert (verdict.culprits, verdict.victims) == ((3,), (0, 1, 2))
    assert verdict.site == site(12)
    assert "Rank 3 has not made these calls in this order before" in verdict.explanation


def test_without_a_past_all_ranks_of_a_cycle_are_named() -> None:
    ranks = [
        rank(0, W, op(TP[0], 6), blocked(DP[0], 6)),
        rank(1, W, op(TP[1], 6), blocked(DP[1], 6)),
        rank(2, W, blocked(TP[2], 6)),
        rank(3, W, blocked(W, 6)),
    ]
    assert only(job(*ranks)).culprits == (0, 1, 2, 3)


LOOP = dedent(
    """\
    def main():
        for batch in loader:
            dist.all_reduce(partial, group=tp)
            dist.all_reduce(gradient, group=dp)
        dist.barrier()
    """
)


def test_of_a_cycle_of_which_half_has_left_the_loop_of_the_rest_either_may_be_wrong() -> None:
    ranks = [rank(n, W, op(TP[n], 6, line=3), blocked(DP[n], 6, line=4)) for n in (0, 1)]
    ranks += [rank(n, W, op(DP[n], 5), blocked(W, 1, "barrier", line=5)) for n in (2, 3)]
    verdict = only(job(*ranks, sources={SCRIPT: LOOP}))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (0, 1, 2, 3))
    assert verdict.certainty is Certainty.POSSIBLE
    assert verdict.cause is not None
    assert verdict.cause.what is What.UNEVEN_LOOP


SAVE = dedent(
    """\
    def save():
        dist.barrier()
    def main():
        for batch in loader:
            dist.all_reduce(gradient, group=dp)
            if dp_rank == 0:
                save()
    """
)


def test_a_barrier_of_all_that_one_replica_alone_calls_is_a_subset() -> None:
    at_barrier = main_thread(frame(2, "save"), frame(7))
    ranks = [rank(n, W, blocked(W, 1, "barrier", line=2), threads=at_barrier) for n in (0, 1)]
    ranks += [rank(n, W, blocked(DP[n], 6, line=5), threads=main_thread(frame(5))) for n in (2, 3)]
    verdict = only(job(*ranks, sources={SCRIPT: SAVE}))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (
        Kind.SUBSET_ENTERED,
        (0, 1),
        (2, 3),
    )
    assert verdict.cause is not None
    assert "`if dp_rank == 0`" in verdict.cause.why


def pipeline(number: int, peer: int, calls: str, last: str) -> RankSnapshot:
    """A stage that exchanged with a peer as in ``calls`` (s or r) and waits in the last."""
    names = {"s": "send", "r": "recv"}
    made = [op(W, n, names[call], peer=peer) for n, call in enumerate(calls, 1)]
    return rank(number, W, *made, blocked(W, len(calls) + 1, names[last], peer=peer))


def test_the_stage_with_a_micro_batch_less_never_posted_the_send() -> None:
    first = pipeline(0, 1, "sssrrr" * 3 + "ss", "r")
    second = pipeline(1, 0, "rrrsss" * 3 + "rr", "r")
    verdict = only(job(first, second, size=2))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.MISSING_PEER, (0,), (1,))


def test_of_two_places_a_rank_is_missing_from_the_one_it_used_to_come_to_first() -> None:
    # The wait in its data parallel group is even older.
    ranks = [
        rank(0, W, *steps(0, 5), op(TP[0], 6, line=10), blocked(DP[0], 6, line=11)),
        rank(1, W, *steps(1, 5), op(TP[1], 6, line=10), blocked(DP[1], 6, line=11, age=20.4)),
        rank(2, W, *steps(2, 5), blocked(TP[2], 6, line=10)),
        rank(3, W, *steps(3, 5), threads=main_thread(frame(8))),
    ]
    verdict = only(job(*ranks))
    assert verdict.culprits == (3,)
    assert verdict.group == TP[3]


def test_work_that_is_only_pending_is_judged_like_calls_that_block() -> None:
    ranks = swapped()
    ranks[3] = rank(3, W, *steps(3, 5), op(W, 6, state=OpState.ISSUED, line=12), flight=True)
    verdict = only(job(*ranks))
    assert verdict.culprits == (3,)
    assert verdict.state is State.SLOW


def named(number: int, key: GroupKey, *calls: OpRecord) -> RankSnapshot:
    """A rank of the default group and one more, which is the first that it made."""
    made = rank(number, key, *calls)
    seq = max((call.seq for call in calls if call.group == key), default=0)
    groups = (GroupProgress(W, "0", 0, 0), GroupProgress(key, "1", seq, 0))
    return replace(made, groups=groups)


def test_groups_of_one_name_and_other_members_were_made_in_another_order() -> None:
    ranks = [
        named(0, TP[0], op(TP[0], 1), blocked(W, 1)),
        named(1, TP[1], blocked(TP[1], 1)),
        rank(2, W, in_call="new_group", in_call_age_s=20.0, in_call_site=site(15)),
        named(3, TP[3], op(TP[3], 1), blocked(W, 1)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.certainty) == (Kind.INIT_INCOMPLETE, Certainty.LIKELY)
    assert (verdict.culprits, verdict.victims) == ((3,), (0, 1, 2))
    assert verdict.headline == (
        "The groups were not created in the same order on all ranks (rank 3 used another "
        "order): under one name ranks 0 and 1 created the group of ranks 0 and 1, rank 3 created "
        "the group of ranks 2 and 3; all_reduce #1 of group tp does not complete."
    )


def test_a_group_that_its_members_know_by_two_names_was_made_in_another_order() -> None:
    pair, other = GroupKey((2, 3)), GroupKey((0, 1))

    def made(number: int, *order: GroupKey) -> RankSnapshot:
        calls = tuple(
            NewGroup(index, index + 1, key, site(33), 30.0 - index)
            for index, key in enumerate(order)
        )
        ours = pair if number in pair.ranks else other
        groups = (
            GroupProgress(W, "0", 0, 0),
            GroupProgress(ours, str(order.index(ours) + 1), 1, -1, by_python=1),
        )
        waits = (blocked(pair, 1),) if ours is pair else (op(other, 1), blocked(W, 1))
        return replace(rank(number, W, *waits), groups=groups, new_groups=calls)

    ranks = [*(made(number, other, pair) for number in (0, 1, 2)), made(3, pair, other)]
    verdict = diagnose(job(*ranks), THRESHOLDS)[0]
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (3,))
    assert (verdict.certainty, verdict.site) == (Certainty.LIKELY, site(33))


def test_groups_of_one_name_are_told_where_the_others_are_still_making_theirs() -> None:
    making: dict[str, Any] = {
        "in_call": "new_group",
        "in_call_age_s": 20.0,
        "in_call_site": site(15),
    }
    ranks = [
        named(0, TP[0], op(TP[0], 1), blocked(W, 1)),
        rank(1, W, **making),
        rank(2, W, **making),
        named(3, TP[3], op(TP[3], 1), blocked(W, 1)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.certainty) == (Kind.INIT_INCOMPLETE, Certainty.POSSIBLE)
    assert (verdict.culprits, verdict.victims) == ((0, 3), (1, 2))
    assert verdict.headline == (
        "The groups were not created in the same order on all ranks: under one name rank 0 created "
        "the group of ranks 0 and 1, rank 3 created the group of ranks 2 and 3; new_group does not "
        "complete."
    )


def test_a_name_that_is_shared_by_groups_that_all_members_know_explains_nothing() -> None:
    # As where each process counts its own groups alone.
    ranks = [named(n, TP[n], op(W, 1), blocked(TP[n], 1)) for n in range(4)]
    for verdict in diagnose(job(*ranks), THRESHOLDS):
        assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())


def test_most_of_a_cycle_that_are_past_the_loop_have_not_finished_early() -> None:
    every = GroupKey((0, 1, 2, 3), "dp")
    ranks = [rank(0, W, op(every, 5), blocked(every, 6, line=4))]
    ranks += [rank(n, W, op(every, 5), blocked(W, 1, "barrier", line=5)) for n in (1, 2, 3)]
    verdict = only(job(*ranks, sources={SCRIPT: LOOP}))
    assert verdict.culprits == (0,)


def saving(text: str, *before: OpRecord) -> Verdict:
    """Ranks 0 and 1 are in a barrier of all, 2 and 3 in a call with their replicas."""
    at_barrier = main_thread(frame(2, "save"), frame(7))
    ranks = [rank(n, W, blocked(W, 2, "barrier", line=2), threads=at_barrier) for n in (0, 1)]
    ranks += [
        rank(n, W, *before, blocked(DP[n], 6, line=5), threads=main_thread(frame(5)))
        for n in (2, 3)
    ]
    return only(job(*ranks, sources={SCRIPT: text}))


def test_a_condition_on_the_rank_that_the_others_met_before_makes_nobody_a_subset() -> None:
    assert saving(SAVE).kind is Kind.SUBSET_ENTERED
    verdict = saving(SAVE, op(W, 1, "barrier", line=2))
    assert verdict.kind is not Kind.SUBSET_ENTERED


def test_a_condition_whose_other_branch_communicates_makes_nobody_a_subset() -> None:
    text = SAVE + "        else:\n            dist.all_reduce(gradient)\n"
    assert saving(text).kind is not Kind.SUBSET_ENTERED


def test_a_cycle_of_what_is_only_pending_is_not_proved() -> None:
    first, second = GroupKey((0, 1), "a"), GroupKey((0, 1), "b")
    ranks = [
        rank(n, key, op(key, 1, state=OpState.ISSUED, source="flight"), flight=True)
        for n, key in enumerate((first, second))
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.ORDER_INVERSION, (0, 1))
    assert (verdict.certainty_of_hang, verdict.state) == (Certainty.LIKELY, State.SLOW)


def test_a_rank_of_a_cycle_that_is_stopped_is_named_and_nothing_is_proved() -> None:
    first, second = GroupKey((0, 1), "a"), GroupKey((0, 1), "b")
    stopped = ProcessState(alive=True, state="T")
    ranks = [
        rank(0, first, blocked(first, 1), process=stopped),
        rank(1, second, blocked(second, 1, line=30)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.reason) == ((0,), Reason.STOPPED)
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.SLOW)


def stage(number: int, turn: str, last: str) -> RankSnapshot:
    """A stage of three. A letter is a message: to (capital) or from the one before or after it."""
    peers = {"b": (number - 1, "recv"), "B": (number - 1, "send")}
    peers |= {"a": (number + 1, "recv"), "A": (number + 1, "send")}
    calls = []
    for n, letter in enumerate(turn):
        peer, kind = peers[letter]
        calls.append(op(TRIO, n, kind, line=10 + "bBaA".index(letter), peer=peer))
    peer, kind = peers[last]
    line = 10 + "bBaA".index(last)
    return rank(number, TRIO, *calls, blocked(TRIO, len(calls), kind, line=line, peer=peer))


def test_a_stage_that_does_as_ever_where_those_around_it_do_more_has_not_come_along() -> None:
    first = stage(0, "AAaa" * 3 + "AA", "A")
    middle = stage(1, "bAbAaBaB" * 3 + "bAbA", "a")
    last = stage(2, "bbBB" * 3 + "bb", "b")
    verdict = only(job(first, middle, last))
    assert verdict.kind is Kind.MISSING_PEER
    assert verdict.headline.startswith("Rank 1 never posted the send for rank 2's recv")
    assert 1 in verdict.culprits
