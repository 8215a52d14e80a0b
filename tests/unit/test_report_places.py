"""What many ranks have alike is told once: places, groups, and the calls of a few ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from incident import EVIDENCE, VERDICT
from snapshots import blocked, op, rank, site

from hangwatch.model.calls import GroupKey
from hangwatch.model.snapshot import JobSnapshot
from hangwatch.model.verdict import Wait
from hangwatch.report.build import CALLS, FOR_BUDGET, FOR_SHOWN, RANKS, build_report
from hangwatch.report.terminal import format_verdict

HALF = 1_000
ODD = tuple(range(1, 2 * HALF, 2))
WORLD = GroupKey(tuple(range(2 * HALF)), "default_pg")


def report(*waits: Wait, **fields: Any) -> Any:
    """The report of a job in which these ranks wait."""
    found = replace(VERDICT, waits=waits, culprits=ODD[:1], group=WORLD)
    ranks = tuple(rank(n, WORLD, op(WORLD, 1), blocked(WORLD, 2)) for n in range(2 * HALF))
    return build_report(
        replace(EVIDENCE, job=JobSnapshot(2 * HALF, ranks, **fields), verdicts=(found,))
    )


def wait(number: int, ranks: tuple[int, ...] = ODD, seq: int = 2) -> Wait:
    return Wait(number, WORLD, seq, "all_reduce", ranks, 4.0, site(20))


EVEN = report(*(wait(number) for number in range(0, 2 * HALF, 2)))


def test_whom_half_of_the_ranks_wait_for_is_told_once() -> None:
    (place,) = EVEN["places"]
    assert (place["for"], place["for_count"]) == (list(ODD), HALF)
    assert place["ranks"] == list(range(0, 2 * HALF, 2))
    first = EVEN["waits"][0]
    assert (first["for"], first["for_count"], first["place"]) == (list(ODD[:FOR_SHOWN]), HALF, 0)
    assert len(json.dumps(EVEN["waits"])) < 600 * HALF


def test_places_without_end_have_an_end() -> None:
    waits = [wait(n, tuple(range(n + 1, 2 * HALF)), n + 1) for n in range(HALF)]
    found = report(*waits)
    assert sum(len(place["for"]) for place in found["places"]) <= FOR_BUDGET + FOR_SHOWN * HALF
    assert found["places"][-1]["for_count"] == HALF
    shown = " ".join(" ".join(format_verdict(found)).split())
    assert "for ranks 1-1999" in shown


def test_ranks_that_are_no_ranges_are_cut_short_in_print() -> None:
    shown = " ".join(" ".join(format_verdict(EVEN)).split())
    few = "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 988 more"
    assert f"for ranks {few}" in shown


def test_a_group_is_told_once_with_how_far_its_furthest_member_has_come() -> None:
    (group,) = EVEN["groups"]
    assert (group["label"], group["size"], group["ranks"]) == ("default_pg", 2_000, "0-1999")
    assert group["furthest"] == 2
    assert EVEN["ranks"][7]["groups"][0]["id"] == 0


def test_calls_are_kept_of_the_culprit_and_a_few_of_each_place() -> None:
    having = [entry["rank"] for entry in EVEN["ranks"] if entry["calls"]]
    assert 1 in having
    assert {0, 2} <= set(having)
    assert len(having) <= RANKS
    last = EVEN["ranks"][0]["calls"][-1]
    assert (last["op"], last["group_id"], last["seq"], last["state"]) == (
        "all_reduce",
        0,
        2,
        "blocked",
    )
    assert EVEN["sites"][last["site"]]["line"] == 20


def test_the_last_calls_of_a_rank_are_kept_and_those_that_the_verdict_is_about() -> None:
    group, other = GroupKey((0, 1), "dp"), GroupKey((0, 1), "tp")
    many = [op(group, n) for n in range(1, 60)] + [op(other, n) for n in range(1, 60)]
    found = replace(VERDICT, group=group, culprits=(0,))  # collective 41
    job = JobSnapshot(2, (rank(0, group, *many),))
    report: Any = build_report(replace(EVIDENCE, job=job, verdicts=(found,)))
    (entry,) = report["ranks"]
    kept = [(call["group"], call["seq"]) for call in entry["calls"]]
    assert kept[-CALLS:] == [("tp", n) for n in range(60 - CALLS, 60)]
    assert ("dp", 41) in kept
    assert kept == sorted(kept)
