"""PyTorch's Flight Recorder, as its reader returns it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hangwatch.model.calls import Site


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One entry of PyTorch's Flight Recorder, ``wire`` without its backend."""

    group_name: str
    group_desc: str
    pg_id: int
    seq: int
    """collective_seq_id, or p2p_seq_id for point-to-point."""
    op_id: int
    wire: str
    p2p: bool
    dtype: str
    shape: tuple[int, ...]
    state: str
    retired: bool
    created_unix_ns: int
    frames: tuple[Site, ...] = ()
    """Innermost first; only in pickled dumps."""
    src: int = -1
    dst: int = -1
    """Ranks within the group, of point-to-point entries that name them (NCCL)."""
    backend: str = ""
    """``nccl``, ``gloo``, ... as its profiling name begins."""
    record: int = -1
    """record_id: how many entries the process had made before."""
    coalescing: int = -1
    """collective_seq_id, also of point-to-point entries."""
    p2p_before: int = 0
    """p2p_seq_id, also of collectives."""
    device: bool = False
    """A device runs it, and not a thread of the host."""
    sends: tuple[int, ...] = ()
    """Of an all_to_all: how many elements go to each member (format 2.11)."""
    receives: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FlightDump:
    """One rank's Flight Recorder."""

    version: str
    entries: tuple[FlightEntry, ...]
    status: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """pg_id to (last enqueued, started, completed), -1 for none. gloo and torch's hooks count
    in op_id, NCCL in the number of the last collective or point-to-point call."""
    configs: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Name of each group that was used to (description, global ranks in the order of the
    group). gloo does not tell."""
