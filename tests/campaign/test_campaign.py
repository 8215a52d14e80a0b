"""What the fault campaign is made of; ``make campaign`` runs it."""

from __future__ import annotations

from kinds import KINDS
from run import chosen, sample


def test_a_fault_is_drawn_alike_alone_and_among_all() -> None:
    (among,) = (fault for fault in chosen([], ["kill"], 1) if fault.number == 7)
    assert chosen(["kill-007"], [], 1) == [among]


def test_there_are_as_many_faults_as_promised() -> None:
    assert sum(kind.COUNT for kind in KINDS) >= 1480
    assert len(chosen([], [], 1)) == sum(kind.COUNT for kind in KINDS)


def test_a_slice_has_of_each_kind_and_is_another_one_each_day() -> None:
    today, tomorrow = sample(60, 1, 1), sample(60, 2, 1)
    assert {fault.kind for fault in today} == {kind.NAME for kind in KINDS}
    assert 55 <= len(today) <= 65
    assert today == sample(60, 1, 1) != tomorrow
