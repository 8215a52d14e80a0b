"""Ranks that wait for each other while another thread of one may end it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from snapshots import SCRIPT, THRESHOLDS, blocked, frame, job, main_thread, op, rank

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.rules.threads import acting_thread
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, State
from hangwatch.model.snapshot import Frame, ThreadStack

if TYPE_CHECKING:
    from hangwatch.model.snapshot import OpRecord
    from hangwatch.model.verdict import Verdict

ONE, OTHER = GroupKey((0, 1), "a"), GroupKey((0, 1), "b")
THREADING = Frame("/usr/lib/python3.11/threading.py", 1002, "Thread._bootstrap")
POOL = Frame("/usr/lib/python3.11/concurrent/futures/thread.py", 81, "_worker")
SAVES = Frame("/usr/lib/python3/dist-packages/torch/distributed/checkpoint/x.py", 3, "_save")
TID = 7


def thread(*frames: Frame) -> ThreadStack:
    return ThreadStack("Thread-1", TID, active=True, owns_gil=False, frames=frames)


def judged(*threads: ThreadStack, ops: tuple[OpRecord, ...] = (), **fields: Any) -> Verdict:
    """The verdict on two ranks that use two groups in opposite order; of rank 0 more is known."""
    known = {"threads": (*main_thread(frame(20)), *threads)} if threads else {}
    first = rank(0, ONE, blocked(ONE, 1), *ops, **{**known, **fields})
    (verdict,) = diagnose(job(first, rank(1, OTHER, blocked(OTHER, 1, line=30))), THRESHOLDS)
    return verdict


LIBRARY = "/usr/lib/python3.11"
PACKAGES = f"{LIBRARY}/site-packages"
NATIVE = Frame("/lib/x86_64-linux-gnu/libc.so.6", 0, "clone3")
CHORES = {
    "an idle pool": (POOL,),
    "a queue's feeder": (Frame(f"{LIBRARY}/multiprocessing/queues.py", 231, "_feed"),),
    "pinned memory": (
        Frame(f"{LIBRARY}/multiprocessing/connection.py", 930, "wait"),
        Frame(f"{PACKAGES}/torch/utils/data/_utils/pin_memory.py", 40, "do_one_step"),
    ),
    "a pool's caretaker": (
        Frame(f"{LIBRARY}/multiprocessing/pool.py", 531, "Pool._handle_workers"),
    ),
    "ours": (Frame(f"{PACKAGES}/hangwatch/agent/periodic.py", 60, "_loop"),),
}
MAY_ACT = {
    "a manager's server": (
        Frame(f"{LIBRARY}/socket.py", 700, "accept"),
        Frame(f"{LIBRARY}/multiprocessing/managers.py", 194, "Server.accepter"),
    ),
    "a timer": (Frame(f"{LIBRARY}/threading.py", 1399, "run"),),
    "an event loop": (
        Frame(f"{LIBRARY}/selectors.py", 468, "select"),
        Frame(f"{LIBRARY}/asyncio/base_events.py", 608, "run_forever"),
    ),
    "a server": (Frame(f"{LIBRARY}/socketserver.py", 233, "serve_forever"),),
    "a program that is installed": (Frame(f"{PACKAGES}/mytrainer/sends.py", 9, "next_batch"),),
    "what a pool was given": (frame(41, "publish"), POOL),
    "callbacks of a pool": (
        Frame(f"{LIBRARY}/multiprocessing/pool.py", 579, "Pool._handle_results"),
    ),
}


@pytest.mark.parametrize("frames", CHORES.values(), ids=CHORES)
def test_a_cycle_is_proved_where_nothing_else_runs_but_chores(frames: tuple[Frame, ...]) -> None:
    for below in ((), (NATIVE,)):
        assert judged(thread(*below, *frames, THREADING, *below)).state is State.HANG
    for verdict in (judged(), judged(thread(*frames, THREADING))):
        assert (verdict.kind, verdict.state) == (Kind.ORDER_INVERSION, State.HANG)
        assert verdict.certainty_of_hang is Certainty.PROVED


@pytest.mark.parametrize("frames", MAY_ACT.values(), ids=MAY_ACT)
def test_it_is_open_beside_a_thread_that_is_not_known_for_chores(frames: tuple[Frame, ...]) -> None:
    for below in ((), (NATIVE,)):
        verdict = judged(thread(*below, *frames, THREADING, *below))
        assert (verdict.state, verdict.certainty_of_hang) == (State.SLOW, Certainty.LIKELY)


@pytest.mark.parametrize("busy", [frame(41, "publish"), SAVES], ids=["the program", "torch"])
def test_it_is_open_while_another_thread_runs_what_may_communicate(busy: Frame) -> None:
    verdict = judged(thread(busy, POOL, THREADING))
    assert (verdict.kind, verdict.state) == (Kind.ORDER_INVERSION, State.SLOW)
    assert verdict.certainty_of_hang is Certainty.LIKELY
    assert "Rank 0 runs another thread" in verdict.explanation
    assert ("train.py:41" in verdict.explanation) == (busy is not SAVES)


def test_it_is_quite_open_while_a_thread_that_has_made_calls_is_at_something_else() -> None:
    package = Frame("/usr/lib/python3/site-packages/mytrainer/sends.py", 9, "next_batch")
    calls = (replace(op(OTHER, 0), thread=TID),)
    verdict = judged(thread(package, THREADING), ops=calls)
    assert (verdict.state, verdict.certainty_of_hang) == (State.SLOW, Certainty.POSSIBLE)


def test_a_thread_that_waits_outside_of_the_cycle_may_get_what_it_waits_for() -> None:
    third = GroupKey((0, 2), "c")
    threads = (*main_thread(frame(20)), thread(frame(41, "helper"), THREADING))
    ops = (blocked(ONE, 1), blocked(third, 3, thread=TID, line=41))
    first = rank(0, ONE, *ops, threads=threads)
    others = rank(1, OTHER, blocked(OTHER, 1, line=30)), rank(2, third)
    (cycle,) = (v for v in diagnose(job(first, *others), THRESHOLDS) if v.culprits != (2,))
    assert cycle.kind is Kind.ORDER_INVERSION
    assert (cycle.state, cycle.certainty_of_hang) == (State.SLOW, Certainty.POSSIBLE)


def test_a_thread_that_waits_in_the_cycle_can_do_nothing_more() -> None:
    threads = (*main_thread(frame(20)), thread(frame(41, "publish"), THREADING))
    waiting = rank(0, ONE, blocked(OTHER, 8, thread=TID, line=41), threads=threads)
    assert acting_thread(waiting, {TID}, {}) is None
    assert acting_thread(waiting, (), {}) is threads[1]


def test_a_thread_of_autograd_belongs_to_the_main_one_that_waits_for_it() -> None:
    hook = thread(frame(41, "hook"))
    backward = Frame(f"{PACKAGES}/torch/autograd/graph.py", 869, "_engine_run_backward")
    first = rank(0, ONE, blocked(ONE, 1), threads=(*main_thread(backward, frame(20)), hook))
    (verdict,) = diagnose(job(first, rank(1, OTHER, blocked(OTHER, 1, line=30))), THRESHOLDS)
    assert verdict.certainty_of_hang is Certainty.PROVED
    # Without that the program has started it, by _thread.start_new_thread().
    assert judged(hook).certainty_of_hang is Certainty.LIKELY


def test_without_a_stack_it_is_open_where_several_threads_have_made_calls() -> None:
    verdict = judged(ops=(replace(op(OTHER, 0), thread=TID),))
    assert (verdict.state, verdict.certainty_of_hang) == (State.SLOW, Certainty.POSSIBLE)


def test_where_no_stack_could_be_had_it_is_likely_at_most() -> None:
    verdict = judged(threads=())
    assert (verdict.state, verdict.certainty_of_hang) == (State.SLOW, Certainty.LIKELY)
    assert "Other threads of rank 0 could not be read" in verdict.explanation


def test_the_main_thread_may_act_where_it_waits_for_a_while_for_the_one_in_the_cycle() -> None:
    def waits(line: str) -> Certainty | None:
        texts = {SCRIPT: f"def receive():\n    dist.recv(x, 1)\n{line}\ndist.send(x, 1)\n"}
        join = Frame(f"{LIBRARY}/threading.py", 1116, "Thread.join")
        threads = (*main_thread(join, frame(3, "<module>")), thread(frame(2, "receive"), THREADING))
        ranks = [
            rank(n, ONE, blocked(ONE, 1, "recv", thread=TID, line=2, peer=1 - n), threads=threads)
            for n in (0, 1)
        ]
        (verdict,) = diagnose(job(*ranks, sources=texts), THRESHOLDS)
        return verdict.certainty_of_hang

    assert waits("worker.join()") is Certainty.PROVED
    assert waits("worker.join(timeout=20)") is Certainty.LIKELY


@pytest.mark.parametrize(
    ("line", "sure"),
    [
        ("work.wait()", Certainty.PROVED),
        ("dist.recv(x, src=1)", Certainty.PROVED),
        ("work.wait(timedelta(seconds=45))", Certainty.LIKELY),
        ("dist.recv(x, timeout=limit)", Certainty.LIKELY),
    ],
)
def test_who_waits_with_a_time_limit_does_not_wait_for_ever(line: str, sure: Certainty) -> None:
    text = f"def main():\n    work = dist.all_reduce(x, group=a, async_op=True)\n    {line}\n"
    stack = main_thread(frame(3, "main"), frame(99, "<module>"))
    first = rank(0, ONE, blocked(ONE, 1, line=2), threads=stack)
    other = rank(1, OTHER, blocked(OTHER, 1, line=30))
    (verdict,) = diagnose(job(first, other, sources={SCRIPT: text}), THRESHOLDS)
    assert verdict.certainty_of_hang is sure
    assert verdict.state is (State.HANG if sure is Certainty.PROVED else State.SLOW)
