"""Hosts run ahead of their devices: who is named is the rank whose stream is stuck."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from stuck_streams import Fault, StuckJob, make

from hangwatch.diagnosis import diagnose
from hangwatch.model.kinds import Certainty, Kind, Reason
from hangwatch.model.snapshot import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangwatch.model.verdict import Verdict

THRESHOLDS = Thresholds(suspect_after_s=10.0, hang_after_s=30.0)
JOBS = 150

backends = pytest.mark.parametrize("backend", ["nccl", "gloo"])


def judged(fault: Fault, backend: str) -> Iterator[tuple[StuckJob, tuple[Verdict, ...]]]:
    """The verdicts on each of many jobs."""
    for seed in range(JOBS):
        job = make(Random(seed), fault, backend)  # noqa: S311 (no secrets)
        yield job, diagnose(job.seen(), THRESHOLDS)


def verdicts(fault: Fault, backend: str) -> Iterator[tuple[StuckJob, Verdict]]:
    """The verdict on each of many jobs; there must be just one."""
    for job, found in judged(fault, backend):
        assert len(found) == 1, [verdict.headline for verdict in found]
        yield job, found[0]


@backends
def test_the_rank_whose_stream_is_stuck_is_named_and_nobody_else(backend: str) -> None:
    for job, verdict in verdicts(Fault.STREAM, backend):
        assert (verdict.culprits, verdict.reason) == ((job.culprit,), Reason.GPU_KERNEL)
        assert verdict.kind is Kind.NEVER_ENTERED
        assert verdict.certainty is Certainty.LIKELY
        assert verdict.victims == tuple(r for r in range(job.size) if r != job.culprit)


@backends
def test_a_rank_whose_program_is_late_is_not_said_to_have_a_stuck_stream(backend: str) -> None:
    for job, verdict in verdicts(Fault.HOST, backend):
        assert verdict.culprits == (job.culprit,)
        assert verdict.reason is not Reason.GPU_KERNEL


@backends
def test_where_all_have_come_to_the_call_nobody_is_blamed(backend: str) -> None:
    for job, verdict in verdicts(Fault.NETWORK, backend):
        assert (verdict.kind, verdict.culprits) == (Kind.COLLECTIVE_STUCK, ())
        assert verdict.collective is not None
        assert verdict.collective.seq == job.place[1]
        assert verdict.group == job.groups[job.place[0]]


@backends
def test_where_all_members_are_stuck_before_one_call_all_of_them_are_named(backend: str) -> None:
    for job, found in judged(Fault.KERNELS, backend):
        members = job.groups[job.place[0]].ranks
        assert {verdict.reason for verdict in found} == {Reason.GPU_KERNEL}
        if len(members) == job.size:
            # Nobody waits for them: none stands out.
            assert [(v.kind, v.culprits) for v in found] == [(Kind.COLLECTIVE_STUCK, ())]
        else:
            assert {rank for verdict in found for rank in verdict.culprits} == set(members)


def test_without_beacons_of_one_rank_no_other_is_named_for_sure() -> None:
    for seed in range(JOBS):
        rng = Random(seed)  # noqa: S311 (no secrets)
        job = make(rng, rng.choice((Fault.STREAM, Fault.HOST, Fault.NETWORK)), "nccl")
        blind = rng.randrange(job.size)
        seen = job.seen()
        ranks = [replace(r, ops=tuple(replace(o, begun=None) for o in r.ops)) for r in seen.ranks]
        seen = replace(
            seen, ranks=tuple(ranks[n] if n == blind else r for n, r in enumerate(seen.ranks))
        )
        for verdict in diagnose(seen, THRESHOLDS):
            if not set(verdict.culprits) <= {job.culprit}:
                assert verdict.certainty is Certainty.POSSIBLE, (seed, verdict.headline)
