"""What beacons tell of a rank's calls: which its device has come to, and which are complete."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from made_pages import event, group, page

from hangwatch.evidence.flight import parse_json, rank_ops
from hangwatch.evidence.snapshot import group_progress, rank_snapshot
from hangwatch.model.kinds import OpState
from hangwatch.model.snapshot import OpRecord, ProcessState

if TYPE_CHECKING:
    from hangwatch.evidence.flight.entries import FlightDump
    from hangwatch.model.page import PageEvent, PageGroup

ISSUED = OpState.ISSUED


def told(reached: int, passed: int = -1, **changes: Any) -> PageGroup:
    """A group of NCCL's with eight calls; what its device has told."""
    values = {"backend": "nccl", "completed": 0, "reached": reached, "passed": passed}
    return group(8, **{**values, **changes})


def on_device(seq: int, state: OpState = ISSUED, **changes: Any) -> PageEvent:
    return event(seq, state, device=0, **changes)


def ops(*events: PageEvent, of: PageGroup, flight: FlightDump | None = None) -> dict[int, OpRecord]:
    made = page(events=events, groups=(of,), beacons="")
    return {op.seq: op for op in rank_ops(made, flight, time.monotonic_ns())}


def recorded(*entries: tuple[int, str], p2p: bool = False) -> FlightDump:
    """NCCL's recorder: (place, state)."""
    made = [
        {
            "process_group": ["0", "default_pg"],
            "pg_id": 0,
            "record_id": seq,
            "collective_seq_id": seq,
            "op_id": seq,
            "profiling_name": "nccl:recv 0<-1" if p2p else "nccl:all_reduce",
            "time_created_ns": seq,
            "state": state,
            "retired": state == "completed",
            "is_p2p": p2p,
            "p2p_seq_id": seq,
        }
        for seq, state in entries
    ]
    return parse_json(json.dumps({"version": "2.10", "entries": made}).encode())


def test_progress_has_what_the_device_told() -> None:
    progress = group_progress(told(7, 6), 0)
    assert (progress.enqueued, progress.completed, progress.started) == (8, 6, 7)
    progress = group_progress(told(-1), 0)
    assert (progress.completed, progress.started) == (0, -1)


def test_of_a_group_that_also_runs_on_the_host_the_device_tells_not_what_is_complete() -> None:
    progress = group_progress(told(7, 6, backend="cpu:gloo,cuda:nccl", completed=2), 0)
    assert (progress.completed, progress.started) == (2, 7)


def test_a_call_has_begun_once_its_stream_has_come_to_it() -> None:
    found = ops(*map(on_device, (6, 7, 8)), of=told(7, 6))
    assert [(found[seq].state, found[seq].begun) for seq in (6, 7, 8)] == [
        (OpState.DONE, True),
        (ISSUED, True),
        (ISSUED, False),
    ]
    assert found[7].device
    assert found[8].device


def test_a_call_without_a_beacon_is_as_it_was() -> None:
    found = ops(event(8, ISSUED), on_device(5), of=told(5, 5))
    assert (found[8].device, found[8].begun, found[8].state) == (False, None, ISSUED)


def test_a_call_that_nobody_waits_for_is_no_work_of_the_device_for_ever() -> None:
    # Its stream came to it, and nothing can tell that it is complete.
    found = ops(on_device(8, is_async=True), of=told(8, 7))
    assert not found[8].device
    assert ops(on_device(8), of=told(8, 7))[8].device
    # But what has not begun may wait for it.
    found = ops(on_device(7, is_async=True), on_device(8), of=told(7))
    assert found[7].device
    assert found[7].begun


def test_gloo_waits_for_the_stream_in_a_thread_of_the_host() -> None:
    late = ops(on_device(8, OpState.BLOCKED), of=told(7, 7, backend="gloo"))[8]
    assert (late.device, late.begun, late.state) == (True, False, OpState.BLOCKED)
    there = ops(on_device(8, OpState.BLOCKED), of=told(8, 7, backend="gloo"))[8]
    assert (there.device, there.begun) == (False, True)


