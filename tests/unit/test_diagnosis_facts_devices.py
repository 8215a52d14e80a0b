"""Where ranks with devices are: at their oldest unfinished call, whatever is enqueued behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from snapshots import DP, PAIR, THRESHOLDS, TP, blocked, exited, job, only, op, rank

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, Reason, State
from hangwatch.model.snapshot import GroupProgress, OpRecord, RankSnapshot
from hangwatch.model.verdict import OK

EP = GroupKey((0, 1, 2, 3), "ep")


def enqueued(group: GroupKey, seq: int, name: str = "all_reduce", peer: int = -1) -> OpRecord:
    """A call that a device has to run."""
    return op(group, seq, name, OpState.ISSUED, age=400.0, source="flight", device=True, peer=peer)


def on_device(number: int, *ops: OpRecord, **reached: int) -> RankSnapshot:
    """A rank whose dump this is; reached: places in tp, dp and ep that it has enqueued.

    Everything that is not among ops is complete.
    """
    groups = []
    for name, key in (("tp", TP[number // 2]), ("dp", DP[number % 2]), ("ep", EP)):
        own = [o.seq for o in ops if o.group == key]
        last = max([reached.get(name, 3), *own])
        groups.append(GroupProgress(key, name, last, min(own) - 1 if own else last))
    return replace(rank(number), ops=ops, groups=tuple(groups), threads=None, flight=True)


def test_what_is_enqueued_behind_unfinished_work_is_no_arrival() -> None:
    # Rank 0 waits for rank 1, which never issued it; what 0 has enqueued for 2 is not run.
    verdict = only(
        job(
            on_device(0, enqueued(TP[0], 4), enqueued(DP[0], 4)),
            on_device(1),
            on_device(2, enqueued(DP[0], 4), enqueued(TP[1], 5), tp=4),
            on_device(3, enqueued(TP[1], 5), tp=4),
        )
    )
    assert verdict.culprits == (1,)
    assert verdict.victims == (0, 2, 3)
    assert verdict.kind is Kind.NEVER_ENTERED
    assert verdict.certainty is Certainty.POSSIBLE


def test_a_device_that_has_not_run_what_others_completed_is_stuck() -> None:
    verdict = only(
        job(
            on_device(0, enqueued(TP[0], 5), tp=4),
            on_device(1, enqueued(TP[0], 4), enqueued(TP[0], 5)),
        )
    )
    assert (verdict.culprits, verdict.reason) == ((1,), Reason.GPU_KERNEL)
    assert verdict.certainty is Certainty.LIKELY
    assert "Rank 1" in verdict.headline
    assert "stuck on the GPU" in verdict.headline


def test_the_source_of_a_broadcast_may_be_ahead_of_a_healthy_device() -> None:
    group = GroupKey((0, 1, 2), "tp")

    def member(number: int, *ops: OpRecord, last: int = 4) -> RankSnapshot:
        first = min((o.seq for o in ops), default=last + 1)
        progress = GroupProgress(group, "0", last, first - 1)
        return replace(rank(number), ops=ops, groups=(progress,), flight=True)

    verdict = only(
        job(
            member(0, enqueued(group, 5), last=5),
            member(1, enqueued(group, 4, "broadcast")),
            member(2, last=3),
        )
    )
    assert verdict.culprits == (2,)


def test_a_device_that_has_begun_nothing_is_busy_with_something_else() -> None:
    call = enqueued(TP[0], 4)
    ranks = [on_device(0, replace(call, begun=True)), on_device(1, replace(call, begun=False))]
    ranks = [
        replace(r, groups=tuple(replace(g, started=4 - r.rank) for g in r.groups)) for r in ranks
    ]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.reason) == ((1,), Reason.GPU_KERNEL)


def test_who_has_begun_a_later_call_on_another_stream_is_there() -> None:
    # The tp call of rank 0 waits, on its own stream, for what comes behind the dp call.
    tp, dp = enqueued(TP[0], 4), enqueued(DP[0], 4)
    verdict = only(
        job(
            on_device(0, replace(tp, begun=False), replace(dp, begun=True)),
            on_device(1, replace(tp, begun=True)),
            on_device(2, replace(dp, begun=False)),
            on_device(3),
        )
    )
    assert (verdict.culprits, verdict.reason) == ((2,), Reason.GPU_KERNEL)
    assert verdict.victims == (0, 1)


def test_a_program_that_is_far_ahead_has_not_waited_since() -> None:
    # Enqueued 400 s ago, behind much work; nothing has moved for 12 s.
    call = replace(enqueued(TP[0], 4), begun=True)
    late = replace(call, begun=False)
    ranks = [replace(on_device(r, o), pending_age_s=12.0) for r, o in enumerate((call, late))]
    verdict = only(job(*ranks))
    assert (verdict.state, verdict.stuck_age_s) == (State.SLOW, 12.0)
    assert verdict.culprits == (1,)


def test_a_call_of_which_nothing_tells_whether_it_has_begun_makes_no_rank_stuck() -> None:
    # What C++ issues has no beacon: rank 0 may be in it, and wait for rank 1.
    verdict = only(
        job(
            on_device(0, enqueued(TP[0], 4), replace(enqueued(DP[0], 4), begun=False)),
            on_device(1),
            on_device(2, replace(enqueued(DP[0], 4), begun=True)),
            on_device(3),
        )
    )
    assert verdict.culprits == (1,)


def test_whose_devices_are_all_in_the_call_itself_is_not_behind_in_it() -> None:
    call, later = replace(enqueued(TP[0], 4), begun=True), enqueued(TP[0], 5)
    verdict = only(job(on_device(0, call, later), on_device(1, call)))
    assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())


def test_where_no_device_has_come_to_the_call_none_stands_out() -> None:
    call = replace(enqueued(TP[0], 4), begun=False)
    verdict = only(job(on_device(0, call), on_device(1, call)))
    assert (verdict.kind, verdict.reason) == (Kind.COLLECTIVE_STUCK, Reason.GPU_KERNEL)
    assert verdict.culprits == ()
    assert "none of their devices has reached it" in verdict.headline


def test_who_alone_stopped_enqueuing_while_all_stand_at_one_call_is_possible() -> None:
    verdict = only(
        job(
            on_device(0, enqueued(TP[0], 4), enqueued(TP[0], 5)),
            on_device(1, enqueued(TP[0], 4)),
        )
    )
    assert verdict.culprits == (1,)
    assert verdict.certainty is Certainty.POSSIBLE


def test_nobody_is_blamed_where_all_stand_at_one_call_and_nothing_differs() -> None:
    both = [on_device(r, enqueued(TP[0], 4), enqueued(EP, 4)) for r in (0, 1)]
    verdict = only(job(*both, *(on_device(r, enqueued(EP, 4)) for r in (2, 3))))
    assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())


def test_a_recv_waits_for_the_device_of_its_sender() -> None:
    # Rank 2's send is enqueued behind a call that rank 3 never came to.
    pipe = GroupKey((0, 1, 2, 3), "pp")
    verdict = only(
        job(
            on_device(0, enqueued(pipe, 9, "recv", peer=2)),
            on_device(1),
            on_device(2, enqueued(TP[1], 4), enqueued(pipe, 7, "send", peer=0)),
            on_device(3),
        )
    )
    assert verdict.culprits == (3,)
    assert verdict.victims == (0, 2)
    assert [(wait.rank, wait.op, wait.waits_for) for wait in verdict.waits] == [
        (0, "recv", (2,)),
        (2, "all_reduce", (3,)),
    ]


def test_a_rank_that_has_run_everything_is_found_though_no_device_is_at_it_yet() -> None:
    # Rank 0 holds up 1; both have enqueued a call that rank 2, idle, never issued.
    found = diagnose(
        job(
            on_device(0),
            on_device(1, enqueued(TP[0], 4), enqueued(EP, 4)),
            on_device(2),
            on_device(3, enqueued(EP, 4)),
        ),
        THRESHOLDS,
    )
    assert {rank for verdict in found for rank in verdict.culprits} == {0, 2}


def test_of_two_calls_that_nccl_has_paired_the_one_that_brings_less_completes() -> None:
    def at(number: int, name: str, state: OpState, **fields: Any) -> RankSnapshot:
        alike = [op(PAIR, seq, device=True) for seq in range(1, 5)]
        last = op(PAIR, 5, name, state, line=30 + number, device=True)
        return rank(number, PAIR, *alike, last, flight=True, **fields)

    gradients, barrier = at(0, "all_reduce", OpState.ISSUED), at(1, "barrier", OpState.DONE)
    verdict = only(job(gradients, barrier))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (0, 1))
    assert verdict == only(job(gradients, replace(barrier, **exited())))
    # What is complete elsewhere, and is the same call, shows a device that is stuck.
    same = replace(at(1, "all_reduce", OpState.DONE), **exited())
    verdict = only(job(gradients, same))
    assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, (0,))
    assert "is complete on rank 1, but not on rank 0" in verdict.headline


def test_who_is_to_blame_is_not_known_where_nobody_tells_what_devices_have_come_to() -> None:
    verdict = only(job(*(on_device(n, enqueued(TP[0], 4)) for n in (0, 1))))
    assert verdict.culprits == ()
    assert "no rank stands out" in verdict.headline
    assert "TORCH_NCCL_ENABLE_TIMING=1" in verdict.advice[0]
    known = replace(enqueued(TP[0], 4), begun=True)
    verdict = only(job(*(on_device(n, known) for n in (0, 1))))
    assert "no rank is to blame" in verdict.headline
    assert "TIMING" not in "".join(verdict.advice)


def test_in_the_first_call_of_a_group_nccl_connects_its_ranks() -> None:
    def first(number: int) -> RankSnapshot:
        made = rank(number, PAIR, blocked(PAIR, 1))
        return replace(made, groups=tuple(replace(one, in_order=True) for one in made.groups))

    verdict = only(job(first(0), first(1)))
    assert "no rank stands out" in verdict.headline
    assert "NCCL connects the ranks" in verdict.explanation


def test_a_device_that_is_busy_before_a_call_waits_for_nobody_in_it() -> None:
    alike = [op(PAIR, seq, device=True) for seq in range(1, 5)]
    before = op(PAIR, 5, state=OpState.ISSUED, device=True, begun=False, age=400.0)
    ahead = rank(0, PAIR, *alike, before, flight=True)
    late = rank(1, PAIR, *alike, flight=True)
    assert diagnose(job(ahead, late), THRESHOLDS) == (OK,)
    # Where it had begun, it would.
    begun = rank(0, PAIR, *alike, replace(before, begun=True), flight=True)
    assert only(job(begun, late)).culprits == (1,)
