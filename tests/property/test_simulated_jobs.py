"""What holds of the verdicts on simulated jobs, whose faults are known.

Each job is simulated once, and judged at a random moment, when nothing moves any more,
with its ranks renamed, and with evidence taken away. The seed of a job is its number.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest
from evidence import gist, lessened, renamed
from truth import Simulated, names_wrongly, proved_wrongly, simulate, wrong_in_the_end
from views import Sight

from hangwatch.diagnosis import diagnose, find_desync
from hangwatch.diagnosis.facts.alignment import departures
from hangwatch.diagnosis.facts.endings import endings
from hangwatch.diagnosis.facts.job import index
from hangwatch.diagnosis.source.files import Source
from hangwatch.model.kinds import Certainty, State
from hangwatch.model.snapshot import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangwatch.model.snapshot import JobSnapshot
    from hangwatch.model.verdict import Verdict

THRESHOLDS = Thresholds(suspect_after_s=10.0, hang_after_s=300.0)
JOBS = 500
"""In a chunk."""
CHUNKS = 40
IN_A_CHECK = 4
"""Chunks that ``make check`` and ``make test`` have time for."""
_ORDER = (Certainty.POSSIBLE, Certainty.LIKELY, Certainty.PROVED)

ROOT = "the planted root is named once it is visible, and nobody else is"
PROVED = "proved is only what no future event undoes"
HEALTHY = "a slow or healthy job is neither proved nor called a hang early"
RENAMED = "the verdict does not depend on how ranks are numbered"
LESS = "with less evidence nobody else is named but as possible"
CERTAINTY = "with less evidence a verdict is not more certain, unless it names others, and rightly"
LEFT = "whoever is said to have left the common program is at fault, however little is known"
DESYNC = "ranks are called out of step only where one at fault is among them"


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(number, marks=() if number < IN_A_CHECK else pytest.mark.campaign)
        for number in range(CHUNKS)
    ],
)
def test_verdicts_on_simulated_jobs_are_right(chunk: int) -> None:
    complaints: dict[str, list[str]] = defaultdict(list)
    for number in range(chunk * JOBS, (chunk + 1) * JOBS):
        for rule, what in _complaints(number):
            complaints[rule].append(f"job {number}: {what}")
    assert not complaints


def _complaints(number: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the verdicts on a job, with the rule that they break."""
    rng = Random(number)  # noqa: S311 (no secrets)
    job = simulate(rng)
    late = job.seen(job.quiet_s + rng.choice((12, 40, 350)), Sight())
    verdicts = _verdicts(late)
    wrong = wrong_in_the_end(job, verdicts)
    if wrong:
        yield ROOT, f"{wrong}: {verdicts[0].headline}"
    checks = (_at_a_moment, _while_slow, _with_other_names, _with_less, _departed, _out_of_step)
    for check in checks:
        yield from check(job, late, verdicts, rng)
    for verdict in verdicts:
        if proved_wrongly(job, verdict):
            yield PROVED, verdict.headline


def _verdicts(job: JobSnapshot) -> tuple[Verdict, ...]:
    """Those that accuse."""
    return tuple(v for v in diagnose(job, THRESHOLDS) if v.kind is not None)


def _at_a_moment(
    job: Simulated, _late: JobSnapshot, _verdicts_of_late: tuple[Verdict, ...], rng: Random
) -> Iterator[tuple[str, str]]:
    at_s = rng.random() * (job.quiet_s + 2.5)
    ring = rng.choice((8, 40, 200))
    sight = Sight(ring, flight=rng.random() < 0.7, stacks=rng.random() < 0.7)
    for verdict in _verdicts(job.seen(at_s, sight)):
        if proved_wrongly(job, verdict):
            yield PROVED, verdict.headline
        if job.is_well and (verdict.state is State.HANG or verdict.certainty is Certainty.PROVED):
            yield HEALTHY, verdict.headline
        if verdict.certainty is Certainty.PROVED and names_wrongly(job, verdict):
            yield ROOT, verdict.headline


def _while_slow(
    job: Simulated, _late: JobSnapshot, _verdicts_of_late: tuple[Verdict, ...], rng: Random
) -> Iterator[tuple[str, str]]:
    for begins_s, lasts_s in job.slow_parts():
        at_s = begins_s + lasts_s * rng.random()
        for verdict in _verdicts(job.seen(at_s, Sight(flight=rng.random() < 0.5))):
            if verdict.state is not State.SLOW or verdict.certainty is Certainty.PROVED:
                yield HEALTHY, verdict.headline
            if names_wrongly(job, verdict):
                yield ROOT, verdict.headline


def _with_other_names(
    job: Simulated, late: JobSnapshot, verdicts: tuple[Verdict, ...], rng: Random
) -> Iterator[tuple[str, str]]:
    names = list(range(job.job.layout.size))
    rng.shuffle(names)
    found = sorted(repr(gist(verdict)) for verdict in _verdicts(renamed(late, names)))
    if found != sorted(repr(gist(verdict, names)) for verdict in verdicts):
        yield RENAMED, f"{names}: {found}"


def _with_less(
    job: Simulated, late: JobSnapshot, verdicts: tuple[Verdict, ...], rng: Random
) -> Iterator[tuple[str, str]]:
    most = max((_ORDER.index(verdict.certainty) for verdict in verdicts), default=-1)
    unproved = {verdict.culprits for verdict in verdicts} - {
        verdict.culprits for verdict in verdicts if verdict.certainty is Certainty.PROVED
    }
    for verdict in _verdicts(lessened(rng, late)):
        wrong = names_wrongly(job, verdict) or (job.is_well and "a healthy job is accused")
        if wrong and verdict.certainty is not Certainty.POSSIBLE:
            yield LESS, f"{wrong}: {verdict.headline}"
        if wrong and _ORDER.index(verdict.certainty) > most:
            yield CERTAINTY, verdict.headline
        if verdict.certainty is Certainty.PROVED and verdict.culprits in unproved:
            yield CERTAINTY, f"now it is proved: {verdict.headline}"
        if proved_wrongly(job, verdict):
            yield PROVED, verdict.headline


def _departed(
    job: Simulated, late: JobSnapshot, _verdicts_of_late: tuple[Verdict, ...], rng: Random
) -> Iterator[tuple[str, str]]:
    short = job.seen(job.quiet_s + 12.0, Sight(rng.choice((8, 20, 40))))
    seen = rng.choice((short, lessened(rng, late), lessened(rng, short)))
    found = index(seen)
    left = departures(found, endings(found), Source(seen.sources), found.ranks)
    if not left.ranks <= job.planted or (left.tied and not left.tied & job.planted):
        yield LEFT, f"{sorted(left.ranks)}, or one of {sorted(left.tied)}"


def _out_of_step(
    job: Simulated, _late: JobSnapshot, _verdicts_of_late: tuple[Verdict, ...], rng: Random
) -> Iterator[tuple[str, str]]:
    at_s = rng.random() * (job.quiet_s + 2.5)
    found = find_desync(job.seen(at_s, Sight(rng.choice((8, 40, 200)))))
    if found is not None and (job.is_well or names_wrongly(job, found)):
        yield DESYNC, found.headline
