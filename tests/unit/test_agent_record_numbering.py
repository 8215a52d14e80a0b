"""Places from c10d's number, on the Python recorder."""

from __future__ import annotations

from typing import Any

import pytest

from hangwatch.agent.record.numbering import Numbering
from hangwatch.operations import METHODS

BY_NAME = {method.name: method for method in METHODS}
GLOO = "cpu:gloo,cuda:gloo"


class Group:
    """A group whose number is set by the test; None where it has none."""

    def __init__(self, number: int | None = 0) -> None:
        self.number = number

    def _get_sequence_number_for_group(self) -> int:
        if self.number is None:
            raise RuntimeError("ProcessGroup custom does not yet support sequence numbers.")
        return self.number


def call(numbering: Numbering, group: Any, name: str, grows: int) -> int:
    """Make a call that c10d counts so often; returns the number that it was given."""
    seq, before = numbering.begin(BY_NAME[name], group)
    if group.number is not None:
        group.number += grows
    numbering.end(BY_NAME[name], group, before)
    return seq


def test_on_gloo_calls_between_two_ranks_take_no_place() -> None:
    group, numbering = Group(), Numbering(GLOO)
    assert call(numbering, group, "allreduce", 1) == 1
    assert call(numbering, group, "send", 1) == 1
    assert call(numbering, group, "recv", 1) == 2
    assert call(numbering, group, "allreduce", 1) == 2
    assert numbering.places(4) == 2


@pytest.mark.parametrize("grows", [2, 6])
def test_a_monitored_barrier_takes_two_places_on_every_rank(grows: int) -> None:
    group, numbering = Group(), Numbering(GLOO)
    assert call(numbering, group, "monitored_barrier", grows) == 1
    assert call(numbering, group, "barrier", 1) == 3
    assert numbering.places(grows + 1) == 3


def test_what_cpp_has_issued_meanwhile_is_counted() -> None:
    group, numbering = Group(), Numbering(GLOO)
    call(numbering, group, "allreduce", 1)
    group.number = 12
    assert call(numbering, group, "allreduce", 1) == 13


def test_on_nccl_calls_between_two_ranks_are_not_in_the_number() -> None:
    group, numbering = Group(), Numbering("cuda:nccl")
    call(numbering, group, "send", 0)
    assert call(numbering, group, "allreduce", 1) == 1
    assert numbering.places(1) == 1


def test_the_number_means_nothing_while_a_send_is_in_progress() -> None:
    group, numbering = Group(), Numbering(GLOO)
    _, before = numbering.begin(BY_NAME["send"], group)
    assert numbering.places(1) == -1
    group.number = 1
    numbering.end(BY_NAME["send"], group, before)
    assert numbering.places(1) == 0


def test_a_call_that_was_refused_leaves_no_place_behind() -> None:
    group, numbering = Group(), Numbering(GLOO)
    assert call(numbering, group, "allreduce", 0) == 1
    assert call(numbering, group, "send", 0) == 1
    assert call(numbering, group, "allreduce", 1) == 1


@pytest.mark.parametrize(
    ("backends", "number"), [("cpu:mine", 7), ("cpu:gloo,cuda:nccl", 7), (GLOO, None)]
)
def test_without_a_number_that_means_something_python_counts_for_itself(
    backends: str, number: int | None
) -> None:
    group, numbering = Group(number), Numbering(backends)
    names = ["allreduce", "send", "monitored_barrier", "barrier"]
    assert [call(numbering, group, name, 1) for name in names] == [1, 1, 2, 4]
    assert numbering.places(9) == -1
