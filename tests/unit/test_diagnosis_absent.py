"""Ranks that others wait for: what they do, and how that is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from snapshots import (
    BACKWARD,
    SCRIPT,
    THRESHOLDS,
    TORCH,
    W,
    blocked,
    exited,
    frame,
    job,
    killed,
    main_thread,
    only,
    op,
    rank,
    site,
)

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, Phase, Reason, State
from hangwatch.model.snapshot import (
    Child,
    Frame,
    GroupProgress,
    JobSnapshot,
    ProcessState,
    RankSnapshot,
    ThreadStack,
    Thresholds,
)
from hangwatch.model.verdict import OK, Verdict

SLEEP = frame(12, "slow_step")


def waiting(number: int, **fields: Any) -> RankSnapshot:
    return rank(number, W, op(W, 40), blocked(W, 41, **fields))


def behind(culprit: RankSnapshot, **fields: Any) -> JobSnapshot:
    """Three ranks in all_reduce 41, and one that is not."""
    others = [waiting(number) for number in range(4) if number != culprit.rank]
    return job(*others, culprit, size=4, **fields)


def busy(**fields: Any) -> RankSnapshot:
    return rank(2, W, op(W, 40), **fields)


def test_of_a_rank_with_two_waits_the_line_is_that_of_the_one_in_question() -> None:
    pair = GroupKey((0, 1), "pair")
    own = blocked(pair, 1, "recv", line=30, p2p=True, peer=1, thread=1, age=30.0)
    both = rank(0, W, op(W, 40), own, blocked(W, 41, line=20, thread=77))
    both = replace(both, threads=main_thread(frame(30)))
    others = [rank(n, W, op(W, 40), blocked(W, 41, line=20)) for n in (1, 3)]
    late = busy(threads=main_thread(SLEEP))
    found = diagnose(job(both, *others, late), THRESHOLDS)
    verdict = next(one for one in found if one.culprits == (2,))
    assert "Ranks 0, 1 and 3 wait at train.py:20" in verdict.explanation


@pytest.mark.parametrize(
    ("waited_s", "moved_s", "state"),
    [
        (301.0, 301.0, State.HANG),
        (310.0, 299.0, State.SLOW),
        (899.0, 5.0, State.SLOW),
        (901.0, 5.0, State.HANG),
    ],
)
def test_where_ranks_take_turns_a_long_wait_is_no_hang_yet(
    waited_s: float, moved_s: float, state: State
) -> None:
    """Rank 2 sends on what rank 3 waits for, and has just got it itself."""
    token = op(W, 40, "recv", p2p=True, peer=1, age=moved_s, thread=1)
    turn = rank(2, W, op(W, 39, age=950.0), token, threads=main_thread(SLEEP))
    found = job(*(waiting(n, age=waited_s) for n in (0, 1, 3)), turn, size=4)
    (verdict,) = diagnose(found, Thresholds(10.0, 300.0))
    assert (verdict.kind, verdict.culprits, verdict.state) == (Kind.NEVER_ENTERED, (2,), state)


def test_ranks_at_several_lines_are_not_all_said_to_be_at_the_line_of_the_first() -> None:
    waits = [
        rank(number, W, op(W, 40), blocked(W, 41, line=line), threads=main_thread(frame(line)))
        for number, line in ((0, 20), (1, 21), (4, 20))
    ]
    busy = [
        rank(number, W, op(W, 40), threads=main_thread(frame(line, name)))
        for number, line, name in ((2, 12, "slow_step"), (3, 33, "evaluate"))
    ]
    verdict = only(job(*waits, *busy))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2, 3))
    assert (
        "rank 2 is busy in slow_step, train.py:12, rank 3 is busy in evaluate, train.py:33; "
        "ranks 0, 1 and 4 wait for them."
    ) in verdict.headline
    assert verdict.explanation == (
        "Rank 2 is at train.py:12 in slow_step. Rank 3 is at train.py:33 in evaluate. "
        "Ranks 0 and 4 wait at train.py:20 in main. Rank 1 waits at train.py:21 in main."
    )


def test_a_rank_in_its_own_code_never_entered_what_the_others_wait_in() -> None:
    verdict = only(behind(busy(threads=main_thread(SLEEP)), sources={SCRIPT: "\n" * 11 + "zzz()"}))
    assert verdict.kind is Kind.NEVER_ENTERED
    assert verdict.reason is Reason.USER_CODE
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.state is State.SLOW
    assert verdict.culprits == (2,)
    assert verdict.victims == (0, 1, 3)
    assert (verdict.group, verdict.group_name) == (W, "0")
    assert verdict.collective is not None
    assert (verdict.collective.op, verdict.collective.seq) == ("all_reduce", 41)
    assert verdict.site is not None
    assert (verdict.site.line, verdict.site.source) == (12, "zzz()")
    assert verdict.victim_site == site(20)
    assert verdict.headline == (
        "Rank 2 never entered all_reduce #41 of group default_pg: it is busy in slow_step, "
        "train.py:12; ranks 0, 1 and 3 wait for it."
    )
    assert "train.py:12 in slow_step: `zzz()`" in verdict.explanation
    assert 2 <= len(verdict.advice) <= 4


def test_a_wait_is_slow_after_suspect_and_a_hang_after_hang_after() -> None:
    def aged(age: float) -> tuple[Verdict, ...]:
        others = [waiting(number, age=age) for number in (0, 1, 3)]
        last = op(W, 40, age=age + 1)
        return diagnose(job(*others, rank(2, W, last, threads=main_thread(SLEEP))), THRESHOLDS)

    assert aged(9.9) == (OK,)
    assert aged(10.0)[0].state is State.SLOW
    assert aged(300.0)[0].state is State.HANG
    assert aged(300.0)[0].stuck_age_s == 300.0


THREADING = Frame("/usr/lib/python3.11/threading.py", 1002, "join")


def in_a_thread(number: int, main: Frame, *inside: Frame) -> RankSnapshot:
    """A rank all calls of which a thread has made; ranks that wait are in the last one."""
    calls = (op(W, 40, thread=77), blocked(W, 41, thread=77))
    trains = ThreadStack("Thread-1", 77, active=False, owns_gil=False, frames=inside)
    threads = (*main_thread(main, frame(60, "main")), trains)
    return rank(number, W, *(calls[:1] if number == 2 else calls), threads=threads)


def test_a_launcher_may_run_what_trains_in_a_thread() -> None:
    collective = Frame(f"{TORCH}/distributed/distributed_c10d.py", 2900, "all_reduce")
    others = [in_a_thread(number, THREADING, collective, frame(20)) for number in (0, 1, 3)]
    verdict = only(job(*others, in_a_thread(2, THREADING, SLEEP), size=4))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))
    assert (verdict.state, verdict.victims) == (State.SLOW, (0, 1, 3))
    assert verdict.site == site(12, "slow_step")


def test_so_it_is_where_cpp_makes_the_calls() -> None:
    def by_cpp(number: int, *inside: Frame) -> RankSnapshot:
        found = in_a_thread(number, THREADING, *inside)
        last = 41 - (number == 2)
        counts = (GroupProgress(W, "0", enqueued=last, completed=40),)
        age_s = None if number == 2 else 20.0
        return replace(found, ops=(), groups=counts, pending_age_s=age_s)

    others = [by_cpp(number, *BACKWARD, frame(20)) for number in (0, 1, 3)]
    verdict = only(job(*others, by_cpp(2, SLEEP), size=4))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))
    assert (verdict.state, verdict.victims) == (State.SLOW, (0, 1, 3))
    assert verdict.site == site(12, "slow_step")


@pytest.mark.parametrize("main", [SLEEP, Frame(f"{TORCH}/serialization.py", 800, "save")])
def test_a_thread_that_waits_beside_a_main_one_at_work_holds_up_nobody(main: Frame) -> None:
    others = [in_a_thread(number, main, frame(20)) for number in (0, 1, 3)]
    assert diagnose(job(*others, in_a_thread(2, main, THREADING), size=4), THRESHOLDS) == (OK,)


def test_a_rank_that_loads_data_does_so_whatever_other_threads_of_it_do() -> None:
    selects = Frame("/usr/lib/python3.11/selectors.py", 415, "select")
    monitor = ThreadStack("Thread-1", 77, active=False, owns_gil=False, frames=(frame(70, "poll"),))
    threads = (*main_thread(selects, *LOADER), monitor)
    verdict = only(behind(busy(threads=threads, children=(IDLE, WORKER))))
    assert verdict.reason is Reason.DATA_LOADING


def test_what_lies_in_the_home_of_a_user_called_ray_is_not_ray() -> None:
    home = "/home/ray/anaconda3/lib/python3.11/site-packages"
    save = Frame(f"{home}/torch/serialization.py", 800, "save")
    core = Frame(f"{home}/ray/_private/worker.py", 900, "main_loop")
    inside = Frame(f"{home}/torch/distributed/distributed_c10d.py", 2900, "all_reduce"), frame(20)
    for main, sure in ((save, False), (core, True)):
        others = [in_a_thread(number, main, *inside) for number in (0, 1, 3)]
        found = diagnose(job(*others, in_a_thread(2, main, SLEEP), size=4), THRESHOLDS)
        assert [verdict.culprits for verdict in found] == [(2,) if sure else ()]


def test_where_both_threads_rest_the_main_one_tells_where_a_rank_is() -> None:
    others = [in_a_thread(number, THREADING, frame(20)) for number in (0, 1, 3)]
    verdict = only(job(*others, in_a_thread(2, THREADING, THREADING, frame(30)), size=4))
    assert verdict.culprits == (2,)
    assert verdict.site is not None
    assert verdict.site.line == 60


WORKER = Child(
    321,
    "python train.py",
    ProcessState(alive=True, state="S"),
    (
        ThreadStack(
            "MainThread",
            321,
            active=True,
            owns_gil=False,
            frames=(
                Frame("/home/u/data.py", 12, "slow_read"),
                Frame(f"{TORCH}/utils/data/_utils/fetch.py", 54, "fetch"),
                Frame(f"{TORCH}/utils/data/_utils/worker.py", 349, "_worker_loop"),
            ),
        ),
    ),
)
IDLE = replace(
    WORKER,
    pid=320,
    threads=(
        replace(
            WORKER.threads[0],
            frames=(
                Frame("/usr/lib/python3.11/multiprocessing/queues.py", 113, "get"),
                Frame(f"{TORCH}/utils/data/_utils/worker.py", 317, "_worker_loop"),
            ),
        ),
    ),
)
LOADER = (Frame(f"{TORCH}/utils/data/dataloader.py", 1400, "_get_data"), frame(30))


def test_a_rank_that_waits_for_its_data_worker_is_explained_by_the_workers_line() -> None:
    verdict = only(behind(busy(threads=main_thread(*LOADER), children=(IDLE, WORKER))))
    assert verdict.reason is Reason.DATA_LOADING
    assert verdict.site == site(12, "slow_read", "/home/u/data.py")
    assert verdict.headline == (
        "Rank 2 never entered all_reduce #41 of group default_pg: it is loading data "
        "(worker pid 321 in slow_read, data.py:12); ranks 0, 1 and 3 wait for it."
    )
    assert any("timeout=" in text for text in verdict.advice)


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (Reason.DATA_LOADING, {"threads": main_thread(*LOADER), "children": (IDLE,)}),
        (
            Reason.CHECKPOINT_IO,
            {"threads": main_thread(Frame(f"{TORCH}/serialization.py", 800, "save"), SLEEP)},
        ),
        (
            Reason.STORE_WAIT,
            {"threads": main_thread(Frame(f"{TORCH}/distributed/rendezvous.py", 9, "x"), SLEEP)},
        ),
        (Reason.STOPPED, {"process": ProcessState(alive=True, state="T")}),
        (Reason.STOPPED, {"process": ProcessState(alive=True, wchan="do_freezer_trap")}),
        (Reason.DEBUGGER, {"process": ProcessState(alive=True, state="t", tracer_pid=9)}),
        (
            Reason.DEBUGGER,
            {"threads": main_thread(Frame("/usr/lib/python3.11/bdb.py", 90, "wait"), SLEEP)},
        ),
        (
            Reason.GIL_HELD,
            {"threads": main_thread(SLEEP), "gil_age_s": 5.0, "heartbeat_age_s": 0.1},
        ),
        (
            Reason.GIL_HELD,
            {
                "threads": main_thread(SLEEP, owns_gil=True),
                "gil_age_s": 5.0,
                "heartbeat_age_s": None,
            },
        ),
        (Reason.EXCEPTION_HANDLING, {"threads": main_thread(SLEEP), "handling": "ValueError"}),
        (Reason.USER_CODE, {"threads": main_thread(SLEEP)}),
        (Reason.UNKNOWN, {"threads": None}),
    ],
)
def test_the_reason_is_what_the_culprit_does(reason: Reason, fields: dict[str, Any]) -> None:
    verdict = only(behind(busy(**fields)))
    assert (verdict.kind, verdict.reason) == (Kind.NEVER_ENTERED, reason)
    assert verdict.culprits == (2,)
    known = reason is not Reason.UNKNOWN
    assert verdict.certainty is (Certainty.LIKELY if known else Certainty.POSSIBLE)


def test_a_call_of_the_store_is_known_by_the_line_that_makes_it() -> None:
    sources = {SCRIPT: "\n" * 11 + "store.wait(['k'])\n"}
    verdict = only(behind(busy(threads=main_thread(SLEEP)), sources=sources))
    assert verdict.reason is Reason.STORE_WAIT


def test_ranks_that_do_the_same_share_a_verdict_and_others_get_their_own() -> None:
    culprits = [rank(n, W, op(W, 40), threads=main_thread(SLEEP)) for n in (1, 2)]
    stopped = rank(3, W, op(W, 40), process=ProcessState(alive=True, state="T"))
    verdicts = diagnose(job(waiting(0), *culprits, stopped), THRESHOLDS)
    assert [verdict.culprits for verdict in verdicts] == [(1, 2), (3,)]


# --- What C++ issued ------------------------------------------------------------------------


def backward(number: int, **fields: Any) -> RankSnapshot:
    """A rank whose reducer has issued a bucket that is not complete."""
    done = op(W, 40, source="flight")
    bucket = op(W, 41, state=OpState.ISSUED, source="flight")
    fields = {"flight": True, "threads": main_thread(*BACKWARD, frame(25)), **fields}
    return rank(number, W, done, bucket, **fields)


def test_a_rank_in_backward_waits_for_what_its_reducer_issued() -> None:
    culprit = busy(threads=main_thread(SLEEP))
    verdict = only(job(*[backward(n) for n in (0, 1, 3)], culprit))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))
    assert verdict.victim_site == site(25)
    assert verdict.collective is not None
    assert verdict.collective.op == "all_reduce"


def test_a_rank_that_computes_beside_its_pending_work_does_not_wait() -> None:
    beside = [backward(n, threads=main_thread(frame(30))) for n in (0, 1, 3)]
    assert diagnose(job(*beside, busy(threads=main_thread(SLEEP))), THRESHOLDS) == (OK,)


def test_without_records_the_counters_tell_who_waits() -> None:
    def counted(number: int) -> RankSnapshot:
        return rank(number, W, enqueued=41, completed=-1, pending_age_s=20.0)

    culprit = rank(2, W, enqueued=40, completed=40)
    verdict = only(job(*map(counted, (0, 1, 3)), culprit))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))
    assert verdict.certainty is Certainty.POSSIBLE
    assert "collective #41 of group default_pg" in verdict.headline


def test_a_group_in_which_a_rank_goes_on_is_not_as_old_as_the_work_of_another() -> None:
    # A thread goes on in a group of its own while the program waits for rank 2.
    beside = GroupKey((0, 1, 2, 3), "beside")

    def waiting(number: int) -> RankSnapshot:
        groups = (
            GroupProgress(W, "0", 41, 40, changed_age_s=60.0),
            GroupProgress(beside, "1", 900 + number % 2, 899, changed_age_s=0.2),
        )
        return replace(rank(number, pending_age_s=60.0), groups=groups)

    late = GroupProgress(W, "0", 40, 40), GroupProgress(beside, "1", 901, 900, changed_age_s=0.2)
    found = job(*map(waiting, (0, 1, 3)), replace(rank(2, pending_age_s=0.2), groups=late))
    (verdict,) = diagnose(found, THRESHOLDS)
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))
    assert "collective #41 of group default_pg" in verdict.headline


@pytest.mark.parametrize("completed", [7, 39, 40])
def test_a_completed_count_that_lags_hides_no_rank_that_has_not_come(completed: int) -> None:
    waiting = [rank(n, W, enqueued=41, completed=completed, pending_age_s=20.0) for n in (0, 1, 3)]
    verdict = only(job(*waiting, rank(2, W, enqueued=40, completed=40)))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))
    assert "collective #41 of group default_pg" in verdict.headline


def test_a_device_is_where_its_count_says_though_hosts_differ() -> None:
    """They issue ahead of it, and not all as much."""

    def ahead(number: int, enqueued: int) -> RankSnapshot:
        progress = GroupProgress(W, "0", enqueued, 7, in_order=True)
        return replace(rank(number, pending_age_s=400.0), groups=(progress,))

    verdict = only(job(ahead(0, 41), ahead(1, 40), ahead(2, 41), ahead(3, 41)))
    assert verdict.kind is Kind.COLLECTIVE_STUCK
    assert verdict.collective is not None
    assert verdict.collective.seq == 8


def test_the_counters_of_a_rank_whose_sampler_is_stuck_say_nothing() -> None:
    stale = rank(2, W, enqueued=40, completed=-1, pending_age_s=20.0, gil_age_s=20.0)
    verdict = only(behind(stale))
    assert verdict.culprits == (2,)
    assert verdict.reason is Reason.GIL_HELD


# --- Ranks that are not seen ------------------------------------------------------------------


def test_a_rank_that_nothing_is_known_of_is_possibly_the_culprit() -> None:
    found = job(*[waiting(n) for n in (0, 1, 3)], size=4, unseen=("node n1 did not answer",))
    verdict = only(found)
    assert (verdict.kind, verdict.certainty) == (Kind.NEVER_ENTERED, Certainty.POSSIBLE)
    assert verdict.culprits == (2,)
    assert "Node n1 did not answer." in verdict.explanation


# --- Set-up -----------------------------------------------------------------------------------


def joining(number: int, call: str = "init_process_group", line: int = 5) -> RankSnapshot:
    phase = Phase.INIT if call == "init_process_group" else Phase.RUNNING
    return rank(number, phase=phase, in_call=call, in_call_age_s=20.0, in_call_site=site(line))


def test_a_rank_that_does_not_come_to_init_process_group_is_named() -> None:
    born = rank(3, phase=Phase.BORN, threads=main_thread(SLEEP))
    verdict = only(job(*map(joining, range(3)), born))
    assert (verdict.kind, verdict.reason) == (Kind.INIT_INCOMPLETE, Reason.USER_CODE)
    assert (verdict.culprits, verdict.victims) == ((3,), (0, 1, 2))
    assert verdict.victim_site == site(5)
    assert verdict.headline.startswith("Rank 3 did not call init_process_group: it is busy in")


def test_a_rank_that_was_never_started_is_possibly_what_init_waits_for() -> None:
    verdict = only(job(*map(joining, range(3)), size=4))
    assert (verdict.kind, verdict.certainty) == (Kind.INIT_INCOMPLETE, Certainty.POSSIBLE)
    assert verdict.culprits == (3,)


def test_all_in_init_and_none_missing_is_nobodys_fault() -> None:
    verdict = only(job(*map(joining, range(4))))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, ())
    assert verdict.reason is Reason.NETWORK
    assert verdict.victims == (0, 1, 2, 3)


def test_new_group_that_only_some_ranks_call_is_their_peers_omission() -> None:
    found = job(joining(0, "new_group", 8), joining(1, "new_group", 8), waiting(2), waiting(3))
    found = replace(
        found,
        ranks=tuple(
            replace(one, groups=waiting(2).groups[:1]) if one.rank < 2 else one
            for one in found.ranks
        ),
    )
    found = replace(
        found,
        ranks=tuple(
            replace(one, groups=(replace(one.groups[0], enqueued=40),)) if one.rank < 2 else one
            for one in found.ranks
        ),
    )
    verdict = only(found)
    assert verdict.kind is Kind.INIT_INCOMPLETE
    assert verdict.culprits == (2, 3)
    assert "new_group" in verdict.headline


def test_a_group_that_a_thread_makes_at_this_moment_has_not_been_waited_for() -> None:
    making = rank(
        1,
        W,
        op(W, 40),
        threads=main_thread(SLEEP),
        phase_age_s=50.0,
        in_call="new_group",
        in_call_age_s=0.0,
        in_call_site=site(8),
    )
    found = job(waiting(0), making, waiting(2), waiting(3))
    assert [(v.culprits, v.victims) for v in diagnose(found, THRESHOLDS)] == [((1,), (0, 2, 3))]


def test_who_has_just_come_to_a_set_up_call_is_not_said_to_be_missing_there() -> None:
    def making(number: int, age_s: float) -> RankSnapshot:
        line = site(8)
        return rank(number, W, in_call="new_group", in_call_age_s=age_s, in_call_site=line)

    found = job(making(0, 305.0), *(making(number, 0.5) for number in (1, 2, 3)))
    assert diagnose(found, THRESHOLDS) == (OK,)
    late = rank(3, W, op(W, 1), threads=main_thread(SLEEP))
    found = job(making(0, 305.0), making(1, 304.0), making(2, 0.5), late)
    assert only(found).culprits == (3,)


# --- Point to point ---------------------------------------------------------------------------


def sending(number: int, peer: int, **fields: Any) -> RankSnapshot:
    return rank(number, W, blocked(W, 1, "send", peer=peer, line=21, **fields))


def test_a_send_whose_peer_is_busy_misses_its_recv() -> None:
    peer = rank(1, W, threads=main_thread(SLEEP))
    verdict = only(job(sending(0, 1), peer))
    assert (verdict.kind, verdict.reason) == (Kind.MISSING_PEER, Reason.USER_CODE)
    assert (verdict.culprits, verdict.victims) == ((1,), (0,))
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.collective is not None
    assert verdict.collective.op == "send"
    assert "never posted the recv for rank 0's send at train.py:21" in verdict.headline


def test_of_a_send_whose_peer_has_gone_on_to_a_collective_either_is_one_too_many() -> None:
    others = [rank(n, W, blocked(W, 1, "barrier", line=30)) for n in (1, 2, 3)]
    verdict = only(job(sending(0, 1), *others))
    assert (verdict.kind, verdict.certainty_of_hang) == (Kind.MISSING_PEER, Certainty.PROVED)
    assert (verdict.state, verdict.certainty) == (State.HANG, Certainty.POSSIBLE)
    assert (verdict.culprits, verdict.victims) == ((0, 1), (2, 3))
    assert "One of ranks 0 and 1 left the common sequence of calls" in verdict.explanation
    assert (verdict.site, verdict.victim_site) == (site(30), site(21))


def test_along_a_pipeline_the_stage_that_left_it_is_named() -> None:
    # Rank 0 is in the barrier; 1 waits for its send, 2 for that of 1, 3 for that of 2.
    receiving = [rank(n, W, blocked(W, 1, "recv", peer=n - 1, line=22)) for n in (1, 2, 3)]
    verdict = only(job(rank(0, W, blocked(W, 1, "barrier", line=30)), *receiving))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (0,))
    assert verdict.victims == (1, 2, 3)


def test_where_the_past_is_not_known_a_recv_without_its_send_proves_nothing() -> None:
    waits = rank(0, W, blocked(W, 0, "recv", peer=1, line=22), enqueued=499, completed=499)
    others = [rank(n, W, blocked(W, 500)) for n in (1, 2, 3)]
    verdict = only(job(waits, *others))
    assert (verdict.kind, verdict.certainty_of_hang) == (Kind.MISSING_PEER, Certainty.LIKELY)
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)


def test_a_send_that_nobody_waited_for_does_not_answer_a_later_recv() -> None:
    # The rings have wrapped: how many calls there were before is not known.
    came = [op(W, seq, "recv", peer=1, line=22) for seq in (40, 41)]
    waiting = rank(0, W, *came, blocked(W, 42, "recv", peer=1, line=22))
    sent = [op(W, seq, "send", state=OpState.ISSUED, peer=0, line=21) for seq in (60, 61)]
    verdict = only(job(waiting, rank(1, W, *sent, threads=main_thread(SLEEP))))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (1,))


def stages(*, before: OpState) -> JobSnapshot:
    """Rank 0 sends, waits for none of that yet, and receives; rank 1 receives, then sends.

    The last message is large: it is on its way.
    """
    mine = [
        *(op(W, seq, "send", state=before, peer=1, line=21) for seq in (40, 42)),
        op(W, 44, "send", state=OpState.ISSUED, peer=1, line=21),
        blocked(W, 45, "recv", peer=1, line=22),
    ]
    theirs = [
        *(op(W, seq, "recv", peer=0, line=31) for seq in (40, 42)),
        blocked(W, 44, "recv", peer=0, line=31),
    ]
    return job(rank(0, W, *mine), rank(1, W, *theirs))


def test_a_message_on_its_way_proves_nothing() -> None:
    (verdict,) = diagnose(stages(before=OpState.DONE), THRESHOLDS)
    assert (verdict.state, verdict.kind) == (State.SLOW, Kind.COLLECTIVE_STUCK)
    assert verdict.culprits == ()
    # Nobody waits for what is sent: it may all have come.
    (verdict,) = diagnose(stages(before=OpState.ISSUED), THRESHOLDS)
    assert (verdict.state, verdict.certainty) == (State.SLOW, Certainty.POSSIBLE)


def test_calls_are_matched_by_their_order_and_tag() -> None:
    peer = rank(1, W, blocked(W, 1, "recv", peer=0, tag=7))
    assert only(job(sending(0, 1, tag=7), peer)).kind is Kind.COLLECTIVE_STUCK
    verdict = only(job(sending(0, 1, tag=8), peer))
    assert verdict.kind is Kind.MISSING_PEER  # each waits for what the other does not post


def test_two_ranks_that_both_send_first_wait_for_each_other() -> None:
    verdict = only(job(sending(0, 1), sending(1, 0)))
    assert (verdict.kind, verdict.certainty_of_hang) == (Kind.MISSING_PEER, Certainty.PROVED)
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert "wait to send" in verdict.headline


def test_a_peer_that_exited_never_posts() -> None:
    gone = rank(1, W, phase=Phase.EXITED, process=ProcessState(alive=False, exit_code=0))
    verdict = only(job(sending(0, 1), gone))
    assert (verdict.kind, verdict.reason) == (Kind.MISSING_PEER, Reason.EXITED)
    assert verdict.certainty_of_hang is Certainty.PROVED
    # The send may be one too many.
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)


def collecting(*counts: int, **fields: Any) -> list[RankSnapshot]:
    """Rank 0 receives from anyone; the others have sent so many messages, and wait for it."""
    taken = [op(W, n + 1, "recv", peer=-1) for n in range(sum(counts))]
    receiver = rank(0, W, *taken, blocked(W, len(taken) + 1, "recv", peer=-1))
    return [receiver, *(_sender(at + 1, count, **fields) for at, count in enumerate(counts))]


def _sender(number: int, count: int, **fields: Any) -> RankSnapshot:
    sends = [op(W, n + 1, "send", peer=0) for n in range(count)]
    return rank(number, W, *sends, *([] if fields else [blocked(W, 1, "barrier")]), **fields)


def test_of_those_who_may_send_the_one_that_sent_less_is_missed() -> None:
    verdict = only(job(*collecting(3, 2, 3)))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (2,))
    assert verdict.certainty is Certainty.LIKELY
    assert "rank 2 has sent 2, and each other rank 3" in verdict.explanation


def test_those_who_sent_less_are_known_from_what_came_after_the_same_collective() -> None:
    receiver = rank(0, W, op(W, 7, "barrier"), blocked(W, 91, "recv", peer=-1))

    def sender(number: int, before: int, after: int) -> RankSnapshot:
        """One whose ring has wrapped."""
        older = [op(W, 40 + n, "send", peer=0) for n in range(before)]
        newer = [op(W, 50 + n, "send", peer=0) for n in range(after)]
        return rank(number, W, *older, op(W, 7, "barrier"), *newer, blocked(W, 8, "barrier"))

    verdict = only(job(receiver, sender(1, 0, 2), sender(2, 5, 1), sender(3, 3, 2)))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (2,))


@pytest.mark.parametrize("counts", [(3, 3, 3), (1, 2, 3)])
def test_where_nobody_sent_less_than_all_others_no_sender_is_named_for_sure(
    counts: tuple[int, ...],
) -> None:
    verdict = only(job(*collecting(*counts)))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.HANG)
    assert verdict.culprits == (0,)


def test_busy_ranks_that_may_all_send_are_named_together_and_not_for_sure() -> None:
    verdict = only(job(*collecting(3, 3, 3, threads=main_thread(SLEEP))))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (1, 2, 3))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.SLOW)


def test_of_those_who_may_send_the_one_that_died_is_to_blame() -> None:
    receiver, *others = collecting(3, 3, 3)
    dead = ProcessState(alive=False, signal=9)
    others[2] = replace(others[2], phase=Phase.RUNNING, process=dead)
    verdict = only(job(receiver, *others))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (3,))


def test_a_rank_that_awaits_more_than_those_who_are_gone_sent_outlasted_them() -> None:
    gone = {"phase": Phase.EXITED, "process": ProcessState(alive=False, exit_code=0)}
    verdict = only(job(*collecting(3, 3, 3, **gone)))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (0,))
    assert (verdict.certainty, verdict.state) == (Certainty.LIKELY, State.HANG)


def test_a_message_under_way_is_what_a_recv_from_anyone_waits_for() -> None:
    receiver, *others = collecting(1, 1, 1)
    others[1] = rank(2, W, op(W, 1, "send", peer=0), blocked(W, 2, "send", peer=0))
    verdict = only(job(receiver, *others))
    assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())
    assert verdict.victims == (0, 1, 2, 3)


def test_a_recv_from_anyone_in_a_group_of_two_waits_for_the_other() -> None:
    pair = GroupKey((0, 1), "pair")
    receiver = rank(0, pair, blocked(pair, 1, "recv", peer=-1))
    verdict = only(job(receiver, rank(1, pair, blocked(pair, 1, "barrier"))))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (0, 1))


def test_members_of_another_group_are_not_missed() -> None:
    pair = GroupKey((0, 1), "pair")
    found = job(
        rank(0, pair, blocked(pair, 3)),
        rank(1, pair, op(pair, 2), threads=main_thread(SLEEP)),
        rank(2, W, op(W, 5)),
        rank(3, W, op(W, 5)),
    )
    verdict = only(found)
    assert (verdict.culprits, verdict.victims) == ((1,), (0,))
    assert verdict.group == pair


def test_where_nobody_is_missing_nothing_was_stuck_before_the_last_one_came() -> None:
    first, last = (
        rank(number, phase=Phase.INIT, in_call="init_process_group", in_call_age_s=age_s)
        for number, age_s in ((0, 400.0), (1, 12.0))
    )
    (verdict,) = diagnose(job(first, last), THRESHOLDS)
    assert (verdict.state, verdict.culprits, verdict.stuck_age_s) == (State.SLOW, (), 12.0)


def test_a_send_of_a_rank_that_is_stopped_may_have_been_answered_by_a_peer_that_is_gone() -> None:
    gone = rank(1, W, phase=Phase.EXITED, process=ProcessState(alive=False, exit_code=0))
    stopped = replace(sending(0, 1), process=ProcessState(alive=True, state="T"))
    verdict = only(job(stopped, gone))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (0, 1))
    assert (verdict.certainty, verdict.state) == (Certainty.POSSIBLE, State.SLOW)


def test_a_peer_that_may_be_waiting_itself_is_possibly_what_a_send_waits_for() -> None:
    peer = rank(1, W, threads=main_thread(SLEEP), pending_age_s=20.0)
    verdict = only(job(sending(0, 1), peer))
    assert (verdict.culprits, verdict.certainty) == ((1,), Certainty.POSSIBLE)


def test_several_that_are_gone_are_possibly_what_a_set_up_call_waits_for() -> None:
    """Who is no member of a group is let through, and may have come to its end since."""
    gone = exited()
    waiting = [joining(n, "new_group", 8) for n in (0, 1)]
    verdict = only(job(*waiting, *(rank(n, W, **gone) for n in (2, 3))))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (2, 3))
    assert verdict.certainty is Certainty.POSSIBLE


def test_who_has_come_to_its_end_is_not_missed_at_new_group_while_another_lives() -> None:
    gone = exited()
    waiting = [joining(n, "new_group", 8) for n in (0, 1)]
    busy = rank(2, W, threads=main_thread(SLEEP))
    verdict = only(job(*waiting, busy, rank(3, W, **gone)))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (2,))


def test_a_group_that_was_destroyed_with_work_left_is_waited_for_by_nobody() -> None:
    left = GroupProgress(GroupKey((0, 1, 2, 3), "old"), "9", 3, 2, alive=False)
    late = GroupProgress(GroupKey((0, 1, 2, 3), "old"), "9", 2, 2)
    ranks = [replace(rank(n, pending_age_s=20.0), groups=(left,)) for n in (0, 1, 3)]
    assert diagnose(job(*ranks, replace(rank(2), groups=(late,))), THRESHOLDS) == (OK,)


def test_without_a_stack_a_thread_beside_the_program_proves_nothing() -> None:
    pair = GroupKey((0, 1), "pair")
    other = GroupKey((0, 1), "other")
    ranks = [
        rank(0, pair, blocked(pair, 1, thread=77)),
        rank(1, other, blocked(other, 1, thread=78, line=30)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.culprits) == (Kind.ORDER_INVERSION, (0, 1))
    assert (verdict.certainty_of_hang, verdict.state) == (Certainty.LIKELY, State.SLOW)


def test_a_rank_whose_threads_all_stand_still_is_not_said_to_have_its_gil_held() -> None:
    stuck = busy(threads=main_thread(SLEEP), gil_age_s=20.0, heartbeat_age_s=20.0)
    assert only(behind(stuck)).reason is Reason.USER_CODE


def test_of_senders_one_that_died_by_its_message_under_way_is_missed() -> None:
    receiver, *others = collecting(1, 1, 1)
    dead = ProcessState(alive=False, signal=9, gone_age_s=20.0)
    others[1] = rank(2, W, op(W, 1, "send", peer=0), blocked(W, 2, "send", peer=0), process=dead)
    verdict = only(job(receiver, *others))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))


def test_of_senders_that_are_gone_the_one_that_sent_less_is_not_proved_to_owe_it() -> None:
    verdict = only(job(*collecting(3, 2, 3, **exited())))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (2,))
    assert verdict.certainty is Certainty.LIKELY


def test_a_user_function_that_calls_another_below_a_line_with_item_waits_for_nothing() -> None:
    sources = {SCRIPT: "\n" * 11 + "compute(loss.item())\n"}
    inner = Frame("/usr/lib/python3.11/json/encoder.py", 200, "encode")
    beside = [backward(n, threads=main_thread(inner, SLEEP)) for n in (0, 1, 3)]
    found = job(*beside, busy(threads=main_thread(frame(30))), sources=sources)
    assert diagnose(found, THRESHOLDS) == (OK,)


def test_a_process_that_is_traced_and_runs_is_not_stopped() -> None:
    traced = ProcessState(alive=True, state="S", tracer_pid=9)
    verdict = only(behind(busy(threads=main_thread(SLEEP), process=traced)))
    assert (verdict.kind, verdict.reason) == (Kind.NEVER_ENTERED, Reason.USER_CODE)


def test_who_died_is_missed_at_new_group_whoever_else_has_not_come() -> None:
    waiting = [joining(n, "new_group", 8) for n in (0, 1)]
    late = rank(2, W, threads=main_thread(SLEEP))
    found = diagnose(job(*waiting, late, rank(3, W, **killed(9))), THRESHOLDS)
    told = {verdict.kind: (verdict.culprits, verdict.victims) for verdict in found}
    assert told[Kind.DIED] == ((3,), (0, 1))
