"""What the entries mean that torch's hook makes, for backends that record nothing themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_pages import event, group, page
from test_evidence_flight_join import MS, UNIX, entry, recorder

from hangwatch.diagnosis import diagnose
from hangwatch.evidence.flight import job_snapshot, newest, parse_json, rank_ops
from hangwatch.evidence.snapshot import with_flight
from hangwatch.model.kinds import Kind, OpState
from hangwatch.model.snapshot import Thresholds
from hangwatch.model.verdict import OK

if TYPE_CHECKING:
    from hangwatch.model.snapshot import JobSnapshot

DUMPS = Path(__file__).parent / "dumps" / "nccl2"
"""What torch 2.15 wrote of a job of four ranks, of which rank 1 skipped an all_reduce. Its
backend had the name nccl2, and ran on the CPU (tests/newest_torch)."""


def hooked(place: int, at_ms: int, backend: str = "nccl2", **more: Any) -> dict[str, Any]:
    """An entry of the hook's."""
    known = {"state": "completed", "op_id": place - 1, **more}
    return entry(backend, place, at_ms, **known)


def states(*entries: dict[str, Any]) -> list[tuple[int, OpState]]:
    mine = group(9, backend="cuda:nccl2", completed=-1)
    made = rank_ops(page(groups=(mine,)), parse_json(recorder(*entries)), 99 * MS)
    return [(record.seq, record.state) for record in made]


def test_the_rank_that_broke_a_job_is_named_from_real_dumps() -> None:
    dumps = {int(path.stem[-1]): parse_json(path.read_bytes()) for path in DUMPS.iterdir()}
    later_ns = max(map(newest, dumps.values())) + 100 * 10**9
    (verdict, *_) = diagnose(
        job_snapshot(dumps, dict.fromkeys(dumps, later_ns)), Thresholds(5.0, 30.0)
    )
    assert (verdict.kind, verdict.culprits) == (Kind.OP_MISMATCH, (1,))


def test_a_call_is_complete_once_it_says_so_and_only_then() -> None:
    waits = hooked(2, 20, state="scheduled", retired=False)
    assert states(hooked(1, 10), waits) == [(1, OpState.DONE), (2, OpState.ISSUED)]


def test_of_calls_whose_completion_nobody_tells_the_last_is_all_that_is_known() -> None:
    issued = [hooked(place, place * 10, state="scheduled") for place in (1, 2, 3)]
    assert states(*issued) == [(3, OpState.ISSUED)]


def test_a_call_has_the_number_that_counts_those_in_a_captured_graph_too() -> None:
    # Two were captured in between, of which the hook makes no entries.
    first, second = hooked(1, 10), hooked(2, 20, op_id=3)
    sent = hooked(1, 30, op_id=4, is_p2p=True, p2p_seq_id=1, profiling_name="nccl2:send 0->1")
    third = hooked(3, 40, op_id=5, p2p_seq_id=1)
    found = parse_json(recorder(first, second, sent, third))
    assert [one.seq for one in found.entries if not one.p2p] == [1, 4, 5]


def test_a_send_tells_nothing_of_how_far_it_has_come() -> None:
    sent = hooked(1, 10, is_p2p=True, p2p_seq_id=1, profiling_name="nccl2:send 0->1")
    call = event(1, OpState.ISSUED, issued_ns=10 * MS, p2p=True, wire="send", op="isend", peer=1)
    mine = group(0, backend="cuda:nccl2", completed=-1)
    made = rank_ops(page(events=[call], groups=(mine,)), parse_json(recorder(sent)), 99 * MS)
    assert [(record.op, record.state, record.device) for record in made] == [
        ("isend", OpState.ISSUED, False)
    ]


def test_a_recv_from_any_source_has_none() -> None:
    (one,) = parse_json(
        recorder(hooked(1, 10, is_p2p=True, profiling_name="nccl2:recv 3<-?"))
    ).entries
    assert (one.wire, one.src, one.dst) == ("recv", -1, 3)


def test_three_recorders_are_one_rank() -> None:
    gloo = recorder(entry("gloo", 1, 10), entry("gloo", 2, 30))
    nccl2 = recorder(hooked(1, 20, op_id=1), hooked(3, 50, op_id=4))
    other = recorder(hooked(2, 40, "mine", op_id=3))
    found = parse_json(b"\n".join((gloo, nccl2, other)))
    assert [(one.seq, one.backend) for one in found.entries] == [
        (1, "gloo"),
        (2, "nccl2"),
        (3, "gloo"),
        (4, "mine"),
        (5, "nccl2"),
    ]
    assert len({one.record for one in found.entries}) == 5
    assert {one.pg_id for one in found.entries} == {0}


def test_groups_of_three_recorders_are_not_taken_for_one_another() -> None:
    lines = (
        recorder(entry("nccl", 1, 10, pg_id=1, process_group=["1", "a"])),
        recorder(entry("gloo", 1, 20, pg_id=1, process_group=["2", "b"])),
        recorder(hooked(1, 30, pg_id=1, process_group=["3", "c"])),
    )
    found = parse_json(b"\n".join(lines))
    assert len({one.pg_id for one in found.entries}) == 3


def test_what_the_host_made_before_the_first_call_of_a_hook_is_counted_back() -> None:
    gloo = recorder(*(entry("gloo", seq, seq * 10) for seq in (3, 4)))
    nccl2 = recorder(hooked(3, 70, op_id=6))
    found = parse_json(gloo + b"\n" + nccl2)
    assert [one.seq for one in found.entries] == [5, 6, 7]


