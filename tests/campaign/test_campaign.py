"""A slice of the fault campaign, another one each day; ``make campaign`` runs all of it.

CAMPAIGN_DAY chooses the slice: a number, by default that of today.
"""

from __future__ import annotations

import datetime as dt
import os

import pytest
from kinds import KINDS
from run import chosen, run, sample

SLICE = 60
SHARES = {
    kind.NAME: max(2, round(SLICE * kind.COUNT / sum(k.COUNT for k in KINDS))) for kind in KINDS
}


def today() -> int:
    """By which the slice is chosen."""
    return int(os.environ.get("CAMPAIGN_DAY") or dt.datetime.now(dt.UTC).toordinal())


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "which"), [(k, n) for k, share in SHARES.items() for n in range(share)]
)
def test_a_fault_neither_harms_the_job_nor_hides_a_hang(kind: str, which: int) -> None:
    # What is drawn today is no name of a test: names have to be the same in each process.
    fault = [fault for fault in sample(SLICE, today()) if fault.kind == kind][which]
    again = f"CAMPAIGN_DAY={today()} chose {fault}; again by: make campaign FAULT={fault.name}"
    print(again)  # noqa: T201 (shown where it fails)
    outcome = run(fault)
    if outcome.untried and not os.environ.get("CI"):
        pytest.skip(outcome.untried)
    assert not outcome.untried, again
    assert not outcome.harmed, again
    assert not outcome.lost, again


def test_a_fault_is_drawn_alike_alone_and_among_all() -> None:
    (among,) = (fault for fault in chosen([], ["kill"], 1) if fault.number == 7)
    assert chosen(["kill-007"], [], 1) == [among]


def test_there_are_as_many_faults_as_promised() -> None:
    assert sum(kind.COUNT for kind in KINDS) >= 1480
    assert len(chosen([], [], 1)) == sum(kind.COUNT for kind in KINDS)


def test_a_slice_has_of_each_kind() -> None:
    assert {fault.kind for fault in sample(SLICE, 1)} == {kind.NAME for kind in KINDS}
    assert sample(SLICE, 1) != sample(SLICE, 2)
