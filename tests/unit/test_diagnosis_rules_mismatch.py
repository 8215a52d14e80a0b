"""Ranks that entered different things at one place: which of them left the program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from snapshots import (
    BACKWARD,
    PAIR,
    THRESHOLDS,
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
    source,
)

from hangwatch.diagnosis import diagnose
from hangwatch.model.kinds import Certainty, Kind, OpState, State, What
from hangwatch.model.snapshot import OpRecord, RankSnapshot, ThreadStack
from hangwatch.model.verdict import OK


def at(line: int, call: OpRecord, *before: OpRecord, number: int, **fields: Any) -> RankSnapshot:
    """A rank that is in a call of main() at a line."""
    stack = main_thread(frame(line), frame(99, "<module>"))
    fields = {"threads": stack, **fields}
    return rank(number, call.group, *before, call, **fields)


def reducing(
    number: int, line: int, *before: OpRecord, seq: int = 7, **fields: Any
) -> RankSnapshot:
    """A rank in backward at a line, its reducer in all_reduce."""
    call = op(W, seq, state=OpState.ISSUED, source="flight")
    stack = main_thread(*BACKWARD, frame(line), frame(99, "<module>"))
    return rank(number, W, *before, call, flight=True, threads=stack, **fields)


BEFORE = [op(W, seq) for seq in range(1, 7)]
"""All calls of the group before its seventh."""


LOOP = """
    def main():
        for batch in loader:
            loss.backward()
            optimizer.step()
        dist.barrier()
        evaluate()
    """


# --- Threads ----------------------------------------------------------------------------------

SAVER = ThreadStack(
    "AsyncCheckpointExecutor_0",
    77,
    active=False,
    owns_gil=False,
    frames=(
        frame(331, "Condition.wait", "/usr/lib/python3.11/threading.py"),
        frame(1002, "Thread._bootstrap", "/usr/lib/python3.11/threading.py"),
    ),
)


def saving(number: int, *, first: bool, both: bool = True) -> RankSnapshot:
    """A rank whose main thread and whose saver make calls in one group."""
    own = [op(W, 6, line=8, thread=1000 + number)]
    beside = [op(W, 5, "gather_object", line=None, thread=77)] if both else []
    main = blocked(W, 7, line=8, thread=1000 + number)
    saver = blocked(W, 7, "gather_object", line=None, thread=77)
    threads = (*main_thread(frame(8)), SAVER)
    calls = [*beside, *own, saver if first else main]
    return rank(number, W, *calls, threads=threads)


def test_the_calls_of_two_threads_in_one_group_are_nobodys_departure() -> None:
    verdict = only(job(*(saving(number, first=number == 1) for number in range(4))))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (0, 1, 2, 3))
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.site == site(8)
    assert verdict.headline.endswith(
        "ranks 0, 2 and 3 entered all_reduce from the main thread at train.py:8, rank 1 entered "
        "gather_object from another thread."
    )


def test_a_thread_that_one_rank_alone_has_is_its_departure() -> None:
    ranks = [saving(number, first=number == 1, both=number == 1) for number in range(4)]
    verdict = only(job(*ranks))
    assert verdict.culprits == (1,)
    assert verdict.site is None  # the main thread's line says nothing of it


# --- Signatures -------------------------------------------------------------------------------


def test_a_rank_with_another_shape_is_named_though_others_have_passed_the_place() -> None:
    # gloo: ranks 1 and 2 are stuck at 7; 0 and 3 were let through and wait at 8.
    passed = [rank(n, W, op(W, 7), blocked(W, 8, "barrier", line=30)) for n in (0, 3)]
    stuck = [rank(2, W, blocked(W, 7)), rank(1, W, blocked(W, 7, shape=(5,)))]
    verdict = only(job(*passed, *stuck))
    assert (verdict.kind, verdict.state) == (Kind.SIGNATURE_MISMATCH, State.HANG)
    assert verdict.certainty is Certainty.PROVED
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2, 3))
    assert verdict.collective is not None
    assert (verdict.collective.seq, verdict.collective.shape) == (7, (5,))
    assert verdict.headline == (
        "Rank 1 entered all_reduce #7 of group default_pg at train.py:20 with shape [5], ranks 0, "
        "2 and 3 with shape [4]."
    )


@pytest.mark.parametrize(
    ("name", "different", "says"),
    [
        ("all_reduce", {"dtype": "float16"}, "float16"),
        ("broadcast", {"root": 1}, "root 1"),
        ("reduce", {"root": 2}, "root 2"),
        ("gather", {"shape": (2, 3)}, "shape [2, 3]"),
    ],
)
def test_what_differs_is_said(name: str, different: dict[str, Any], says: str) -> None:
    same = [rank(n, W, blocked(W, 7, name, root=0)) for n in (0, 1, 2)]
    odd = rank(3, W, blocked(W, 7, name, **{"root": 0, **different}))
    verdict = only(job(*same, odd))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (3,))
    assert says in verdict.headline


@pytest.mark.parametrize(
    ("name", "different"),
    [
        ("all_reduce", {"shape": (2, 2)}),  # as many elements
        ("all_gather", {"shape": (9,)}),
        ("all_to_all", {"shape": (9,)}),
        ("scatter", {"shape": (9,)}),
        ("all_reduce", {"dtype": "torch.float32"}),
    ],
)
def test_what_may_differ_is_no_mismatch(name: str, different: dict[str, Any]) -> None:
    same = [rank(n, W, blocked(W, 7, name)) for n in (0, 1, 2)]
    verdict = only(job(*same, rank(3, W, blocked(W, 7, name, **different))))
    assert verdict.kind is Kind.COLLECTIVE_STUCK


def test_two_against_two_shapes_are_all_candidates() -> None:
    small = [rank(n, W, blocked(W, 7)) for n in (0, 1)]
    large = [rank(n, W, blocked(W, 7, shape=(5,))) for n in (2, 3)]
    verdict = only(job(*small, *large))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (0, 1, 2, 3))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.HANG)
    assert "There is no majority" in verdict.explanation


@pytest.mark.parametrize(
    ("one", "other"),
    [("all_gather", "all_gather_into_tensor"), ("all_to_all", "all_to_all_single")],
)
def test_two_forms_that_backends_run_as_one_are_no_mismatch(one: str, other: str) -> None:
    ranks = rank(0, W, blocked(W, 7, one)), *(rank(n, W, blocked(W, 7, other)) for n in (1, 2))
    verdict = only(job(*ranks, rank(3, W, op(W, 6), threads=main_thread(frame(40)))))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (3,))


def test_two_forms_that_need_one_size_are_a_mismatch_where_the_sizes_differ() -> None:
    ranks = [rank(n, W, blocked(W, 7, "all_gather", shape=(1,))) for n in (0, 1, 2)]
    verdict = only(job(*ranks, rank(3, W, blocked(W, 7, "all_gather_into_tensor", shape=(9,)))))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (3,))


def test_a_mismatch_that_all_have_passed_proves_nothing_while_somebody_is_still_to_come() -> None:
    def after(number: int, first: str, *calls: OpRecord) -> RankSnapshot:
        before = [op(W, seq, "gather") for seq in range(1, 6)]
        return rank(number, W, *before, op(W, 6, first), *calls)

    waits = [after(n, "broadcast", blocked(W, 7, "broadcast")) for n in (1, 2)]
    late = after(3, "broadcast")
    verdict = only(job(after(0, "all_reduce", blocked(W, 7)), *waits, late))
    assert verdict.state is not State.HANG or verdict.stuck_age_s >= THRESHOLDS.hang_after_s
    assert verdict.certainty is not Certainty.PROVED
    come = after(3, "broadcast", blocked(W, 7, "broadcast"))
    verdict = only(job(after(0, "all_reduce", blocked(W, 7)), *waits, come))
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.PROVED)


def test_gloo_calls_a_reduce_scatter_all_reduce_and_that_is_no_mismatch() -> None:
    page = rank(0, W, blocked(W, 7, "reduce_scatter_tensor"))
    flight = [
        rank(n, W, op(W, 7, state=OpState.ISSUED, source="flight"), flight=True) for n in (1, 2, 3)
    ]
    assert only(job(page, *flight)).kind is Kind.COLLECTIVE_STUCK


def test_a_rank_that_aborted_of_a_mismatch_is_not_its_cause() -> None:
    aborted = rank(0, W, blocked(W, 7), **killed(6))
    stuck = [rank(n, W, blocked(W, 7)) for n in (2, 3)]
    verdict = only(job(aborted, rank(1, W, blocked(W, 7, shape=(9,))), *stuck))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (1,))


def test_a_rank_that_was_aborted_for_a_call_that_it_does_not_wait_for_is_not_its_cause() -> None:
    running = op(W, 7, state=OpState.ISSUED, is_async=True)
    aborted = rank(0, W, running, **killed(6))
    stuck = [rank(n, W, running, blocked(W, 8)) for n in (2, 3)]
    other = op(W, 7, state=OpState.ISSUED, is_async=True, shape=(9,))
    verdict = only(job(aborted, rank(1, W, other, blocked(W, 8)), *stuck))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (1,))
    assert 0 in verdict.victims


def test_a_job_failed_of_a_mismatch_that_all_had_gone_on_from() -> None:
    calls = op(W, 7, state=OpState.ISSUED, is_async=True), blocked(W, 8, age=1.0)
    ended = killed(15, 1.0, terminated_by_launcher=True)
    other = op(W, 7, state=OpState.ISSUED, is_async=True, shape=(9,)), calls[1]
    aborted = rank(0, W, *other, **killed(6, 1.5))
    others = [rank(number, W, *calls, **ended) for number in (1, 2, 3)]
    verdict = only(job(aborted, *others, ended=True, exit_code=1))
    assert (verdict.state, verdict.kind) == (State.FAILED, Kind.SIGNATURE_MISMATCH)
    assert verdict.culprits == (0,)


def test_ranks_that_raised_of_a_mismatch_are_known_by_the_recorders_they_left() -> None:
    # gloo aborts rank 1; the others raise, c10d counts their bucket as done.
    aborted = rank(1, W, blocked(W, 7, line=5, shape=()), **killed(6))
    message = "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    bucket = op(W, 7, source="flight", shape=(2372,))
    others = [
        rank(n, W, bucket, flight=True, **raised("RuntimeError", message, 3)) for n in (0, 2, 3)
    ]
    ended: dict[str, Any] = {"ended": True, "exit_code": 1}
    verdict = only(job(aborted, *others, **ended))
    assert (verdict.kind, verdict.state) == (Kind.SIGNATURE_MISMATCH, State.FAILED)
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2, 3))
    assert (verdict.site, verdict.victim_site) == (site(5), site(3))
    with_source = only(job(aborted, *others, **ended, **source(LOOP)))
    assert (with_source.kind, with_source.culprits) == (Kind.FINISHED_EARLY, (1,))


# --- Other collectives --------------------------------------------------------------------------


def test_a_minority_in_another_collective_is_named() -> None:
    most = [at(20, blocked(W, 7), *BEFORE, number=n) for n in (0, 1, 3)]
    verdict = only(job(*most, at(24, blocked(W, 7, "broadcast", line=24), *BEFORE, number=2)))
    assert (verdict.kind, verdict.certainty) == (Kind.OP_MISMATCH, Certainty.PROVED)
    assert (verdict.state, verdict.culprits) == (State.HANG, (2,))
    assert verdict.victims == (0, 1, 3)
    assert (verdict.site, verdict.victim_site) == (site(24), site(20))
    assert verdict.headline == (
        "Rank 2 entered broadcast at train.py:24 as collective #7 of group default_pg, but ranks "
        "0, 1 and 3 entered all_reduce at train.py:20."
    )


def test_what_each_of_several_entered_is_said_of_it_alone() -> None:
    most = [at(line, blocked(W, 7, line=line), number=n) for n, line in ((0, 20), (1, 20), (4, 21))]
    odd = [
        at(line, blocked(W, 7, name, line=line), number=n)
        for n, name, line in ((2, "broadcast", 24), (3, "barrier", 26))
    ]
    verdict = only(job(*most, *odd))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (2, 3))
    assert verdict.headline == (
        "Rank 2 entered broadcast at train.py:24, rank 3 entered barrier at train.py:26 as "
        "collective #7 of group default_pg, but ranks 0, 1 and 4 entered all_reduce."
    )
    assert "Ranks 0 and 1: train.py:20 in main. Rank 4: train.py:21 in main." in verdict.explanation


def test_nothing_is_proved_before_the_pages_can_be_trusted() -> None:
    most = [at(20, blocked(W, 7, age=0.5), number=n) for n in (0, 1, 3)]
    odd = at(24, blocked(W, 7, "broadcast", line=24, age=0.5), number=2)
    assert diagnose(job(*most, odd), THRESHOLDS) == (OK,)


def test_both_branches_of_a_condition_that_communicate_are_an_op_mismatch() -> None:
    text = """
        def main():
            for step in range(40):
                if gradient.norm() > 1e3:
                    dist.broadcast(weights, src=0)
                else:
                    dist.all_reduce(gradient)
        """
    most = [at(6, blocked(W, 7, line=6), number=n) for n in (0, 1, 3)]
    verdict = only(job(*most, at(4, blocked(W, 7, "broadcast", line=4), number=2), **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (2,))
    assert verdict.cause is not None
    assert "`if gradient.norm() > 1e3` at train.py:3" in verdict.cause.why


def test_one_line_that_chooses_the_collective_is_an_op_mismatch() -> None:
    most = [at(20, blocked(W, 7), number=n) for n in (0, 1, 3)]
    verdict = only(job(*most, at(20, blocked(W, 7, "broadcast"), number=2)))
    assert verdict.kind is Kind.OP_MISMATCH


# --- Subsets ------------------------------------------------------------------------------------

RANK0 = """
    def log_statistics(step):
        dist.all_gather_object(gathered, step)

    def main():
        for step in range(100):
            loss.backward()
            if step == 20 and rank == 0:
                log_statistics(step)
        dist.barrier()
    """


def test_a_collective_under_a_condition_on_the_rank_was_entered_by_a_subset() -> None:
    gathering = blocked(W, 7, "all_gather_object", line=2, wire="all_gather")
    stack = main_thread(frame(2, "log_statistics"), frame(8), frame(99, "<module>"))
    found = job(
        rank(0, W, *BEFORE, gathering, threads=stack),
        *[reducing(n, 6, *BEFORE) for n in (1, 2, 3)],
        **source(RANK0),
    )
    verdict = only(found)
    assert (verdict.kind, verdict.certainty) == (Kind.SUBSET_ENTERED, Certainty.PROVED)
    assert (verdict.culprits, verdict.victims) == ((0,), (1, 2, 3))
    assert verdict.collective is not None
    assert verdict.collective.op == "all_gather_object"
    assert verdict.site is not None
    assert (verdict.site.line, verdict.site.source) == (2, "dist.all_gather_object(gathered, step)")
    assert verdict.cause is not None
    assert verdict.cause.why == ("`if step == 20 and rank == 0` at train.py:7 depends on the rank.")


def test_the_condition_is_not_quoted_where_the_source_has_changed() -> None:
    gathering = blocked(W, 7, "all_gather_object", line=2, wire="all_gather")
    stack = main_thread(frame(2, "log_statistics"), frame(8), frame(99, "<module>"))
    found = job(rank(0, W, gathering, threads=stack), *[reducing(n, 6) for n in (1, 2, 3)])
    verdict = only(found)
    assert verdict.culprits == (0,)
    assert "`" not in verdict.headline + verdict.explanation


def test_without_source_nothing_tells_whether_the_others_ever_come_to_a_call() -> None:
    steps = [call for n in (1, 3) for call in (op(W, n, line=20), op(W, n + 1, "gather", line=21))]
    most = [at(20, blocked(W, 5), *steps, number=n) for n in (0, 1, 3)]
    odd = at(30, blocked(W, 5, "barrier", line=30), *steps, number=2)
    verdict = only(job(*most, odd))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (2,))


def test_a_subset_that_the_others_never_join_is_told_from_a_slow_rank_by_the_source() -> None:
    text = """
        def main():
            if rank == 0:
                dist.barrier()
            train()
        """
    waiting = at(3, blocked(W, 7, "barrier", line=3), number=0)
    others = [rank(n, W, op(W, 6), threads=main_thread(frame(4))) for n in (1, 2, 3)]
    verdict = only(job(waiting, *others, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.SUBSET_ENTERED, (0,))
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.SLOW)
    assert verdict.cause is not None
    assert "`if rank == 0` at train.py:2" in verdict.cause.why


def test_a_subset_whose_collective_answered_that_of_ddps_constructor_is_told_by_the_source() -> (
    None
):
    text = """
        def main():
            dist.all_reduce(config)
            if rank == 0:
                dist.all_gather_object(objects, rank)
            model = DistributedDataParallel(net)
        """
    message = "DDP expects same model across all ranks, but Rank 1 has 2 params"
    made = op(W, 6, line=2)
    waiting = at(
        4,
        blocked(W, 8, "all_gather_object", line=4, wire="all_gather"),
        made,
        op(W, 7, "all_gather_object", line=4, wire="all_gather"),
        number=0,
    )
    died = [rank(n, W, made, enqueued=7, **raised("RuntimeError", message, 5)) for n in (1, 2, 3)]
    verdict = only(job(waiting, *died, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.SUBSET_ENTERED, (0,))
    assert verdict.cause is not None
    assert "`if rank == 0` at train.py:3" in verdict.cause.why
    without_source = only(job(waiting, *died))
    assert (without_source.kind, without_source.culprits) == (Kind.DIED, (1, 2, 3))


# --- Uneven loops -------------------------------------------------------------------------------


def test_a_rank_that_is_past_the_loop_of_the_others_finished_early() -> None:
    buckets = [op(W, seq, source="flight") for seq in range(1, 7)]
    done = at(5, blocked(W, 7, "barrier", line=5), *buckets, number=1)
    verdict = only(job(done, *[reducing(n, 3, *buckets) for n in (0, 2, 3)], **source(LOOP)))
    assert (verdict.kind, verdict.certainty) == (Kind.FINISHED_EARLY, Certainty.PROVED)
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2, 3))
    assert verdict.site is not None
    assert verdict.site.line == 5
    assert verdict.collective is not None
    assert verdict.collective.op == "all_reduce"
    assert verdict.headline == (
        "Rank 1 finished early: it left the loop at train.py:2 and is in barrier at train.py:5; "
        "ranks 0, 2 and 3 wait for it in all_reduce #7 of group default_pg."
    )
    assert "`for batch in loader:`" in verdict.explanation
    assert verdict.cause is not None
    assert verdict.cause.what is What.UNEVEN_LOOP


def test_of_two_ranks_of_which_one_has_left_the_loop_either_may_be_wrong() -> None:
    done = at(5, blocked(PAIR, 7, "barrier", line=5), number=1)
    inside = at(3, blocked(PAIR, 7, "all_reduce", line=3), number=0)
    verdict = only(job(done, inside, **source(LOOP)))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (0, 1))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.HANG)
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.certainty) == (What.UNEVEN_LOOP, Certainty.POSSIBLE)
    assert verdict.certainty_of_hang is Certainty.LIKELY
    assert "in the loop at train.py:2 that rank 1 has left for barrier" in verdict.headline


def test_a_rank_that_is_past_the_loop_and_busy_has_likely_finished() -> None:
    busy = rank(1, W, op(W, 6), threads=main_thread(frame(6), frame(99, "<module>")))
    verdict = only(job(busy, *[reducing(n, 3) for n in (0, 2, 3)], **source(LOOP)))
    assert (verdict.kind, verdict.certainty) == (Kind.FINISHED_EARLY, Certainty.LIKELY)
    assert verdict.state is State.SLOW


def test_a_rank_that_may_come_back_to_the_loop_has_not_finished() -> None:
    text = """
        def main():
            for epoch in range(3):
                for batch in loader:
                    loss.backward()
                evaluate()
        """
    busy = rank(1, W, op(W, 6), threads=main_thread(frame(5), frame(99, "<module>")))
    verdict = only(job(busy, *[reducing(n, 4) for n in (0, 2, 3)], **source(text)))
    assert verdict.kind is Kind.NEVER_ENTERED


def test_a_rank_that_goes_on_when_the_others_are_past_the_loop_has_more_steps() -> None:
    done = [at(5, blocked(W, 7, "barrier", line=5), number=n) for n in (0, 2, 3)]
    verdict = only(job(*done, reducing(1, 3), **source(LOOP)))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (1,))
    assert "is still running after ranks 0, 2 and 3" in verdict.headline


# --- Collectives that were left out --------------------------------------------------------------


def test_a_rank_that_left_a_collective_out_is_in_one_that_the_others_come_to_next() -> None:
    steps = [
        call for n in (1, 3) for call in (op(W, n, line=20), op(W, n + 1, "broadcast", line=24))
    ]
    most = [at(20, blocked(W, 5), *steps, number=n) for n in (0, 1, 3)]
    odd = at(24, blocked(W, 5, "broadcast", line=24), *steps, number=2)
    verdict = only(job(*most, odd))
    assert (verdict.kind, verdict.certainty) == (Kind.OP_MISMATCH, Certainty.PROVED)
    assert verdict.culprits == (2,)
    assert verdict.headline == (
        "Rank 2 entered broadcast at train.py:24 as collective #5 of group default_pg, but ranks "
        "0, 1 and 3 entered all_reduce at train.py:20."
    )


def test_the_condition_that_left_it_out_is_the_cause() -> None:
    text = """
        def main():
            for step in range(30):
                if not batch.isnan().any():
                    dist.all_reduce(x)
                dist.broadcast(x, 0)
        """
    most = [at(4, blocked(W, 3, line=4), number=n) for n in (0, 1, 3)]
    odd = at(5, blocked(W, 3, "broadcast", line=5), number=2)
    verdict = only(job(*most, odd, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (2,))
    assert verdict.cause is not None
    assert verdict.cause.what is What.DATA_CONDITION
    assert "`if not batch.isnan().any()` at train.py:3" in verdict.cause.why


def test_a_call_that_nobody_made_before_is_no_way_round_a_condition_after_it() -> None:
    text = """
        def main():
            for step in range(30):
                loss = model(batch)
                if bad_on(rank):
                    continue
                dist.all_reduce(x)
        """
    steps = [call for n in (1, 3) for call in (op(PAIR, n, "gather", line=3), op(PAIR, n + 1))]
    usual = at(6, blocked(PAIR, 6, line=6), *steps, op(PAIR, 5, "gather", line=3), number=1)
    inside = (frame(23, "forward"), frame(3), frame(99, "<module>"))
    extra = replace(blocked(PAIR, 6, "broadcast"), site=site(23, "forward"))
    odd = rank(0, PAIR, *steps, op(PAIR, 5, "gather", line=3), extra, threads=main_thread(*inside))
    steps[1] = steps[3] = op(PAIR, 2, line=6)
    made = [replace(call, seq=n) for n, call in enumerate(steps, 1)]
    ranks = [replace(one, ops=(*made, *one.ops[len(made) :])) for one in (odd, usual)]
    verdict = only(job(*ranks, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (0,))
    assert verdict.cause is not None
    assert verdict.cause.what is What.UNKNOWN


def test_a_size_from_another_line_is_that_of_another_call() -> None:
    text = """
        def main():
            for step in range(30):
                if step != 5 or rank != 1:
                    dist.all_reduce(norm)
                dist.all_reduce(gradients)
        """
    made = [
        call
        for n in (1, 3)
        for call in (op(PAIR, n, line=4, shape=()), op(PAIR, n + 1, line=5, shape=(610,)))
    ]
    usual = at(4, blocked(PAIR, 5, line=4, shape=()), *made, number=0)
    odd = at(5, blocked(PAIR, 5, line=5, shape=(610,)), *made, number=1)
    verdict = only(job(usual, odd, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (1,))
    assert verdict.headline.startswith(
        "Rank 1 entered all_reduce at train.py:5 as collective #5 of group default_pg, but rank 0 "
        "entered all_reduce at train.py:4"
    )
    assert verdict.cause is not None
    assert verdict.cause.what is What.RANK_CONDITION


def test_what_came_before_decides_between_two_ranks() -> None:
    steps = [op(PAIR, 1, line=20), op(PAIR, 2, "gather", line=21), op(PAIR, 3, line=20)]
    usual = at(21, blocked(PAIR, 4, "gather", line=21), *steps, number=0)
    odd = at(30, blocked(PAIR, 4, "barrier", line=30), *steps, number=1)
    body = ["    dist.gather(x)" if line < 30 else "    dist.barrier()" for line in range(2, 31)]
    verdict = only(job(usual, odd, **source("\n".join(["while True:", *body]))))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (1,))
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.HANG)


def test_that_most_came_with_something_new_proves_the_hang_and_not_who_did_it() -> None:
    steps = [op(W, 1, line=20), op(W, 2, "gather", line=21), op(W, 3, line=20)]
    as_ever, new = blocked(W, 4, "gather", line=21), blocked(W, 4, "barrier", line=30)
    most_are_new = [
        at(21, as_ever, *steps, number=0),
        *(at(30, new, *steps, number=n) for n in (1, 2, 3)),
    ]
    verdict = only(job(*most_are_new))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (0,))
    assert (verdict.certainty, verdict.hang) == (Certainty.LIKELY, Certainty.PROVED)
    one_is_new = [
        at(30, new, *steps, number=0),
        *(at(21, as_ever, *steps, number=n) for n in (1, 2, 3)),
    ]
    verdict = only(job(*one_is_new))
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.PROVED)


@pytest.mark.parametrize(
    ("made", "advice"),
    [
        ("scores[rank] = exact", "Compute the root of the call at train.py:4 from values"),
        ("scores = sorted(scores)", "Pass the same root rank on all ranks"),
    ],
)
def test_what_makes_a_root_depend_on_the_rank_is_told(made: str, advice: str) -> None:
    text = f"""
    def main():
        scores = gather()
        {made}
        dist.broadcast(x, src=best(scores))
    """
    ranks = [
        at(4, blocked(W, 1, "broadcast", line=4, root=root), number=n)
        for n, root in enumerate((1, 1, 0, 1))
    ]
    verdict = only(job(*ranks, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (2,))
    assert verdict.cause is not None
    assert verdict.cause.what is What.DIFFERENT_ARGUMENT
    assert verdict.cause.site is not None
    assert verdict.cause.site.line == (3 if "rank" in made else 4)
    assert verdict.advice[0].startswith(advice)


def test_of_ranks_that_go_over_a_set_none_is_named_alone() -> None:
    text = """
    def main():
        for name in {"head", "body"}:
            dist.all_reduce(gradients[name])
    """
    ranks = [at(3, blocked(W, 1, line=3, shape=(n,)), number=n) for n in (2, 3)]
    more = [at(3, blocked(W, 1, line=3, shape=(2,)), number=n) for n in (0, 1)]
    verdict = only(job(*more, *ranks, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (0, 1, 2, 3))
    assert (verdict.certainty, verdict.hang) == (Certainty.POSSIBLE, Certainty.PROVED)
    assert verdict.cause is not None
    assert verdict.cause.what is What.DIFFERENT_ORDER
    assert not any("pad" in advice for advice in verdict.advice)
    listed = only(job(*more, *ranks, **source(text.replace("{", "[").replace("}", "]"))))
    assert listed.culprits == (3,)


def test_what_came_before_decides_nothing_where_the_program_may_just_have_gone_on() -> None:
    # Without the source it may be that the loop of rank 1 was over, and 0 has a step too many.
    steps = [op(PAIR, 1, line=20), op(PAIR, 2, "gather", line=21), op(PAIR, 3, line=20)]
    usual = at(21, blocked(PAIR, 4, "gather", line=21), *steps, number=0)
    odd = at(30, blocked(PAIR, 4, "barrier", line=30), *steps, number=1)
    verdict = only(job(usual, odd))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (0, 1))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.HANG)


def test_what_came_before_decides_between_two_ranks_that_reduce_different_tensors() -> None:
    # Buckets of DDP, issued by C++, and then a metric; rank 1 came to the metric too early.
    def bucket(seq: int, size: int, **fields: Any) -> OpRecord:
        return op(PAIR, seq, source="flight", shape=(size,), **fields)

    steps = [bucket(1, 50), bucket(2, 90), op(PAIR, 3, shape=()), bucket(4, 50)]
    failed = {"state": OpState.FAILED, "age": 4.0}
    usual = rank(
        0, PAIR, *steps, bucket(5, 90, **failed), **raised("RuntimeError", "closed by peer", 19)
    )
    odd = rank(1, PAIR, *steps[2:3], blocked(PAIR, 5, shape=()), **killed(6))
    verdict = only(job(usual, odd, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (1,))
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.FAILED)
    assert "Rank 0 did not issue it from Python: it is a gradient bucket" in verdict.explanation


def test_where_nothing_decides_both_are_candidates() -> None:
    verdict = only(
        job(
            at(20, blocked(PAIR, 1), number=0),
            at(30, blocked(PAIR, 1, "barrier", line=30), number=1),
        )
    )
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (0, 1))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.HANG)
    assert "There is no majority" in verdict.explanation


def test_a_difference_that_the_program_makes_on_purpose_does_not_explain_a_wait() -> None:
    # At place 1 rank 0 did something else, and yet all went on together for long.
    common = [op(W, n) for n in range(2, 8)]
    waiting = [rank(n, W, op(W, 1), *common, blocked(W, 8)) for n in (1, 2)]
    odd = rank(0, W, op(W, 1, "gather"), *common, blocked(W, 8))
    late = rank(3, W, op(W, 1), *common, threads=main_thread(frame(12)))
    verdict = only(job(odd, *waiting, late))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (3,))


def test_a_rank_that_gloo_aborted_for_the_size_of_another_is_not_its_cause() -> None:
    def there(number: int, size: int, **fields: Any) -> RankSnapshot:
        call = blocked(W, 7, "all_gather", shape=(size,), age=4.0)
        return rank(number, W, op(W, 6), call, **fields)

    odd = there(2, 3, **raised("RuntimeError", "Connection closed by peer", 20, age=3.0))
    ranks = there(0, 2), there(1, 2), odd, there(3, 2, **killed(6))
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (2,))
    assert verdict.victims == (0, 1, 3)
    assert "with shape [3], ranks 0, 1 and 3 with shape [2]" in verdict.headline


def test_most_of_those_that_are_known_prove_nothing_where_they_are_not_most_members() -> None:
    most = [at(20, blocked(W, 7), number=n) for n in (0, 1)]
    odd = at(24, blocked(W, 7, "broadcast", line=24), number=2)
    verdict = only(job(*most, odd, size=4))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (2,))
    assert verdict.certainty is Certainty.LIKELY


def test_the_source_decides_nothing_between_two_where_others_are_not_known() -> None:
    done = at(5, blocked(W, 7, "barrier", line=5), number=1)
    inside = at(3, blocked(W, 7, "all_reduce", line=3), number=0)
    verdict = only(job(done, inside, size=4, **source(LOOP)))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)


def test_sizes_of_which_none_has_a_majority_tell_nothing_of_who_gloo_aborted_a_rank_for() -> None:
    def there(number: int, size: int, **fields: Any) -> RankSnapshot:
        call = blocked(W, 7, "all_gather", shape=(size,), age=4.0)
        return rank(number, W, op(W, 6), call, **fields)

    ranks = there(0, 2), there(1, 2), there(2, 3), there(3, 4, **killed(6))
    assert only(job(*ranks)).kind is not Kind.SIGNATURE_MISMATCH


def test_a_condition_on_the_rank_that_others_met_before_excuses_who_meets_it_now() -> None:
    """Between two ranks the source alone would blame the one that stands under it."""
    text = """
        def main():
            for step in range(30):
                if rank == 0:
                    dist.gather(x)
                dist.all_reduce(x)
        """
    made = [op(PAIR, 1, "gather", line=4), op(PAIR, 2, line=5)]
    inside = at(4, blocked(PAIR, 3, "gather", line=4), *made, number=0)
    past = at(5, blocked(PAIR, 3, line=5), *made, number=1)
    verdict = only(job(inside, past, **source(text)))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)


def test_a_few_below_a_condition_that_the_others_met_before_were_left_alone_by_them() -> None:
    text = """
        def main():
            if rank == 0:
                dist.barrier()
            train()
        """
    waiting = at(3, blocked(W, 7, "barrier", line=3), number=0)
    made = op(W, 6, "barrier", line=3)
    others = [rank(n, W, made, threads=main_thread(frame(4))) for n in (1, 2, 3)]
    verdict = only(job(waiting, *others, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (1, 2, 3))


def test_a_condition_on_the_rank_with_a_part_for_all_others_makes_nobody_a_subset() -> None:
    text = """
        def main():
            if rank == 0:
                dist.barrier()
            else:
                dist.all_reduce(x)
                train()
        """
    waiting = at(3, blocked(W, 7, "barrier", line=3), number=0)
    others = [rank(n, W, op(W, 6), threads=main_thread(frame(6))) for n in (1, 2, 3)]
    verdict = only(job(waiting, *others, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (1, 2, 3))


def test_one_rank_that_found_another_model_does_not_make_those_who_wait_a_subset() -> None:
    text = """
        def main():
            if rank == 0:
                dist.all_gather_object(objects, rank)
            model = DistributedDataParallel(net)
        """
    message = "DDP expects same model across all ranks, but Rank 1 has 2 params"
    waiting = [
        at(3, blocked(W, 8, "all_gather_object", line=3), op(W, 7, "all_gather"), number=n)
        for n in (0, 2, 3)
    ]
    died = rank(1, W, op(W, 6), enqueued=7, **raised("RuntimeError", message, 4))
    verdict = only(job(*waiting, died, **source(text)))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (1,))


def test_ranks_in_different_collectives_are_told_of_though_a_member_has_not_come_yet() -> None:
    most = [at(20, blocked(W, 7), number=n) for n in (0, 1)]
    odd = at(24, blocked(W, 7, "broadcast", line=24), number=2)
    late = rank(3, W, op(W, 6), threads=main_thread(frame(12)))
    verdict = only(job(*most, odd, late))
    assert (verdict.kind, verdict.culprits, verdict.state) == (
        Kind.OP_MISMATCH,
        (2,),
        State.HANG,
    )


def test_who_raises_after_a_disputed_place_did_not_fail_by_itself() -> None:
    error = raised("RuntimeError", "op.preamble.length <= op.nbytes. 8 vs 4", 20, age=3.0)
    failed = op(W, 6, state=OpState.FAILED, age=5.0)
    ranks = [rank(number, W, op(W, 4), op(W, 5), blocked(W, 6)) for number in (0, 3)]
    ranks += [rank(1, W, op(W, 4), op(W, 5), failed, **error)]
    ranks += [rank(2, W, op(W, 4), op(W, 5, "broadcast"), blocked(W, 6))]
    (verdict,) = diagnose(job(*ranks, ended=True, exit_code=1), THRESHOLDS)
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1, 3))


def test_of_halves_of_which_one_is_known_in_part_neither_is_named_alone() -> None:
    # Rank 1 has no recorder: what is known of its way is only that it is here as rank 0 is.
    def bucket(seq: int) -> OpRecord:
        return replace(op(W, seq, source="flight", shape=(9,)), site=None)

    turns = [op(W, seq, line=4, shape=(1,)) for seq in (2, 3, 4)]
    inside = [blocked(W, 5, line=4, shape=(1,))]
    past = [replace(blocked(W, 5, shape=(9,)), site=None, source="flight")]
    ranks = [
        rank(0, W, bucket(1), *turns, *inside, flight=True),
        rank(1, W, *turns, *inside),
        *(rank(number, W, bucket(1), *turns, *past, flight=True) for number in (2, 3)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.certainty) == ((0, 1, 2, 3), Certainty.POSSIBLE)


def test_a_bucket_that_comes_where_a_metric_came_once_is_not_odd_yet() -> None:
    """A backward pass may come several times in a row, as gradients are accumulated."""

    def bucket(seq: int, **fields: Any) -> OpRecord:
        return op(PAIR, seq, source="flight", shape=(50,), **fields)

    steps = [bucket(1), op(PAIR, 2, shape=()), bucket(3)]
    failed = {"state": OpState.FAILED, "age": 4.0}
    accumulates = rank(
        0, PAIR, *steps, bucket(4, **failed), **raised("RuntimeError", "closed by peer", 19)
    )
    reduces = rank(1, PAIR, *steps[1:2], blocked(PAIR, 4, shape=()), **killed(6))
    verdict = only(job(accumulates, reduces, ended=True, exit_code=1))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)


def test_that_most_came_with_a_new_root_does_not_prove_who_is_wrong() -> None:
    made = [op(W, n, "broadcast", root=0) for n in range(1, 9)]
    ranks = [
        rank(number, W, *made, blocked(W, 9, "broadcast", root=min(number, 1)))
        for number in range(4)
    ]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.LIKELY)
    assert verdict.certainty_of_hang is Certainty.PROVED
    others = [
        rank(number, W, *made, blocked(W, 9, "broadcast", root=0 if number else 1))
        for number in range(4)
    ]
    assert only(job(*others)).certainty is Certainty.PROVED


def test_that_one_side_goes_on_alone_does_not_show_that_a_difference_was_meant() -> None:
    steps = [op(W, n) for n in range(1, 5)]
    on = [op(W, n, line=21) for n in range(6, 11)]
    most = [rank(n, W, *steps, op(W, 5), *on, blocked(W, 11, line=21)) for n in (0, 1, 2)]
    odd = rank(3, W, *steps, op(W, 5, "broadcast", line=30), **exited())
    verdict = only(job(*most, odd))
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (3,))
