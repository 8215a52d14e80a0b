"""The numbers that the sampler reads from groups, and the waits for what C++ issued."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from hangwatch.agent.record.groups import Known
from hangwatch.agent.sample.sampler import MAY_WAIT, Sampler, Stillness, main_thread_cpu_s


class Issued:
    """A group that has issued seven calls."""

    def _get_sequence_number_for_group(self) -> int:
        return 7


@pytest.mark.parametrize(("pending", "completed"), [(False, 7), (True, -1), (None, -1)])
def test_what_was_issued_is_complete_only_where_a_recorder_says_so(
    pending: bool | None,  # noqa: FBT001 (a parameter of the test)
    completed: int,
) -> None:
    made = Issued()
    told: list[tuple[int, Issued, int]] = []
    known = Known(weakref.ref(made), 0, (0, 1), python=False, counts={}, identity=id(made))
    groups: Any = SimpleNamespace(known=lambda: [known], has=lambda _: True)
    recorder: Any = SimpleNamespace(sample_number=lambda *call: told.append(call))
    flight: Any = SimpleNamespace(progress=lambda: (pending, False))
    exceptions: Any = None
    Sampler(recorder, groups, flight, exceptions, "", lambda: False, lambda _: None).sample_groups()
    assert told == [(0, made, completed)]


def test_an_exception_is_told_once_where_it_is_handled_for_longer_than_a_moment() -> None:
    groups: Any = SimpleNamespace(known=list, has=lambda _: True)
    recorder: Any = SimpleNamespace(beats=[], beat=lambda *beat: recorder.beats.append(beat[0]))
    flight: Any = SimpleNamespace(progress=lambda: (False, False), answer=lambda _: None)
    exceptions: Any = SimpleNamespace(record_uncaught=lambda: False)
    told: list[BaseException] = []
    sampler = Sampler(recorder, groups, flight, exceptions, "", lambda: False, told.append)
    sampler.sample()
    try:
        raise ValueError  # noqa: TRY301 (that it is handled is what matters)
    except ValueError as error:
        for expected in (0, 1, 1):
            sampler.sample()
            assert told == [error] * expected  # noqa: PT017
    sampler.sample()
    assert recorder.beats == ["", "ValueError", "ValueError", "ValueError", ""]


BACKWARD = "/site-packages" + MAY_WAIT[0]


@dataclass
class Rank:
    """A fake of a rank: its clocks, and the file that its main thread is in."""

    now_s: float = 100.0
    cpu_s: float = 7.0
    file: str = BACKWARD
    caller: str = "/home/u/train.py"
    number: int = 16

    def pass_by(self, seconds: float = 0.5, busy: float = 0.0) -> None:
        self.now_s += seconds
        self.cpu_s += seconds * busy

    def frame(self) -> FrameType:
        caller = SimpleNamespace(f_code=SimpleNamespace(co_filename=self.caller))
        code = SimpleNamespace(co_filename=self.file)
        return cast("FrameType", SimpleNamespace(f_code=code, f_back=caller))


@pytest.fixture
def rank() -> Rank:
    return Rank()


@pytest.fixture
def stillness(rank: Rank) -> Stillness:
    return Stillness(lambda: rank.now_s, lambda: rank.cpu_s, rank.frame)


def look(rank: Rank, stillness: Stillness) -> tuple[bool, bool]:
    return stillness.look(((1, rank.number),))


def test_an_idle_rank_in_backward_waits_in_the_same_wait(rank: Rank, stillness: Stillness) -> None:
    assert look(rank, stillness) == (False, False)
    rank.pass_by()
    assert look(rank, stillness) == (True, True)
    for _ in range(3):
        rank.pass_by()
        assert look(rank, stillness) == (True, False)


def test_a_rank_that_computes_waits_for_nobody(rank: Rank, stillness: Stillness) -> None:
    for _ in range(4):
        assert look(rank, stillness)[0] is False
        rank.pass_by(busy=0.5)


def test_a_rank_that_has_issued_something_goes_on(rank: Rank, stillness: Stillness) -> None:
    for _ in range(4):
        assert look(rank, stillness)[0] is False
        rank.pass_by()
        rank.number += 1


def test_a_wait_after_another_is_a_new_one(rank: Rank, stillness: Stillness) -> None:
    look(rank, stillness)
    rank.pass_by()
    assert look(rank, stillness) == (True, True)
    rank.pass_by()
    rank.number += 1
    assert look(rank, stillness) == (False, True)
    rank.pass_by()
    assert look(rank, stillness) == (True, True)


@pytest.mark.parametrize("file", ["/home/u/train.py", "/site-packages/torch/serialization.py"])
def test_one_that_is_elsewhere_waits_for_something_else(
    rank: Rank, stillness: Stillness, file: str
) -> None:
    rank.file = file
    for _ in range(4):
        assert look(rank, stillness)[0] is False
        rank.pass_by()


def test_what_is_issued_between_two_looks_at_once_ends_the_wait(
    rank: Rank, stillness: Stillness
) -> None:
    look(rank, stillness)
    rank.pass_by()
    assert look(rank, stillness) == (True, True)
    rank.pass_by(0.01)
    rank.number += 1
    assert look(rank, stillness) == (False, True)


def test_of_the_operators_only_a_functional_collective_waits(
    rank: Rank, stillness: Stillness
) -> None:
    rank.file = "/site-packages/torch/_ops.py"
    look(rank, stillness)
    rank.pass_by()
    assert look(rank, stillness)[0] is False  # that of another library may read a file
    rank.caller = "/site-packages/torch/distributed/_functional_collectives.py"
    rank.pass_by()
    assert look(rank, stillness) == (True, True)


def test_where_its_clock_is_not_told_nobody_waits(
    rank: Rank, stillness: Stillness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_clock: int) -> float:
        raise OSError(22, "Invalid argument")

    assert main_thread_cpu_s() > 0.0
    monkeypatch.setattr("time.clock_gettime", refused)
    rank.cpu_s = main_thread_cpu_s()
    for _ in range(4):
        assert look(rank, stillness)[0] is False
        rank.now_s += 0.5


def test_two_looks_at_once_tell_nothing(rank: Rank, stillness: Stillness) -> None:
    look(rank, stillness)
    rank.pass_by()
    assert look(rank, stillness) == (True, True)
    rank.pass_by(0.01, busy=1.0)
    assert look(rank, stillness) == (True, False)
