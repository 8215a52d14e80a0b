"""Sends and recvs on NCCL: the page tells where they were made, the recorder what became of them.

The recorder's entries are made after pointToPoint and endCoalescing in ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from made_pages import SITE, event, group, page

from hangwatch.diagnosis import diagnose
from hangwatch.evidence.flight import job_snapshot, newest, parse_json, rank_ops
from hangwatch.evidence.flight.entries import calls
from hangwatch.evidence.snapshot import rank_snapshot
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Kind, OpState
from hangwatch.model.snapshot import JobSnapshot, OpRecord, ProcessState, RankSnapshot, Thresholds

if TYPE_CHECKING:
    from hangwatch.evidence.flight.entries import FlightDump
    from hangwatch.model.page import PageEvent

NOW = time.monotonic_ns()
SECOND = 10**9
UNIX = 1_795_220_735 * SECOND
DONE, ISSUED = OpState.DONE, OpState.ISSUED


def made(seq: int, wire: str, peer: int, age_s: float, **changes: Any) -> PageEvent:
    """A call of the program's, which on NCCL has returned at once."""
    at_ns = NOW - int(age_s * SECOND)
    values = {"wire": wire, "op": wire, "p2p": True, "peer": peer, "issued_ns": at_ns}
    return event(seq, **{"state": ISSUED, **values, **changes})


def recorded(*calls: tuple[str, int, str, float], rank: int = 0) -> FlightDump:
    """(operation, its batch or call, state, age): NCCL's recorder of a rank of two."""
    peer = 1 - rank
    names = {
        "send": f"nccl:send {rank}->{peer}",
        "recv": f"nccl:recv {rank}<-{peer}",
        "end": "nccl:coalesced",
    }
    entries = [
        {
            "process_group": ["0", "default_pg"],
            "pg_id": 0,
            "record_id": index,
            "collective_seq_id": 0,
            "op_id": index,
            "profiling_name": names[wire],
            "time_created_ns": UNIX - int(age_s * SECOND),
            "state": state,
            "retired": state == "completed",
            "is_p2p": True,
            "p2p_seq_id": seq,
        }
        for index, (wire, seq, state, age_s) in enumerate(calls)
    ]
    return parse_json(json.dumps({"version": "2.10", "entries": entries}).encode())


def ops(flight: FlightDump, *events: PageEvent) -> tuple[OpRecord, ...]:
    nccl = group(0, backend="nccl", completed=0, p2p=len(events))
    return rank_ops(page(events=events, groups=(nccl,)), flight, NOW, UNIX - NOW)


def test_what_is_complete_the_recorder_tells_and_the_line_the_page() -> None:
    flight = recorded(
        ("send", 1, "completed", 9.0), ("recv", 2, "completed", 8.0), ("recv", 3, "scheduled", 5.0)
    )
    found = ops(flight, made(2, "recv", 1, 8.0), made(3, "recv", 1, 5.0, site=SITE))
    assert [(one.wire, one.seq, one.state, one.peer) for one in found] == [
        ("send", 1, DONE, 1),
        ("recv", 2, DONE, 1),
        ("recv", 3, ISSUED, 1),
    ]
    assert [one.source for one in found] == ["flight", "page", "page"]
    assert [round(one.issued_age_s) for one in found] == [9, 8, 5]
    assert found[2].site == SITE
    assert all(one.device for one in found)


def test_a_batch_is_as_complete_as_its_end() -> None:
    events = [made(1, "send", 1, 9.0), made(2, "recv", 1, 9.0)]
    parts = ("send", 1, "scheduled", 9.0), ("recv", 1, "scheduled", 9.0)
    for state, expected in (("completed", DONE), ("scheduled", ISSUED)):
        found = ops(recorded(*parts, ("end", 1, state, 9.0)), *events)
        assert [(one.seq, one.state) for one in found] == [(1, expected), (1, expected)]


def test_what_the_program_has_made_since_is_kept() -> None:
    flight = recorded(("send", 1, "completed", 9.0))
    found = ops(flight, made(1, "send", 1, 9.0), made(2, "recv", 1, 1.0))
    assert [(one.wire, one.state, one.device) for one in found] == [
        ("send", DONE, True),
        ("recv", ISSUED, False),
    ]


def test_what_the_program_is_inside_of_is_kept() -> None:
    inside = made(1, "recv", 1, 12.0, state=OpState.BLOCKED)  # on gloo, in a thread of its own
    found = ops(recorded(("send", 1, "completed", 9.0)), inside, made(2, "send", 1, 9.0))
    assert [(one.wire, one.state) for one in found] == [("recv", OpState.BLOCKED), ("send", DONE)]


def test_what_does_not_pair_is_not_lost() -> None:
    found = ops(recorded(("send", 1, "completed", 9.0)), made(1, "recv", 1, 9.0))
    assert [(one.wire, one.source) for one in found] == [("send", "flight"), ("recv", "page")]


def snapshot(rank: int, flight: FlightDump, *events: PageEvent) -> RankSnapshot:
    nccl = group(0, backend="nccl", completed=0, p2p=len(events))
    alive = ProcessState(alive=True, state="S")
    made_page = page(rank, events=events, groups=(nccl,), pid=100 + rank, pending_since_ns=1)
    return rank_snapshot(made_page, alive, "node-a", NOW, clock_offset_ns=UNIX - NOW, flight=flight)


def test_a_recv_whose_send_does_not_come_names_the_rank_that_does_not_send() -> None:
    before = ("completed", 60.0)
    waiting = snapshot(
        0,
        recorded(("recv", 1, *before), ("recv", 2, "scheduled", 30.0)),
        made(1, "recv", 1, 60.0),
        made(2, "recv", 1, 30.0, site=Site("/home/me/train.py", 7, "pipeline")),
    )
    silent = snapshot(1, recorded(("send", 1, *before), rank=1), made(1, "send", 0, 60.0))
    job = JobSnapshot(2, (waiting, silent))
    verdict = diagnose(job, Thresholds(5.0, 10.0))[0]
    assert verdict.kind is Kind.MISSING_PEER
    assert (verdict.culprits, verdict.victims) == ((1,), (0,))
    assert verdict.victim_site is not None
    assert verdict.victim_site.line == 7


def test_nothing_waits_where_all_is_complete() -> None:
    ranks = [
        snapshot(
            rank, recorded((wire, 1, "completed", 60.0), rank=rank), made(1, wire, 1 - rank, 60.0)
        )
        for rank, wire in enumerate(("recv", "send"))
    ]
    verdict = diagnose(JobSnapshot(2, tuple(ranks)), Thresholds(5.0, 10.0))[0]
    assert verdict.kind is None


REAL = Path(__file__).parent / "dumps" / "nccl"
"""The last calls of three ranks on an H200, by torch 2.11 and NCCL 2.32: in each step they turn a
ring twice, and then reduce a sum. Rank 1 has turned it once in the last step."""


def test_the_end_of_a_batch_that_is_called_no_part_of_it_tells_what_is_complete() -> None:
    dumps = {int(path.stem[-1]): parse_json(path.read_bytes()) for path in REAL.iterdir()}
    ended = {r: [(c.first.seq, c.finished) for c in calls(d)][-3:] for r, d in dumps.items()}
    assert ended == {
        0: [(45, True), (46, True), (23, False)],
        1: [(22, True), (45, True), (23, False)],
        2: [(45, True), (46, False), (23, False)],
    }
    later = dict.fromkeys(dumps, max(map(newest, dumps.values())) + 100 * SECOND)
    (verdict, *_) = diagnose(job_snapshot(dumps, later), Thresholds(5.0, 30.0))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (1,))
