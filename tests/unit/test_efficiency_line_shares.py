"""Shares of the time of two ranks by line, side by side."""

from __future__ import annotations

import pytest

from hangwatch.efficiency.line_shares import TRAINING, WORKERS, shares_by_line
from hangwatch.model.profile import Profile, StackSamples
from hangwatch.model.snapshot import Frame

TRAIN = "/home/ada/train.py"
TORCH = "/v/lib/python3.11/site-packages/torch"
C10D = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3000, "all_reduce")
AUTOGRAD = Frame(f"{TORCH}/autograd/graph.py", 800, "_engine_run_backward")
WORKER = Frame(f"{TORCH}/utils/data/_utils/worker.py", 300, "_worker_loop")


def line(number: int, *inside: Frame) -> tuple[Frame, ...]:
    return (*inside, Frame(TRAIN, number, "main"))


def profile(rank: int, *samples: StackSamples, waits: float = 0.0) -> Profile:
    return Profile(rank, 100 + rank, 100 + rank, samples, waits=waits)


def at(rank: int, frames: tuple[Frame, ...], count: int) -> StackSamples:
    return StackSamples(100 + rank, 100 + rank, "MainThread", frames, count)


def shown(slow: Profile, like: Profile, thread: str = "") -> dict[str, list[tuple[object, ...]]]:
    """By thread the lines with both shares."""
    return {
        table.name: [
            (one.site.line if one.site else None, round(one.share, 2), round(one.like_share, 2))
            for one in table.lines
        ]
        for table in shares_by_line(slow, like, thread, {})
    }


def test_lines_that_take_longer_come_first_and_waiting_last() -> None:
    slow = profile(2, at(2, line(4), 50), at(2, line(5), 50))
    like = profile(0, at(0, line(5), 45), at(0, line(7, C10D), 55))
    assert shown(slow, like) == {TRAINING: [(4, 0.5, 0.0), (5, 0.5, 0.45), (None, 0.0, 0.55)]}


def test_a_backward_pass_in_which_c10d_waits_is_divided() -> None:
    slow = profile(2, at(2, line(3, AUTOGRAD), 100), waits=0.0)
    like = profile(0, at(0, line(3, AUTOGRAD), 80), at(0, line(7, C10D), 20), waits=0.7)
    assert shown(slow, like) == {TRAINING: [(3, 1.0, 0.3), (None, 0.0, 0.7)]}


def test_a_line_that_is_reached_by_several_ways_stands_once() -> None:
    helper = Frame("/home/ada/helper.py", 9, "work")
    slow = profile(2, at(2, line(4, helper), 50), at(2, line(5, helper), 50))
    like = profile(0, at(0, line(4, helper), 100))
    assert shown(slow, like)[TRAINING] == [(9, 1.0, 1.0), (None, 0.0, 0.0)]


def test_what_is_hardly_ever_seen_is_left_out() -> None:
    slow = profile(2, at(2, line(4), 199), at(2, line(5), 1))
    like = profile(0, at(0, line(4), 200))
    assert shown(slow, like)[TRAINING] == [(4, pytest.approx(0.99, abs=0.01), 1.0), (None, 0, 0)]


def test_data_workers_and_another_thread_have_tables_of_their_own() -> None:
    frames = (Frame("/home/ada/data.py", 7, "__getitem__"), WORKER)
    read = (Frame("/home/ada/read.py", 8, "read"),)

    def samples(rank: int, *more: StackSamples) -> Profile:
        return profile(rank, at(rank, line(4), 100), *more)

    slow = samples(
        2, StackSamples(300, 300, "", frames, 90), StackSamples(102, 7, "reader", read, 9)
    )
    like = samples(0, StackSamples(301, 301, "", (WORKER,), 90))
    found = shown(slow, like, "reader")
    assert found[WORKERS] == [(7, 1.0, 0.0)]
    assert found["reader"] == [(8, 1.0, 0.0)]
    assert "reader" not in shown(slow, like)


def test_no_samples_are_no_lines() -> None:
    assert shown(profile(2), profile(0)) == {TRAINING: [(None, 0.0, 0.0)]}
