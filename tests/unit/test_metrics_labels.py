"""Labels are short and legible, and there are never ever more of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pages import event, group, page, write
from node_metrics import Node

from hangwatch.metrics import labels
from hangwatch.metrics.labels import GroupLabels, command_label, group_text, label
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import OpState
from hangwatch.text import fold_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.model.page import RankPage


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (GroupKey((0, 1, 2, 3), "default_pg"), "default_pg"),
        (GroupKey((3, 2, 1, 0)), "world"),
        (GroupKey((0, 2), "dp"), "dp [0, 2]"),
        (GroupKey((1, 3)), "[1, 3]"),
        (GroupKey((0, 1, 2), "t\np"), "t\\np [0-2]"),
    ],
)
def test_a_group_is_called_by_its_description_and_its_members(key: GroupKey, text: str) -> None:
    assert group_text(key, 4) == text


def test_long_names_are_cut_and_stay_apart() -> None:
    keys = [GroupKey(tuple(range(first, 4096, 8)), "d" * 200) for first in range(8)]
    keys.append(GroupKey(keys[0].ranks, "d" * 199))
    texts = [group_text(key, 4096) for key in keys]
    assert len(set(texts)) == len(keys)
    assert max(map(len, texts)) <= 110
    assert "[0, 8, 16, 24, 32, 40, 48, 56, ...; 512 ranks, " in texts[0]


def test_a_command_is_told_without_its_arguments() -> None:
    assert command_label(("/opt/bin/torchrun", "--nproc", "8", "/home/me/train.py", "--key=x")) == (
        "torchrun train.py"
    )
    assert command_label(("./job.sh", "secret")) == "job.sh"
    assert command_label(()) == ""


def test_a_label_is_cut_at_its_limit() -> None:
    assert label("x" * 64) == "x" * 64
    assert label("x" * 65) == "x" * 61 + "..."
    assert label(fold_ranks((5, 4, 3, 0))) == "0, 3-5"


def node_pages(*groups: tuple[int, GroupKey], ranks: int = 2) -> list[RankPage]:
    """The pages of a node's ranks, which have these groups: (slot, key)."""
    made = tuple(
        group(slot=slot, name=f"{slot}/{key.desc}/{key.index}", key=key) for slot, key in groups
    )
    return [page(rank, pid=100 + rank, groups=made) for rank in range(ranks)]


def test_ranks_call_a_group_the_same_and_its_twin_otherwise() -> None:
    found = GroupLabels()
    first, twin = GroupKey((0, 1), "x", 0), GroupKey((0, 1), "x", 1)
    one, other = node_pages((0, first), (1, twin))
    other = page(1, pid=101, groups=(other.groups[1], other.groups[0]))  # made in another order
    found.update([one, other], 4)
    assert [found.of(one, g) for g in one.groups] == ["x [0, 1]", "x [0, 1] #1"]
    assert [found.of(other, g) for g in other.groups] == ["x [0, 1] #1", "x [0, 1]"]
    assert found.members["x [0, 1]"].processes == ((0, 100), (1, 101))


def test_a_group_keeps_its_label_when_its_twin_goes() -> None:
    found = GroupLabels()
    first, twin, third = (GroupKey((0, 1), "x", index) for index in range(3))
    found.update(node_pages((0, first), (1, twin)), 4)
    (one, _) = pages = node_pages((1, twin), (2, third))
    found.update(pages, 4)
    assert [found.of(one, g) for g in one.groups] == ["x [0, 1] #1", "x [0, 1]"]


def test_beyond_the_limit_groups_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MAX_GROUPS", 5)
    found = GroupLabels()
    for number in range(8):
        (one, _) = pages = node_pages((0, GroupKey((0, 1), f"step-{number}")))
        found.update(pages, 4)
        assert bool(found.of(one, one.groups[0])) == (number < 5)
        assert found.full == (number >= 5)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 5), st.sampled_from(["", "dp", "tp"])),
        min_size=1,
        max_size=20,
    )
)
def test_groups_that_come_and_go_need_no_more_labels_than_live_at_once(
    lives: list[tuple[bool, int, str]],
) -> None:
    """lives: of each turn whether the groups before go, how many come, and their description."""
    found, seen = GroupLabels(), set[str]()
    indices: dict[str, int] = {}
    now: list[tuple[int, GroupKey]] = []
    most: dict[str, int] = {}
    slot = 0
    for go, count, desc in lives:
        now = [] if go else now
        for _ in range(count):
            slot += 1
            now.append((slot, GroupKey((0, 1), desc, indices.get(desc, 0))))
            indices[desc] = indices.get(desc, 0) + 1
        (one, _) = pages = node_pages(*now)
        found.update(pages, 4)
        here = [found.of(one, g) for g in one.groups]
        assert len(set(here)) == len(here) == len(now)
        seen.update(here)
        for name in indices:
            alike = sum(key.desc == name for _, key in now)
            most[name] = max(most.get(name, 0), alike)
    assert len(seen) <= sum(most.values())


def test_a_job_of_many_steps_has_as_many_series_as_one_of_few(tmp_path: Path) -> None:
    node = Node(tmp_path)
    series = []
    for step in range(1, 60):
        node.clock.added_ns += 10_000_000_000
        # In each step a group is made, used and destroyed again.
        key = GroupKey((0, 1), "eval", step)
        groups = (group(step), group(1, slot=1 + step % 3, name=str(step), key=key))
        ring = tuple(
            event(n, OpState.DONE, issued_ns=node.clock.added_ns + n)
            for n in range(max(1, step - 9), step + 1)
        )
        for rank in (0, 1):
            write(node.run_dir, page(rank, pid=100 + rank, groups=groups, events=ring))
        node.look()
        series.append(node.samples().series())
    node.close()
    assert series[2:] == [series[2]] * len(series[2:])
