"""The wrappers record a call, and leave it as it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch import _native
from hangwatch.page.reader import parse_page
from hangwatch.safety.foreign import is_foreign
from hangwatch.types.kinds import OpState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hangwatch.types.page import PageEvent, PageGroup, RankPage


class Work:
    """Stands for torch's Work."""

    def __init__(self, during: Callable[[], None] | None = None) -> None:
        self.during = during

    def wait(self, timeout: float = 0) -> bool:
        if self.during:
            self.during()
        return timeout >= 0

    def synchronize(self) -> None:
        if self.during:
            self.during()


class Group:
    """Stands for torch's ProcessGroup, with the numbers that gloo would give."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.calls: list[tuple[Any, ...]] = []
        self.during: Callable[[], None] | None = None
        self.result: Any = None

    def _get_sequence_number_for_group(self) -> int:
        if self.number < 0:
            raise RuntimeError("not supported")
        return self.number

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((*args, kwargs))
        if self.during:
            self.during()
        self.number += self.number >= 0
        return self.result

    def allreduce(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce."""
        return self._call("allreduce", *args, **kwargs)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._call("broadcast", tensors, opts)

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("gather", *args, **kwargs)

    def send(self, tensors: Any, dstRank: int, tag: int) -> Any:  # noqa: N803 (as torch has it)
        return self._call("send", tensors, dstRank, tag)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self._call("recv_anysource", tensors, tag)

    def monitored_barrier(self, advance: int = 2) -> None:
        self.calls.append(("monitored_barrier", advance))
        if self.during:
            self.during()
        self.number += advance

    def _start_coalescing(self, device: Any) -> None:
        if device is None:
            raise RuntimeError("this backend has no coalescing")

    def _end_coalescing(self, device: Any) -> Any:
        self.number += device
        return self.result


