"""Decodes dumps of c10d's recorders, with one name for each operation and dtype.

The layout is that of ``dump_json`` and ``dump_dict`` in
torch/csrc/distributed/c10d/FlightRecorder*: in JSON the numbers of ``pg_status`` are
strings, unset times 0, and there are no frames; pickles have numbers, None, and frames
where they were asked for. The bytes come from another process and are not trusted: sizes
are bounded, and whatever is no recorder's dump raises FlightError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from hangwatch.errors import FlightError
from hangwatch.evidence.flight import pickled
from hangwatch.evidence.flight.entries import FlightDump, FlightEntry, is_hooked, runs_on_device
from hangwatch.evidence.flight.join import join_recorders
from hangwatch.model.calls import Site
from hangwatch.model.operations import WIRES

MAX_BYTES = 64 << 20
MAX_ENTRIES = 20_000
"""The newest are kept. The recorder's default is 2,000 entries of about 450 bytes."""
MAX_TEXT = 200
MAX_DIMS = 16
MAX_FRAMES = 128
"""Innermost frames of one entry."""
MAX_MEMBERS = 1 << 20
"""Ranks that a dump's groups name, all groups together."""
MAX_PATH = 4096
MAX_RECORDERS = 20
_MAX_INT = 1 << 63
_NUMBER = re.compile(r"\b\d{1,9}\b")

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
    "complexhalf": "complex32",
}
"""Names of c10::ScalarType (c10/core/ScalarType.h), lower case, as torch.dtype."""

_PEERS = re.compile(r"^(send|recv) +(\d{1,9}) *(->|<-) *(\d{1,9}|\?)$")


def wire_name(profiling_name: str) -> tuple[str, int, int]:
    """Return (operation, source, destination) of a recorder's ``profiling_name``.

    ``nccl:send 0->3`` and ``nccl:recv 3<-0`` name ranks local to the group
    (ProcessGroupNCCL.cpp, pointToPoint); elsewhere both are -1, and so is a source that may be
    any (``<-?``, FlightRecorderHook.cpp).
    """
    bare = profiling_name.partition(":")[2] or profiling_name
    peers = _PEERS.match(bare)
    if peers:
        left, right = int(peers[2]), -1 if peers[4] == "?" else int(peers[4])
        return (peers[1], left, right) if peers[3] == "->" else (peers[1], right, left)
    name = bare.strip().lower()
    return WIRES.get(name, name), -1, -1


def dtype_name(name: str) -> str:
    """Return a dtype as torch prints it without its ``torch.``: ``Float`` is ``float32``."""
    bare = name.removeprefix("torch.").lower()
    return _DTYPES.get(bare, bare)


def parse_dump(data: bytes, keep: int = MAX_ENTRIES) -> FlightDump:
    """Decode one rank's recorder, pickled or JSON. Raises FlightError for anything else.

    keep: number of entries that are kept, the newest.
    """
    if not pickled.is_pickle(data):
        return parse_json(data, keep)
    _check_size(data)
    return _dump(pickled.load(data), keep)


def parse_json(data: bytes, keep: int = MAX_ENTRIES) -> FlightDump:
    """Decode one rank's recorders, each on a line (see agent/sample/flight.py).

    Raises FlightError for anything else.
    """
    _check_size(data)
    if data.count(b"[") + data.count(b"{") > pickled.MAX_CONTAINERS:
        raise FlightError(f"the JSON has more than {pickled.MAX_CONTAINERS} lists and objects")
    try:
        return _dump(orjson.loads(data), keep)
    except orjson.JSONDecodeError as error:
        lines = [line for line in data.split(b"\n", MAX_RECORDERS) if line.strip()]
        if not 1 < len(lines) <= MAX_RECORDERS:
            raise FlightError(f"the Flight Recorder dump is no JSON: {error}") from None
    try:
        return join_recorders([_dump(orjson.loads(line), keep) for line in lines])
    except orjson.JSONDecodeError as error:
        raise FlightError(f"the Flight Recorder dumps are no JSON: {error}") from None


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise FlightError(
            f"the Flight Recorder dump has {len(data)} bytes, more than {MAX_BYTES}: "
            "use a smaller TORCH_FR_BUFFER_SIZE"
        )


def _dump(top: Any, keep: int) -> FlightDump:
    if not isinstance(top, dict) or "version" not in top:
        raise FlightError("it is no Flight Recorder dump: it has no version")
    entries = top.get("entries") or []
    status = top.get("pg_status") or {}
    if not isinstance(entries, list) or not isinstance(status, dict):
        raise FlightError("the Flight Recorder dump has entries or pg_status of another shape")
    sites: dict[tuple[str, int, str], Site] = {}
    return FlightDump(
        version=_text(top["version"]),
        entries=tuple(
            _with_ends(_entry(entry, sites) for entry in entries[-min(keep, MAX_ENTRIES) :])
        ),
        status=_status(status),
        configs=_configs(top.get("pg_config")),
    )


def _with_ends(entries: Iterable[FlightEntry]) -> Iterator[FlightEntry]:
    """Yield the entries, with the end of a batch of sends and recvs marked as one of them.

    NCCL's recorder does not (2.11, seen on a GPU), and numbers it as the collective before.
    """
    last: dict[int, FlightEntry] = {}
    for entry in entries:
        part = last.get(entry.pg_id) if entry.wire == "coalesced" and not entry.p2p else None
        whole = entry
        if part is not None and part.p2p and part.op_id == entry.op_id:
            whole = replace(entry, p2p=True, seq=part.seq)
        last[entry.pg_id] = whole
        yield whole


