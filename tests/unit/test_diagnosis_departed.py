"""Verdicts on ranks that left the common program, and on what looks like it."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import Any

from snapshots import (
    BACKWARD,
    DP,
    PAIR,
    SCRIPT,
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
    site,
    world,
)

from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, Reason, State, What
from hangwatch.model.snapshot import JobSnapshot, OpRecord, ProcessState, RankSnapshot

STOPPED: dict[str, Any] = {"process": ProcessState(alive=True, state="T")}


def steps(number: int, count: int) -> list[OpRecord]:
    """So many steps of a rank: one call with its replica, one with all."""
    calls = []
    for seq in range(1, count + 1):
        calls += [op(DP[number % 2], seq, line=10), op(W, seq, line=11)]
    return calls


def test_a_rank_with_a_step_more_than_all_others_is_the_culprit_of_the_cycle() -> None:
    ranks = [rank(n, W, *steps(n, 2), blocked(W, 3, "barrier", line=20)) for n in (0, 2, 3)]
    ranks.append(rank(1, W, *steps(1, 2), blocked(DP[1], 3, line=10)))
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2, 3))


def test_a_rank_with_a_step_more_is_the_culprit_too_where_the_others_are_gone() -> None:
    ranks = [rank(n, W, *steps(n, 2), **exited()) for n in (0, 2, 3)]
    ranks.append(rank(1, W, *steps(1, 2), blocked(DP[1], 3, line=10)))
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (1,))


def test_who_has_no_part_in_a_call_does_not_leave_it_out() -> None:
    # Rank 2 has nothing to do and is gone; one of the others made a call too many, or too few.
    two = GroupKey((0, 1), "two")
    ranks = [rank(n, world(3), **exited()) for n in (0, 2)]
    ranks.append(rank(1, two, blocked(two, 1)))
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (0, 1))


def test_a_stage_that_always_goes_its_own_way_has_not_left_the_program() -> None:
    # A pipeline of three: the middle one alone receives and sends in turn.
    trio = world(3)

    def p2p(number: int, *calls: tuple[str, int, int]) -> RankSnapshot:
        made = [
            op(trio, at, name, peer=peer, line=line)
            for at, (name, peer, line) in enumerate(calls, 1)
        ]
        last = blocked(trio, 1, line=30 if number < 2 else 31, name="all_reduce")
        key = trio if number < 2 else GroupKey((0, 1, 2), "other")
        return rank(number, trio, *made, replace(last, group=key))

    ranks = [
        p2p(0, ("send", 1, 10), ("send", 1, 10)),
        p2p(1, ("recv", 0, 9), ("send", 2, 10), ("recv", 0, 9), ("send", 2, 10)),
        p2p(2, ("recv", 1, 9), ("recv", 1, 9)),
    ]
    assert only(job(*ranks)).culprits == (2,)


SKIPPING = dedent(
    """\
    def main():
        for batch in loader:
            if rank != 1:
                dist.all_reduce(x)
            dist.all_gather(y)
    """
)


def test_a_condition_for_most_names_the_one_that_it_leaves_out() -> None:
    ranks = [
        rank(0, PAIR, blocked(PAIR, 1, line=4)),
        rank(1, PAIR, blocked(PAIR, 1, "all_gather", line=5)),
    ]
    verdict = only(job(*ranks, sources={SCRIPT: SKIPPING}))
    assert (verdict.culprits, verdict.certainty) == ((1,), Certainty.LIKELY)
    assert verdict.certainty_of_hang is Certainty.LIKELY


def test_of_a_rank_that_may_yet_receive_it_is_not_said_that_it_left_the_program() -> None:
    # Their ways parted before, and went on; now the one is just busy.
    after = [op(PAIR, seq, "barrier", line=15) for seq in (3, 4, 5)]
    both = [op(PAIR, 2, "gather", line=12), *after], [op(PAIR, 2, "scatter", line=13), *after]
    send = blocked(PAIR, 1, "send", line=17, p2p=True, peer=1)
    waits = rank(0, PAIR, op(PAIR, 1, line=10), *both[0], send)
    reads = main_thread(frame(20, "read"))
    busy = rank(1, PAIR, op(PAIR, 1, line=10), *both[1], threads=reads)
    verdict = only(job(waits, busy))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (1,))
    assert "left the common sequence of calls" not in verdict.explanation


def test_who_sends_to_one_that_has_left_the_ring_may_have_missed_that() -> None:
    def turn(number: int, seq: int, left: int) -> list[OpRecord]:
        right = (number + 1) % 4
        return [
            op(W, 2 * seq - 1, "isend", wire="send", line=37, p2p=True, peer=right, age=60.0),
            op(W, 2 * seq, "recv", line=38, p2p=True, peer=left, age=60.0),
        ]

    made = {n: [one for s in range(1, 6) for one in turn(n, s, (n - 1) % 4)] for n in range(4)}
    sends = blocked(W, 11, "isend", wire="send", line=37, p2p=True, peer=3)
    waits = {
        2: sends,
        3: blocked(W, 1, "barrier", line=48),
        0: blocked(W, 12, "recv", line=38, p2p=True, peer=2),  # its left one was rank 3
        1: blocked(W, 12, "recv", line=38, p2p=True, peer=0),
    }
    ranks = [
        rank(n, W, *made[n], last, threads=main_thread(frame(last.site.line if last.site else 1)))
        for n, last in waits.items()
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (2, 3))
    assert (verdict.certainty, verdict.victims) == (Certainty.POSSIBLE, (0, 1))
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.site) == (What.DIFFERENT_ARGUMENT, site(37))
    assert verdict.advice[0].startswith("Check how the peer of")
    before = replace(waits[0], peer=3)
    ranks[2] = rank(0, W, *made[0], before, threads=main_thread(frame(38)))
    assert only(job(*ranks)).culprits == (3,)


def test_all_at_one_call_from_two_lines_with_other_sizes_are_candidates() -> None:
    def gather(number: int, line: int, size: int) -> RankSnapshot:
        return rank(number, W, blocked(W, 1, "all_to_all", line=line, shape=(size,)))

    verdict = only(job(*[gather(n, 20, 8) for n in (0, 1, 3)], gather(2, 30, 20)))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (2,))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.SLOW)


def test_a_rank_that_is_stopped_in_a_send_is_named_and_nothing_is_proved() -> None:
    send = blocked(PAIR, 2, "send", peer=1)
    ranks = [
        rank(0, PAIR, op(PAIR, 1, "send", peer=1), send, **STOPPED),
        rank(
            1,
            PAIR,
            op(PAIR, 1, "recv", peer=0),
            op(PAIR, 2, "recv", peer=0),
            blocked(PAIR, 1, line=30),
        ),
    ]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.reason) == ((0,), Reason.STOPPED)
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.SLOW)


def test_a_rank_that_is_stopped_in_a_set_up_call_is_named() -> None:
    setup: dict[str, Any] = {"in_call": "init_process_group", "in_call_age_s": 20.0}
    ranks = [rank(n, None, groups=(), **setup) for n in (0, 1, 2)]
    verdict = only(job(*ranks, rank(3, None, groups=(), **setup, **STOPPED)))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (3,))
    assert verdict.reason is Reason.STOPPED


def test_ranks_that_make_groups_at_two_lines_are_all_candidates() -> None:
    def making(number: int, line: int) -> RankSnapshot:
        call: dict[str, Any] = {"in_call": "new_group", "in_call_age_s": 20.0}
        return rank(number, W, in_call_site=site(line), **call)

    verdict = only(job(*[making(n, 9) for n in (0, 1)], *[making(n, 12) for n in (2, 3)]))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (0, 1, 2, 3))
    assert verdict.certainty is Certainty.POSSIBLE


def test_who_raised_out_of_another_call_holds_up_those_who_wait_for_it_in_this_one() -> None:
    # Rank 3 is killed; 1 raises in their group, and 0 where 1 had only issued its part.
    lost = "Connection closed by peer"
    issued = op(W, 1, state=OpState.ISSUED, is_async=True)
    failed: dict[str, Any] = {"state": OpState.FAILED}
    ranks = [
        rank(0, W, op(W, 1, **failed), **raised("RuntimeError", lost, age=3.0)),
        rank(2, W, op(W, 1, **failed), **raised("RuntimeError", lost, age=3.0)),
        rank(1, W, issued, op(DP[1], 1, **failed), **raised("RuntimeError", lost, age=4.0)),
        rank(3, W, issued, **killed(9, age=5.0)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.DIED, (3,), (0, 1, 2))


def test_the_end_of_a_rank_that_is_not_needed_does_not_explain_a_death() -> None:
    lost = "Connection closed by peer"
    trio = GroupKey((0, 1, 2), "trio")
    ranks = [
        rank(0, trio, blocked(trio, 2), **killed(6, age=5.0)),
        rank(1, trio, op(trio, 2, state=OpState.FAILED), **raised("RuntimeError", lost, age=4.0)),
        rank(2, trio, op(trio, 2, state=OpState.FAILED), **raised("RuntimeError", lost, age=4.0)),
        rank(3, W, **exited(age=6.0)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (0,))


def test_a_group_that_nobody_has_used_is_not_where_a_rank_raised() -> None:
    lost = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer"
    end = raised("RuntimeError", lost, line=19)
    ranks = [
        rank(0, W, groups=rank(0, W, op(DP[0], 3)).groups, **end),
        rank(2, W, groups=rank(2, W, op(DP[0], 2)).groups, **killed(9, age=7.0)),
        rank(1, W, **exited(age=8.0)),
        rank(3, W, **exited(age=8.0)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))


def test_a_rank_at_an_unknown_line_with_unfinished_work_may_be_waiting_for_it() -> None:
    others = [rank(n, W, op(W, 40), blocked(W, 41)) for n in (0, 1, 3)]
    busy = rank(2, W, op(W, 40), threads=main_thread(frame(12)), pending_age_s=20.0)
    assert only(job(*others, busy)).certainty is Certainty.POSSIBLE
    in_backward = replace(busy, threads=main_thread(*BACKWARD, frame(12)), flight=True)
    assert only(job(*others, in_backward)).certainty is Certainty.POSSIBLE


def test_who_is_alone_in_one_group_of_all_while_all_others_are_in_another_is_named() -> None:
    every, other = GroupKey((0, 1, 2, 3), "every"), GroupKey((0, 1, 2, 3), "other")
    pairs = [GroupKey((0, 1), "first"), GroupKey((2, 3), "last")]
    ranks = [
        rank(0, W, op(pairs[0], 1, line=8), blocked(every, 1, line=14)),
        rank(1, W, op(pairs[0], 1, line=8), blocked(other, 1, line=15)),
        *[rank(n, W, op(pairs[1], 1, line=9), blocked(every, 1, line=14)) for n in (2, 3)],
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.ORDER_INVERSION, (1,))
    assert verdict.state is State.HANG


def _of_three(**ways: list[OpRecord]) -> JobSnapshot:
    """Ranks that made these calls of one group, the last of which they wait in."""
    key = world(3)
    made = []
    for number, calls in enumerate(ways.values()):
        last = replace(calls[-1], state=OpState.BLOCKED, blocked_age_s=20.0)
        made.append(rank(number, key, *calls[:-1], last))
    return job(*made)


def _calls(letters: str) -> list[OpRecord]:
    names = {"a": "all_reduce", "b": "broadcast", "c": "all_gather", "d": "barrier"}
    return [op(world(3), n, names[x], line=ord(x)) for n, x in enumerate(letters, 1)]


def test_a_call_left_out_long_ago_is_told_from_there_and_where_it_shows() -> None:
    usual = _calls("aabaabaab")
    odd = [replace(one, seq=n) for n, one in enumerate([*usual[:4], *usual[5:], usual[0]], 1)]
    verdict = only(_of_three(one=usual, other=usual, odd=odd))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.OP_MISMATCH, (2,), (0, 1))
    assert verdict.site == site(ord("b"))


def test_who_is_blamed_by_where_he_stands_is_excused_by_what_all_did() -> None:
    # Rank 2 has a turn more than the others: it is those who are missing from its collective.
    key, pairs = world(3), [GroupKey((0, 2), "first"), GroupKey((1, 2), "second")]
    turn = [op(key, 1, line=10), op(key, 2, line=11)]
    ranks = [rank(n, key, *turn, op(pairs[n], 1, line=30), **exited()) for n in (0, 1)]
    ranks.append(
        rank(
            2,
            key,
            *turn,
            blocked(key, 3, line=10),
            groups=(
                *rank(2, key, *turn, blocked(key, 3)).groups,
                *(replace(one.groups[1], enqueued=0, completed=0) for one in ranks),
            ),
        )
    )
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (2,))


def test_of_two_the_verdict_says_how_sure_it_is_of_what() -> None:
    gone = rank(1, PAIR, op(PAIR, 1), **exited())
    verdict = only(job(rank(0, PAIR, op(PAIR, 1), blocked(PAIR, 2)), gone))
    assert (verdict.culprits, verdict.victims) == ((0, 1), ())
    assert (verdict.certainty, verdict.certainty_of_hang) == (
        Certainty.POSSIBLE,
        Certainty.PROVED,
    )
    assert verdict.state is State.HANG
    assert verdict.explanation.endswith(
        "One of ranks 0 and 1 left the common sequence of calls: what is known of their calls does "
        "not show which."
    )


def test_who_did_what_it_never_did_before_is_likely_the_one_and_the_hang_is_proved() -> None:
    # Both reduce over two groups in turn, and each waits for the other in one of them.
    dp, tp = GroupKey((0, 1), "dp"), GroupKey((0, 1), "tp")
    turns = [op(key, n, line=10 + at) for n in (1, 2, 3) for at, key in enumerate((dp, tp))]
    usual = rank(0, PAIR, *turns, blocked(dp, 4, line=10))
    swapped = rank(1, PAIR, *turns, blocked(tp, 4, line=11))
    verdict = only(job(usual, swapped))
    assert (verdict.kind, verdict.culprits) == (Kind.ORDER_INVERSION, (1,))
    assert (verdict.certainty, verdict.certainty_of_hang) == (
        Certainty.LIKELY,
        Certainty.PROVED,
    )
