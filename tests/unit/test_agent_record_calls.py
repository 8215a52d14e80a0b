"""Either recorder records a call of torch's, and leaves it as it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fake_torch import Group, Options, Work, raising

from hangwatch.model.kinds import OpState
from hangwatch.model.operations import NCCL

if TYPE_CHECKING:
    from collections.abc import Callable

    from recording import Recording

pytest_plugins = ["recorders"]


def test_only_methods_that_are_there_are_wrapped(recording: Recording) -> None:
    assert set(recording.wrap()) == {
        *("allreduce", "barrier", "broadcast", "gather", "monitored_barrier"),
        *("send", "recv_anysource", "wait"),
        *(("_start_coalescing", "_end_coalescing", "synchronize") if recording.native else ()),
    }
    assert Group.allreduce.__name__ == "allreduce"
    assert Group.allreduce.__doc__ == "Reduce."


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
        recording.resolved.clear()
        group.calls.clear()
    after = sys.getrefcount(argument), sys.getrefcount(group), sys.getrefcount(group.result)
    assert after == before


def test_the_users_exception_is_the_users(recording: Recording) -> None:
    group = recording.group()
    error = KeyError("mine")
    group.during = raising(error)
    with pytest.raises(KeyError) as caught:
        group.allreduce([1])
    assert caught.value is error
    assert recording.last.state is OpState.FAILED
    assert recording.page.swallowed == 0


def test_what_a_call_or_a_wait_has_raised_is_kept(recording: Recording) -> None:
    group = recording.group()
    if not recording.native:  # whose module has seen other tests
        assert recording.recorder.last_thrown() == ("", "")
    group.during = raising(RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        group.allreduce([1])
    assert recording.recorder.last_thrown() == ("RuntimeError", "gone")
    group.during = bool
    group.result = Work(lambda: time.sleep(-1))
    with pytest.raises(ValueError, match="non-negative"):
        group.allreduce([1]).wait()
    assert recording.recorder.last_thrown() == (
        "ValueError",
        "sleep length must be non-negative",
    )


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
    group.allreduce([1])
    issued = recording.last
    assert (issued.state, issued.blocked_ns) == (OpState.ISSUED, 0)
    assert recording.first_group.left == 0
    assert work.wait(timeout=1)
    assert seen[0].state is OpState.BLOCKED
    assert seen[0].blocked_ns >= seen[0].issued_ns
    assert recording.last.state is OpState.DONE
    assert recording.first_group.left == 1
    work.wait()  # a second time: nothing is new
    assert seen[1].state is OpState.DONE
    assert recording.first_group.left == 1


def test_a_wait_that_raises_has_failed(recording: Recording) -> None:
    group = recording.group()
    error = RuntimeError("connection closed by peer")
    group.result = work = Work(raising(error))
    group.allreduce([1])
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    assert caught.value is error
    assert recording.last.state is OpState.FAILED
    assert recording.first_group.left == 1


def test_a_work_nobody_knows_is_only_waited_for(recording: Recording) -> None:
    assert Work().wait()
    assert recording.page.events == ()


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


def test_the_sequence_number_comes_from_what_c10d_counted(recording: Recording) -> None:
    group = recording.group(number=40)
    group.allreduce([1])
    group.number += 7  # issued by C++
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [41, 49]
    assert (recording.first_group.enqueued, recording.first_group.entered) == (49, 2)
    group.number += 3
    assert recording.last_seq(group) == 52
    assert recording.first_group.enqueued == 52


@pytest.mark.parametrize(
    ("recorder", "backend", "number"),
    [
        ("native", "custom", -1),
        ("native", "cpu:gloo,cuda:gloo", -1),
        ("python", "custom", -1),
        ("python", "cpu:gloo,cuda:gloo", -1),
        # One that cannot be relied upon, which the native one watches for a while.
        ("python", "cpu:mine", 7),
        ("python", "cpu:gloo,cuda:nccl", 7),
    ],
    indirect=["recorder"],
)
def test_without_a_number_that_means_something_the_wrapper_counts(
    recording: Recording, backend: str, number: int
) -> None:
    group = recording.group(backend, number=number)
    group.allreduce([1])
    group.send([1], 1, 0)
    group.monitored_barrier()
    group.barrier()
    assert [event.seq for event in recording.page.events] == [1, 1, 2, 4]
    assert recording.last_seq(group) == -1
    group.number = 9  # too late to mean something
    assert recording.last_seq(group) == -1
    assert recording.page.swallowed == 0


def test_on_gloo_sends_take_no_sequence_number(recording: Recording) -> None:
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
    assert recording.last_seq(group, group.number) == 2
    assert recording.first_group.completed == 2


@pytest.mark.parametrize("backend", NCCL)
def test_on_nccl_sends_are_not_in_the_number(recording: Recording, backend: str) -> None:
    group = recording.group(f"cuda:{backend}")
    group.send([1], 1, 0)
    group.number -= 1
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [1, 1]
    assert recording.last_seq(group) == 1


def test_the_number_means_nothing_while_a_send_lasts(recording: Recording) -> None:
    group = recording.group()
    sampled = []
    group.during = lambda: sampled.append(recording.last_seq(group))
    group.send([1], 1, 0)
    assert (sampled, recording.last_seq(group)) == ([-1], 0)


@pytest.mark.parametrize("advance", [2, 6, 14])
def test_a_monitored_barrier_takes_two_sequence_numbers_on_every_rank(
    recording: Recording, advance: int
) -> None:
    group = recording.group()
    group.allreduce([1])
    sampled = []
    group.during = lambda: sampled.append(recording.last_seq(group))
    group.monitored_barrier(advance)
    group.during = bool
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [1, 2, 4]
    # While it lasts, the number means nothing.
    assert sampled == [-1]
    assert recording.last_seq(group) == 4


def test_a_call_that_was_refused_takes_no_sequence_number(recording: Recording) -> None:
    group = recording.group()
    group.during = raising(TypeError("no tensor"))
    with pytest.raises(TypeError):
        group.allreduce([1])
    if recording.native:
        assert recording.first_group.enqueued == 0
    with pytest.raises(TypeError):
        group.send([1], 0, 0)
    group.during = bool
    group.allreduce([1])
    assert [(e.seq, e.state.value) for e in recording.page.events if not e.p2p] == [
        (1, "failed"),
        (1, "done"),
    ]
    assert recording.first_group.enqueued == 1


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
    call(recording.group(ranks=[3, 8, 5]))
    assert recording.last.root == 8


def test_calls_of_a_group_without_a_slot_are_only_made(recording: Recording) -> None:
    group, stranger = recording.group(), Group()
    for _ in range(3):
        group.allreduce([1])
        stranger.allreduce([1])
    assert len(stranger.calls) == 3
    assert {event.slot for event in recording.page.events} == {0}


def test_a_group_in_the_place_of_another_is_asked_for_anew(recording: Recording) -> None:
    group = recording.group()
    group.allreduce([1])
    recording.recorder.retire_group(0)
    recording.slots.clear()
    group.allreduce([1])
    assert recording.resolved == [group, group]
    assert len(recording.page.events) == 1
    # One that was unknown may be known later.
    recording.slots[id(group)] = 5
    recording.define(5)
    group.allreduce([1])
    assert recording.last.slot == 5


def test_a_group_that_is_not_known_yet_is_asked_for_again(recording: Recording) -> None:
    group = recording.group()
    told = [0, -2, -2]
    recording.resolve = lambda _: told.pop()
    for _ in range(3):
        group.allreduce([1])
    assert len(group.calls) == 3
    assert len(recording.page.events) == 1


class LookedAt:
    """Options that have something happen when the root is asked for."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    @property
    def rootRank(self) -> int:  # noqa: N802 (as torch has it)
        self.act()
        return 1