def _entry(raw: Any, sites: dict[tuple[str, int, str], Site]) -> FlightEntry:
    if not isinstance(raw, dict):
        raise FlightError("an entry of the Flight Recorder dump is no object")
    title = _text(raw.get("profiling_name"))
    wire, src, dst = wire_name(title)
    name, desc = _group(raw.get("process_group"))
    p2p = raw.get("is_p2p") is True
    # Before 2.4 there was one number, seq_id; newer recorders count the kinds separately.
    seq = _int(raw.get("p2p_seq_id" if p2p else "collective_seq_id", raw.get("seq_id")), -1)
    op_id, p2p_before = _int(raw.get("op_id"), -1), _int(raw.get("p2p_seq_id"), 0)
    backend = title.partition(":")[0] if ":" in title else ""
    if is_hooked(backend) and not p2p and op_id >= 0:
        seq = op_id + 1 - p2p_before  # as its backend counts: with captured calls
    return FlightEntry(
        group_name=name,
        group_desc=desc,
        pg_id=_int(raw.get("pg_id"), -1),
        seq=seq,
        op_id=op_id,
        wire=wire,
        p2p=p2p,
        dtype=dtype_name(_text(_first(raw.get("input_dtypes")))),
        shape=_shape(_first(raw.get("input_sizes"))),
        state=_text(raw.get("state")),
        retired=raw.get("retired") is True,
        created_unix_ns=_int(raw.get("time_created_ns"), 0),
        frames=_frames(raw.get("frames"), sites),
        src=src,
        dst=dst,
        backend=backend,
        record=_int(raw.get("record_id"), -1),
        coalescing=_int(raw.get("collective_seq_id"), -1),
        p2p_before=p2p_before,
        device=runs_on_device(backend),
        sends=_splits(raw.get("input_split_sizes")),
        receives=_splits(raw.get("output_split_sizes")),
    )


def _frames(raw: Any, sites: dict[tuple[str, int, str], Site]) -> tuple[Site, ...]:
    """Return the stack of an entry. ``sites``: those of the dump so far, which repeat a lot."""
    stack = []
    for frame in raw[:MAX_FRAMES] if isinstance(raw, list) else ():
        if not isinstance(frame, dict):
            continue
        file, name = frame.get("filename"), frame.get("name")
        key = (
            file[:MAX_PATH] if isinstance(file, str) else "",
            _int(frame.get("line"), 0),
            _text(name),
        )
        if key not in sites:
            sites[key] = Site(*key)
        stack.append(sites[key])
    return tuple(stack)


def _configs(raw: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """``pg_config``: {name: {name, desc, ranks: "[0, 1]"}}. gloo leaves all of it empty."""
    configs: dict[str, tuple[str, tuple[int, ...]]] = {}
    room = MAX_MEMBERS
    for name, config in raw.items() if isinstance(raw, dict) else ():
        if not isinstance(name, str) or not isinstance(config, dict):
            continue
        ranks = config.get("ranks")
        members = _members(ranks) if isinstance(ranks, str) else _listed(ranks)
        room -= 1 + len(members)
        if room < 0:
            break
        if members:
            configs[name[:MAX_TEXT]] = (_desc(_text(config.get("desc"))), members)
    return configs


@lru_cache(maxsize=64)
def _members(text: str) -> tuple[int, ...]:
    """Return the ranks of ``[0, 1]``; the same object for the same group of many ranks."""
    return _listed([int(digits) for digits in _NUMBER.findall(text[: 8 * MAX_MEMBERS])])


def _listed(raw: Any) -> tuple[int, ...]:
    """Return a list of distinct ranks; empty for anything else."""
    numbers = [_int(rank, -1) for rank in raw] if isinstance(raw, list | tuple) else []
    sane = len(numbers) <= MAX_MEMBERS and all(0 <= rank < MAX_MEMBERS for rank in numbers)
    return tuple(numbers) if sane and len(set(numbers)) == len(numbers) else ()


def _group(raw: Any) -> tuple[str, str]:
    if not isinstance(raw, list | tuple):
        return _text(raw), ""
    name, desc = (*map(_text, raw[:2]), "", "")[:2]
    return name, _desc(desc)


def _desc(desc: str) -> str:
    """Return a description; ``undefined`` stands for none."""
    return "" if desc == "undefined" else desc


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


def _splits(raw: Any) -> tuple[int, ...]:
    """Return the sizes that go to each member or come from it; empty for anything else."""
    if not isinstance(raw, list) or len(raw) > MAX_MEMBERS:
        return ()
    sizes = tuple(_int(size, -1) for size in raw)
    return sizes if min(sizes, default=-1) >= 0 else ()


def _text(raw: Any) -> str:
    return raw[:MAX_TEXT] if isinstance(raw, str) else ""


def _int(raw: Any, default: int) -> int:
    """Return a number that may be written as a string; ``default`` for anything else."""
    if isinstance(raw, bool):
        return default
    if isinstance(raw, str) and len(raw) < 20:  # noqa: PLR2004 (digits of a 64-bit number)
        try:
            raw = int(raw)
        except ValueError:
            return default
    return raw if isinstance(raw, int) and -_MAX_INT <= raw < _MAX_INT else default
