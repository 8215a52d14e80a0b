"""Reading Flight Recorder dumps, and merging them with the page's calls."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pages import SITE, WORLD, group, page

from hangwatch.errors import FlightError
from hangwatch.evidence.flight import parse_json, rank_ops
from hangwatch.evidence.flight.entries import FlightDump
from hangwatch.evidence.flight.recorder import MAX_ENTRIES, dtype_name, wire_name
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState
from hangwatch.model.page import PageEvent

SECOND = 10**9
NOW = 1_000 * SECOND
UNIX = 1_795_220_735 * SECOND
"""What the clock of the recorder shows when that of the page shows 0."""

GLOO = {
    "collective_seq_id": 7,
    "input_dtypes": ["Float"],
    "input_sizes": [[4, 2]],
    "is_p2p": False,
    "op_id": 9,
    "output_dtypes": ["Float"],
    "output_sizes": [[4, 2]],
    "p2p_seq_id": 0,
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce",
    "record_id": 0,
    "retired": True,
    "state": "scheduled",
    "thread_id": "140245647731584",
    "thread_name": "python3",
    "time_created_ns": UNIX,
    "time_discovered_completed_ns": 0,
    "time_discovered_started_ns": 0,
    "timeout_ms": 1800000,
}
"""An entry as torch 2.13 writes it for gloo."""
NCCL = {
    "collective_seq_id": 3,
    "duration_ms": 1.5,
    "input_dtypes": ["BFloat16"],
    "input_sizes": [[1024]],
    "is_p2p": True,
    "op_id": 12,
    "output_dtypes": ["BFloat16"],
    "output_sizes": [[1024]],
    "p2p_seq_id": 5,
    "pg_id": "2",
    "process_group": ["4", "pipeline"],
    "profiling_name": "nccl:recv 3<-0",
    "retired": False,
    "state": "started",
    "time_created_ns": str(UNIX),
    "timeout_ms": 600000,
}


def dump(*entries: dict[str, Any], **top: Any) -> bytes:
    return json.dumps({"version": "2.10", "pg_status": {}, "entries": entries, **top}).encode()


def test_an_entry_of_gloo_is_read() -> None:
    status = {
        "0": {
            "last_completed_collective": "14",
            "last_enqueued_collective": "15",
            "last_started_collective": "-1",
        }
    }
    found = parse_json(dump(GLOO, pg_status=status))
    assert found.version == "2.10"
    assert found.status == {0: (15, -1, 14)}
    (entry,) = found.entries
    assert (entry.group_name, entry.group_desc, entry.pg_id) == ("0", "default_pg", 0)
    assert (entry.seq, entry.op_id, entry.wire, entry.p2p) == (7, 9, "all_reduce", False)
    assert (entry.dtype, entry.shape) == ("float32", (4, 2))
    assert (entry.state, entry.retired) == ("scheduled", True)
    assert entry.created_unix_ns == UNIX


def test_an_entry_of_nccl_with_numbers_as_strings_is_read() -> None:
    (entry,) = parse_json(dump(NCCL)).entries
    assert (entry.wire, entry.p2p, entry.seq) == ("recv", True, 5)
    assert (entry.src, entry.dst) == (0, 3)
    assert (entry.pg_id, entry.group_desc, entry.dtype) == (2, "pipeline", "bfloat16")
    assert entry.created_unix_ns == UNIX


def test_a_subgroup_that_nobody_described_has_no_description() -> None:
    (entry,) = parse_json(dump({**GLOO, "process_group": ["1", "undefined"]})).entries
    assert entry.group_desc == ""


@pytest.mark.parametrize("raw", [None, 5, [1, -1], ["x"], [[1]]])
def test_split_sizes_that_make_no_sense_are_not_believed(raw: Any) -> None:
    splits = {"input_split_sizes": [1, "2"], "output_split_sizes": raw}
    (entry,) = parse_json(dump({**GLOO, **splits})).entries
    assert (entry.sends, entry.receives) == ((1, 2), ())


def test_a_dump_without_entries_is_read() -> None:
    assert parse_json(b'{"version": "2.5"}') == FlightDump("2.5", ())
    assert parse_json(dump(entries=None)).entries == ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no JSON"),
        (b"\x80\x04}", "no JSON"),
        (b"[]", "no version"),
        (b"{}", "no version"),
        (b'{"version": "2.5", "entries": 5}', "another shape"),
        (b'{"version": "2.5", "entries": ["x"]}', "no object"),
        (b'{"version": "2.5", "pg_status": []}', ""),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_recorder_is_refused(data: bytes, says: str) -> None:
    if says:
        with pytest.raises(FlightError, match=says):
            parse_json(data)
    else:
        assert parse_json(data).status == {}


def test_a_dump_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangwatch.evidence.flight.recorder.MAX_BYTES", 100)
    with pytest.raises(FlightError, match="TORCH_FR_BUFFER_SIZE"):
        parse_json(dump(GLOO))


def test_the_newest_entries_are_kept() -> None:
    entries = [{"collective_seq_id": n} for n in range(MAX_ENTRIES + 5)]
    found = parse_json(dump(*entries))
    assert len(found.entries) == MAX_ENTRIES
    assert found.entries[-1].seq == MAX_ENTRIES + 4


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*GLOO, "entries", "version"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values | st.lists(json_values, max_size=2).map(lambda e: {"version": 1, "entries": e}))
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        found = parse_json(json.dumps(value).encode())
    except FlightError:
        return
    for entry in found.entries:
        assert len(entry.shape) <= 16
        assert len(entry.group_name) <= 200


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(FlightError):
        parse_json(data)


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("nccl:_all_gather_base", "all_gather_into_tensor"),
        ("nccl:_reduce_scatter_base", "reduce_scatter_tensor"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("nccl:ALLTOALL_BASE", "all_to_all_single"),
        ("gloo:barrier", "barrier"),
        ("gloo:recvAnySource", "recv"),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather_into_tensor_coalesced"),
        ("all_reduce", "all_reduce"),
        ("", ""),
    ],
)
def test_operations_have_one_name(name: str, wire: str) -> None:
    assert wire_name(name) == (wire, -1, -1)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("Float", "float32"), ("torch.bfloat16", "bfloat16"), ("Long", "int64"), ("", "")],
)
def test_dtypes_have_one_name(name: str, dtype: str) -> None:
    assert dtype_name(name) == dtype


# --- Merging ------------------------------------------------------------------------------------


def event(seq: int, state: OpState = OpState.DONE, **fields: Any) -> PageEvent:
    """A call that was made ``seq`` seconds after the clock's start."""
    values: dict[str, Any] = {
        "index": seq,
        "slot": 0,
        "op": "all_gather_object",
        "wire": "all_gather",
        "seq": seq,
        "state": state,
        "issued_ns": seq * SECOND,
        "site": SITE,
    }
    return PageEvent(**{**values, **fields})


