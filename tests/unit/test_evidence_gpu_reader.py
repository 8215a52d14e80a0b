"""Which rank uses which GPU, as far as NVML and the rank's variables tell."""

from __future__ import annotations

from typing import Any

import pytest

from hangwatch.evidence.gpu.nvml import Unit
from hangwatch.evidence.gpu.reader import LocalRank, Use, crowded, uses
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import GpuHealth


def unit(index: int, *pids: int, memory: int = 100, **fields: Any) -> Unit:
    state = GpuState(**{"uuid": f"GPU-{index}abc", "index": index, **fields})
    return Unit(state, dict.fromkeys(pids, memory))


def rank(number: int, **fields: Any) -> LocalRank:
    return LocalRank(number, 100 + number, number, **fields)


IDLE = [unit(0), unit(1), unit(2), unit(3)]


def test_a_rank_is_where_it_has_most_memory() -> None:
    units = [unit(0, 100, 101, memory=5), unit(1, 100, memory=500), unit(2, 101, memory=5)]
    assert uses([rank(0)], units) == {0: Use(1)}


def test_of_equals_its_local_rank_decides() -> None:
    units = [unit(0, 101), unit(1, 101), unit(2, 101)]
    assert uses([rank(1)], units) == {1: Use(1)}


def test_a_rank_that_has_no_device_uses_none() -> None:
    assert uses([rank(0), rank(1)], IDLE) == {}


@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [
        (None, 2, 2),
        (None, 9, None),
        (None, -1, 0),
        ("3,2,1,0", 1, 2),
        ("2", 3, 2),
        ("GPU-3", 0, 3),
        ("GPU-1abc,GPU-0abc", 1, 0),
        (" 1 , 0 ", 0, 1),
        ("0,1", 2, None),
        ("7", 0, None),
        ("", 0, None),
        ("-1", 0, None),
        ("NoDevFiles", 0, None),
    ],
)
def test_a_rank_that_nvml_does_not_name_is_where_its_variables_say(
    visible: str | None, local_rank: int, expected: int | None
) -> None:
    one = LocalRank(0, 100, local_rank, visible, on_device=True)
    found = uses([one], [unit(index, 7000 + index) for index in range(4)])
    assert found == ({} if expected is None else {0: Use(expected, assumed=True)})


def test_a_mig_device_is_named_by_its_uuid() -> None:
    units = [unit(0, uuid="MIG-aa", parent="GPU-0"), unit(0, uuid="MIG-bb", parent="GPU-0")]
    one = rank(0, visible="MIG-bb", on_device=True)
    assert uses([one], units) == {0: Use(1, assumed=True)}


def together(**fields: Any) -> tuple[list[LocalRank], list[Unit]]:
    ranks = [rank(number, **fields) for number in range(3)]
    return ranks, [unit(0), unit(1, 100, 101, 102), unit(2)]


def test_all_on_one_while_others_are_idle() -> None:
    ranks, units = together()
    assert crowded(ranks, units, uses(ranks, units)) == 1
    ranks, units = together(visible="0,1,2")
    assert crowded(ranks, units, uses(ranks, units)) == 1


def test_one_device_that_all_were_given_is_on_purpose() -> None:
    ranks, units = together(visible="1")
    assert crowded(ranks, units, uses(ranks, units)) is None


def test_a_machine_with_one_gpu_is_on_purpose() -> None:
    ranks, units = together()
    assert crowded(ranks, units[1:2], uses(ranks, units[1:2])) is None


def test_one_rank_alone_is_not_crowded() -> None:
    ranks, units = together()
    assert crowded(ranks[:1], units, uses(ranks[:1], units)) is None


def test_others_that_are_busy_or_lost_could_not_be_had() -> None:
    ranks, units = together()
    units = [unit(0, 7), units[1], unit(2, health=GpuHealth.LOST)]
    assert crowded(ranks, units, uses(ranks, units)) is None


def test_ranks_that_are_not_all_seen_may_be_elsewhere() -> None:
    ranks, units = together()
    units[1] = unit(1, 100, 101)
    assert crowded(ranks, units, uses(ranks, units)) is None
