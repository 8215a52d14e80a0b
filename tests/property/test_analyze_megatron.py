"""Dumps of stuck 16-rank jobs with tensor, data, expert and pipeline parallel groups.

Two ranks are faulty. Both are to be named, and nobody else.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from megatron import Fault, Job, Layout
from megatron_dumps import Recorder, dumps

from hangwatch.diagnosis import diagnose
from hangwatch.evidence.flight import job_snapshot, parse_dump
from hangwatch.model.kinds import Kind, Reason, State
from hangwatch.model.snapshot import Thresholds

if TYPE_CHECKING:
    from hangwatch.model.verdict import Verdict

LAYOUTS = (Layout(2, 4, 2), Layout(2, 2, 4), Layout(4, 2, 2), Layout(8, 2, 1), Layout(2, 1, 8))
AT_ONCE = Thresholds(0.0, 0.0)
PLAIN = Recorder()
"""Active entries only, no stacks, no times: what most jobs leave."""


def judged(found: dict[int, bytes]) -> tuple[Verdict, ...]:
    return diagnose(job_snapshot({r: parse_dump(data) for r, data in found.items()}, {}), AT_ONCE)


def named(verdicts: tuple[Verdict, ...]) -> set[int]:
    return {rank for verdict in verdicts for rank in verdict.culprits}


def stuck_job(seed: int, *faults: Fault, anytime: bool = False) -> Job:
    """A job in which ranks chosen by the seed get these faults."""
    layout = LAYOUTS[seed % len(LAYOUTS)]
    ranks = Random(seed).sample(range(layout.world), len(faults))  # noqa: S311 (no secrets)
    job = Job(layout, seed, dict(zip(ranks, faults, strict=True)), anytime=anytime)
    assert job.struck
    return job


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
@pytest.mark.parametrize("seed", range(10))
def test_two_programs_that_stop_are_named_and_nobody_else(seed: int, *, as_json: bool) -> None:
    job = stuck_job(seed, Fault.HOST, Fault.HOST)
    found = judged(dumps(job, replace(PLAIN, as_json=as_json)))
    assert named(found) == set(job.faults)
    assert {verdict.state for verdict in found} == {State.HANG}
    assert {verdict.kind for verdict in found} <= {Kind.NEVER_ENTERED, Kind.MISSING_PEER}


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
@pytest.mark.parametrize("seed", range(10, 20))
def test_two_devices_that_fail_are_named_and_nobody_else(seed: int, *, as_json: bool) -> None:
    job = stuck_job(seed, Fault.GPU_ERROR, Fault.GPU_ERROR)
    found = judged(dumps(job, replace(PLAIN, as_json=as_json)))
    assert named(found) == set(job.faults)
    assert {verdict.reason for verdict in found} == {Reason.GPU_KERNEL}


@pytest.mark.parametrize("seed", range(20, 30))
def test_two_kernels_that_never_end_are_named_where_times_are_taken(seed: int) -> None:
    job = stuck_job(seed, Fault.GPU_KERNEL, Fault.GPU_KERNEL)
    assert named(judged(dumps(job, replace(PLAIN, timed=True)))) == set(job.faults)


@pytest.mark.parametrize("seed", range(30, 40))
def test_a_program_and_a_device_are_named_together(seed: int) -> None:
    job = stuck_job(seed, Fault.HOST, Fault.GPU_ERROR)
    assert named(judged(dumps(job, PLAIN))) == set(job.faults)


@pytest.mark.parametrize(
    "recorder",
    [
        Recorder(only_active=False),
        Recorder(only_active=False, ring=60),
        Recorder(only_active=False, version="2.4"),
        Recorder(version="2.4"),
        Recorder(only_active=False, stacks=True, version="2.10"),
        Recorder(only_active=False, timed=True, as_json=True),
    ],
    ids=["full", "wrapped", "2.4", "2.4 active", "stacks", "timed"],
)
@pytest.mark.parametrize("fault", [Fault.HOST, Fault.GPU_ERROR])
@pytest.mark.parametrize("seed", [40, 41, 42])
def test_every_kind_of_dump_tells_it(seed: int, fault: Fault, recorder: Recorder) -> None:
    job = stuck_job(seed, fault, fault)
    assert named(judged(dumps(job, recorder))) == set(job.faults)


def test_dumps_of_several_versions_are_judged_together() -> None:
    job = stuck_job(43, Fault.HOST, Fault.HOST)
    old, new = (dumps(job, replace(PLAIN, version=version)) for version in ("2.9", "2.10"))
    mixed = {rank: (old if rank % 2 else new)[rank] for rank in old}
    assert named(judged(mixed)) == set(job.faults)
    unseen = job_snapshot({r: parse_dump(data) for r, data in mixed.items()}, {}).unseen
    assert "the dumps are of different recorders: 2.9, 2.10" in unseen


@pytest.mark.parametrize("recorder", [PLAIN, Recorder(timed=True, only_active=False)])
@pytest.mark.parametrize("seed", range(50, 58))
def test_a_fault_that_is_hidden_behind_another_makes_nobody_else_guilty(
    seed: int, recorder: Recorder
) -> None:
    faults = Random(seed).choices(list(Fault), k=2)  # noqa: S311 (no secrets)
    job = stuck_job(seed, *faults, anytime=True)
    assert named(judged(dumps(job, recorder))) <= set(job.faults)


@pytest.mark.parametrize("seed", range(60, 65))
def test_without_times_a_kernel_that_never_ends_makes_nobody_else_guilty(seed: int) -> None:
    job = stuck_job(seed, Fault.GPU_KERNEL)
    found = judged(dumps(job, PLAIN))
    assert found[0].state is State.HANG
    assert named(found) <= set(job.faults)


@pytest.mark.parametrize("seed", range(70, 75))
def test_a_healthy_job_is_ok_also_where_its_ring_has_wrapped(seed: int) -> None:
    job = Job(LAYOUTS[seed % len(LAYOUTS)], seed, {})
    for recorder in (PLAIN, Recorder(only_active=False, ring=50)):
        (verdict,) = judged(dumps(job, recorder))
        assert verdict.state is State.OK