def entry(seq: int, **fields: Any) -> dict[str, Any]:
    """The recorder's entry of the call that was made ``seq`` seconds after the start."""
    made = {"collective_seq_id": seq, "op_id": seq, "time_created_ns": UNIX + seq * SECOND}
    return {**GLOO, **made, **fields}


def flight(*entries: dict[str, Any]) -> FlightDump:
    return parse_json(dump(*entries))


def test_without_a_recorder_the_page_is_all_there_is() -> None:
    (found,) = rank_ops(page(events=(event(3, OpState.BLOCKED),), groups=(group(),)), None, NOW)
    assert (found.group, found.op, found.wire, found.seq) == (
        WORLD,
        "all_gather_object",
        "all_gather",
        3,
    )
    assert (found.state, found.source, found.site) == (OpState.BLOCKED, "page", SITE)
    assert found.issued_age_s == 997.0
    assert found.blocked_age_s == 997.0


def test_the_page_wins_and_the_recorder_says_what_is_complete() -> None:
    made = page(events=(event(3, OpState.ISSUED),), groups=(group(4, completed=-1),))
    found = rank_ops(made, flight(entry(3)), NOW)
    assert [(op.op, op.state, op.source) for op in found] == [
        ("all_gather_object", OpState.DONE, "page")
    ]


def test_what_only_the_recorder_knows_stands_at_its_time_between_the_pages_calls() -> None:
    made = page(events=(event(2), event(4)), groups=(group(5),))
    found = rank_ops(made, flight(entry(3), entry(2), entry(5, retired=False)), NOW)
    assert [(op.seq, op.source, op.state) for op in found] == [
        (2, "page", OpState.DONE),
        (3, "flight", OpState.DONE),
        (4, "page", OpState.DONE),
        (5, "flight", OpState.ISSUED),
    ]
    assert [op.issued_age_s for op in found] == [998.0, 997.0, 996.0, 995.0]


def test_what_cpp_has_issued_is_at_the_innermost_line_of_the_program() -> None:
    frames = [
        {"name": "backward", "filename": "/opt/venv/lib/python3.12/site-packages/a.py", "line": 9},
        {"name": "step", "filename": "/home/ada/model.py", "line": 30},
        {"name": "main", "filename": "/home/ada/train.py", "line": 7},
    ]
    (found,) = rank_ops(page(groups=(group(3),)), flight(entry(3, frames=frames)), NOW)
    assert found.site == Site("/home/ada/model.py", 30, "step")


def test_without_a_common_call_the_newest_entry_is_as_old_as_the_last_change() -> None:
    made = page(groups=(group(5, changed_ns=900 * SECOND),))
    found = rank_ops(made, flight(entry(4), entry(5)), NOW)
    assert [op.issued_age_s for op in found] == [101.0, 100.0]


