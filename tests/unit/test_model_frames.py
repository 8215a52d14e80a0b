"""Which thread of a rank trains."""

from __future__ import annotations

from dataclasses import replace

from snapshots import op, rank, world

from hangwatch.model.frames import know_trainers, program_thread
from hangwatch.model.snapshot import Frame, RankSnapshot, ThreadStack

W = world(3)
TRAIN = "/home/u/train.py"
TORCH = "/venv/lib/python3.11/site-packages/torch/autograd/graph.py"
QUEUE = "/usr/lib/python3.11/queue.py"
MAIN, OTHER = 100, 101


def thread(tid: int, *files: str) -> ThreadStack:
    """One whose frames are in these files, innermost first."""
    name = "MainThread" if tid == MAIN else "Thread-1"
    frames = tuple(Frame(file, line, "work") for line, file in enumerate(files, 1))
    return ThreadStack(name, tid, active=False, owns_gil=False, frames=frames)


RESTS = thread(MAIN, QUEUE, TRAIN)
SLEEPS = thread(OTHER, TRAIN)


def of(*threads: ThreadStack, caller: int = 0) -> RankSnapshot:
    """A rank with these threads, one of which made its calls, if any was recorded."""
    ops = (replace(op(W, 1), thread=caller),) if caller else ()
    return replace(rank(0, W, *ops), pid=MAIN, threads=threads)


def trains(snapshot: RankSnapshot) -> int:
    found = program_thread(snapshot)
    assert found is not None
    return found.tid


def test_the_thread_that_makes_the_calls_trains_where_the_main_one_rests() -> None:
    assert trains(of(RESTS, SLEEPS, caller=OTHER)) == OTHER
    assert trains(of(thread(MAIN, TRAIN), SLEEPS, caller=OTHER)) == MAIN


def test_a_thread_beside_does_not_train_where_the_main_one_made_the_last_call() -> None:
    assert trains(of(RESTS, SLEEPS, caller=MAIN)) == MAIN


def test_where_no_call_tells_other_ranks_show_whether_the_main_thread_trains() -> None:
    starved = of(RESTS, SLEEPS)
    assert trains(starved) == OTHER
    waits_in_main = of(thread(MAIN, TORCH, TRAIN), SLEEPS)
    waits_beside = of(RESTS, thread(OTHER, TORCH, TRAIN))
    assert [trains(one) for one in know_trainers([starved, waits_in_main])] == [MAIN, MAIN]
    assert [trains(one) for one in know_trainers([starved, waits_beside])] == [OTHER, OTHER]


def test_a_thread_that_makes_calls_beside_those_of_the_buckets_does_not_train() -> None:
    bucket = op(W, 2, source="flight")
    stuck = of(RESTS, SLEEPS, caller=OTHER)
    stuck = replace(stuck, ops=(bucket, *stuck.ops))
    waits_in_main = of(thread(MAIN, TORCH, TRAIN), SLEEPS, caller=OTHER)
    assert trains(stuck) == OTHER
    assert [trains(one) for one in know_trainers([stuck, waits_in_main])] == [MAIN, MAIN]


def test_a_main_thread_that_is_in_torch_alone_shows_nothing() -> None:
    assert not any(one.main_trains for one in know_trainers([of(thread(MAIN, TORCH)), of(RESTS)]))
    assert not any(one.main_trains for one in know_trainers([replace(of(), threads=None)]))