def of_two(gloo: list[dict[str, Any]], nccl2: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """The collectives of a group of two backends, with their numbers."""
    found = parse_json(recorder(*gloo) + b"\n" + recorder(*nccl2))
    return [(f"{one.backend}:{one.wire}", one.seq) for one in found.entries if not one.p2p]


def barrier(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "profiling_name": made["profiling_name"].replace("all_reduce", "barrier")}


WAITING: dict[str, Any] = {"state": "scheduled", "retired": False}


def test_a_barrier_that_both_recorded_is_the_hosts() -> None:
    # As torch 2.15 writes it: the hook takes it for one of the device's, and never hears of it.
    gloo = [barrier(entry("gloo", 1, 21, op_id=1)), entry("gloo", 2, 30, op_id=2)]
    nccl2 = [hooked(1, 10), barrier(hooked(2, 20, **WAITING)), hooked(3, 40, op_id=3)]
    assert of_two(gloo, nccl2) == [
        ("nccl2:all_reduce", 1),
        ("gloo:barrier", 2),
        ("gloo:all_reduce", 3),
        ("nccl2:all_reduce", 4),
    ]


def offline(*ranks: list[dict[str, Any]]) -> JobSnapshot:
    """A job of which there are dumps of the hook alone."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    dumps = (json.loads(recorder(*entries)) | {"pg_config": config} for entries in ranks)
    parsed = {rank: parse_json(json.dumps(dump).encode()) for rank, dump in enumerate(dumps)}
    return job_snapshot(parsed, dict.fromkeys(parsed, UNIX + 99 * 10**9))


def test_a_dump_does_not_tell_whether_a_barrier_that_all_have_entered_is_complete() -> None:
    met = [hooked(1, 10), barrier(hooked(2, 20, **WAITING))]
    job = offline(met, met)
    assert diagnose(job, Thresholds(5.0, 30.0)) == (OK,)
    assumed = "a barrier that all ranks have entered is assumed to be complete"
    assert assumed in job.unseen
    # One of them has gone on, and the other has not come.
    gone_on = [*met, hooked(3, 30), hooked(4, 40, **WAITING)]
    (verdict, *_) = diagnose(offline(gone_on, gone_on[:3]), Thresholds(5.0, 30.0))
    assert (verdict.culprits, verdict.collective and verdict.collective.seq) == ((1,), 4)
    (verdict, *_) = diagnose(offline(met, met[:1]), Thresholds(5.0, 30.0))
    assert (verdict.culprits, verdict.collective and verdict.collective.seq) == ((1,), 2)


def test_a_barrier_of_the_device_is_its_own() -> None:
    gloo = [barrier(entry("gloo", 1, 21, op_id=1))]
    nccl2 = [barrier(hooked(1, 20)), barrier(hooked(2, 30)), hooked(3, 40)]
    assert of_two(gloo, nccl2) == [
        ("gloo:barrier", 1),
        ("nccl2:barrier", 2),
        ("nccl2:all_reduce", 3),
    ]


def test_what_the_host_sends_and_what_it_has_two_numbers_for_move_no_number() -> None:
    # Of 2 and 3, a monitored_barrier, and of the sends nobody has an entry; op_id counts the sends.
    gloo = [entry("gloo", 1, 10), entry("gloo", 4, 30), entry("gloo", 5, 60, op_id=7)]
    nccl2 = [hooked(1, 20, op_id=1), hooked(2, 40, op_id=5), hooked(3, 70, op_id=7)]
    assert [number for _, number in of_two(gloo, nccl2)] == [1, 2, 5, 6, 7, 8]


def test_what_the_host_sends_before_each_call_moves_no_number() -> None:
    gloo = [entry("gloo", 1, 30, op_id=2), entry("gloo", 2, 60, op_id=4)]
    nccl2 = [hooked(1, 20, op_id=1), hooked(2, 50, op_id=4), hooked(3, 80, op_id=7)]
    assert [number for _, number in of_two(gloo, nccl2)] == [1, 2, 3, 4, 5]


def test_what_was_captured_into_a_graph_moves_all_later_numbers_of_both() -> None:
    gloo = [entry("gloo", 1, 10), entry("gloo", 2, 40, op_id=2), entry("gloo", 3, 60, op_id=3)]
    nccl2 = [hooked(1, 20, op_id=1), hooked(2, 30, op_id=5), hooked(3, 50, op_id=7)]
    assert [number for _, number in of_two(gloo, nccl2)] == [1, 2, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("backend", "device"), [("cpu:mine", False), ("cuda:mine", True), ("cpu:mine,cuda:mine", True)]
)
def test_the_groups_of_a_rank_tell_where_a_backend_runs(backend: str, *, device: bool) -> None:
    mine = group(1, backend=backend, completed=-1)
    found = parse_json(recorder(hooked(1, 10, "mine", state="scheduled", retired=False)))
    (made,) = rank_ops(page(groups=(mine,)), found, 99 * MS)
    assert made.device is device


def test_calls_that_the_page_could_not_count_are_counted() -> None:
    known, other = group(0, backend="cpu:mine"), group(7, slot=1, name="1", backend="cpu:gloo")
    found = parse_json(recorder(hooked(5, 10, "mine")))
    assert [one.enqueued for one in with_flight((known, other), found)] == [5, 7]


def test_calls_after_the_last_count_of_a_process_that_was_aborted_are_counted() -> None:
    known, gone = group(2, backend="cpu:gloo"), group(2, slot=1, name="1", alive=False)
    found = parse_json(
        recorder(entry("gloo", 5, 10), entry("gloo", 5, 10, process_group=["1", ""]))
    )
    counted = with_flight((known, gone), found, is_newer=True)
    assert [one.enqueued for one in counted] == [5, 2]
