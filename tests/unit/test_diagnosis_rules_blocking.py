"""Ranks that are gone: who was first, and who only followed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from snapshots import (
    PAIR,
    SCRIPT,
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
    world,
)

from hangwatch.diagnosis import diagnose, timing
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, Phase, Reason, State
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.snapshot import (
    GroupProgress,
    JobSnapshot,
    ProcessState,
    RankSnapshot,
    Thresholds,
)
from hangwatch.model.verdict import OK, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

PEER = "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:580"


def waiting(number: int, **fields: Any) -> RankSnapshot:
    return rank(number, W, op(W, 4), blocked(W, 5, age=fields.pop("age", 4.0)), **fields)


def failed(number: int, message: str = PEER, age: float = 3.0) -> RankSnapshot:
    """A rank that raised out of the collective that it was in."""
    call = op(W, 5, state=OpState.FAILED, age=4.0)
    return rank(number, W, op(W, 4), call, **raised("RuntimeError", message, 20, age))


def dead(number: int = 2, **fields: Any) -> RankSnapshot:
    return rank(number, W, op(W, 4), **fields)


def test_a_rank_that_raised_while_others_wait_is_a_proved_hang() -> None:
    verdict = only(
        job(waiting(0), waiting(1), dead(**raised("ValueError", "bad batch")), waiting(3))
    )
    assert (verdict.kind, verdict.reason) == (Kind.DIED, Reason.EXCEPTION)
    assert (verdict.state, verdict.certainty) == (State.HANG, Certainty.PROVED)
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1, 3))
    assert verdict.site == site(33)
    assert verdict.headline == (
        "Rank 2 raised ValueError: bad batch (train.py:33); ranks 0, 1 and 3 wait for it in "
        "all_reduce #5 of group default_pg."
    )


def test_a_rank_that_is_still_in_an_excepthook_may_yet_let_the_others_go_on() -> None:
    hook = main_thread(frame(30, "save_and_say"))
    gone = rank(2, W, op(W, 4), threads=hook, **raised("ValueError", "x", 12, age=19.0))
    alive = replace(gone, process=ProcessState(alive=True))
    states = []
    for one in (gone, alive):
        verdict = only(job(*(waiting(n, age=20.0) for n in (0, 1, 3)), one))
        assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))
        states.append((verdict.state, verdict.certainty))
    assert states == [(State.HANG, Certainty.PROVED), (State.SLOW, Certainty.LIKELY)]
    assert "still runs, at train.py:30 in save_and_say" in verdict.explanation


def test_nobody_failed_who_was_asked_to_end_and_did_so_with_a_code_of_its_own() -> None:
    def ended(*, asked: bool) -> JobSnapshot:
        end = ProcessState(alive=False, gone_age_s=0.5, exit_code=5, terminated_by_launcher=asked)
        ranks = [rank(n, W, op(W, 4), phase=Phase.EXITED, process=end) for n in range(3)]
        return job(*ranks, ended=True, exit_code=1)

    assert diagnose(ended(asked=True), THRESHOLDS) == (OK,)
    assert only(ended(asked=False)).kind is Kind.DIED


def test_the_errors_of_its_peers_only_follow() -> None:
    found = job(
        failed(0), failed(1), dead(**raised("ValueError")), failed(3), ended=True, exit_code=1
    )
    verdict = only(found)
    assert (verdict.kind, verdict.state) == (Kind.DIED, State.FAILED)
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1, 3))
    assert "failed after it in all_reduce #5" in verdict.headline


def test_a_peer_that_has_just_raised_and_not_ended_yet_is_a_victim_too() -> None:
    raising = rank(1, W, op(W, 4), op(W, 5, state=OpState.FAILED))
    elsewhere = rank(3, W, op(W, 4, state=OpState.FAILED))
    verdict = only(job(failed(0), raising, dead(**raised("ValueError")), elsewhere))
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1))
    assert "ranks 0 and 1 failed after it in all_reduce #5" in verdict.headline


@pytest.mark.parametrize("end", [lambda age: raised("OSError", age=age), partial(killed, 9)])
def test_a_job_in_which_a_rank_has_just_failed_is_left_to_its_launcher(
    end: Callable[[float], dict[str, Any]],
) -> None:
    early, late = (
        job(waiting(0), waiting(1), dead(**end(age)), waiting(3))
        for age in (timing.LAUNCHER_S - 1, timing.LAUNCHER_S + 1)
    )
    assert only(late).state is State.HANG
    assert diagnose(early, THRESHOLDS) == (OK,)
    assert only(replace(early, ended=True, exit_code=1)).state is State.FAILED


def test_of_several_whose_end_nobody_saw_none_is_sure_to_be_the_cause() -> None:
    gone = ProcessState(alive=False, gone_age_s=8.0)
    both = [rank(n, W, op(W, 4), process=gone) for n in (1, 2)]
    verdict = only(job(waiting(0), *both, waiting(3)))
    assert (verdict.culprits, verdict.certainty) == ((1, 2), Certainty.POSSIBLE)
    assert verdict.headline.startswith("Ranks 1 and 2 ended with an unknown exit status")


def test_one_whose_program_had_ended_is_suspected_too_where_nobody_saw_how() -> None:
    gone = ProcessState(alive=False, gone_age_s=5.0)
    over = rank(0, W, phase=Phase.EXITED, phase_age_s=5.0, process=gone)
    terminated = rank(1, W, process=gone)
    verdict = only(job(over, terminated, size=2, ended=True, exit_code=1))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    well = only(job(over, rank(1, W, process=replace(gone, exit_code=3)), size=2, ended=True))
    assert well.culprits == (1,)


def test_ranks_that_the_launcher_ended_are_victims() -> None:
    terminated = killed(15, 3.0, terminated_by_launcher=True)
    found = job(
        waiting(0, **terminated),
        rank(1, W, op(W, 4), **terminated),
        dead(**raised("ValueError")),
        failed(3),
        ended=True,
        exit_code=1,
    )
    verdict = only(found)
    assert verdict.culprits == (2,)
    assert verdict.victims == (0, 3)


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        (killed(9), Reason.SIGNAL, "was killed by SIGKILL"),
        (killed(11), Reason.SIGNAL, "was killed by SIGSEGV"),
        (killed(9, oom_killed=True), Reason.OUT_OF_MEMORY, "ran out of memory"),
        (raised("torch.cuda.OutOfMemoryError", "CUDA"), Reason.OUT_OF_MEMORY, "OutOfMemoryError"),
        (raised("MemoryError"), Reason.OUT_OF_MEMORY, "raised MemoryError"),
        (raised("RuntimeError", "can't allocate memory"), Reason.OUT_OF_MEMORY, "can't allocate"),
        (raised("KeyError", "'a'\n  b"), Reason.EXCEPTION, "raised KeyError: 'a' b"),
        (
            {"process": ProcessState(alive=False, exit_code=3, gone_age_s=8.0)},
            Reason.EXITED,
            "exited with code 3",
        ),
        ({"process": ProcessState(alive=False)}, Reason.UNKNOWN, "unknown exit status"),
    ],
)
def test_how_it_died_is_said(fields: dict[str, Any], reason: Reason, text: str) -> None:
    verdict = only(job(waiting(0), waiting(1), dead(**fields), waiting(3)))
    assert (verdict.kind, verdict.reason, verdict.culprits) == (Kind.DIED, reason, (2,))
    assert verdict.state is State.HANG
    assert text in verdict.headline
    unknown = reason is Reason.UNKNOWN
    assert verdict.certainty is (Certainty.LIKELY if unknown else Certainty.PROVED)


def test_a_rank_that_died_inside_the_collective_is_missing_from_it_all_the_same() -> None:
    victim = rank(2, W, op(W, 4), blocked(W, 5), **killed(9))
    verdict = only(job(waiting(0), waiting(1), victim, waiting(3)))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))


def test_an_abort_inside_a_collective_may_be_the_fault_of_a_peer() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    aborted = rank(2, W, op(W, 4), blocked(W, 5), **killed(6))
    others = [rank(n, W, op(W, 4), **ended) for n in (0, 1, 3)]
    verdict = only(job(*others, aborted, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.headline == (
        "Rank 2 was killed by SIGABRT in all_reduce #5 of group default_pg at train.py:20."
    )
    assert "another rank may have entered another collective" in verdict.explanation


def aborted_by(number: int, kind: str, message: str, **fields: Any) -> RankSnapshot:
    """A rank that std::terminate aborted for an exception of C++, 12 s ago."""
    error = ExceptionRecord(kind, message, in_cpp=True)
    ops = op(W, 4), blocked(W, 5)
    return replace(rank(number, W, *ops, **killed(6)), abort=error, abort_age_s=12.0, **fields)


EXITED_3 = ProcessState(alive=False, exit_code=3, gone_age_s=11.0)
GLOO = (
    "gloo::EnforceNotMet",
    "[enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 36 vs 4.",
)


def test_an_exception_of_the_programs_own_c_plus_plus_is_no_fault_of_a_peer() -> None:
    dead = aborted_by(2, "std::out_of_range", "vector::_M_range_check")
    verdict = only(job(waiting(0), waiting(1), dead, waiting(3)))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))
    assert verdict.certainty is Certainty.PROVED
    assert verdict.headline.startswith(
        "Rank 2 was aborted by an uncaught std::out_of_range: vector::_M_range_check; "
    )
    said = verdict.explanation + "".join(verdict.advice)
    assert "gloo" not in said
    assert "NCCL" not in said


def test_std_terminate_without_an_exception_is_no_fault_of_a_peer() -> None:
    verdict = only(job(waiting(0), waiting(1), aborted_by(2, "", ""), waiting(3)))
    assert (verdict.culprits, verdict.certainty) == ((2,), Certainty.PROVED)
    assert verdict.headline.startswith("Rank 2 was aborted by std::terminate; ")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("std::runtime_error", "upload to gloo-bucket timed out"),
        ("std::runtime_error", "nccl_topology.xml: parse timeout"),
        ("std::runtime_error", "cannot open /data/gloo/shard-3"),
    ],
)
def test_a_message_that_only_names_a_library_is_the_programs_own(kind: str, message: str) -> None:
    verdict = only(job(waiting(0), waiting(1), aborted_by(2, kind, message), waiting(3)))
    assert (verdict.culprits, verdict.certainty) == ((2,), Certainty.PROVED)
    assert "gloo aborts" not in verdict.explanation


@pytest.mark.parametrize(
    ("end", "text"),
    [(killed(9), "was killed by SIGKILL"), ({"process": EXITED_3}, "exited with code 3")],
)
def test_an_end_that_is_no_abort_is_told_as_it_was(end: dict[str, Any], text: str) -> None:
    """A handler of the program has let it live on, or ended it otherwise."""
    dead = replace(aborted_by(2, "std::runtime_error", "thread failed"), **end)
    verdict = only(job(waiting(0), waiting(1), dead, waiting(3)))
    assert verdict.headline.startswith(f"Rank 2 {text}")


def test_a_rank_that_the_launcher_ended_while_it_was_aborted_is_a_victim_of_gloos() -> None:
    ending = killed(15, 3.0, terminated_by_launcher=True)
    both = [replace(aborted_by(number, *GLOO), **ending) for number in (0, 1)]
    verdict = only(job(*both, waiting(2), waiting(3)))
    assert verdict.certainty is not Certainty.PROVED
    assert "gloo aborts a rank that is sent more than it expects" in verdict.explanation


def test_a_rank_whose_exit_handlers_still_run_may_enter_more() -> None:
    exiting = rank(2, W, op(W, 4), phase=Phase.EXITED, phase_age_s=5.0)
    found = job(waiting(0, age=20.0), waiting(1, age=20.0), exiting, waiting(3, age=20.0))
    verdict = only(found)
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (2,))
    assert verdict.certainty_of_hang is verdict.certainty is Certainty.LIKELY
    assert "exit handler" in verdict.explanation


def test_a_rank_whose_exit_handlers_still_run_may_send_more() -> None:
    exiting = rank(0, W, op(W, 4), phase=Phase.EXITED, phase_age_s=5.0)
    waits = rank(1, W, op(W, 4), blocked(W, 1, "recv", peer=0))
    others = (rank(number, W, op(W, 4), **exited()) for number in (2, 3))
    (verdict,) = diagnose(job(exiting, waits, *others), THRESHOLDS)
    assert (verdict.kind, verdict.state) == (Kind.MISSING_PEER, State.SLOW)
    assert verdict.certainty_of_hang is Certainty.LIKELY


def test_ranks_that_were_aborted_at_once_are_named_together() -> None:
    dead = [aborted_by(number, "", "") for number in (0, 1)]
    verdict = only(job(*dead, waiting(2), waiting(3)))
    assert verdict.headline.startswith("Ranks 0 and 1 were aborted by std::terminate")


def test_what_gloo_says_of_an_abort_stands_in_the_headline_and_blames_no_one_for_sure() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    others = [rank(n, W, op(W, 4), **ended) for n in (0, 1, 3)]
    verdict = only(job(*others, aborted_by(2, *GLOO), ended=True, exit_code=1))
    assert verdict.headline.startswith(
        "Rank 2 was aborted by an uncaught gloo::EnforceNotMet: op.preamble.length <= op.nbytes."
    )
    # One of them sent what it did not expect, and none of their calls there is known.
    assert (verdict.culprits, verdict.certainty) == ((0, 1, 2, 3), Certainty.POSSIBLE)


def test_a_mismatch_for_which_gloo_aborted_a_rank_is_that_of_the_rank_that_differs() -> None:
    victim = aborted_by(2, *GLOO)
    failed = raised("RuntimeError", PEER, 20, 3.0)
    others = [
        rank(n, W, op(W, 4), op(W, 5, state=OpState.FAILED, shape=(9 if n == 3 else 1,)), **failed)
        for n in (0, 1, 3)
    ]
    victim = replace(victim, ops=(op(W, 4), op(W, 5, state=OpState.BLOCKED, shape=(1,))))
    verdict = only(job(*others, victim, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.SIGNATURE_MISMATCH, (3,))


def test_a_death_proves_nothing_where_somebody_may_take_the_place() -> None:
    waiting_ = rank(0, phase=Phase.INIT, in_call="init_process_group", in_call_age_s=12.0)
    process = ProcessState(alive=False, exit_code=1, gone_age_s=12.0)
    gone, replaced = rank(1, process=process), rank(1, process=replace(process, replaced=True))
    verdict = only(job(waiting_, gone))
    assert (verdict.state, verdict.certainty) == (State.HANG, Certainty.PROVED)
    verdict = only(job(waiting_, replaced))
    assert (verdict.state, verdict.certainty) == (State.SLOW, Certainty.LIKELY)
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (1,))


def peers_of_an_abort(size: int) -> Verdict:
    """Rank 0 is aborted while C++ has made its call; all others fail of it."""
    group = world(size)
    aborted = rank(0, group, op(group, 4), enqueued=5, completed=4, **killed(6))
    calls = op(group, 4), op(group, 5, state=OpState.FAILED, age=4.0)
    error = raised("RuntimeError", PEER, 20, 3.0)
    others = [rank(number, group, *calls, **error) for number in range(1, size)]
    return only(job(aborted, *others, ended=True, exit_code=1))


def test_an_abort_among_two_may_be_the_fault_of_either() -> None:
    verdict = peers_of_an_abort(2)
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.DIED, (0, 1), ())
    assert verdict.certainty is Certainty.POSSIBLE
    assert (
        "It is not known which rank left the common sequence of calls: rank 0"
        in verdict.explanation
    )


def test_where_those_aborted_did_alike_whoever_did_something_unknown_may_be_at_fault() -> None:
    call = op(W, 5, state=OpState.ISSUED)
    ended = killed(15, 3.0, terminated_by_launcher=True)
    aborted = [rank(number, W, call, **killed(6)) for number in (2, 3)]
    others = rank(0, W, enqueued=5, **ended), rank(1, W, call, **ended)
    verdict = only(job(*others, *aborted, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (0, 2, 3))
    assert verdict.certainty is Certainty.POSSIBLE


def test_an_abort_is_judged_where_the_rank_was_last_and_not_by_old_counters_of_others() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True) | {"pending_age_s": 3.5}
    calls = [op(W, seq, state=OpState.ISSUED, age=4.0) for seq in (3, 4, 5)]
    aborted = rank(3, W, *calls, completed=2, **killed(6))
    others = [rank(n, W, *calls, completed=2, **ended) for n in (1, 2)]
    left = rank(0, W, *calls[:2], enqueued=5, completed=2, **ended)
    verdict = only(job(left, *others, aborted, ended=True, exit_code=1))
    assert {wait.seq for wait in verdict.waits} == {3}
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (0, 3))
    assert verdict.certainty is Certainty.POSSIBLE


def test_an_abort_where_most_did_alike_may_be_the_fault_of_one_whose_counters_are_old() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    calls = [op(W, seq, state=OpState.ISSUED, age=4.0) for seq in (4, 5)]
    aborted = rank(3, W, *calls, completed=2, **killed(6))
    others = [rank(n, W, *calls, completed=2, **ended) for n in (1, 2)]
    left = rank(0, W, calls[0], enqueued=4, completed=2, **ended)
    verdict = only(job(left, *others, aborted, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (0, 3))
    assert verdict.certainty is Certainty.POSSIBLE


def test_an_abort_where_most_made_one_call_is_likely_the_fault_of_the_one_aborted() -> None:
    verdict = peers_of_an_abort(4)
    assert (verdict.culprits, verdict.victims) == ((0,), (1, 2, 3))
    assert verdict.certainty is Certainty.LIKELY


def test_where_all_but_the_one_aborted_were_in_a_call_of_cpp_it_left_the_program() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    aborted = rank(2, W, op(W, 4), blocked(W, 5), **killed(6))
    others = [rank(n, W, op(W, 4), enqueued=5, **ended) for n in (0, 1, 3)]
    verdict = only(job(*others, aborted, ended=True, exit_code=1))
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1, 3))
    assert (verdict.kind, verdict.certainty) == (Kind.OP_MISMATCH, Certainty.LIKELY)


def test_one_aborted_in_a_call_of_cpp_like_most_is_not_who_left_the_program() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    aborted = rank(2, W, op(W, 4), enqueued=5, **killed(6))
    others = [rank(n, W, op(W, 4), enqueued=5, **ended) for n in (0, 3)]
    culprit = rank(1, W, op(W, 4), blocked(W, 5), **ended)
    verdict = only(job(*others, culprit, aborted, ended=True, exit_code=1))
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2, 3))


def test_ranks_that_never_made_a_call_of_pythons_were_in_one_of_cpp() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    aborted = rank(2, W, blocked(W, 5), **killed(6))
    came = GroupProgress(W, "0", enqueued=5, completed=4, by_python=0)
    lost = replace(came, by_python=3)
    for progress, kind in ((came, Kind.OP_MISMATCH), (lost, Kind.DIED)):
        others = [rank(n, groups=(progress,), **ended) for n in (0, 1, 3)]
        verdict = only(job(*others, aborted, ended=True, exit_code=1))
        assert verdict.kind is kind
        assert (verdict.culprits == (2,)) is (progress is came)


def test_of_two_that_raised_by_themselves_the_first_that_others_wait_for_comes_first() -> None:
    late = rank(1, W, op(W, 4), **raised("KeyError", age=1.0))
    found = job(failed(0), late, dead(**raised("ValueError", age=9.0)), ended=True, exit_code=1)
    verdicts = diagnose(found, THRESHOLDS)
    assert [verdict.culprits for verdict in verdicts] == [(2,), (1,)]


def test_a_bug_that_hits_all_ranks_alike_is_one_verdict() -> None:
    found = job(
        *[rank(n, W, op(W, 4), **raised("TypeError")) for n in range(4)], ended=True, exit_code=1
    )
    verdict = only(found)
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.DIED, (0, 1, 2, 3), ())


def test_an_error_out_of_a_collective_is_the_ranks_own_where_nobody_ended_before() -> None:
    lonely = rank(
        2, W, op(W, 4), op(W, 5, state=OpState.FAILED), **raised("TypeError", "no such tensor")
    )
    verdict = only(job(waiting(0), waiting(1), lonely, waiting(3)))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))


def test_a_peers_error_without_a_peer_that_ended_is_the_networks() -> None:
    verdict = only(job(*map(failed, range(4)), ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())
    assert (verdict.reason, verdict.state) == (Reason.NETWORK, State.FAILED)


def test_a_rank_whose_own_connection_timed_out_is_no_victim() -> None:
    mine = rank(2, W, op(W, 4), **raised("requests.Timeout", "Read timed out."))
    verdict = only(job(failed(0), failed(1), mine, failed(3), ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))


def test_when_all_time_out_the_rank_that_was_not_there_is_named() -> None:
    absent = rank(2, W, op(W, 4), **killed(15, 1.0, terminated_by_launcher=True))
    message = "Timed out waiting 1800000ms for recv operation to complete"
    timed_out = [
        rank(
            n,
            W,
            op(W, 5, state=OpState.FAILED, age=1800.0),
            **raised("RuntimeError", message, 20, 2.0),
        )
        for n in (0, 1, 3)
    ]
    verdict = only(job(*timed_out, absent, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))
    assert verdict.state is State.FAILED


def test_what_cpp_was_in_when_a_peer_died_is_known_by_the_counters() -> None:
    sources = {SCRIPT: "\n" * 19 + "loss.backward()"}
    echoes = [
        rank(n, W, enqueued=16, completed=-1, **raised("RuntimeError", PEER, 20, 3.0))
        for n in (0, 1, 3)
    ]
    gone = rank(2, W, enqueued=15, completed=15, **raised("KeyError"))
    verdict = only(job(*echoes, gone, ended=True, exit_code=1, sources=sources))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.DIED, (2,), (0, 1, 3))
    assert verdict.collective is not None
    assert (verdict.collective.op, verdict.collective.seq) == ("all_reduce", 16)
    assert verdict.group == W


# --- Early ends -------------------------------------------------------------------------------


def test_a_count_of_long_before_it_died_does_not_tell_in_which_collective_a_rank_is_missing() -> (
    None
):
    calls = [op(W, seq, source="flight", age=8.4) for seq in range(1, 18)]
    echoes = [
        rank(n, W, *calls, flight=True, **raised("RuntimeError", PEER, 20)) for n in (0, 1, 3)
    ]
    gone = rank(2, W, enqueued=1, completed=-1, **killed(9))
    verdict = only(job(*echoes, gone, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.DIED, (2,), (0, 1, 3))
    assert "failed after it in all_reduce #17" in verdict.headline


def test_so_it_is_where_the_recorder_has_lost_the_place_of_that_count() -> None:
    calls = [op(W, seq, source="flight", age=8.4) for seq in range(4000, 5001)]
    echoes = [rank(n, W, *calls, flight=True, **raised("RuntimeError", PEER)) for n in (0, 1, 3)]
    gone = rank(2, W, enqueued=1, completed=-1, **killed(9))
    assert "failed after it in all_reduce #5000" in only(job(*echoes, gone, ended=True)).headline


def test_and_where_it_left_at_once_with_exit_code_0() -> None:
    calls = [op(W, seq, source="flight", age=8.4) for seq in range(1, 18)]
    echoes = [rank(n, W, *calls, flight=True, **raised("RuntimeError", PEER)) for n in (0, 1, 3)]
    left = ProcessState(alive=False, exit_code=0, gone_age_s=8.1)
    early = rank(2, W, enqueued=1, completed=-1, process=left)
    verdict = only(job(*echoes, early, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (2,))
    assert "in all_reduce #17" in verdict.headline


def test_nor_does_that_of_a_rank_that_the_launcher_ended_hide_who_finished_early() -> None:
    calls = [op(W, seq, source="flight", age=8.4) for seq in range(1, 17)]
    echoes = [rank(n, W, *calls, flight=True, **raised("RuntimeError", PEER)) for n in (0, 2)]
    early = rank(1, W, enqueued=15, completed=15, **exited(8.1))
    ended = rank(3, W, enqueued=0, completed=-1, **killed(15, 7.9))
    verdict = only(job(*echoes, early, ended, ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.FINISHED_EARLY, (1,), (0, 2))
    assert "in all_reduce #16" in verdict.headline


def test_who_went_unseen_was_ended_by_the_launcher_where_another_is_known_to_have_failed() -> None:
    failed = rank(1, W, op(W, 5), **raised("ValueError", "bad batch"))
    unseen = rank(0, W, blocked(W, 6), process=ProcessState(alive=False, gone_age_s=7.9))
    verdict = diagnose(job(failed, unseen, ended=True, exit_code=1), THRESHOLDS)[0]
    assert (verdict.kind, verdict.reason) == (Kind.DIED, Reason.EXCEPTION)
    assert verdict.culprits == (1,)
    first = replace(unseen, process=ProcessState(alive=False, gone_age_s=20.0))
    verdicts = diagnose(job(failed, first, ended=True, exit_code=1), THRESHOLDS)
    assert 0 in {culprit for verdict in verdicts for culprit in verdict.culprits}


def wraps(number: int, age: float = 8.05, gone: float = 8.0) -> RankSnapshot:
    """A rank that was thrown out of a collective, and raised an error of its own of that."""
    calls = op(W, 5), op(W, 6, state=OpState.FAILED)
    ends = raised("ValueError", "training step failed", age=age)
    return rank(
        number, W, *calls, **{**ends, "process": ProcessState(alive=False, gone_age_s=gone)}
    )


def test_who_was_told_first_that_a_peer_is_gone_did_not_fail_by_itself() -> None:
    for code in ({"exit_code": 3}, {"signal": 9}, {}):
        gone = rank(2, W, op(W, 5), process=ProcessState(alive=False, gone_age_s=8.0, **code))  # type: ignore[arg-type]
        verdict = only(job(wraps(0), wraps(1), gone, ended=True, exit_code=1))
        assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.DIED, (2,), (0, 1))
        assert verdict.certainty is Certainty.LIKELY
        assert "at about the same time" in verdict.explanation
    quits = replace(wraps(1), exception=None, exception_age_s=None, phase=Phase.RUNNING)
    quits = replace(quits, process=ProcessState(alive=False, gone_age_s=7.9, exit_code=1))
    assert only(job(wraps(0), quits, gone, ended=True, exit_code=1)).culprits == (2,)


def refused(number: int, age: float, *, text: str = "Invalid data type") -> RankSnapshot:
    """A rank that a call of its own has refused, at the line of that call."""
    call = op(W, 6, state=OpState.FAILED)
    return rank(number, W, op(W, 5), call, **raised("TypeError", text, 20, age=age))


def test_nobody_is_a_victim_of_peers_that_were_ended_after_it() -> None:
    quits: dict[str, Any] = {"process": ProcessState(alive=False, gone_age_s=7.5, exit_code=1)}
    ended = [rank(n, W, op(W, 5), **quits) for n in (0, 1)]
    of_its_own = ExceptionRecord("KeyError", "'x'", thrown="TypeError: Invalid data type")
    for failed in (refused(2, 8.0), replace(wraps(2), exception=of_its_own)):
        verdict = only(job(*ended, failed, ended=True, exit_code=1))
        assert (verdict.culprits, verdict.certainty) == ((2,), Certainty.PROVED)


def test_an_error_whose_line_nobody_knows_may_be_that_of_a_peers_end() -> None:
    gone = rank(2, W, op(W, 5), process=ProcessState(alive=False, gone_age_s=8.0, exit_code=3))
    nowhere = replace(wraps(0), exception=ExceptionRecord("ValueError", "training step failed"))
    assert only(job(nowhere, wraps(1), gone, ended=True, exit_code=1)).culprits == (2,)


def test_who_exits_with_a_code_after_another_one_was_killed_was_asked_to() -> None:
    quits = rank(1, W, op(W, 5), process=ProcessState(alive=False, gone_age_s=7.5, exit_code=3))
    dead = rank(2, W, op(W, 5), **killed(9, 8.0))
    assert only(job(dead, quits, ended=True, exit_code=1)).culprits == (2,)
    before = replace(quits, process=replace(quits.process, gone_age_s=8.5))
    verdicts = diagnose(job(dead, before, ended=True, exit_code=1), THRESHOLDS)
    assert 1 in {culprit for verdict in verdicts for culprit in verdict.culprits}


def test_who_tells_of_a_peer_in_what_led_to_its_error_is_a_victim_of_one_that_finished() -> None:
    lost = f"RuntimeError: {PEER}"
    text = "training step failed (after 3 attempts)"
    for error in (
        ExceptionRecord("ValueError", text, after=(lost,)),
        ExceptionRecord("ValueError", text, thrown=lost),
        ExceptionRecord("ValueError", text, thrown=lost, after=("ImportError: no flash_attn",)),
    ):
        victims = [replace(wraps(number), exception=error) for number in (0, 1)]
        gone = rank(2, W, op(W, 5), **killed(9, 5.0))
        verdict = only(job(*victims, gone, ended=True, exit_code=1))
        assert (verdict.culprits, verdict.victims) == ((2,), (0, 1))


def test_what_a_call_raised_long_before_says_nothing_of_an_error() -> None:
    error = ExceptionRecord("KeyError", "'x'", thrown=f"RuntimeError: {PEER}")
    failed = rank(1, W, op(W, 5), **raised("KeyError", "'x'"))
    failed = replace(failed, exception=error)
    verdict = only(job(failed, rank(0, W, blocked(W, 6)), ended=True, exit_code=1))
    assert verdict.culprits == (1,)
    assert "gloo" not in verdict.headline


def test_what_a_programs_own_server_says_of_a_worker_is_no_word_of_a_lost_peer() -> None:
    led = "ConnectionError: data server: remote worker 7 closed the stream"
    error = ExceptionRecord("KeyError", "'row-50'", after=(led,))
    failed = replace(rank(1, W, op(W, 5), **raised("KeyError", "'x'")), exception=error)
    verdict = only(job(failed, rank(0, W, blocked(W, 6)), ended=True, exit_code=1))
    assert (verdict.culprits, verdict.certainty) == ((1,), Certainty.PROVED)
    assert "(after ConnectionError: data server" in verdict.headline


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("requests.exceptions.ReadTimeout", "rows = fetch(shard)"),
        ("RuntimeError", 'raise RuntimeError("reading the shard timed out")'),
    ],
)
def test_a_time_out_of_the_programs_own_is_no_word_of_a_lost_peer(name: str, line: str) -> None:
    # A thread of its is in a collective, so that a lost peer might have thrown it out.
    lines = {SCRIPT: "\n" * 11 + line}
    raises = raised(name, "reading the shard timed out", 12, age=3.0)
    first = rank(1, W, op(W, 4), blocked(W, 5, age=4.0, thread=77), **raises)
    others = [failed(number, age=2.5) for number in (0, 2)]
    verdict = only(job(first, *others, ended=True, exit_code=1, sources=lines))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.DIED, (1,), (0, 2))
    assert verdict.certainty is Certainty.PROVED


@pytest.mark.parametrize(
    "text",
    [
        (
            "[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find "
            "address for: eth9"
        ),
        (
            "NCCL error in: NCCLUtils.cpp:90, unhandled cuda error, NCCL version 2.28.3\n"
            "ncclUnhandledCudaError: Call to CUDA function failed: failure 2"
        ),
        (
            "NCCL error in: NCCLUtils.cpp:90, invalid usage, NCCL version 2.28.3 ncclInvalidUsage: "
            "This usually reflects invalid usage. Duplicate GPU detected"
        ),
    ],
)
def test_what_the_libraries_say_of_the_ranks_own_machine_is_no_word_of_a_peer(text: str) -> None:
    wrong = replace(rank(1, **raised("RuntimeError", text, 12, age=5.0)), in_call="new_group")
    victims = [failed(number, age=3.0) for number in (0, 2)]
    verdict = diagnose(job(wrong, *victims, ended=True, exit_code=1), THRESHOLDS)[0]
    assert verdict.culprits == (1,)


def test_a_peer_that_was_lost_in_a_life_before_explains_nothing() -> None:
    lost = op(W, 5, state=OpState.FAILED)
    error = ExceptionRecord("ValueError", "bad row", after=(f"RuntimeError: {PEER}",))
    again = rank(1, W, lost, op(W, 6), op(W, 7), **raised("ValueError", "bad row", 20, age=5.0))
    again = replace(again, exception=error)
    victims = [
        rank(n, W, op(W, 7), op(W, 8, state=OpState.FAILED), **raised("RuntimeError", PEER, 20))
        for n in (0, 2)
    ]
    verdict = only(job(again, *victims, ended=True, exit_code=1))
    assert (verdict.culprits, verdict.certainty) == ((1,), Certainty.PROVED)


def in_backward(number: int, age: float, issued: int = 9) -> RankSnapshot:
    """A rank that has raised an error of its own making; C++ has issued what it was in.

    c10d counts what has failed as complete.
    """
    found = rank(number, W, op(W, 5), **raised("TrainingFailed", "backward failed", 20, age=age))
    (progress,) = found.groups
    return replace(found, groups=(replace(progress, enqueued=issued, completed=issued),))


def test_who_raises_amid_collectives_of_cpp_after_a_member_did_is_a_victim() -> None:
    first = rank(2, W, op(W, 5), **raised("KeyError", "'label'", 14, age=5.0))
    victims = (in_backward(0, 4.9), in_backward(1, 4.8))
    verdict = only(job(*victims, first, ended=True, exit_code=1))
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1))


def test_who_raises_amid_collectives_of_cpp_before_all_others_is_none() -> None:
    later = rank(2, W, op(W, 5), **raised("RuntimeError", PEER, 14, age=4.0))
    verdict = only(job(in_backward(0, 5.0), later, ended=True, exit_code=1))
    assert verdict.culprits == (0,)


def test_who_issued_no_more_than_the_first_to_end_raised_for_itself() -> None:
    first = rank(2, W, op(W, 5), **raised("KeyError", "'label'", 14, age=5.0))
    found = job(in_backward(0, 4.9, issued=5), first, ended=True, exit_code=1)
    told = diagnose(found, THRESHOLDS)
    assert {culprit for verdict in told for culprit in verdict.culprits} == {0, 2}


def test_who_was_asked_to_end_and_raises_is_not_to_blame() -> None:
    first = rank(2, W, op(W, 5), **raised("ValueError", "bad row", 14, age=5.0))
    asked = rank(1, W, op(W, 5), **raised("Preempted", "asked to stop", 20, age=4.5))
    assert asked.exception is not None
    by_term = replace(asked, exception=replace(asked.exception, sent="SIGTERM"))
    found = (first, by_term, rank(0, W, blocked(W, 6)))
    assert only(job(*found, ended=True, exit_code=1)).culprits == (2,)
    by_alarm = replace(asked, exception=replace(asked.exception, sent="SIGALRM"))
    told = diagnose(job(first, by_alarm, rank(0, W, blocked(W, 6)), ended=True), THRESHOLDS)
    assert [verdict.culprits for verdict in told] == [(2,), (1,)]


@pytest.mark.parametrize(
    ("kind", "after", "reason"),
    [
        ("TrainingFailed", "OutOfMemoryError: CUDA out of memory", Reason.OUT_OF_MEMORY),
        ("KeyError", "MemoryError: ", Reason.EXCEPTION),
        ("TrainingFailed", "OSError: no such file", Reason.EXCEPTION),
    ],
)
def test_memory_is_the_reason_only_of_what_was_made_of_it(
    kind: str, after: str, reason: Reason
) -> None:
    error = ExceptionRecord(kind, "step 5", after=(after,))
    died = replace(rank(1, W, op(W, 5), **raised(kind, "step 5")), exception=error)
    assert only(job(died, rank(0, W, blocked(W, 6)), ended=True, exit_code=1)).reason is reason


def test_one_exception_is_told_once_however_it_was_cut() -> None:
    text = f"invalid tensor size {'(1, 1, 1) ' * 30}"
    error = ExceptionRecord(
        "StepFailed",
        "step 21",
        thrown=f"RuntimeError: {text}"[:200],
        after=(f"RuntimeError: {text}"[:100],),
    )
    call = op(W, 6, state=OpState.FAILED)
    died = replace(rank(1, W, op(W, 5), call, **raised("StepFailed", "step 21")), exception=error)
    verdict = only(job(died, rank(0, W, blocked(W, 6)), ended=True, exit_code=1))
    assert verdict.headline.count("RuntimeError") == 1


def test_an_error_is_not_in_a_call_that_failed_before_others_of_cpp() -> None:
    old = op(W, 1, state=OpState.FAILED)
    died = rank(1, W, old, **raised("ValueError", "bad row", 20))
    (progress,) = died.groups
    went_on = replace(died, groups=(replace(progress, enqueued=40, completed=40),))
    others = job(went_on, rank(0, W, blocked(W, 41)), ended=True, exit_code=1)
    assert "all_reduce #1" not in only(others).headline


@pytest.mark.parametrize(
    ("age", "waited", "is_in"), [(19.5, False, True), (12.0, False, False), (12.0, True, True)]
)
def test_an_error_is_not_in_a_call_that_was_followed_by_those_of_another_group(
    *, age: float, waited: bool, is_in: bool
) -> None:
    old = replace(op(W, 5, state=OpState.FAILED, age=20.0), is_async=waited)
    died = rank(1, W, op(W, 4), old, **raised("ValueError", "bad row", 20))
    elsewhere = GroupProgress(world(4, "dp"), "1", 40, 40, changed_age_s=age)
    died = replace(died, groups=(*died.groups, elsewhere))
    told = only(job(died, rank(0, W, op(W, 4), **killed(15, 2.0)), ended=True, exit_code=1))
    assert ("all_reduce #5" in told.headline) is is_in


def test_a_time_out_that_ends_a_job_tells_of_the_rank_that_did_not_come() -> None:
    text = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv"
    ended = ProcessState(alive=False, signal=15, gone_age_s=0.5, terminated_by_launcher=True)
    busy = rank(1, W, op(W, 4), process=ended)
    patient = Thresholds(10.0, 300.0)
    (verdict,) = diagnose(
        job(failed(0, text, 1.0), busy, failed(2, text, 1.0), ended=True, exit_code=1), patient
    )
    assert (verdict.state, verdict.kind) == (State.FAILED, Kind.NEVER_ENTERED)
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2))
    assert any("time-out of ranks 0 and 2" in advice for advice in verdict.advice)
    lost = job(failed(0, age=1.0), busy, failed(2, age=1.0), ended=True, exit_code=1)
    assert diagnose(lost, patient) == (OK,)  # somebody has ended a job that was well


def test_a_time_out_of_long_before_tells_nothing_of_who_is_interrupted() -> None:
    error = ExceptionRecord("KeyboardInterrupt", "", thrown="RuntimeError: Timed out waiting")
    stopped = [
        replace(rank(n, W, op(W, 4), blocked(W, 5, age=2.0), **raised("X", "")), exception=error)
        for n in (0, 2, 3)
    ]
    ended = ProcessState(alive=False, signal=15, gone_age_s=0.5, terminated_by_launcher=True)
    found = job(*stopped, rank(1, W, op(W, 4), process=ended), ended=True, exit_code=1)
    assert diagnose(found, Thresholds(10.0, 300.0)) == (OK,)


def test_so_does_a_time_out_in_collectives_of_cpp() -> None:
    text = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv"
    ended = ProcessState(alive=False, signal=15, gone_age_s=0.5, terminated_by_launcher=True)

    def counted(number: int, issued: int, **fields: Any) -> RankSnapshot:
        # c10d counts what has failed as complete.
        return replace(rank(number, W, **fields), groups=(GroupProgress(W, "0", issued, issued),))

    victims = [counted(n, 18, **raised("RuntimeError", text, 20, 1.0)) for n in (0, 2)]
    late = counted(1, 17, process=ended)
    (verdict,) = diagnose(job(*victims, late, ended=True, exit_code=1), Thresholds(10.0, 300.0))
    assert (verdict.state, verdict.kind) == (State.FAILED, Kind.NEVER_ENTERED)
    assert (verdict.culprits, verdict.certainty) == ((1,), Certainty.POSSIBLE)


def test_but_who_failed_in_a_collective_long_before_did() -> None:
    gone = rank(2, W, op(W, 5), process=ProcessState(alive=False, gone_age_s=5.0, exit_code=3))
    verdict = diagnose(job(wraps(0), gone, ended=True, exit_code=1), THRESHOLDS)[0]
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.PROVED)


def test_a_rank_was_alive_until_it_raised_whenever_it_was_last_seen() -> None:
    gone = rank(2, W, op(W, 5), process=ProcessState(alive=False, gone_age_s=8.1))
    verdict = only(job(wraps(0, gone=8.2), wraps(1, gone=8.3), gone, ended=True, exit_code=1))
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1))


def test_a_count_at_which_a_rank_stood_for_long_tells_in_which_collective_it_is_missing() -> None:
    calls = [op(W, seq, source="flight", age=500.0) for seq in range(1, 18)]
    echoes = [
        rank(n, W, *calls, flight=True, **raised("RuntimeError", PEER, 20)) for n in (0, 1, 3)
    ]
    gone = rank(2, W, enqueued=5, completed=5, **killed(9))
    verdict = only(job(*echoes, gone, ended=True, exit_code=1))
    assert verdict.culprits == (2,)
    assert "failed after it in all_reduce #6" in verdict.headline


def test_a_rank_that_ended_itself_with_a_code_had_not_come_to_the_end_of_its_program() -> None:
    left = {**exited(), "process": ProcessState(alive=False, exit_code=1, gone_age_s=5.0)}
    verdict = only(job(failed(0), failed(1), dead(**left), failed(3), ended=True, exit_code=1))
    assert verdict.culprits == (2,)
    assert "exited with code 1" in verdict.headline
    assert "for example by sys.exit()" in verdict.explanation
    assert "shutting down" not in verdict.explanation


def test_a_rank_that_exited_in_order_while_others_wait_finished_early() -> None:
    verdict = only(job(waiting(0), waiting(1), dead(**exited()), waiting(3)))
    assert (verdict.kind, verdict.reason) == (Kind.FINISHED_EARLY, Reason.EXITED)
    assert (verdict.state, verdict.certainty) == (State.HANG, Certainty.PROVED)
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1, 3))
    assert "exited with code 0" in verdict.headline
    assert verdict.advice[0].startswith("Find out what ended the program early there")
    assert not any("Join" in text for text in verdict.advice)


def test_it_finished_early_too_where_its_peers_failed_of_it() -> None:
    found = job(failed(0), failed(1), dead(**exited()), failed(3), ended=True, exit_code=1)
    verdict = only(found)
    assert (verdict.kind, verdict.state) == (Kind.FINISHED_EARLY, State.FAILED)
    assert verdict.culprits == (2,)


def test_a_rank_that_destroys_its_groups_enters_no_more_collectives() -> None:
    leaving = dead(phase=Phase.FINALIZING, in_call="destroy_process_group", in_call_site=site(60))
    verdict = only(job(waiting(0), waiting(1), leaving, waiting(3)))
    assert (verdict.kind, verdict.certainty) == (Kind.FINISHED_EARLY, Certainty.PROVED)
    assert (verdict.culprits, verdict.site) == ((2,), site(60))


def test_a_rank_that_is_at_destroying_one_of_its_groups_may_come_to_the_others() -> None:
    # NCCL may wait for a peer there, and a thread may do it beside the program.
    busy = dead(in_call="destroy_process_group", in_call_age_s=4.0, in_call_site=site(60))
    verdict = only(job(*(waiting(number, age=12.0) for number in (0, 1, 3)), busy))
    assert (verdict.state, verdict.kind) == (State.SLOW, Kind.NEVER_ENTERED)
    assert (verdict.culprits, verdict.certainty) == ((2,), Certainty.LIKELY)


def test_a_rank_that_has_left_the_group_comes_to_it_no_more_whatever_it_waits_for() -> None:
    left = GroupProgress(W, "0", enqueued=4, completed=4, alive=False)
    making = dead(groups=(left,), in_call="new_group", in_call_age_s=4.0, in_call_site=site(60))
    verdict = only(job(waiting(0), waiting(1), making, waiting(3)))
    assert (verdict.kind, verdict.certainty) == (Kind.FINISHED_EARLY, Certainty.PROVED)
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1, 3))
    # It lives on, and the line is not that of destroy_process_group.
    assert "it destroyed the group;" in verdict.headline
    assert "no more collectives" not in verdict.explanation
    assert verdict.collective is not None
    assert (verdict.collective.op, verdict.collective.seq) == ("all_reduce", 5)


def test_it_had_finished_too_where_the_launcher_ended_it_after_that() -> None:
    left = GroupProgress(W, "0", enqueued=4, completed=4, alive=False)
    ended = killed(15, 1.0, terminated_by_launcher=True)
    gone = dead(groups=(left,), phase=Phase.RUNNING, **ended)
    verdict = only(job(failed(0), failed(1), gone, failed(3), ended=True, exit_code=1))
    assert (verdict.state, verdict.kind) == (State.FAILED, Kind.FINISHED_EARLY)
    assert verdict.culprits == (2,)
    assert "called destroy_process_group; ranks 0, 1 and 3 failed after it" in verdict.headline
    assert "Ranks 0, 1 and 3 failed at" in verdict.explanation


def test_the_last_rank_of_a_finished_job_has_more_steps_than_the_others() -> None:
    verdict = only(job(waiting(0), *[dead(n, **exited()) for n in (1, 2, 3)]))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (0,))
    assert verdict.certainty is Certainty.PROVED


def test_ranks_that_end_in_order_one_after_the_other_are_healthy() -> None:
    found = job(*[dead(n, **exited()) for n in (1, 2, 3)], rank(0, W, op(W, 4)))
    assert diagnose(found, THRESHOLDS) == (OK,)


# --- Ends that are nobody's fault ---------------------------------------------------------------


def test_a_job_that_ended_well_is_ok_whatever_it_left_behind() -> None:
    found = job(waiting(0), dead(**raised("ValueError")), ended=True, exit_code=0)
    assert diagnose(found, THRESHOLDS) == (OK,)


def test_a_job_that_was_interrupted_while_it_was_well_is_ok() -> None:
    keys = raised("KeyboardInterrupt", "")
    found = job(
        *[waiting(n, age=1.0, **keys) for n in (0, 1, 3)], dead(**keys), ended=True, exit_code=130
    )
    assert diagnose(found, THRESHOLDS) == (OK,)


def test_a_job_that_was_interrupted_because_it_hung_failed_of_it() -> None:
    keys = raised("KeyboardInterrupt", "")
    found = job(
        *[waiting(n, age=50.0, **keys) for n in (0, 1, 3)], dead(**keys), ended=True, exit_code=130
    )
    verdict = only(found)
    assert (verdict.kind, verdict.state) == (Kind.NEVER_ENTERED, State.FAILED)
    assert verdict.culprits == (2,)
    assert "it was terminated externally while in main, train.py:33" in verdict.headline


def test_a_job_that_is_being_ended_is_no_news() -> None:
    leaving = dead(**killed(15, 2.0))
    assert diagnose(job(waiting(0), waiting(1), leaving, waiting(3)), THRESHOLDS) == (OK,)


def test_a_rank_that_was_terminated_alone_is_missed_by_the_others() -> None:
    gone = dead(**killed(15, 40.0))
    verdict = only(job(*[waiting(n, age=40.0) for n in (0, 1, 3)], gone))
    assert (verdict.kind, verdict.reason, verdict.culprits) == (Kind.DIED, Reason.SIGNAL, (2,))


def test_a_stack_does_not_make_a_dead_rank_alive() -> None:
    gone = dead(threads=main_thread(frame(12)), **killed(9))
    assert only(job(waiting(0), waiting(1), gone, waiting(3))).kind is Kind.DIED


# --- What may be read two ways -------------------------------------------------------------------


def test_of_several_that_died_alike_the_first_tells_where_and_how() -> None:
    first = dead(1, **raised("ValueError", "first", 33, age=9.0))
    later = dead(2, **raised("ValueError", "later", 33, age=8.0))
    verdict = only(job(waiting(0), later, first, waiting(3)))
    assert verdict.culprits == (1, 2)
    assert "first" in verdict.headline


def test_an_abort_while_the_interpreter_shuts_down_is_the_ranks_own() -> None:
    aborted = dead(phase=Phase.EXITED, phase_age_s=8.0, **killed(6))
    verdict = only(job(waiting(0), waiting(1), aborted, waiting(3)))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))
    assert verdict.certainty is Certainty.PROVED


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (killed(9, 2.0), Reason.SIGNAL),
        (raised("torch.cuda.OutOfMemoryError", "CUDA", age=2.0), Reason.OUT_OF_MEMORY),
    ],
)
def test_who_is_killed_or_out_of_memory_in_a_call_did_not_end_of_another(
    end: dict[str, Any], reason: Reason
) -> None:
    here = rank(2, W, op(W, 4), op(W, 5, state=OpState.FAILED, age=4.0), **end)
    first = dead(1, **raised("ValueError", age=9.0))
    verdicts = diagnose(job(failed(0), first, here, failed(3), ended=True, exit_code=1), THRESHOLDS)
    assert {(verdict.culprits, verdict.reason) for verdict in verdicts} == {
        ((1,), Reason.EXCEPTION),
        ((2,), reason),
    }


def test_who_raised_in_a_collective_after_a_member_of_its_group_had_finished_did_so_of_that() -> (
    None
):
    error = raised("RuntimeError", "ran out of input", 20, age=3.0)
    raising = [rank(n, W, op(W, 4), op(W, 5, state=OpState.FAILED), **error) for n in (0, 1, 3)]
    verdict = only(job(*raising, dead(**exited(age=5.0)), ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (2,))


def test_the_one_whose_error_may_be_its_own_is_blamed_where_no_other_is() -> None:
    timed_out = rank(2, W, enqueued=4, completed=3, **raised("requests.Timeout", "Read timed out."))
    verdict = only(job(failed(0), failed(1), timed_out, failed(3), ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))


def test_a_program_that_was_seen_to_end_well_is_not_suspected() -> None:
    gone = ProcessState(alive=False, gone_age_s=5.0)
    well = rank(0, W, **exited())
    verdict = only(job(well, rank(1, W, process=gone), size=2, ended=True, exit_code=1))
    assert verdict.culprits == (1,)


def test_a_rank_that_is_gone_from_a_place_that_all_had_reached_is_only_likely_the_cause() -> None:
    issued = op(W, 5, state=OpState.ISSUED, source="flight", age=20.0)
    there = [rank(n, W, op(W, 4), issued, flight=True) for n in (0, 1, 3)]
    failed_of_it = replace(failed(2, age=12.0), node="n1")
    verdict = only(job(*there, failed_of_it))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (2,))
    assert verdict.certainty is Certainty.LIKELY


def unsure(number: int) -> RankSnapshot:
    """A rank that waits, in one of two groups, as its counters tell."""
    pair = GroupKey((0, 1), "pair")
    groups = (
        GroupProgress(W, "0", enqueued=5, completed=4),
        GroupProgress(pair, "1", enqueued=3, completed=2),
    )
    return replace(rank(number, pending_age_s=20.0), groups=groups)


@pytest.mark.parametrize(
    ("left", "certainty"), [((2,), Certainty.LIKELY), ((1, 2, 3), Certainty.POSSIBLE)]
)
def test_counters_of_several_groups_do_not_prove_that_a_rank_finished_early(
    left: tuple[int, ...], certainty: Certainty
) -> None:
    ranks = [rank(n, W, op(W, 4), **exited()) if n in left else unsure(n) for n in range(4)]
    verdict = only(job(*ranks))
    assert (verdict.kind, verdict.certainty) == (Kind.FINISHED_EARLY, certainty)
    assert verdict.state is State.SLOW


def test_an_unseen_rank_is_not_said_to_have_died_where_another_is_known_to_have() -> None:
    trio = GroupKey((0, 2, 3), "trio")
    call = op(trio, 5, state=OpState.FAILED, age=20.0)
    failing = [rank(n, trio, call, **raised("RuntimeError", PEER, 20, 3.0)) for n in (0, 3)]
    found = job(*failing, dead(1, **raised("ValueError")), size=4, ended=True, exit_code=1)
    kinds = {verdict.culprits: verdict.kind for verdict in diagnose(found, THRESHOLDS)}
    assert kinds == {(1,): Kind.DIED, (2,): Kind.NEVER_ENTERED}


def test_a_timeout_is_not_blamed_on_the_one_that_it_hit_first() -> None:
    error = raised("RuntimeError", "Timed out waiting 1800000ms for send", 20)
    timed_out = rank(2, W, enqueued=5, completed=4, **error)
    late = rank(3, W, op(W, 4), threads=main_thread(frame(12)))
    verdict = only(job(waiting(0, age=20.0), waiting(1, age=20.0), timed_out, late))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (3,))


def test_several_whose_own_connections_timed_out_are_no_victims() -> None:
    mine = [rank(n, W, op(W, 4), **raised("requests.Timeout", "Read timed out.")) for n in (1, 2)]
    verdict = only(job(failed(0), *mine, failed(3), ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (1, 2))


def test_a_rank_that_lives_on_a_machine_of_a_lost_ones_name_is_not_lost() -> None:
    namesake = rank(2, W, op(W, 4), threads=main_thread(frame(12)))
    found = job(waiting(0, age=20.0), waiting(1, age=20.0), namesake, waiting(3, age=20.0))
    verdict = only(replace(found, lost_nodes=("n0",)))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (2,))


def test_a_line_that_a_rank_has_left_behind_is_not_shown_as_its_last() -> None:
    process = ProcessState(alive=False, exit_code=0, gone_age_s=4.0)
    early = rank(2, W, op(W, 2), phase=Phase.EXITED, enqueued=46, completed=46, process=process)
    others = [rank(number, W, op(W, 46), blocked(W, 47)) for number in (0, 1, 3)]
    verdict = only(job(early, *others))
    assert (verdict.kind, verdict.culprits, verdict.site) == (Kind.FINISHED_EARLY, (2,), None)
    assert "last known call" not in verdict.explanation
    there = replace(early, groups=rank(2, W, op(W, 46)).groups, ops=(op(W, 46),))
    assert only(job(there, *others)).site == site(20)


def test_memory_that_ran_out_further_back_is_not_the_reason() -> None:
    after = ("OSError: no such file", "OutOfMemoryError: CUDA out of memory")
    error = ExceptionRecord("TrainingFailed", "step 5", after=after)
    died = replace(rank(1, W, op(W, 5), **raised("TrainingFailed", "step 5")), exception=error)
    verdict = only(job(died, rank(0, W, blocked(W, 6)), ended=True, exit_code=1))
    assert verdict.reason is Reason.EXCEPTION


def on_nccl(number: int, last: int, **ended: Any) -> RankSnapshot:
    """A rank of two whose gradients NCCL reduces, so far as the counters tell."""
    progress = GroupProgress(PAIR, "0", last, 3, in_order=True, changed_age_s=9.0)
    return replace(rank(number, **ended), groups=(progress,), pending_age_s=9.0)


def test_an_abort_on_nccl_is_that_of_its_watchdog() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    verdict = only(job(on_nccl(0, 8, **ended), on_nccl(1, 8, **killed(6)), ended=True, exit_code=1))
    assert (verdict.kind, verdict.culprits) == (Kind.DIED, (1,))
    assert verdict.certainty is Certainty.LIKELY
    assert "gloo" not in verdict.explanation + "".join(verdict.advice)
    assert "PyTorch's NCCL watchdog aborts a rank" in verdict.explanation
    assert verdict.advice[0].startswith("Read the output of rank 1 before SIGABRT")


NCCL_TIMED_OUT = (
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE) "
    "ran for 600029 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("kind", "message", "culprit"),
    [
        ("c10::DistBackendError", NCCL_TIMED_OUT, 0),
        ("std::runtime_error", f"Process group watchdog ended: {NCCL_TIMED_OUT}", 0),
        ("c10::DistBackendError", "Process group watchdog ended: CUDA error: unknown error", 1),
        ("c10::AcceleratorError", "CUDA error: the launch timed out and was terminated", 1),
    ],
)
def test_a_time_out_of_nccl_is_no_fault_of_the_rank_that_waited_and_an_error_of_cuda_is(
    kind: str, message: str, culprit: int
) -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    error = ExceptionRecord(kind, message, in_cpp=True)
    dead = replace(on_nccl(1, 8, **killed(6)), abort=error, abort_age_s=12.0)
    verdict = only(job(on_nccl(0, 7, **ended), dead, ended=True, exit_code=1))
    assert verdict.culprits == (culprit,)
    assert "the output of the rank says which" not in verdict.explanation


def test_one_that_was_aborted_may_have_waited_for_one_that_had_done_less() -> None:
    ended = killed(15, 3.0, terminated_by_launcher=True)
    verdict = only(job(on_nccl(0, 7, **ended), on_nccl(1, 8, **killed(6)), ended=True, exit_code=1))
    assert verdict.culprits == (0, 1)
    assert verdict.certainty is Certainty.POSSIBLE