def test_our_errors_never_reach_the_call_and_end_in_disarming(recording: Recording) -> None:
    group = recording.group()
    group.result = result = object()
    options = LookedAt(raising(ValueError("no root here")))
    for count in range(1, 8):
        assert group.broadcast([1], options) is result
        assert recording.page.swallowed == min(count, 5)
    assert len(group.calls) == 7
    assert recording.page.disarmed == (
        "recording failed 5 times: no root here"
        if recording.native
        else "5 errors of our own, the last of them ValueError: no root here"
    )
    assert len(recording.page.events) == (5 if recording.native else 0)


def test_an_interrupt_while_a_group_is_asked_for_is_the_programs(recording: Recording) -> None:
    group = recording.group()
    recording.resolve = raising(KeyboardInterrupt())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            group.allreduce([1])
    assert group.calls == []
    recording.resolve = recording.slot
    group.allreduce([1])
    assert len(group.calls) == 1
    page = recording.page
    assert [event.seq for event in page.events] == [1]
    assert (page.groups[0].entered, page.groups[0].left) == (1, 1)
    assert (page.swallowed, page.disarmed) == (0, "")


def test_an_interrupt_while_we_look_at_arguments_is_the_programs(recording: Recording) -> None:
    group = recording.group()
    group.broadcast([1], Options())
    with pytest.raises(KeyboardInterrupt):
        group.broadcast([1], LookedAt(raising(KeyboardInterrupt())))
    group.broadcast([1], Options())
    assert len(group.calls) == 2
    page = recording.page
    assert [event.seq for event in page.events] == [1, 2]
    assert (page.groups[0].entered, page.swallowed) == (2, 0)


def test_what_a_handler_raises_in_us_is_the_programs(recording: Recording) -> None:
    class Handled(Exception):  # noqa: N818 (a name of the program's)
        pass

    def handler(_number: int, _frame: object) -> None:
        raise Handled

    group = recording.group()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Handled):
            group.broadcast([1], LookedAt(lambda: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert group.calls == []
    assert recording.page.swallowed == 0


@pytest.mark.parametrize("backend", ["gloo", "custom"])
@pytest.mark.parametrize(
    ("method", "arguments"),
    [("allreduce", ([1],)), ("monitored_barrier", ()), ("send", ([1], 1, 0))],
)
@pytest.mark.parametrize("look", [1, 2])
def test_an_interrupt_while_c10d_is_asked_for_its_number_leaves_the_counts_right(
    recording: Recording, backend: str, method: str, arguments: tuple[Any, ...], look: int
) -> None:
    group = recording.group(backend)
    asked = interrupted = 0

    def interrupt() -> None:
        nonlocal asked
        asked += 1
        if asked == look:
            raise KeyboardInterrupt

    group.asked = interrupt
    for _ in range(5):
        try:
            getattr(group, method)(*arguments)
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == (asked >= look)
    made = len(group.calls)
    assert 5 - interrupted <= made <= 5  # before its call, or behind it
    page = recording.page
    (slot,) = page.groups
    assert (slot.p2p if method == "send" else slot.entered) == made
    assert page.swallowed == 0


def test_disarmed_wrappers_only_call(recording: Recording) -> None:
    group = recording.group()
    recording.recorder.disarm()
    before, written = recording.page, recording.path.read_bytes()
    group.result = Work()
    group.allreduce([1]).wait()
    assert len(group.calls) == 1
    assert recording.path.read_bytes() == written
    assert (recording.page.groups, recording.page.events) == (before.groups, before.events)


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
    recording.set_prefixes("/lib/")
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
