"""What only the native wrappers do: see test_agent_record_calls.py for the rest."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import pytest
from fake_torch import Group, Work, raising
from recording import only_native

from hangwatch import _native
from hangwatch.model.kinds import OpState
from hangwatch.model.operations import NCCL, NCCL_OLD

if TYPE_CHECKING:
    from recording import Recording

pytest_plugins = ["recorders"]

pytestmark = only_native


def test_unwrapping_puts_the_originals_back(recording: Recording) -> None:
    wrapper = Group.__dict__["broadcast"]
    bound = recording.group().broadcast
    _native.unwrap_methods()
    assert type(Group.__dict__["broadcast"]) is type(test_unwrapping_puts_the_originals_back)
    assert Group().broadcast([1]) is None
    # Who took the wrapper before can still call it.
    assert bound([1]) is None
    assert wrapper(Group(), [1]) is None


class Told(ValueError):  # noqa: N818 (as programs have it)
    args = property(lambda _: pytest.fail("asked"))

    def __str__(self) -> str:
        return pytest.fail("asked")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(2, "gone"), ""),
        (Told("mine"), "mine"),
        (KeyboardInterrupt(), ""),
        (ValueError("\udcff"), ""),
        (ValueError("é" * 9000), "é" * 8000),
    ],
)
def test_of_what_a_call_has_raised_only_a_text_is_kept(
    recording: Recording, error: BaseException, text: str
) -> None:
    group = recording.group()
    group.during = raising(error)
    with pytest.raises(type(error)) as caught:
        group.allreduce([1])
    assert caught.value is error
    assert error.__context__ is None
    kind, said = _native.last_thrown()
    assert (kind.rpartition(".")[2], said) == (type(error).__name__, text)


def test_a_wrong_self_is_a_type_error(recording: Recording) -> None:
    with pytest.raises(TypeError):
        Group.allreduce(object())  # type: ignore[arg-type]
    assert recording.page.events == ()


def test_who_issues_and_waits_in_one_function_is_synchronous(recording: Recording) -> None:
    group = recording.group()
    group.result = work = Work()
    group.allreduce([1]).wait()
    assert not recording.last.is_async

    def issue() -> None:
        group.allreduce([1])

    issue()
    work.wait()
    assert recording.last.is_async


def test_synchronize_blocks_but_completes_nothing(recording: Recording) -> None:
    group = recording.group()
    seen = []
    group.result = work = Work(lambda: seen.append(recording.last.state))
    group.allreduce([1])
    work.synchronize()
    assert seen == [OpState.BLOCKED]
    assert recording.last.state is OpState.ISSUED


def test_on_a_stream_a_wait_completes_nothing(recording: Recording) -> None:
    group = recording.group("cuda:nccl")
    group.result = Work()
    group.allreduce([1]).wait()
    assert recording.last.state is OpState.ISSUED
    assert recording.first_group.left == 1


def test_a_custom_backends_number_is_taken_if_it_counts(recording: Recording) -> None:
    group = recording.group("custom", number=10)
    group.allreduce([1])
    group.number += 5
    group.send([1], 1, 0)
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [11, 1, 17]
    assert _native.sample_number(0, group) == 17


def test_a_number_that_stands_still_is_not_taken(recording: Recording) -> None:
    group = recording.group("custom", number=10)

    def stand_still() -> None:
        group.number -= 1

    group.during = stand_still
    for _ in range(3):
        group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [11, 2, 3]


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
    group.during = bool
    group.allreduce([2])
    go.set()
    other.join()
    group.allreduce([3])
    assert [event.seq for event in recording.page.events] == [1, 2, 3]
    assert len({event.thread for event in recording.page.events}) == 2


def test_coalesced_calls_share_a_place_and_a_work(recording: Recording) -> None:
    group = recording.group("nccl", number=6)
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


@pytest.mark.parametrize("backend", [name for name in NCCL if name != NCCL_OLD])
def test_coalesced_calls_of_newer_nccl_have_a_place_each(
    recording: Recording, backend: str
) -> None:
    group = recording.group(f"cuda:{backend}", number=6)
    group._start_coalescing(1)  # noqa: SLF001 (as torch has it)
    group.allreduce([1])
    group.allreduce([1])
    group._end_coalescing(0)  # noqa: SLF001 (as torch has it)
    group.allreduce([1])
    assert [event.seq for event in recording.page.events] == [7, 8, 9]


def test_what_cpp_issues_through_a_backend_that_nobody_knows_is_sampled(
    recording: Recording,
) -> None:
    group = recording.group("cpu:mine", number=5)
    assert recording.last_seq(group, 4) == 5
    assert (recording.first_group.enqueued, recording.first_group.completed) == (5, 4)
    group.allreduce([1])
    group.number += 2
    assert recording.last_seq(group) == 8
    assert recording.last.seq == 6


def test_a_number_that_counts_something_else_is_not_kept(recording: Recording) -> None:
    group = recording.group("cpu:mine", number=40)
    assert recording.last_seq(group) == 40
    group.during = lambda: setattr(group, "number", group.number + 6)  # bytes, perhaps
    group.allreduce([1])
    assert recording.last_seq(group) == -1
    assert recording.first_group.enqueued == 1


def test_a_work_in_the_place_of_another_is_its_own(recording: Recording) -> None:
    group, stranger = recording.group(), Group()
    group.result = stranger.result = work = Work()
    group.allreduce([1])
    stranger.allreduce([1])  # as if torch had made this Work at the same address
    work.wait()
    assert recording.last.state is OpState.ISSUED


def test_a_coalescing_that_was_not_seen_to_begin_changes_nothing(recording: Recording) -> None:
    group = recording.group("nccl")
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


def test_an_interrupt_before_coalescing_is_the_programs(recording: Recording) -> None:
    group = recording.group()
    recording.resolve = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        group._start_coalescing(0)  # noqa: SLF001 (torch's name)
    recording.resolve = recording.slot
    group._start_coalescing(0)  # noqa: SLF001 (torch's name)
    group.allreduce([1])
    group._end_coalescing(1)  # noqa: SLF001 (torch's name)
    assert len(recording.page.events) == 1


def test_a_group_is_asked_for_once(recording: Recording) -> None:
    group, stranger = recording.group(), Group()
    for _ in range(3):
        group.allreduce([1])
        stranger.allreduce([1])
    assert recording.resolved == [group, stranger]


def test_an_answer_that_another_thread_has_made_wrong_is_not_kept(recording: Recording) -> None:
    group = recording.group()

    def resolve(_: Group) -> int:
        if not answers:
            return 0
        recording.define(3)  # as another thread might
        return answers.pop()

    answers = [-1]
    recording.resolve = resolve
    group.allreduce([1])
    group.allreduce([1])
    assert [event.slot for event in recording.page.events] == [0]


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
    recording.set_prefixes("/lib/")
    deep = "def down(n):\n    if n: down(n - 1)\n    else: group.allreduce([1])\ndown(300)\n"
    exec(compile(deep, "/lib/deep.py", "exec"), {"group": recording.group()})  # noqa: S102
    assert recording.last.site is None
    assert recording.last.op == "all_reduce"
