"""What the GPU of a rank explains, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import frame, job, killed, main_thread, only, op, raised, rank, world

from hangwatch.diagnosis.facts.gpu_faults import XIDS, Weight, gpu_fault
from hangwatch.model.gpu import GpuState, Xid
from hangwatch.model.kinds import Certainty, GpuHealth, Kind, OpState, Reason
from hangwatch.model.snapshot import JobSnapshot, ProcessState

WORLD = world(4)


def gpu(*xids: int, age: float = 25.0, **fields: Any) -> GpuState:
    found = GpuState("GPU-3", 3, "NVIDIA H100", xids=tuple(Xid(x, 1, age) for x in xids))
    return replace(found, **fields)


def stalled(culprit: GpuState | None, others: GpuState | None = None, **fields: Any) -> JobSnapshot:
    """Rank 2 is busy, the others have waited for it for 20 s."""
    waiting = op(WORLD, 4, state=OpState.BLOCKED, blocked_age_s=20.0)
    busy = {"threads": main_thread(frame(33, "step")), "gpu": culprit, **fields}
    return job(
        rank(0, WORLD, op(WORLD, 3), waiting, gpu=others),
        rank(1, WORLD, op(WORLD, 3), waiting, gpu=others),
        rank(2, WORLD, op(WORLD, 3), **busy),
        rank(3, WORLD, op(WORLD, 3), waiting, gpu=others),
    )


def full(*gpus: GpuState | None) -> JobSnapshot:
    """All ranks have entered the same collective, 20 s ago."""
    waiting = op(WORLD, 4, state=OpState.BLOCKED, blocked_age_s=20.0)
    return job(*(rank(n, WORLD, op(WORLD, 3), waiting, gpu=gpus[n]) for n in range(4)))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (79, "has fallen off the bus (Xid 79)"),
        (48, "uncorrectable memory error (Xid 48)"),
        (74, "NVLink error (Xid 74)"),
        (95, "uncontained memory error (Xid 95)"),
        (119, "GSP timeout) (Xid 119)"),
    ],
)
def test_a_hardware_error_explains_the_rank_that_is_missing(number: int, words: str) -> None:
    verdict = only(stalled(gpu(number)))
    assert (verdict.kind, verdict.reason) == (Kind.NEVER_ENTERED, Reason.GPU_FAULT)
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.culprits == (2,)
    assert "it is on GPU 3, which" in verdict.headline
    assert words in verdict.headline
    assert f"GPU 3: {XIDS[number].detail}" in verdict.explanation
    assert "NVRM: Xid" in verdict.advice[0]


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_an_error_of_the_program_is_told_but_does_not_explain_a_rank_that_is_busy(
    number: int,
) -> None:
    verdict = only(stalled(gpu(number)))
    assert verdict.reason is Reason.USER_CODE
    assert f"Rank 2 is on GPU 3, which {XIDS[number].what} (Xid {number})." in verdict.explanation


def test_an_error_of_the_program_explains_what_nothing_else_does() -> None:
    verdict = only(stalled(gpu(31), threads=None))
    assert verdict.reason is Reason.GPU_FAULT
    assert verdict.certainty is Certainty.POSSIBLE


@pytest.mark.parametrize("number", [63, 92, 154, 31337])
def test_a_note_of_the_driver_explains_nothing(number: int) -> None:
    assert only(stalled(gpu(number))) == only(stalled(None))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (gpu(health=GpuHealth.LOST), "has fallen off the bus;"),
        (gpu(31, 79, health=GpuHealth.LOST), "has fallen off the bus (Xid 79)"),
        (gpu(health=GpuHealth.RESET_REQUIRED), "has to be reset"),
        (
            gpu(ecc_uncorrected_new=2, ecc_uncorrected_age_s=30.0),
            "2 uncorrectable memory errors (ECC)",
        ),
        (gpu(63, 45, 94, 13), "(Xid 94)"),
        (gpu(94, parent="GPU-0"), "a MIG device of GPU 3"),
    ],
)
def test_the_gravest_fault_is_named(state: GpuState, words: str) -> None:
    verdict = only(stalled(state))
    assert verdict.reason is Reason.GPU_FAULT
    assert words in verdict.headline


def test_an_old_error_blames_nobody() -> None:
    assert only(stalled(gpu(48, age=3600.0))) == only(stalled(None))
    old = gpu(ecc_uncorrected_new=1, ecc_uncorrected_age_s=3600.0)
    assert only(stalled(old)) == only(stalled(None))


def test_a_rank_that_waits_is_not_blamed_for_an_error_of_its_gpu() -> None:
    verdict = only(stalled(gpu(), gpu(79, age=3.0)))
    assert verdict.culprits == (2,)
    assert verdict == only(stalled(None))


def test_errors_from_before_the_run_are_none() -> None:
    assert only(stalled(gpu(ecc_uncorrected=9))) == only(stalled(None))


def test_of_those_who_all_entered_the_one_with_the_fault_is_the_culprit() -> None:
    verdict = only(full(gpu(31), None, gpu(79), gpu()))
    assert (verdict.kind, verdict.reason) == (Kind.COLLECTIVE_STUCK, Reason.GPU_FAULT)
    assert verdict.culprits == (2,)
    assert verdict.victims == (0, 1, 3)
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.headline.startswith("Rank 2 entered all_reduce #4")
    assert "cannot complete it: it is on GPU 3" in verdict.headline


def test_an_error_of_the_program_makes_a_possible_culprit_of_a_full_collective() -> None:
    verdict = only(full(None, gpu(31), replace(gpu(63), uuid="GPU-4"), None))
    assert (verdict.reason, verdict.culprits) == (Reason.GPU_FAULT, (1,))
    assert verdict.certainty is Certainty.POSSIBLE


def test_an_error_of_a_program_on_a_gpu_that_ranks_share_may_have_been_that_of_any() -> None:
    assert only(full(None, gpu(31), gpu(31), None)).culprits == ()
    assert only(full(None, gpu(79), gpu(79), None)).culprits == (1, 2)


def test_a_full_collective_with_sound_gpus_has_no_culprit() -> None:
    assert only(full(*[gpu(48, age=4000.0)] * 4)).culprits == ()


def test_a_rank_that_died_of_its_gpu() -> None:
    ended = raised("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered")
    verdict = only(stalled(gpu(48), threads=None, **ended))
    assert (verdict.kind, verdict.reason) == (Kind.DIED, Reason.GPU_FAULT)
    assert "raised AcceleratorError" in verdict.headline
    assert "Rank 2 was on GPU 3, which" in verdict.explanation


def test_a_rank_that_died_of_its_own_error_did_not_die_of_its_gpu() -> None:
    ended = raised("torch.AcceleratorError", "CUDA error: an illegal memory access")
    verdict = only(stalled(gpu(31), threads=None, **ended))
    assert verdict.reason is Reason.EXCEPTION
    assert "Xid 31" in verdict.explanation
    oom = only(stalled(gpu(79), threads=None, **killed(9, oom_killed=True)))
    assert oom.reason is Reason.OUT_OF_MEMORY


def test_one_that_was_stopped_was_stopped() -> None:
    stopped = ProcessState(alive=True, state="T")
    assert only(stalled(gpu(79), process=stopped)).reason is Reason.STOPPED


def test_a_gpu_that_is_only_assumed_is_said_to_be() -> None:
    assert "LOCAL_RANK" in only(stalled(gpu(79, assumed=True))).explanation
    assert "LOCAL_RANK" not in only(stalled(gpu(79))).explanation


def test_nvml_that_does_not_answer_is_weak_evidence() -> None:
    silent = gpu(health=GpuHealth.SILENT)
    assert only(stalled(silent)).reason is Reason.USER_CODE
    assert only(full(None, silent, None, None)).certainty is Certainty.POSSIBLE


def test_what_the_table_says_can_be_read() -> None:
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120} <= XIDS.keys()
    for number, found in XIDS.items():
        assert found.detail.endswith("."), number
        assert not found.what.endswith("."), number
    weights = [found.weight for found in XIDS.values()]
    assert weights == sorted(weights, reverse=True)
    assert {XIDS[number].weight for number in (48, 74, 79, 95, 119)} == {Weight.HARDWARE}
    assert {XIDS[number].weight for number in (13, 31, 43, 45)} == {Weight.PROGRAM}


@given(
    st.builds(
        GpuState,
        uuid=st.text(),
        index=st.integers(),
        health=st.sampled_from(GpuHealth),
        ecc_uncorrected_new=st.integers(),
        ecc_uncorrected_age_s=st.none() | st.floats(),
        xids=st.lists(st.builds(Xid, st.integers(), st.integers(), st.floats())).map(tuple),
    )
)
def test_any_state_of_a_gpu_can_be_judged(state: GpuState) -> None:
    gpu_fault(state, 60.0)
    assert only(stalled(state)).culprits == (2,)


@pytest.mark.parametrize("number", [79, 31])
def test_less_is_known_without_the_gpus_never_more(number: int) -> None:
    order = [Certainty.POSSIBLE, Certainty.LIKELY, Certainty.PROVED]
    with_gpu, without = (only(stalled(one, threads=None)) for one in (gpu(number), None))
    assert order.index(with_gpu.certainty) >= order.index(without.certainty)
