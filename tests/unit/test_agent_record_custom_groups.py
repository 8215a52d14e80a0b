"""Recording of process groups whose class is written in Python."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from hangwatch.agent.call_site import Prefixes
from hangwatch.agent.guard import Guard
from hangwatch.agent.record.custom_groups import CustomCalls, wrap_class
from hangwatch.agent.record.groups import Known


class Base:
    """torch's class."""

    def barrier(self, opts: Any = None) -> str:
        return f"base {opts}"


class Options:
    """BarrierOptions."""

    def __init__(self, *, asyncOp: bool = False) -> None:  # noqa: N803 (as torch has it)
        self.asyncOp = asyncOp


class Handle:
    """A Work of any class."""

    def __init__(self) -> None:
        self.completed = False

    def is_completed(self) -> bool:
        return self.completed


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[Any, ...]] = []
        self.ended: list[tuple[int, bool]] = []

    def record_begin(self, *values: Any) -> int:
        self.begun.append(values)
        return len(self.begun) - 1

    def record_end(self, index: int, failed: bool) -> None:  # noqa: FBT001 (as the native module has it)
        self.ended.append((index, failed))


class Groups:
    """Knows every group in slot 0."""

    def __init__(self) -> None:
        self.counts = {False: 0, True: 0}

    def find(self, group: Any) -> Known:
        return Known(
            weakref.ref(group), 0, (0, 1), python=True, counts=self.counts, identity=id(group)
        )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def calls(recorder: Any) -> CustomCalls:
    groups: Any = Groups()
    return CustomCalls(recorder, groups, Guard(), Prefixes())


def wrapped(kind: type, calls: CustomCalls | None) -> Any:
    """An instance of the class, whose methods are wrapped."""
    wrap_class(kind, Base, lambda: calls)
    return kind()


@pytest.fixture
def mine() -> type[Base]:
    """A class of the program's, new in each test."""

    class Mine(Base):
        def barrier(self, opts: Any = None) -> str:
            """Say so."""
            if opts == "bad":
                raise ValueError(opts)
            return f"mine {opts}"

    return Mine


def test_results_arguments_and_exceptions_are_those_of_the_class(
    mine: type[Base], calls: CustomCalls, recorder: Recorder
) -> None:
    group = wrapped(mine, calls)
    assert (group.barrier(), group.barrier(opts=3)) == ("mine None", "mine 3")
    with pytest.raises(ValueError, match="bad"):
        group.barrier("bad")
    assert (mine.barrier.__name__, mine.barrier.__doc__) == ("barrier", "Say so.")
    assert [(values[2], values[3]) for values in recorder.begun] == [
        ("barrier", 1),
        ("barrier", 2),
        ("barrier", 3),
    ]
    assert recorder.ended[-1] == (2, True)


def test_a_class_that_calls_its_parents_is_counted_once(
    calls: CustomCalls, recorder: Recorder
) -> None:
    class Parent(Base):
        def barrier(self, opts: Any = None) -> str:
            return super().barrier(opts)

    class Child(Parent):
        def barrier(self, opts: Any = None) -> str:
            return super().barrier(opts) + super().barrier(opts)

    assert wrapped(Child, calls).barrier(1) == "base 1base 1"
    assert len(recorder.begun) == 1


def test_what_is_merely_inherited_is_left_alone(calls: CustomCalls) -> None:
    class Mine(Base):
        pass

    wrapped(Mine, calls)
    assert "barrier" not in Mine.__dict__
    assert not hasattr(Base.barrier, "__wrapped__")


def test_wrapping_twice_counts_once(
    mine: type[Base], calls: CustomCalls, recorder: Recorder
) -> None:
    wrapped(mine, calls)
    wrapped(mine, calls).barrier()
    assert len(recorder.begun) == 1


def test_in_a_process_that_does_not_record_only_the_class_is_called(mine: type[Base]) -> None:
    assert wrapped(mine, None).barrier() == "mine None"


def waiting(calls: CustomCalls) -> Any:
    """A group whose calls return a handle."""

    class Waiting(Base):
        def barrier(self, opts: Any = None) -> Any:
            del opts
            return Handle()

    return wrapped(Waiting, calls)


def test_a_call_that_is_waited_for_blocks_until_its_handle_is_dropped(
    calls: CustomCalls, recorder: Recorder
) -> None:
    handle = waiting(calls).barrier(Options())
    assert recorder.ended == []
    del handle
    assert recorder.ended == [(0, False)]


def test_a_handle_that_is_kept_blocks_until_it_is_seen_to_be_complete(
    calls: CustomCalls, recorder: Recorder
) -> None:
    handle = waiting(calls).barrier(Options())
    calls.end_finished_waits()
    assert recorder.ended == []
    handle.completed = True
    calls.end_finished_waits()
    assert recorder.ended == [(0, False)]
    del handle
    assert recorder.ended == [(0, False)]


def test_the_next_call_shows_that_the_wait_is_over(calls: CustomCalls, recorder: Recorder) -> None:
    group = waiting(calls)
    kept = [group.barrier(Options()), group.barrier(Options())]
    assert recorder.ended == [(0, False)]
    del kept[0]
    assert recorder.ended == [(0, False)]
    kept.clear()
    assert recorder.ended == [(0, False), (1, False)]


def test_an_asynchronous_call_blocks_nobody(calls: CustomCalls, recorder: Recorder) -> None:
    handle = waiting(calls).barrier(Options(asyncOp=True))
    assert recorder.ended == [(0, False)]
    del handle
    assert recorder.ended == [(0, False)]
