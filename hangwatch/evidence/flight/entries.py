"""PyTorch's Flight Recorder as its reader returns it, and how its entries depend on the backend.

===============  ====================  =====================  ==============================
backend          recorded by           numbers of a group     a call is complete
===============  ====================  =====================  ==============================
gloo             itself                collectives; no p2p    once it is retired
nccl, xccl       itself                collectives and p2p    in the state ``completed``, or
                                       apart; coalesced       by the status of its group
                                       calls have one
any other        a hook of torch's,    collectives and p2p    in the state ``completed``,
                 from 2.15 on          apart; ``op_id``       which a batched p2p call has as
                                       counts all             soon as it is issued
===============  ====================  =====================  ==============================

Sources: torch/csrc/distributed/c10d, ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp,
hooks/FlightRecorderHook.cpp, nccl2/ProcessGroupNCCLBackend.cpp. A hook counts no call that is
captured into a graph, which the backend counts; ``op_id`` is made before that is known, and counts
what other backends of the group run too. A barrier has no tensor to show where it runs: the hook
takes it for one of the group's default backend. Where the backend does not report completion,
the hook retires a call as soon as it is issued, in the state ``scheduled``. Of p2p calls the page
knows better (merge.py); a dump alone has nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.operations import ON_HOST, RECORD_THEMSELVES


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

    @property
    def is_hooked(self) -> bool:
        """True if a hook of torch's recorded it, since its backend records none."""
        return is_hooked(self.backend)

    @property
    def is_silent(self) -> bool:
        """True if it will never be known when it is complete: its backend does not report it."""
        return self.is_hooked and self.retired and self.state != "completed"

    @property
    def is_complete(self) -> bool:
        """True if the entry itself shows that it is complete.

        gloo retires entries and knows no states. On a device an entry that is retired and
        not complete was aborted.
        """
        host_alone = not self.device and not self.is_hooked
        return self.state == "completed" or (self.retired and host_alone)

    def peer(self, key: GroupKey) -> int:
        """Return the other rank of a point-to-point call, which names ranks in the group; else -1.

        key: the group that it is of.
        """
        local = self.dst if self.wire == "send" else self.src
        return key.ranks[local] if self.p2p and 0 <= local < len(key.ranks) else -1


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
    group). gloo has none."""


def is_hooked(backend: str) -> bool:
    """True if a hook of torch's records the calls of a backend."""
    return backend != "" and backend not in RECORD_THEMSELVES


def runs_on_device(backend: str) -> bool:
    """True if a device runs a backend's calls; an unknown backend is taken to use one."""
    return backend != "" and backend not in ON_HOST