class Recording:
    """The page of this process, and the wrapped classes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.resolved: list[Any] = []
        self.slots: dict[int, int] = {}

    def resolve(self, group: Any) -> int:
        self.resolved.append(group)
        return self.slots.get(id(group), -1)

    def group(self, backend: str = "gloo", ranks: Any = (0, 1), number: int = 0) -> Group:
        group = Group(number)
        slot = len(self.slots)
        self.slots[id(group)] = slot
        _native.define_group(slot, str(slot), "", ranks, 0, backend)
        return group

    @property
    def page(self) -> RankPage:
        return parse_page(self.path.read_bytes())

    @property
    def last(self) -> PageEvent:
        return self.page.events[-1]

    @property
    def first_group(self) -> PageGroup:
        return self.page.groups[0]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    recording = Recording(tmp_path / "r0-0-1.page")
    _native.open_page(str(recording.path), {"pid": os.getpid(), "rank": 0, "world_size": 2})
    _native.set_prefixes([], [])
    _native.wrap_methods(Group, Work, recording.resolve)
    yield recording
    _native.unwrap_methods()
    _native.close_page()


def test_only_methods_that_are_there_are_wrapped(recording: Recording) -> None:
    names = _native.wrap_methods(Group, Work, recording.resolve)
    assert set(names) == {
        "allreduce",
        "broadcast",
        "gather",
        "send",
        "recv_anysource",
        "monitored_barrier",
        "_start_coalescing",
        "_end_coalescing",
        "wait",
        "synchronize",
    }
    assert Group.allreduce.__name__ == "allreduce"
    assert Group.allreduce.__doc__ == "Reduce."


def test_unwrapping_puts_the_originals_back(recording: Recording) -> None:
    wrapper = Group.__dict__["broadcast"]
    bound = recording.group().broadcast
    _native.unwrap_methods()
    assert type(Group.__dict__["broadcast"]) is type(test_unwrapping_puts_the_originals_back)
    assert Group().broadcast([1]) is None
    # Who took the wrapper before can still call it.
    assert bound([1]) is None
    assert wrapper(Group(), [1]) is None


def test_the_call_happens_once_with_its_own_arguments_and_result(recording: Recording) -> None:
    group = recording.group()
    group.result = result = object()
    args, kwargs = tuple(range(30)), {f"name{i}": i for i in range(30)}
    assert group.allreduce(*args, **kwargs) is result
    assert group.allreduce(*args) is result
    assert group.allreduce(**kwargs) is result
    assert Group.allreduce(group) is result
    assert group.calls == [
        ("allreduce", *args, kwargs),
        ("allreduce", *args, {}),
        ("allreduce", kwargs),
        ("allreduce", {}),
    ]


def test_what_is_passed_is_not_kept(recording: Recording) -> None:
    group = recording.group()
    group.result = Work()
    argument = object()
    group.allreduce([1])
    recording.resolved.clear()
    group.calls.clear()
    before = sys.getrefcount(argument), sys.getrefcount(group), sys.getrefcount(group.result)
    for _ in range(50):
        group.broadcast([argument]).wait()
        group.calls.clear()
    after = sys.getrefcount(argument), sys.getrefcount(group), sys.getrefcount(group.result)
    assert after == before


def test_the_users_exception_is_the_users(recording: Recording) -> None:
    group = recording.group()
    error = KeyError("mine")

    def fail() -> None:
        raise error

    group.during = fail
    with pytest.raises(KeyError) as caught:
        group.allreduce([1])
    assert caught.value is error
    assert recording.last.state is OpState.FAILED
    assert recording.page.swallowed == 0


def test_what_a_call_has_raised_is_kept(recording: Recording) -> None:
    group = recording.group()

    class Told(ValueError):  # noqa: N818 (as programs have it)
        args = property(lambda _: pytest.fail("asked"))

        def __str__(self) -> str:
            return pytest.fail("asked")

    def raises(error: BaseException) -> tuple[str, str]:
        def fail() -> None:
            raise error

        group.during = fail
        with pytest.raises(type(error)) as caught:
            group.allreduce([1])
        assert caught.value is error
        assert error.__context__ is None
        return _native.last_thrown()

    assert raises(RuntimeError("gone")) == ("RuntimeError", "gone")
    assert raises(OSError(2, "gone")) == ("FileNotFoundError", "")
    assert raises(Told("mine"))[1] == "mine"
    assert raises(KeyboardInterrupt()) == ("KeyboardInterrupt", "")
    assert raises(ValueError("\udcff")) == ("ValueError", "")
    assert raises(ValueError("é" * 9000)) == ("ValueError", "é" * 8000)
    group.during = None
    group.result = Work(lambda: time.sleep(-1))
    with pytest.raises(ValueError, match="non-negative"):
        group.allreduce([1]).wait()
    assert _native.last_thrown() == ("ValueError", "sleep length must be non-negative")


def test_a_wrong_self_is_a_type_error(recording: Recording) -> None:
    with pytest.raises(TypeError):
        Group.allreduce(object())  # type: ignore[arg-type]
    assert recording.page.events == ()


def test_a_call_is_blocked_while_it_lasts(recording: Recording) -> None:
    group = recording.group()
    seen = []
    group.during = lambda: seen.append(recording.last)
    group.monitored_barrier()
    (during,) = seen
    assert (during.op, during.wire, during.state) == (
        "monitored_barrier",
        "monitored_barrier",
        OpState.BLOCKED,
    )
    assert during.blocked_ns == during.issued_ns
    assert recording.last.state is OpState.DONE
    assert recording.last.thread == threading.get_native_id()


def test_a_work_is_issued_until_somebody_waits(recording: Recording) -> None:
    group = recording.group()
    seen = []
    group.result = work = Work(lambda: seen.append(recording.last))

    def issue() -> None:
        group.allreduce([1])

    issue()
    issued = recording.last
    assert (issued.state, issued.blocked_ns) == (OpState.ISSUED, 0)
    assert recording.first_group.left == 0
    assert work.wait(timeout=1)
    assert seen[0].state is OpState.BLOCKED
    assert seen[0].blocked_ns >= seen[0].issued_ns
    assert recording.last.state is OpState.DONE
    assert recording.last.is_async
    assert recording.first_group.left == 1
    work.wait()  # a second time: nothing is new
    assert seen[1].state is OpState.DONE
    assert recording.first_group.left == 1


def test_who_issues_and_waits_in_one_function_is_synchronous(recording: Recording) -> None:
    group = recording.group()
    group.result = Work()
    group.allreduce([1]).wait()
    assert not recording.last.is_async


def test_a_wait_that_raises_has_failed(recording: Recording) -> None:
    group = recording.group()
    error = RuntimeError("connection closed by peer")

    def fail() -> None:
        raise error

    group.result = work = Work(fail)
    group.allreduce([1])
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    assert caught.value is error
    assert recording.last.state is OpState.FAILED
    assert recording.first_group.left == 1


def test_synchronize_blocks_but_completes_nothing(recording: Recording) -> None:
    group = recording.group()
    seen = []
    group.result = work = Work(lambda: seen.append(recording.last.state))
    group.allreduce([1])
    work.synchronize()
    assert seen == [OpState.BLOCKED]
    assert recording.last.state is OpState.ISSUED


def test_on_a_stream_a_wait_completes_nothing(recording: Recording) -> None:
    group = recording.group(backend="cuda:nccl")
    group.result = Work()
    group.allreduce([1]).wait()
    assert recording.last.state is OpState.ISSUED
    assert recording.first_group.left == 1


def test_a_work_nobody_knows_is_only_waited_for(recording: Recording) -> None:
    assert Work().wait()
    assert recording.page.events == ()


def test_the_place_comes_from_what_c10d_counted(recording: Recording) -> None:
    group = recording.group(number=40)
    group.allreduce([1])
    group.number += 7  # issued by C++
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [41, 49]
    assert (recording.first_group.enqueued, recording.first_group.entered) == (49, 2)
    group.number += 3
    assert _native.sample_number(0, group) == 52
    assert recording.first_group.enqueued == 52


def test_without_a_number_the_wrapper_counts(recording: Recording) -> None:
    group = recording.group(backend="custom", number=-1)
    for _ in range(3):
        group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [1, 2, 3]
    assert _native.sample_number(0, group) == -1
    assert recording.page.swallowed == 0


def test_a_custom_backends_number_is_taken_if_it_counts(recording: Recording) -> None:
    group = recording.group(backend="custom", number=10)
    group.allreduce([1])
    group.number += 5
    group.send([1], 1, 0)
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [11, 1, 17]
    assert _native.sample_number(0, group) == 17


def test_a_number_that_stands_still_is_not_taken(recording: Recording) -> None:
    group = recording.group(backend="custom", number=10)

    def stand_still() -> None:
        group.number -= 1

    group.during = stand_still
    for _ in range(3):
        group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [11, 2, 3]


def test_sends_take_no_place(recording: Recording) -> None:
    group = recording.group(ranks=[4, 9])
    group.allreduce([1])
    group.send([1], 1, 5)
    group.send([1], dstRank=0, tag=6)
    group.recv_anysource([1], 7)
    group.allreduce([1])
    events = recording.page.events
    assert [(event.wire, event.seq, event.p2p) for event in events] == [
        ("all_reduce", 1, False),
        ("send", 1, True),
        ("send", 2, True),
        ("recv", 3, True),
        ("all_reduce", 2, False),
    ]
    assert [event.peer for event in events] == [-1, 9, 4, -1, -1]
    assert [event.tag for event in events] == [0, 5, 6, 7, 0]
    assert (recording.first_group.enqueued, recording.first_group.p2p) == (2, 3)
    assert _native.sample_number(0, group, group.number) == 2
    assert recording.first_group.completed == 2


@pytest.mark.parametrize("advance", [2, 14])
def test_a_monitored_barrier_takes_two_places_on_every_rank(
    recording: Recording, advance: int
) -> None:
    group = recording.group()
    group.allreduce([1])
    sampled = []
    group.during = lambda: sampled.append(_native.sample_number(0, group))
    group.monitored_barrier(advance)
    group.during = None
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [1, 2, 4]
    # While it lasts, the number means nothing.
    assert sampled == [-1]
    assert _native.sample_number(0, group) == 4


def test_a_call_that_was_refused_takes_no_place(recording: Recording) -> None:
    group = recording.group()

    def refuse() -> None:
        raise TypeError("no tensor")

    group.during = refuse
    with pytest.raises(TypeError):
        group.allreduce([1])
    assert recording.first_group.enqueued == 0
    with pytest.raises(TypeError):
        group.send([1], 0, 0)
    group.during = None
    group.allreduce([1])
    assert [(e.seq, e.state.value) for e in recording.page.events if not e.p2p] == [
        (1, "failed"),
        (1, "done"),
    ]
    assert recording.first_group.enqueued == 1


def test_calls_of_several_threads_have_places_of_their_own(recording: Recording) -> None:
    group = recording.group()
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go.wait(60)

    group.during = hold
    other = threading.Thread(target=group.allreduce, args=([1],))
    other.start()
    assert inside.wait(60)
    group.during = None
    group.allreduce([2])
    go.set()
    other.join()
    group.allreduce([3])
    assert [event.seq for event in recording.page.events] == [1, 2, 3]
    assert len({event.thread for event in recording.page.events}) == 2


def test_coalesced_calls_share_a_place_and_a_work(recording: Recording) -> None:
    group = recording.group(backend="nccl", number=6)
    group._start_coalescing(1)  # noqa: SLF001 (as torch has it)
    for _ in range(2):
        group.allreduce([1])
        group.number -= 1  # counted once, at the end
    group.result = work = Work()
    assert group._end_coalescing(1) is work  # noqa: SLF001
    assert [(event.seq, event.state) for event in recording.page.events] == [
        (7, OpState.ISSUED),
        (7, OpState.ISSUED),
    ]
    work.wait()
    assert recording.first_group.left == 2
    group.allreduce([1])
    assert recording.last.seq == 8


def test_many_works_are_kept_apart(recording: Recording) -> None:
    group = recording.group()
    works = []
    for _ in range(200):
        group.result = Work()
        works.append(group.result)
        group.allreduce([1])
    for work in works[::2]:
        work.wait()
    states = [event.state.value for event in recording.page.events]
    assert states == ["done", "issued"] * 100


def test_a_work_in_the_place_of_another_is_its_own(recording: Recording) -> None:
    group, stranger = recording.group(), Group()
    group.result = stranger.result = work = Work()
    group.allreduce([1])
    stranger.allreduce([1])  # as if torch had made this Work at the same address
    work.wait()
    assert recording.last.state is OpState.ISSUED


def test_a_coalescing_that_was_not_seen_to_begin_changes_nothing(recording: Recording) -> None:
    group = recording.group(backend="nccl")
    group.allreduce([1])
    group.result = Work()
    group._end_coalescing(1)  # noqa: SLF001 (as torch has it)
    group.result.wait()
    assert (recording.last.state, recording.first_group.left) == (OpState.ISSUED, 1)


def test_a_backend_without_coalescing_goes_on_as_before(recording: Recording) -> None:
    group = recording.group()
    with pytest.raises(RuntimeError, match="no coalescing"):
        group._start_coalescing(None)  # noqa: SLF001
    group.allreduce([1])
    assert recording.last.state is OpState.DONE


class Options:
    rootRank = 1  # noqa: N815 (as torch has it)


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.broadcast([1], Options()),
        lambda group: group.broadcast([1], opts=Options()),
        lambda group: group.broadcast([1], 1),
        lambda group: group.gather([], [1], Options()),
        lambda group: group.gather([], [1], root=1),
    ],
)
def test_the_root_is_a_global_rank(recording: Recording, call: Callable[[Group], None]) -> None:
    group = recording.group(ranks=[3, 8, 5])
    call(group)
    assert recording.last.root == 8


def test_a_group_is_asked_for_once(recording: Recording) -> None:
    group, stranger = recording.group(), Group()
    for _ in range(3):
        group.allreduce([1])
        stranger.allreduce([1])
    assert recording.resolved == [group, stranger]
    assert len(stranger.calls) == 3
    assert {event.slot for event in recording.page.events} == {0}


def test_a_group_in_the_place_of_another_is_asked_for_anew(recording: Recording) -> None:
    group = recording.group()
    group.allreduce([1])
    _native.retire_group(0)
    recording.slots.clear()
    group.allreduce([1])
    assert recording.resolved == [group, group]
    assert len(recording.page.events) == 1
    # One that was unknown may be known later.
    recording.slots[id(group)] = 5
    _native.define_group(5, "5", "", [0, 1], 0, "gloo")
    group.allreduce([1])
    assert recording.last.slot == 5


def test_our_errors_never_reach_the_call_and_end_in_disarming(recording: Recording) -> None:
    group = recording.group()
    group.result = result = object()

    class BadOptions:
        @property
        def rootRank(self) -> int:  # noqa: N802 (as torch has it)
            raise ValueError("no root here")

    for count in range(1, 8):
        assert group.broadcast([1], BadOptions()) is result
        assert recording.page.swallowed == min(count, 5)
    assert len(group.calls) == 7
    assert recording.page.disarmed == "recording failed 5 times: no root here"
    assert len(recording.page.events) == 5


def interrupting(recording: Recording, times: int = 1) -> None:
    """Have the first questions for a slot interrupted, as by a signal handler."""
    _native.unwrap_methods()
    left = [KeyboardInterrupt] * times

    def resolve(group: Group) -> int:
        if left:
            raise left.pop()
        return recording.resolve(group)

    _native.wrap_methods(Group, Work, resolve)


def test_an_interrupt_while_a_group_is_asked_for_is_the_programs(recording: Recording) -> None:
    group = recording.group()
    interrupting(recording, times=2)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            group.allreduce([1])
    assert group.calls == []
    group.allreduce([1])
    assert len(group.calls) == 1
    page = recording.page
    assert [event.seq for event in page.events] == [1]
    assert (page.groups[0].entered, page.groups[0].left) == (1, 1)
    assert (page.swallowed, page.disarmed) == (0, "")


def test_an_interrupt_before_coalescing_is_the_programs(recording: Recording) -> None:
    group = recording.group()
    interrupting(recording)
    with pytest.raises(KeyboardInterrupt):
        group._start_coalescing(0)  # noqa: SLF001 (torch's name)
    group._start_coalescing(0)  # noqa: SLF001 (torch's name)
    group.allreduce([1])
    group._end_coalescing(1)  # noqa: SLF001 (torch's name)
    assert len(recording.page.events) == 1


def test_a_group_that_is_not_known_yet_is_asked_for_again(recording: Recording) -> None:
    group = recording.group()
    slot = recording.slots.pop(id(group))
    _native.unwrap_methods()
    told = [-2, -2]
    _native.wrap_methods(Group, Work, lambda _: told.pop() if told else slot)
    for _ in range(3):
        group.allreduce([1])
    assert len(group.calls) == 3
    assert len(recording.page.events) == 1


def test_an_answer_that_another_thread_has_made_wrong_is_not_kept(recording: Recording) -> None:
    group = recording.group()
    _native.unwrap_methods()

    def resolve(_: Group) -> int:
        if not answers:
            return 0
        _native.define_group(3, "3", "", [0, 1], 0, "gloo")  # as another thread might
        return answers.pop()

    answers = [-1]
    _native.wrap_methods(Group, Work, resolve)
    group.allreduce([1])
    group.allreduce([1])
    assert [event.slot for event in recording.page.events] == [0]


class InterruptedOptions:
    """Options that a signal handler interrupts us at."""

    @property
    def rootRank(self) -> int:  # noqa: N802 (as torch has it)
        raise KeyboardInterrupt


def test_an_interrupt_while_we_look_at_arguments_is_the_programs(recording: Recording) -> None:
    group = recording.group()
    group.broadcast([1], Options())
    with pytest.raises(KeyboardInterrupt):
        group.broadcast([1], InterruptedOptions())
    group.broadcast([1], Options())
    assert len(group.calls) == 2
    page = recording.page
    assert [event.seq for event in page.events] == [1, 2]
    assert (page.groups[0].entered, page.swallowed) == (2, 0)


def test_what_a_handler_raises_in_us_is_the_programs(recording: Recording) -> None:
    class Handled(Exception):  # noqa: N818 (a name of the program's)
        pass

    class SlowOptions:
        @property
        def rootRank(self) -> int:  # noqa: N802 (as torch has it)
            signal.raise_signal(signal.SIGUSR1)
            return 1

    def handler(_number: int, _frame: object) -> None:
        raise Handled

    group = recording.group()
    _native.unwrap_methods()
    _native.wrap_methods(Group, Work, recording.resolve, is_foreign)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Handled):
            group.broadcast([1], SlowOptions())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert group.calls == []
    assert recording.page.swallowed == 0


@pytest.mark.parametrize("backend", ["gloo", "custom"])
@pytest.mark.parametrize("method", ["allreduce", "monitored_barrier", "send"])
@pytest.mark.parametrize("look", [1, 2])
def test_an_interrupt_while_c10d_is_asked_for_its_number_leaves_the_counts_right(
    recording: Recording, backend: str, method: str, look: int
) -> None:
    group = recording.group(backend=backend)
    arguments: dict[str, tuple[Any, ...]] = {"send": ([1], 1, 0), "allreduce": ([1],)}
    asked = 0

    def number(group: Group) -> int:
        nonlocal asked
        asked += 1
        if asked == look:
            raise KeyboardInterrupt
        return group.number

    _native.unwrap_methods()
    before = Group._get_sequence_number_for_group  # noqa: SLF001 (torch's name)
    setattr(Group, "_get_sequence_number_for_group", number)  # noqa: B010 (mypy knows it as a method)
    try:
        _native.wrap_methods(Group, Work, recording.resolve)
        interrupted = made = 0
        for _ in range(5):
            try:
                getattr(group, method)(*arguments.get(method, ()))
            except KeyboardInterrupt:
                interrupted += 1
            made = len(group.calls)
    finally:
        setattr(Group, "_get_sequence_number_for_group", before)  # noqa: B010
    assert interrupted == (asked >= look)
    assert 5 - interrupted <= made <= 5  # before its call, or behind it
    page = recording.page
    (slot,) = page.groups
    assert (slot.p2p if method == "send" else slot.entered) == made
    assert page.swallowed == 0


def test_disarmed_wrappers_only_call(recording: Recording) -> None:
    group = recording.group()
    _native.disarm()
    before = recording.path.read_bytes()
    group.result = Work()
    group.allreduce([1]).wait()
    assert len(group.calls) == 1
    assert recording.path.read_bytes() == before


def test_in_a_forked_child_the_wrappers_only_call(recording: Recording) -> None:
    group = recording.group()
    group.allreduce([1])
    before = recording.path.read_bytes()
    child = os.fork()
    if child == 0:
        group.allreduce([2])
        os._exit(0 if len(group.calls) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert recording.path.read_bytes() == before


def run_as(file: str, source: str, **names: Any) -> None:
    exec(compile(source, file, "exec"), names)  # noqa: S102 (a file that is not there)


C10D = "/lib/site-packages/torch/distributed/distributed_c10d.py"


def test_the_op_is_what_the_user_called_and_the_site_where(recording: Recording) -> None:
    _native.set_prefixes(["/lib/"], [])
    library = (
        "def all_gather_object(): _private()\n"
        "def _private(): all_gather()\n"
        "def all_gather(): group.allreduce([1])\n"
    )
    names: dict[str, Any] = {"group": recording.group()}
    run_as(C10D, library + "call['object'] = all_gather_object\n", call=names, **names)
    wrapped = "def logged(): call()\nout['object'] = logged\n"
    run_as("/lib/site-packages/accelerate/utils.py", wrapped, call=names["object"], out=names)
    user = "def step():\n\n\n    call()\nstep()\n"
    run_as("/home/me/train.py", user, call=names["object"])
    event = recording.last
    assert (event.op, event.wire) == ("all_gather_object", "all_reduce")
    assert event.site is not None
    assert (event.site.file, event.site.line, event.site.function) == (
        "/home/me/train.py",
        4,
        "step",
    )


def test_each_line_of_a_function_is_a_site_of_its_own(recording: Recording) -> None:
    user = "def step():\n    group.allreduce([1])\n    group.allreduce([1])\nstep()\nstep()\n"
    run_as("/home/me/train.py", user, group=recording.group())
    lines = [event.site.line for event in recording.page.events if event.site]
    assert lines == [2, 3, 2, 3]


@pytest.mark.parametrize(
    "file", ["<frozen runpy>", "<eval_with_key>.3", "/var/torchinductor_me/ab/cab.py"]
)
def test_generated_code_is_nobodys_site(recording: Recording, file: str) -> None:
    run_as(file, "def call(): group.allreduce([1])\ncall()\n", group=recording.group())
    site = recording.last.site
    assert site is not None
    assert site.file == __file__


def test_code_without_end_does_not_grow_our_memory_without_end(recording: Recording) -> None:
    group = recording.group()
    codes = []
    for number in range(3000):
        code = compile("group.allreduce([1])\n", f"/home/me/f{number}.py", "exec")
        codes.append(weakref.ref(code))
        exec(code, {"group": group})  # noqa: S102 (made above)
    del code
    page = recording.page
    assert page.events[-1].site is not None
    assert page.events[-1].site.file == "/home/me/f2999.py"
    assert page.swallowed == 0
    assert sum(code() is not None for code in codes) <= 1024


def test_deep_recursion_costs_the_site_and_no_more(recording: Recording) -> None:
    _native.set_prefixes(["/lib/"], [])
    deep = "def down(n):\n    if n: down(n - 1)\n    else: group.allreduce([1])\ndown(300)\n"
    run_as("/lib/deep.py", deep, group=recording.group())
    assert recording.last.site is None
    assert recording.last.op == "all_reduce"
