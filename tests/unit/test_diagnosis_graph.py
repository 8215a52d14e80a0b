"""Root causes across groups: cascades, cycles, and several roots at once."""

from __future__ import annotations

from typing import Any

import pytest
from snapshots import (
    ALIVE,
    BACKWARD,
    DP,
    THRESHOLDS,
    TP,
    W,
    blocked,
    frame,
    job,
    main_thread,
    only,
    op,
    rank,
    site,
    world,
)

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.advice.remedy import advice
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, Reason, State
from hangwatch.model.snapshot import ProcessState, RankSnapshot
from hangwatch.model.verdict import OK

SLEEP = main_thread(frame(12, "slow_step"))


def test_nothing_waits_in_a_healthy_job() -> None:
    assert diagnose(job(*[rank(n, W, op(W, 1)) for n in range(4)]), THRESHOLDS) == (OK,)
    assert diagnose(job(), THRESHOLDS) == (OK,)


def test_in_a_mesh_only_the_rank_that_waits_for_nothing_is_the_culprit() -> None:
    # Rank 3 sleeps; 2 waits for it in their tensor group, 0 for 2 and 1 for 3 in theirs.
    found = job(
        rank(0, DP[0], op(TP[0], 5), blocked(DP[0], 5)),
        rank(1, DP[1], op(TP[0], 5), blocked(DP[1], 5)),
        rank(2, TP[1], op(DP[0], 4), blocked(TP[1], 5)),
        rank(3, TP[1], op(TP[1], 4), op(DP[1], 4), threads=SLEEP),
    )
    verdict = only(found)
    assert (verdict.kind, verdict.culprits, verdict.victims) == (
        Kind.NEVER_ENTERED,
        (3,),
        (0, 1, 2),
    )
    chain = {wait.rank: wait.waits_for for wait in verdict.waits}
    assert chain == {0: (2,), 1: (3,), 2: (3,)}


def test_two_ranks_that_use_two_groups_in_opposite_order_wait_for_each_other() -> None:
    first, second = GroupKey((0, 1), "a"), GroupKey((0, 1), "b")
    verdict = only(
        job(rank(0, first, blocked(first, 1)), rank(1, second, blocked(second, 1, line=30)))
    )
    assert (verdict.kind, verdict.certainty_of_hang) == (Kind.ORDER_INVERSION, Certainty.PROVED)
    assert (verdict.state, verdict.culprits) == (State.HANG, (0, 1))
    assert {verdict.site, verdict.victim_site} == {site(20), site(30)}
    assert "group a" in verdict.headline
    assert "group b" in verdict.headline


def test_of_a_cycle_the_smaller_side_is_the_culprit_and_the_rest_of_the_job_its_victim() -> None:
    trio = GroupKey((0, 1, 2), "trio")
    found = job(
        *[rank(n, trio, blocked(trio, 3)) for n in (0, 1)],
        rank(2, W, op(trio, 2), blocked(W, 3, line=30)),
        rank(3, W, blocked(W, 3, line=30)),
    )
    # Rank 2 is in the world's collective before the trio's; 3 only waits with it.
    verdict = only(found)
    assert (verdict.kind, verdict.culprits) == (Kind.ORDER_INVERSION, (2,))
    assert verdict.victims == (0, 1, 3)


@pytest.mark.parametrize("silent", [(), (1,), (2,)])
def test_who_has_left_the_way_is_not_proved_where_history_is_missing(
    silent: tuple[int, ...],
) -> None:
    # Rank 0 has skipped the trio's first call, of line 20, and goes by line 21 and 30.
    trio, pair = GroupKey((0, 1, 2), "trio"), GroupKey((0, 1), "pair")
    ranks = [rank(0, pair, op(trio, 1, line=21), blocked(pair, 1, line=30))]
    for n in (1, 2):
        before = () if n in silent else (op(trio, 1, line=20),)
        ranks.append(rank(n, trio, *before, blocked(trio, 2, line=21)))
    verdict = only(job(*ranks))
    assert verdict.kind is Kind.ORDER_INVERSION
    assert (verdict.culprits == (0,)) or verdict.certainty is not Certainty.PROVED
    if not silent:
        assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.PROVED)


