"""What the table of precision is there to catch does not get past it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from precision import counts, judged, measure, worse

from hangwatch.model.kinds import Certainty

if TYPE_CHECKING:
    from precision import Judge

    from hangwatch.model.snapshot import JobSnapshot
    from hangwatch.model.verdict import Verdict

NUMBERS = range(60)


def blames_everybody(job: JobSnapshot) -> tuple[Verdict, ...]:
    everybody = tuple(rank.rank for rank in job.ranks)
    return tuple(
        replace(verdict, culprits=everybody, certainty=Certainty.POSSIBLE)
        for verdict in judged(job)
    )


def finds_nothing(_: JobSnapshot) -> tuple[Verdict, ...]:
    return ()


def blames_the_victims(job: JobSnapshot) -> tuple[Verdict, ...]:
    return tuple(replace(verdict, culprits=verdict.victims) for verdict in judged(job))


def names_the_first_beside_it(job: JobSnapshot) -> tuple[Verdict, ...]:
    return tuple(
        replace(verdict, culprits=tuple(sorted({0, *verdict.culprits}))) for verdict in judged(job)
    )


@pytest.mark.parametrize(
    "judge", [blames_everybody, finds_nothing, blames_the_victims, names_the_first_beside_it]
)
def test_a_diagnosis_that_is_worse_shows(judge: Judge) -> None:
    assert worse(counts(measure(NUMBERS, judge)), counts(measure(NUMBERS, judged)))


def test_the_same_diagnosis_is_not_worse() -> None:
    now = counts(measure(NUMBERS, judged))
    assert not worse(now, now)
    (evidence, rows), *_ = now.items()
    kind = next(iter(rows))
    fewer = {**now, evidence: {name: row for name, row in rows.items() if name != kind}}
    assert worse(fewer, now) == [f"{evidence}, {kind}: no such job was made"]
    assert sum(row["exact"] for row in now["all evidence"].values()) > len(NUMBERS) // 2
