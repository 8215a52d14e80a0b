"""Real programs that hang or fail: the report names who did it, how, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness import Expectation, Result, expectations, marked_line, reaches, watch

if TYPE_CHECKING:
    from collections.abc import Mapping

QUICK = ("--suspect-after", "3", "--hang-after", "8")
"""For what cannot be proved; what can be must come without, long before ``auto``."""
PROOF_WITHIN_S = 15.0
"""Far below the least --hang-after of ``auto``, with room for a loaded machine."""
CASES = [case for case in expectations() if not case.healthy]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_report_names_what_the_header_of_the_program_says(case: Expectation) -> None:
    result = watch(
        case.program,
        *(QUICK if case.patient else ()),
        arguments=case.arguments,
        launch=case.launch,
        until=None if case.ends else reaches("hang"),
    )
    told = [state for state in result.states() if state in case.values["state"].split("|")]
    assert len(told) == 1
    report = result.reports[result.states().index(told[0])]
    assert found(report, result, case) == wanted(case)
    verdict = report["verdict"]
    assert " ".join(verdict["headline"].split()) in " ".join(result.stderr.split())
    assert case.values.get("text", "") in verdict["headline"] + verdict["explanation"]
    if verdict["certainty"] == "proved":
        assert verdict["detected_after_s"] < PROOF_WITHIN_S
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]


def wanted(case: Expectation) -> dict[str, Any]:
    """The header as values of a report."""
    values: dict[str, Any] = dict(case.values)
    values.pop("text", None)
    for key in ("culprits", "victims"):
        if key in values:
            values[key] = [int(rank) for rank in values[key].split(",")]
    for key in ("site", "victim_site"):
        if key in values:
            values[key] = (str(case.program), marked_line(case.program, values[key]))
    if "exit" in values:
        values["exit"] = int(values["exit"])
    return values


def found(report: Mapping[str, Any], result: Result, case: Expectation) -> dict[str, Any]:
    """What a report says, for the keys that the header names."""
    verdict = report["verdict"]
    group, collective = verdict["group"] or {}, verdict["collective"] or {}
    values = {
        **verdict,
        "group": group.get("desc") or group.get("name"),
        "op": collective.get("op"),
        "site": _place(verdict["site"]),
        "victim_site": _place(verdict.get("victim_site")),
        "exit": result.exit_code,
    }
    for key, value in case.values.items():
        if values.get(key) in value.split("|"):  # which of them is a matter of timing or torch
            values[key] = value
    return {key: values[key] for key in wanted(case)}


def _place(site: Mapping[str, Any] | None) -> tuple[str, int] | None:
    return (site["file"], site["line"]) if site else None