def test_pending_work_in_opposite_order_is_an_inversion_on_a_device() -> None:
    # Both ranks have issued both; a device runs them in the order of its stream.
    first, second = GroupKey((0, 1), "a"), GroupKey((0, 1), "b")

    def issued(number: int, *order: GroupKey) -> RankSnapshot:
        calls = [
            op(key, 3, state=OpState.ISSUED, age=20.0 - i, source="flight", line=None)
            for i, key in enumerate(order)
        ]
        return rank(number, order[0], *calls, flight=True)

    verdict = only(job(issued(0, first, second), issued(1, second, first)))
    assert (verdict.kind, verdict.culprits) == (Kind.ORDER_INVERSION, (0, 1))
    assert verdict.certainty_of_hang is Certainty.LIKELY


def test_a_full_place_that_does_not_complete_is_nobodys_fault() -> None:
    verdict = only(job(*[rank(n, W, blocked(W, 9)) for n in range(4)]))
    assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.SLOW)
    assert verdict.victims == (0, 1, 2, 3)
    assert verdict.headline == (
        "Ranks 0-3 all entered all_reduce #9 of group default_pg, but it does not complete; no "
        "rank is to blame."
    )


def test_a_member_that_is_stopped_inside_of_a_full_place_is_the_culprit() -> None:
    stopped = ProcessState(alive=True, state="T")
    ranks = [rank(n, W, blocked(W, 9), process=stopped if n == 1 else ALIVE) for n in range(4)]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.reason) == (Kind.COLLECTIVE_STUCK, Reason.STOPPED)
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2, 3))
    assert (verdict.certainty, verdict.site) == (Certainty.LIKELY, site(20))
    assert verdict.headline == (
        "Rank 1 entered all_reduce #9 of group default_pg and cannot complete it: it is stopped "
        "(SIGSTOP, or a frozen container); ranks 0, 2 and 3 wait for it."
    )


def test_a_full_place_is_explained_by_the_earlier_one_that_is_stuck() -> None:
    ranks = [
        rank(
            n,
            W,
            op(W, 4, state=OpState.ISSUED, source="flight"),
            blocked(W, 5, "barrier"),
            flight=True,
        )
        for n in range(4)
    ]
    verdict = only(job(*ranks))
    assert verdict.kind is Kind.COLLECTIVE_STUCK
    assert verdict.collective is not None
    assert (verdict.collective.op, verdict.collective.seq) == ("all_reduce", 4)


def test_independent_roots_are_all_told_the_one_that_holds_up_most_first() -> None:
    pair = GroupKey((4, 5), "pair")
    found = job(
        *[rank(n, W, blocked(W, 2)) for n in (0, 1, 2)],
        rank(3, W, op(W, 1), threads=SLEEP),
        rank(4, pair, blocked(pair, 7, age=90.0)),
        rank(5, pair, op(pair, 6), threads=SLEEP),
    )
    verdicts = diagnose(found, THRESHOLDS)
    assert [verdict.culprits for verdict in verdicts] == [(3,), (5,)]
    assert [verdict.victims for verdict in verdicts] == [(0, 1, 2), (4,)]


def test_a_root_that_is_only_slow_does_not_hide_one_that_is_proved() -> None:
    pair = GroupKey((4, 5), "pair")
    found = job(
        *[rank(n, W, blocked(W, 2)) for n in (0, 1, 2)],
        rank(3, W, op(W, 1), threads=SLEEP),
        rank(4, pair, blocked(pair, 7)),
        rank(5, pair, blocked(pair, 7, "barrier")),
    )
    assert {verdict.state for verdict in diagnose(found, THRESHOLDS)} == {State.SLOW, State.HANG}


