"""A hang is told in whichever of many groups it is, and where one finds no room, that is said."""

from __future__ import annotations

import pytest
from harness import PROGRAMS, reaches, watch

from hangwatch import _native

BOUND_S = 240.0
"""Making the groups takes most of it."""
OPTIONS = ("--suspect-after", "2", "--hang-after", "4", "--stacks", "off", "--no-gpu")


@pytest.mark.parametrize(
    ("count", "stuck"),
    [
        pytest.param(301, 70, marks=pytest.mark.campaign),
        pytest.param(301, 300, marks=pytest.mark.campaign),
        (_native.MAX_GROUPS + 4, _native.MAX_GROUPS + 2),
    ],
)
def test_a_hang_in_a_group_of_any_number_is_told(count: int, stuck: int) -> None:
    result = watch(
        PROGRAMS / "many_groups.py",
        *OPTIONS,
        arguments=[str(count), str(stuck)],
        nproc=2,
        until=reaches("hang"),
        bound_s=BOUND_S,
    )
    (report,) = result.reports
    verdict = report["verdict"]
    assert verdict["culprits"] == [0]
    assert verdict["group"]["desc"] == f"group {stuck}"
    assert (verdict["collective"]["op"], verdict["collective"]["seq"]) == ("all_reduce", 4)
    said = [line for line in result.stderr.splitlines() if "more process groups than" in line]
    assert len(said) == (count > _native.MAX_GROUPS)
