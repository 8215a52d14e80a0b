"""The Flight Recorder's JSON, of NCCL (``_dump_nccl_trace_json``) and general.

The layout is that of ``dump_json`` in torch/csrc/distributed/c10d/FlightRecorder*:
sequence numbers are numbers, those of ``pg_status`` strings, unset times 0, and
there are no frames. The bytes come from another process and are not trusted:
sizes are bounded, and whatever is no recorder's JSON raises FlightError.
"""

from __future__ import annotations

from typing import Any

import orjson

from hangwatch.errors import FlightError
from hangwatch.flight.names import dtype_name, wire_name
from hangwatch.types import FlightDump, FlightEntry

MAX_BYTES = 64 << 20
MAX_ENTRIES = 20_000
"""The newest are kept. The recorder's default is 2,000 entries of about 450 bytes."""
MAX_TEXT = 200
MAX_DIMS = 16
_MAX_INT = 1 << 63


def parse_json(data: bytes) -> FlightDump:
    """Decode one rank's recorder. Raises FlightError for anything else."""
    if len(data) > MAX_BYTES:
        raise FlightError(
            f"the Flight Recorder dump has {len(data)} bytes, more than {MAX_BYTES}: "
            "use a smaller TORCH_FR_BUFFER_SIZE"
        )
    try:
        top = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FlightError(f"the Flight Recorder dump is no JSON: {error}") from None
    if not isinstance(top, dict) or "version" not in top:
        raise FlightError("the JSON is no Flight Recorder dump: it has no version")
    entries = top.get("entries") or []
    status = top.get("pg_status") or {}
    if not isinstance(entries, list) or not isinstance(status, dict):
        raise FlightError("the Flight Recorder dump has entries or pg_status of another shape")
    return FlightDump(
        version=_text(top["version"]),
        entries=tuple(_entry(entry) for entry in entries[-MAX_ENTRIES:]),
        status=_status(status),
    )


def _entry(raw: Any) -> FlightEntry:
    if not isinstance(raw, dict):
        raise FlightError("an entry of the Flight Recorder dump is no object")
    wire, src, dst = wire_name(_text(raw.get("profiling_name")))
    name, desc = _group(raw.get("process_group"))
    p2p = raw.get("is_p2p") is True
    # Before 2.4 there was one number, seq_id; newer recorders count the kinds apart.
    seq = raw.get("p2p_seq_id" if p2p else "collective_seq_id", raw.get("seq_id"))
    return FlightEntry(
        group_name=name,
        group_desc=desc,
        pg_id=_int(raw.get("pg_id"), -1),
        seq=_int(seq, -1),
        op_id=_int(raw.get("op_id"), -1),
        wire=wire,
        p2p=p2p,
        dtype=dtype_name(_text(_first(raw.get("input_dtypes")))),
        shape=_shape(_first(raw.get("input_sizes"))),
        state=_text(raw.get("state")),
        retired=raw.get("retired") is True,
        created_unix_ns=_int(raw.get("time_created_ns"), 0),
        src=src,
        dst=dst,
    )


def _group(raw: Any) -> tuple[str, str]:
    if not isinstance(raw, list):
        return _text(raw), ""
    name, desc = (*map(_text, raw[:2]), "", "")[:2]
    # What gloo says where nobody gave the group a description.
    return name, "" if desc == "undefined" else desc


def _status(raw: dict[str, Any]) -> dict[int, tuple[int, int, int]]:
    status: dict[int, tuple[int, int, int]] = {}
    for key, value in raw.items():
        pg_id = _int(key, -1)
        if pg_id < 0 or not isinstance(value, dict) or len(status) >= MAX_ENTRIES:
            continue
        status[pg_id] = (
            _int(value.get("last_enqueued_collective"), -1),
            _int(value.get("last_started_collective"), -1),
            _int(value.get("last_completed_collective"), -1),
        )
    return status


def _first(raw: Any) -> Any:
    return raw[0] if isinstance(raw, list) and raw else None


def _shape(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list):
        return ()
    return tuple(_int(size, -1) for size in raw[:MAX_DIMS])


def _text(raw: Any) -> str:
    return raw[:MAX_TEXT] if isinstance(raw, str) else ""


def _int(raw: Any, default: int) -> int:
    """A number that may be written as a string; ``default`` for anything else."""
    if isinstance(raw, bool):
        return default
    if isinstance(raw, str) and len(raw) < 20:  # noqa: PLR2004 (digits of a 64-bit number)
        try:
            raw = int(raw)
        except ValueError:
            return default
    return raw if isinstance(raw, int) and -_MAX_INT <= raw < _MAX_INT else default