def test_a_broadcast_that_completed_on_its_source_leaves_that_rank_ahead_and_innocent() -> None:
    ahead = rank(0, W, op(W, 5, "broadcast"), blocked(W, 6))
    waiting = [rank(n, W, op(W, 5, "broadcast"), blocked(W, 6)) for n in (1, 2)]
    late = rank(3, W, op(W, 4), threads=SLEEP)
    verdict = only(job(ahead, *waiting, late))
    assert (verdict.culprits, verdict.victims) == ((3,), (0, 1, 2))


def test_a_rank_that_waits_for_a_stuck_rank_in_another_group_is_a_victim() -> None:
    # 0 and 1 wait for 2, who waits in a full place that is stuck: nobody of them is to blame.
    pair = GroupKey((2, 3), "pair")
    found = job(
        *[rank(n, W, blocked(W, 2)) for n in (0, 1)],
        *[rank(n, pair, op(W, 1), blocked(pair, 1)) for n in (2, 3)],
    )
    verdict = only(found)
    assert (verdict.kind, verdict.victims) == (Kind.COLLECTIVE_STUCK, (0, 1, 2, 3))
    assert verdict.group == pair


def test_groups_of_the_same_members_are_told_apart() -> None:
    first, second = GroupKey((0, 1), "", 0), GroupKey((0, 1), "", 1)
    found = job(
        rank(0, first, op(second, 5), blocked(first, 3)),
        rank(1, first, op(first, 2), op(second, 5), threads=SLEEP),
    )
    verdict = only(found)
    assert verdict.group == first
    assert verdict.reason is Reason.USER_CODE
    assert "the group of ranks 0 and 1" in verdict.headline


def test_a_thread_that_waits_beside_the_program_does_not_hold_the_rank_up() -> None:
    # Rank 0 saves in a thread, over a group of its own that rank 1 has yet to come to.
    pair, saving = world(2), GroupKey((0, 1), "saving")
    beside = blocked(saving, 1, "gather", thread=77)
    found = job(
        rank(0, saving, beside, op(pair, 1), threads=SLEEP),
        rank(1, pair, op(pair, 1), blocked(pair, 2), threads=main_thread(frame(20))),
    )
    verdict = only(found)
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.NEVER_ENTERED, (0,), (1,))
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.group == pair


def test_a_thread_of_autograd_holds_the_program_up_that_waits_for_it() -> None:
    inner = main_thread(*BACKWARD, frame(25))
    waiting = [rank(n, W, blocked(W, 2, thread=77), threads=inner) for n in (0, 1, 2)]
    verdict = only(job(*waiting, rank(3, W, op(W, 1), threads=SLEEP)))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (
        Kind.NEVER_ENTERED,
        (3,),
        (0, 1, 2),
    )


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("reason", Reason)
def test_each_kind_and_reason_has_two_to_four_remedies(kind: Kind, reason: Reason) -> None:
    assert 2 <= len(advice(kind, reason)) <= 4


def test_the_headline_of_a_large_job_stays_short() -> None:
    everyone = world(4096)
    waiting = [rank(n, everyone, blocked(everyone, 2)) for n in range(4096) if n % 2]
    sleeping = [rank(n, everyone, op(everyone, 1), threads=SLEEP) for n in range(4096) if not n % 2]
    verdict = only(job(*waiting, *sleeping))
    assert len(verdict.culprits) == 2048
    assert len(verdict.headline) < 400


def test_a_full_place_of_which_only_counters_tell_may_hide_a_mismatch() -> None:
    unknown = [rank(n, W, enqueued=9, completed=8, pending_age_s=20.0) for n in range(4)]
    verdict = only(job(*unknown))
    assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())
    assert verdict.certainty is Certainty.POSSIBLE


def test_of_several_that_wait_elsewhere_none_is_sure_to_be_missed_at_new_group() -> None:
    call: dict[str, Any] = {"in_call": "new_group", "in_call_age_s": 20.0, "in_call_site": site(15)}
    making = [rank(n, W, op(W, 1), **call) for n in (0, 1)]
    there = [rank(n, W, op(W, 1), blocked(W, 2)) for n in (2, 3)]
    verdict = only(job(*making, *there))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (2, 3))
    assert verdict.certainty is Certainty.POSSIBLE
