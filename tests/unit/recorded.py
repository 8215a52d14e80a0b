"""Flight Recorder dumps for tests, entry by entry, as plain values."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from hangwatch.evidence.flight import parse_dump

if TYPE_CHECKING:
    from hangwatch.evidence.flight.entries import FlightDump

UNIX = 1_760_000_000 * 10**9
SECOND = 10**9


def entry(seq: int, name: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """An unfinished call of the default group, made ``seq`` seconds after the start."""
    p2p = "send" in name or "recv" in name
    return {
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 0 if p2p else seq,
        "p2p_seq_id": seq if p2p else 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": UNIX + seq * SECOND,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": p2p,
        **changes,
    }


def done(seq: int, name: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """A call that is complete."""
    return entry(seq, name, **{"state": "completed", "retired": True, **changes})


def config(**groups: tuple[str, list[int]]) -> dict[str, Any]:
    """``pg_config`` of groups named g0, g1, ...: (description, ranks)."""
    return {
        name.removeprefix("g"): {"name": name, "desc": desc, "ranks": str(ranks)}
        for name, (desc, ranks) in groups.items()
    }


def status(**last: tuple[int, int]) -> dict[str, Any]:
    """``pg_status`` of pg_ids named p0, p1, ...: (last enqueued, last completed)."""
    return {
        name.removeprefix("p"): {
            "last_enqueued_collective": enqueued,
            "last_started_collective": -1,
            "last_completed_collective": completed,
        }
        for name, (enqueued, completed) in last.items()
    }


def plain(*entries: dict[str, Any], **top: Any) -> dict[str, Any]:
    """All of a dump; of two ranks unless ``pg_config`` says otherwise."""
    return {
        "version": "2.9",
        "pg_config": config(g0=("default_pg", [0, 1])),
        "pg_status": {},
        "entries": list(entries),
        **top,
    }


def dumped(*entries: dict[str, Any], **top: Any) -> FlightDump:
    """The same, as it is read."""
    return parse_dump(pickle.dumps(plain(*entries, **top), protocol=2))
