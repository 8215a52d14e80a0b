"""Which process group has which slot, and what it is known by."""

from __future__ import annotations

import gc
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_torch import Group
from striking import struck_at

from hangwatch.agent.record.groups import ASK_AGAIN, NO_SLOT, Groups

if TYPE_CHECKING:
    from collections.abc import Callable


OURS = ("agent/record/groups.py", "agent/guard.py")


class Written(Group):
    """One whose class is written in Python."""


class World:
    """torch's tables."""

    def __init__(self) -> None:
        self.default_pg: Group | None = None
        self.pg_map: dict[Group, tuple[str, None]] = {}
        self.pg_names: dict[Group, str] = {}
        self.pg_group_ranks: dict[Group, dict[int, int]] = {}
        self.pg_backend_config: dict[Group, str] = {}

    def add(self, group: Group, *ranks: int) -> Group:
        """Make a group as torch does."""
        self.pg_names[group] = str(len(self.pg_map))
        self.pg_map[group] = ("gloo", None)
        self.pg_backend_config[group] = "cpu:gloo"
        if ranks:
            self.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
        return group

    def remove(self, group: Group) -> None:
        """Destroy it."""
        for table in (self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config):
            table.pop(group, None)


class Recorder:
    """Keeps what it is told, and has something happen amid it, as a handler or a finalizer does."""

    MAX_GROUPS = 4

    def __init__(self) -> None:
        self.defined: list[tuple[Any, ...]] = []
        self.retired: list[int] = []
        self.left_out = 0
        self.meddle: list[Callable[[], object]] = []

    def define_group(self, *values: Any) -> bool:
        for meddle in [self.meddle.pop() for _ in self.meddle[:1]]:
            meddle()
        self.defined.append(values)
        return True

    def set_groups_left_out(self, groups: int) -> None:
        self.left_out = groups

    def retire_group(self, slot: int) -> None:
        self.retired.append(slot)


class C10d:
    """As much of distributed_c10d as is looked at."""

    ProcessGroup = Group

    def __init__(self, world: World) -> None:
        self._world = world


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def adopted() -> list[Any]:
    return []


@pytest.fixture
def groups(world: World, recorder: Any, adopted: list[Any]) -> Groups:
    return Groups(C10d(world), recorder, adopted.append)


