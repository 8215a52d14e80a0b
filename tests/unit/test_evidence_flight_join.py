"""A rank with two recorders: NCCL's, and the general one, which has gloo's calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_pages import event, group, page

from hangwatch.errors import FlightError
from hangwatch.evidence.flight import parse_json, rank_ops
from hangwatch.model.kinds import OpState

UNIX = 1_795_220_735 * 10**9
MS = 10**6


def entry(backend: str, seq: int, at_ms: int, **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": seq,
        "is_p2p": False,
        "op_id": seq,
        "p2p_seq_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"{backend}:all_reduce",
        "record_id": seq - 1,
        "retired": True,
        "state": "completed" if backend == "nccl" else "scheduled",
        "time_created_ns": UNIX + at_ms * MS,
        **more,
    }


def recorder(*entries: dict[str, Any], last: int = 0) -> bytes:
    counts = {f"last_{what}_collective": str(last) for what in ("enqueued", "started", "completed")}
    return json.dumps({"version": "2.10", "entries": entries, "pg_status": {"0": counts}}).encode()


def test_calls_of_both_are_known_and_their_groups_apart() -> None:
    other = {"process_group": ["1", "checkpoint"]}
    nccl = recorder(entry("nccl", 4, 10), entry("nccl", 5, 30), last=5)
    gloo = recorder(entry("gloo", 7, 20, **other), last=9)
    found = parse_json(nccl + b"\n" + gloo + b"\n")
    assert [(one.group_name, one.seq, one.backend) for one in found.entries] == [
        ("0", 4, "nccl"),
        ("1", 7, "gloo"),
        ("0", 5, "nccl"),
    ]
    assert len({one.pg_id for one in found.entries}) == 2
    assert len({one.record for one in found.entries}) == 3
    assert sorted(last for last, _, _ in found.status.values()) == [5, 9]


def test_a_group_of_both_backends_is_numbered_as_the_program_made_its_calls() -> None:
    nccl = recorder(entry("nccl", 11, 10), entry("nccl", 12, 30), entry("nccl", 13, 50))
    gloo = recorder(entry("gloo", 3, 20), entry("gloo", 4, 60))
    found = parse_json(nccl + b"\n" + gloo)
    # Two calls on the CPU, and ten on the device, are no longer recorded.
    assert [one.seq for one in found.entries] == [13, 14, 15, 16, 17]
    assert len({one.pg_id for one in found.entries}) == 1
    assert found.status == {}


def test_a_group_of_both_backends_meets_its_page() -> None:
    mixed = group(3, backend="cpu:gloo,cuda:nccl", completed=1)
    calls = [
        event(place, state, issued_ns=place * 10 * MS)
        for place, state in enumerate((OpState.ISSUED, OpState.DONE, OpState.ISSUED), 1)
    ]
    nccl = recorder(entry("nccl", 1, 0), entry("nccl", 2, 20, retired=False, state="scheduled"))
    gloo = recorder(entry("gloo", 1, 10))
    made = rank_ops(page(events=calls, groups=(mixed,)), parse_json(nccl + b"\n" + gloo), 50 * MS)
    assert [(one.seq, one.state) for one in made] == [
        (1, OpState.DONE),
        (2, OpState.DONE),
        (3, OpState.ISSUED),
    ]
    assert [one.device for one in made] == [True, False, True]


def test_one_recorder_under_two_names_is_read_once() -> None:
    data = recorder(entry("nccl", 1, 0), entry("nccl", 2, 10))
    assert parse_json(data + b"\n" + data + b"\n") == parse_json(data)


@pytest.mark.parametrize("data", [b'{"version": "2.5"}\n{', b"{\n}\n{", b"{}\n" * 21])
def test_other_lines_are_refused(data: bytes) -> None:
    with pytest.raises(FlightError, match="JSON"):
        parse_json(data)
