"""Ranks that wait for each other while another thread of one may end it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from snapshots import THRESHOLDS, blocked, frame, job, main_thread, op, rank

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.beside import acting_thread
from hangwatch.types import Certainty, Frame, GroupKey, Kind, State, ThreadStack, Verdict

if TYPE_CHECKING:
    from hangwatch.types import OpRecord

ONE, OTHER = GroupKey((0, 1), "a"), GroupKey((0, 1), "b")
THREADING = Frame("/usr/lib/python3.11/threading.py", 1002, "_bootstrap")
POOL = Frame("/usr/lib/python3.11/concurrent/futures/thread.py", 81, "_worker")
SAVES = Frame("/usr/lib/python3/dist-packages/torch/distributed/checkpoint/x.py", 3, "_save")
TID = 7


def thread(*frames: Frame) -> ThreadStack:
    return ThreadStack("Thread-1", TID, active=True, owns_gil=False, frames=frames)


def judged(*threads: ThreadStack, ops: tuple[OpRecord, ...] = (), **fields: Any) -> Verdict:
    """What is said of two ranks that use two groups in opposite order; of rank 0 more is known."""
    known = {"threads": (*main_thread(frame(20)), *threads)} if threads else {}
    first = rank(0, ONE, blocked(ONE, 1), *ops, **{**known, **fields})
    (verdict,) = diagnose(job(first, rank(1, OTHER, blocked(OTHER, 1, line=30))), THRESHOLDS)
    return verdict


def test_a_cycle_is_proved_where_nothing_else_runs() -> None:
    idle = thread(POOL, THREADING)
    for verdict in (judged(), judged(idle)):
        assert (verdict.kind, verdict.state) == (Kind.ORDER_INVERSION, State.HANG)
        assert verdict.certainty is Certainty.PROVED


@pytest.mark.parametrize("busy", [frame(41, "publish"), SAVES], ids=["the program", "torch"])
def test_it_is_open_while_another_thread_runs_what_may_communicate(busy: Frame) -> None:
    verdict = judged(thread(busy, POOL, THREADING))
    assert (verdict.kind, verdict.state) == (Kind.ORDER_INVERSION, State.SLOW)
    assert verdict.certainty is Certainty.LIKELY
    assert "Rank 0 runs another thread" in verdict.explanation
    assert ("train.py:41" in verdict.explanation) == (busy is not SAVES)


def test_it_is_quite_open_while_a_thread_that_has_made_calls_is_at_something_else() -> None:
    package = Frame("/usr/lib/python3/site-packages/mytrainer/sends.py", 9, "next_batch")
    calls = (replace(op(OTHER, 0), thread=TID),)
    verdict = judged(thread(package, THREADING), ops=calls)
    assert (verdict.state, verdict.certainty) == (State.SLOW, Certainty.POSSIBLE)
    assert judged(thread(package, THREADING)).state is State.HANG


def test_a_thread_that_waits_itself_can_do_nothing_more() -> None:
    threads = (*main_thread(frame(20)), thread(frame(41, "publish"), THREADING))
    waiting = rank(0, ONE, blocked(OTHER, 8, thread=TID, line=41), threads=threads)
    assert acting_thread(waiting) is None
    assert acting_thread(replace(waiting, ops=())) is threads[1]


def test_a_thread_that_c_started_belongs_to_the_main_one() -> None:
    hook = frame(41, "hook")
    assert judged(thread(hook)).certainty is Certainty.PROVED


def test_without_a_stack_it_is_open_where_several_threads_have_made_calls() -> None:
    verdict = judged(ops=(replace(op(OTHER, 0), thread=TID),))
    assert (verdict.state, verdict.certainty) == (State.SLOW, Certainty.POSSIBLE)


def test_where_no_stack_could_be_had_it_is_likely_at_most() -> None:
    verdict = judged(threads=())
    assert (verdict.state, verdict.certainty) == (State.SLOW, Certainty.LIKELY)
    assert "Other threads of rank 0 could not be seen" in verdict.explanation