def test_a_group_is_known_by_its_members_in_their_order_and_its_description(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    group = world.add(Group("mesh_tp"), 6, 2, 4)
    known = groups.find(group)
    assert known is not None
    assert (known.slot, known.ranks, known.python) == (0, (6, 2, 4), False)
    assert recorder.defined == [(0, "0", "mesh_tp", (6, 2, 4), 0, "cpu:gloo")]


def test_a_group_has_the_backends_that_it_really_has(world: World, recorder: Recorder) -> None:
    class OnTwo(Group):
        _device_types = (SimpleNamespace(type="cuda"), SimpleNamespace(type="cpu"))

        def _get_backend(self, device: Any) -> Any:
            return SimpleNamespace(name=lambda: {"cpu": "gloo", "cuda": "nccl2"}[device.type])

    class Strange(OnTwo):
        def _get_backend(self, device: Any) -> Any:
            raise RuntimeError(f"no backend for {device.type}")

    used: list[list[str]] = []
    torch: Any = C10d(world)
    groups = Groups(
        torch,
        recorder,  # type: ignore[arg-type]  # (as much of one as is looked at)
        lambda _: None,
        use_backends=lambda _, names: used.append(list(names)),
    )
    for kind in (OnTwo, Strange):
        torch.ProcessGroup = kind
        groups.find(world.add(kind(), 0, 1))
    assert [backend for *_, backend in recorder.defined] == ["cpu:gloo,cuda:nccl2", "cpu:gloo"]
    assert used == [["gloo", "nccl2"], []]


def test_groups_are_taken_in_by_the_order_of_their_making_and_not_of_their_use(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    first, second = (world.add(Group(), 0, 1) for _ in range(2))
    other = world.add(Group(), 1, 0)
    assert groups.native_slot(other) == 2
    assert groups.native_slot(second) == 1
    assert groups.native_slot(first) == 0
    assert [(name, desc, index) for _, name, desc, _, index, _ in recorder.defined] == [
        ("0", "", 0),
        ("1", "", 1),
        ("2", "", 0),
    ]


def test_a_group_after_a_destroyed_one_has_the_next_index(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    group = world.add(Group("pair"), 0, 1)
    groups.update()
    world.remove(group)
    groups.update()
    assert recorder.retired == [0]
    assert groups.known() == []
    world.add(Group("pair"), 0, 1)
    groups.update()
    assert [values[4] for values in recorder.defined] == [0, 1]


def test_slots_are_used_again_only_when_none_is_left_unused(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    for _ in range(6):
        group = world.add(Group(), 0, 1)
        groups.update()
        world.remove(group)
        groups.update()
    assert [values[0] for values in recorder.defined] == [0, 1, 2, 3, 0, 1]


def test_no_group_is_kept_alive_and_an_address_used_anew_is_another_group(
    world: World, groups: Groups
) -> None:
    group = world.add(Group(), 0, 1)
    known = groups.find(group)
    assert known is not None
    world.remove(group)
    del group
    gc.collect()
    assert known.group() is None
    fresh = world.add(Group(), 0, 1)
    groups._known[id(fresh)] = known  # noqa: SLF001 (as if it had the address of the first)
    again = groups.find(fresh)
    assert again is not None
    assert again.group() is fresh


def test_worlds_of_single_threads_are_left_unrecorded(world: World, recorder: Any) -> None:
    c10d = C10d(world)
    groups = Groups(c10d, recorder, lambda _: None)
    other = c10d._world = World()  # noqa: SLF001 (torch's name)
    other.add(Group(), 0, 1)
    groups.update()
    assert recorder.defined == []


def test_a_group_that_torch_does_not_list_has_no_slot(groups: Groups) -> None:
    assert groups.native_slot(Group()) == NO_SLOT


def test_a_group_in_the_making_is_taken_in_once_it_is_made(world: World, groups: Groups) -> None:
    group = world.add(Group())
    assert groups.native_slot(group) == NO_SLOT
    world.pg_group_ranks[group] = {0: 0, 1: 1}
    assert groups.native_slot(group) == 0


def test_the_default_group_is_known_before_torch_lists_its_ranks(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    world.default_pg = world.add(Group("default_pg", 3))
    groups.update()
    assert recorder.defined[0][3] == (0, 1, 2)


def test_a_class_written_in_python_is_adopted_and_left_to_its_own_wrappers(
    world: World, groups: Groups, adopted: list[Any]
) -> None:
    group = world.add(Written(), 0, 1)
    known = groups.find(group)
    assert known is not None
    assert (known.slot, known.python) == (0, True)
    assert groups.native_slot(group) == NO_SLOT
    assert adopted == [group]


def test_a_class_that_cannot_tell_its_description_has_none(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    class Silent(Written):
        @property
        def group_desc(self) -> str:
            raise RuntimeError("ProcessGroup name not set")

        @group_desc.setter
        def group_desc(self, value: str) -> None: ...

    world.add(Silent(), 0, 1)
    groups.update()
    assert recorder.defined[0][2] == ""


def test_who_comes_amid_an_update_does_not_wait_and_is_served(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    first = world.add(Group(), 0, 1)
    second = Group("made by a handler")
    answers = []

    def handler() -> None:
        world.add(second, 0, 1)
        answers.append(groups.native_slot(second))
        answers.append(groups.native_slot(first))

    recorder.meddle.append(handler)
    assert groups.update()
    assert answers == [ASK_AGAIN, ASK_AGAIN]
    assert [groups.native_slot(group) for group in (first, second)] == [0, 1]
    assert [values[:3] for values in recorder.defined] == [
        (0, "0", ""),
        (1, "1", "made by a handler"),
    ]


def test_a_group_that_a_finalizer_destroys_amid_an_update_is_retired(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    old = world.add(Group(), 0, 1)
    groups.update()
    new = world.add(Group(), 0, 1)

    def finalizer() -> None:
        world.remove(old)
        groups.update(old)
        world.remove(new)
        groups.update(new)

    recorder.meddle.append(finalizer)
    groups.update()
    assert groups.known() == []
    assert sorted(recorder.retired) == [0, 1]


def test_another_thread_does_not_wait_either(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    group = world.add(Group(), 0, 1)
    answers: list[int] = []

    def meddle() -> None:
        thread = threading.Thread(target=lambda: answers.append(groups.native_slot(group)))
        thread.start()
        thread.join()

    recorder.meddle.append(meddle)
    groups.update()
    assert answers == [ASK_AGAIN]
    assert groups.native_slot(group) == 0


def test_an_exception_at_any_line_costs_no_slot_no_index_and_no_turn() -> None:
    line = 0
    while True:
        line += 1
        world, recorder = World(), Recorder()
        held: Any = recorder
        groups = Groups(C10d(world), held, lambda _: None)
        gone, stays = (world.add(Group("pair"), 0, 1) for _ in range(2))
        groups.update()
        world.remove(gone)
        fresh = [world.add(Group("pair"), 0, 1) for _ in range(2)]
        struck = struck_at(line, OURS, partial(groups.update, gone))
        groups.update()
        alive = [stays, *fresh]
        assert [known.group() for known in groups.known()] == alive, line
        slots = [groups.native_slot(group) for group in alive]
        assert slots == [1, 2, 3], line
        indices = {values[0]: values[4] for values in recorder.defined}
        assert indices == {0: 0, 1: 1, 2: 2, 3: 3}, line
        assert set(recorder.retired) == {0}, line
        world.remove(fresh[0])
        groups.update(fresh[0])
        another = world.add(Group("pair"), 0, 1)
        assert groups.native_slot(another) == 0, line
        assert recorder.defined[-1][4] == 4, line
        if not struck:
            break
    assert line > 50


def test_groups_beyond_the_room_are_left_unrecorded_and_counted(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    made = [world.add(Group(), 0, 1) for _ in range(7)]
    assert [groups.native_slot(group) for group in made] == [0, 1, 2, 3, *[NO_SLOT] * 3]
    assert (len(recorder.defined), recorder.left_out) == (4, 3)


def test_a_slot_that_gets_no_memory_leaves_its_group_out(world: World) -> None:
    class Full(Recorder):
        def define_group(self, *values: Any) -> bool:
            return values[0] < 1 and super().define_group(*values)

    recorder: Any = Full()
    groups = Groups(C10d(world), recorder, lambda _: None)
    made = [world.add(Group(), 0, 1) for _ in range(3)]
    groups.update()
    assert [groups.native_slot(group) for group in made] == [0, NO_SLOT, NO_SLOT]
    assert recorder.left_out == 2


def test_taking_in_many_groups_costs_what_is_new(recorder: Any) -> None:
    def looked_at(count: int) -> int:
        world = World()
        looks = 0

        class Looked(Group):
            @property
            def group_desc(self) -> str:
                nonlocal looks
                looks += 1
                return ""

            @group_desc.setter
            def group_desc(self, value: str) -> None: ...

        groups = Groups(C10d(world), recorder, lambda _: None)
        lines = 0

        def trace(*_: object) -> Any:
            nonlocal lines
            lines += 1
            return trace

        sys.settrace(trace)
        try:
            made = []
            for _ in range(count):
                made.append(world.add(Looked(), 0, 1))
                groups.update()
            for group in made:
                world.remove(group)
                groups.update(group)
        finally:
            sys.settrace(None)
        assert looks == count
        return lines

    recorder.MAX_GROUPS = 1000
    assert looked_at(400) < 5 * looked_at(100)