def test_without_a_common_call_the_clocks_of_the_node_tell_better_where_they_are_known() -> None:
    made = page(groups=(group(5, changed_ns=5 * SECOND + SECOND // 2),))
    found = rank_ops(made, flight(entry(4), entry(5)), NOW, clock_offset_ns=UNIX)
    assert [op.issued_age_s for op in found] == [996.0, 995.0]


def test_a_clock_that_was_set_meanwhile_is_not_believed() -> None:
    made = page(groups=(group(5, changed_ns=900 * SECOND),))
    found = rank_ops(made, flight(entry(4), entry(5)), NOW, clock_offset_ns=UNIX)
    assert [op.issued_age_s for op in found] == [101.0, 100.0]


def test_a_stuck_call_is_not_done_because_a_later_one_is() -> None:
    made = page(events=(event(3, OpState.ISSUED),), groups=(group(4, completed=4),))
    (stuck, later) = rank_ops(made, flight(entry(3, retired=False), entry(4)), NOW)
    assert (stuck.state, later.state) == (OpState.ISSUED, OpState.DONE)


def test_a_call_that_nobody_waited_for_is_done_once_the_counters_say_so() -> None:
    made = page(events=(event(3, OpState.ISSUED),), groups=(group(4, completed=4),))
    assert rank_ops(made, None, NOW)[0].state is OpState.DONE


@pytest.mark.parametrize(
    ("backend", "state"),
    [("gloo", OpState.DONE), ("nccl", OpState.ISSUED), ("cpu:gloo,cuda:nccl", OpState.ISSUED)],
)
def test_a_call_that_returned_is_done_except_on_a_device(backend: str, state: OpState) -> None:
    made = page(events=(event(3),), groups=(group(4, backend=backend),))
    assert rank_ops(made, flight(entry(3, retired=False)), NOW)[0].state is state
    assert rank_ops(made, flight(entry(3)), NOW)[0].state is OpState.DONE


def test_a_call_that_failed_stays_failed() -> None:
    made = page(events=(event(3, OpState.FAILED),), groups=(group(4),))
    assert rank_ops(made, flight(entry(3)), NOW)[0].state is OpState.FAILED


def test_of_two_groups_of_one_name_the_newer_has_the_higher_id() -> None:
    old = group(2, slot=0, alive=False)
    new = group(3, slot=1, key=GroupKey((0, 1), "default_pg", 1))
    found = rank_ops(
        page(groups=(old, new)), flight(entry(2), entry(3, pg_id=7, retired=False)), NOW
    )
    assert [(op.group.index, op.seq) for op in found] == [(0, 2), (1, 3)]


def test_groups_that_the_page_does_not_know_are_left_out() -> None:
    made = page(groups=(group(2),))
    assert rank_ops(made, flight(entry(2, process_group=["9", "x"])), NOW) == ()


def test_parts_of_a_coalesced_call_share_a_place_and_stand_there_once() -> None:
    parts = [entry(2), entry(2, profiling_name="nccl:coalesced")]
    assert len(rank_ops(page(groups=(group(2),)), flight(*parts), NOW)) == 1


def test_point_to_point_calls_are_the_pages_alone() -> None:
    sent = event(1, p2p=True, op="send", wire="send", peer=1)
    found = rank_ops(page(events=(sent,), groups=(group(2),)), flight({**NCCL}), NOW)
    assert [(op.op, op.peer, op.p2p) for op in found] == [("send", 1, True)]


def kept(entered: int, *lines: int, places: int = 8) -> list[tuple[str, int | None]]:
    """(source, line) of the first and the last call of a group; lines: of its newest calls.

    All are in the recorder, and Python made as many as it entered.
    """
    first = places - len(lines) + 1
    like = {"op": "all_reduce", "wire": "all_reduce", "dtype": "float32", "shape": (4, 2)}
    events = [
        event(first + n, OpState.ISSUED, site=replace(SITE, line=line), **like)
        for n, line in enumerate(lines)
    ]
    mine = group(places, backend="nccl", entered=entered)
    entries = [entry(seq, profiling_name="nccl:all_reduce") for seq in range(1, places + 1)]
    found = rank_ops(page(events=events, groups=(mine,)), flight(*entries), NOW)
    return [(one.source, one.site.line if one.site else None) for one in (found[0], found[-1])]


def test_what_the_page_has_no_room_for_any_more_was_made_where_all_like_it_were() -> None:
    assert kept(8, 20, 20, 20) == [("page", 20), ("page", 20)]
    assert kept(8, 20, 30, 20) == [("page", None), ("page", 20)]
    assert kept(8) == [("page", None), ("page", None)]


def test_where_cpp_made_calls_too_nobody_knows_who_made_the_older_ones() -> None:
    assert kept(6, 20, 20, 20) == [("older", None), ("page", 20)]
    assert kept(3, 20, 20, 20) == [("flight", None), ("page", 20)]