def test_the_recorder_of_nccl_tells_that_a_call_is_the_devices() -> None:
    flight = recorded((7, "completed"), (8, "scheduled"))
    found = ops(event(7), event(8, OpState.DONE), of=told(-1), flight=flight)
    assert [(found[seq].device, found[seq].state) for seq in (7, 8)] == [
        (True, OpState.DONE),
        (True, ISSUED),
    ]
    assert found[8].begun is None  # without times it may run


@pytest.mark.parametrize("state", ["started", "scheduled"])
def test_of_a_call_from_cpp_the_recorder_tells_whether_it_has_begun(state: str) -> None:
    found = ops(of=told(-1, entered=0), flight=recorded((8, state)))[8]
    assert (found.source, found.device) == ("flight", True)
    assert found.begun is (True if state == "started" else None)


def test_behind_a_call_that_has_not_begun_none_of_its_group_has() -> None:
    flight = recorded((6, "completed"), (7, "scheduled"), (8, "scheduled"))
    found = ops(on_device(7), of=told(6, entered=1), flight=flight)
    assert [(seq, op.source, op.begun) for seq, op in sorted(found.items())] == [
        (6, "flight", True),
        (7, "page", False),
        (8, "flight", False),
    ]


def begun(of: PageGroup, *events: PageEvent, flight: FlightDump | None = None) -> bool | None:
    """Whether the last of eight calls is said to have begun, whose stream has not come to it."""
    return ops(*events, on_device(8), of=of, flight=flight)[8].begun


def test_a_device_that_may_be_in_something_else_is_not_said_to_be_late() -> None:
    assert begun(told(7)) is False
    # C++ has issued some, of which only a recorder would tell.
    assert begun(told(7, entered=7)) is None
    assert begun(told(7, entered=7), flight=recorded((7, "completed"))) is False
    # A stream waits for a recv, too.
    assert begun(told(7, p2p=1)) is None
    assert begun(told(7), event(7, ISSUED)) is None
    assert begun(told(7, completed=7), event(7, ISSUED)) is False
    assert begun(told(7, backend="gloo", entered=7, p2p=1)) is False


@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_a_device_that_may_be_in_a_recv_is_not_said_to_be_late(state: str) -> None:
    flight = recorded((7, state), p2p=True)
    assert begun(told(7, p2p=1), flight=flight) is (False if state == "completed" else None)


def test_a_call_that_failed_stays_so() -> None:
    assert ops(on_device(5, OpState.FAILED), of=told(8, 8))[5].state is OpState.FAILED


def test_why_a_gpu_does_not_tell_is_missing_evidence_where_there_is_one() -> None:
    def missing(backend: str) -> tuple[str, ...]:
        made = page(groups=(told(-1, backend=backend),), beacons="CUDA_ERROR_UNKNOWN in cuFoo")
        return rank_snapshot(made, ProcessState(alive=True), "node", 1).missing_evidence

    assert any("CUDA_ERROR_UNKNOWN in cuFoo" in text for text in missing("cuda:nccl"))
    assert missing("gloo") == ()
    quiet = replace(page(groups=(told(5),)), beacons="")
    assert rank_snapshot(quiet, ProcessState(alive=True), "node", 1).missing_evidence == ()


def timed(state: str, started: int) -> bool | None:
    """Whether the last call is said to have begun; started: what the status says of its group."""
    flight = replace(recorded((8, state)), status={0: (8, started, 6)})
    return ops(of=told(-1, entered=0), flight=flight)[8].begun


def test_where_the_recorder_takes_times_what_has_not_started_has_not_begun() -> None:
    assert timed("scheduled", 7) is False
    assert timed("started", 8) is True
    assert timed("scheduled", -1) is None  # it takes none
