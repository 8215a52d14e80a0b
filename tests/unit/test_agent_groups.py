"""Which process group has which slot, and what it is known by."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from hangwatch.agent.groups import NO_SLOT, Groups


class Group:
    """A process group of torch's own class."""

    def __init__(self, desc: str = "undefined", size: int = 2) -> None:
        self.group_desc = desc
        self._size = size

    def size(self) -> int:
        return self._size


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
    """Keeps what it is told."""

    MAX_GROUPS = 4

    def __init__(self) -> None:
        self.defined: list[tuple[Any, ...]] = []
        self.retired: list[int] = []

    def define_group(self, *values: Any) -> None:
        self.defined.append(values)

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


def test_groups_beyond_the_room_are_left_unrecorded(
    world: World, recorder: Recorder, groups: Groups
) -> None:
    made = [world.add(Group(), 0, 1) for _ in range(5)]
    assert [groups.native_slot(group) for group in made] == [0, 1, 2, 3, NO_SLOT]
    assert len(recorder.defined) == 4


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
