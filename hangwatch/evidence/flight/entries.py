"""PyTorch's Flight Recorder as its reader returns it: entries, and the calls that they make up.

The meaning of an entry depends on its backend:

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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.frames import is_user_file
from hangwatch.model.kinds import OpState
from hangwatch.model.operations import ON_HOST, RECORD_THEMSELVES
from hangwatch.model.snapshot import OpRecord

_NO_STATUS = (-1, -1, -1)


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


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, a point-to-point call, or a group of them that runs as one.

    The parts of a coalesced group (``batch_isend_irecv``) share one number, and only the entry
    that ends the group (``nccl:coalesced``) has events of the device: the parts stay
    ``scheduled`` for ever (ProcessGroupNCCL.cpp, pointToPoint and endCoalescing;
    pytorch/pytorch#137969). A dump of active entries only leaves that end out once the
    group is complete, and keeps the parts, as if they were still under way.
    """

    entries: tuple[FlightEntry, ...]
    """In the order in which they were recorded."""
    finished: bool
    started: bool
    """It was seen to run; only known where the recorder takes the times."""
    timed: bool = False
    """The recorder takes them (TORCH_NCCL_ENABLE_TIMING)."""

    @property
    def first(self) -> FlightEntry:
        """The entry that stands for all of it."""
        return self.entries[0]

    @property
    def begun(self) -> bool | None:
        """True if its device has reached it; None where that is not known."""
        return self.started or (False if self.timed and self.first.device else None)

    @property
    def parts(self) -> tuple[FlightEntry, ...]:
        """Its entries but the one that only ends a group."""
        named = tuple(entry for entry in self.entries if entry.wire != "coalesced")
        return named or self.entries

    @property
    def wire(self) -> str:
        """Its operation; a group of collectives is named by how it ends."""
        return self.entries[-1].wire

    @property
    def is_open_barrier(self) -> bool:
        """True for a barrier whose completion may never be recorded.

        In a group of two backends the host may have run it, of which a hook does not hear.
        """
        return self.wire == "barrier" and self.first.is_hooked and not self.finished

    def record(
        self, entry: FlightEntry, key: GroupKey, issued_age_s: float, program: str = ""
    ) -> OpRecord:
        """Return what the recorder alone knows of one of its entries.

        key: of its group. program: as in Identity (model/page.py).
        """
        return OpRecord(
            group=key,
            op=entry.wire,
            wire=entry.wire,
            seq=entry.seq,
            p2p=entry.p2p,
            state=OpState.DONE if self.finished else OpState.ISSUED,
            dtype=entry.dtype,
            shape=entry.shape,
            peer=entry.peer(key),
            is_async=True,
            site=next(
                (s for s in entry.frames if s.line > 0 and is_user_file(s.file, program)), None
            ),
            issued_age_s=issued_age_s,
            source="flight",
            device=entry.device,
            begun=self.begun if entry.device else None,
            sends=entry.sends,
            receives=entry.receives,
        )


def calls(dump: FlightDump, *, of_all_groups: bool = False) -> list[Call]:
    """Return the calls of a dump, oldest first; of a name that was used again the newest group's.

    Where completion will never be known, only the last call of a group is returned: the rank
    may be at it.
    """
    newest: dict[str, int] = {}
    last: dict[int, int] = {}
    for entry in dump.entries:
        newest[entry.group_name] = max(newest.get(entry.group_name, -1), entry.pg_id)
        last[entry.pg_id] = max(last.get(entry.pg_id, 0), 0 if entry.p2p else entry.seq)
    groups: dict[tuple[int, bool, int, int], list[FlightEntry]] = {}
    for entry in dump.entries:
        newer = entry.pg_id == newest[entry.group_name]
        shown = not entry.is_silent or (not entry.p2p and entry.seq == last[entry.pg_id])
        if shown and (entry.seq >= 1 or entry.p2p) and (newer or of_all_groups):
            key = entry.pg_id, entry.p2p, entry.seq, entry.coalescing if entry.p2p else 0
            groups.setdefault(key, []).append(entry)
    context = _context(dump, {key[0] for key, entries in groups.items() if _is_group(entries)})
    return [
        Call(
            tuple(entries),
            _is_finished(context, entries),
            started=any(entry.state in ("started", "completed") for entry in entries),
            timed=dump.status.get(entries[0].pg_id, _NO_STATUS)[1] >= 0,
        )
        for entries in groups.values()
    ]


@dataclass(frozen=True, slots=True)
class _Context:
    """The facts of a dump that decide which of its calls are complete."""

    status: Mapping[int, tuple[int, int, int]]
    whole: bool
    """It has complete entries too."""
    records: set[int]
    mixed: set[int]
    """Groups (pg_id) with collectives and point-to-point calls: their status counts both."""
    batching: set[int]
    """Groups with coalesced calls."""
    reached: Mapping[int, int]
    """pg_id to the last collective that a hook knows to be complete."""


def _context(dump: FlightDump, batching: set[int]) -> _Context:
    kinds: dict[int, set[bool]] = defaultdict(set)
    reached: dict[int, int] = {}
    for entry in dump.entries:
        kinds[entry.pg_id].add(entry.p2p)
        if entry.is_hooked and not entry.p2p and entry.state == "completed":
            reached[entry.pg_id] = max(reached.get(entry.pg_id, 0), entry.seq)
    return _Context(
        dump.status,
        whole=any(entry.is_complete for entry in dump.entries),
        records={entry.record for entry in dump.entries},
        mixed={pg_id for pg_id, seen in kinds.items() if len(seen) > 1},
        batching=batching,
        reached=reached,
    )


def _is_group(entries: Sequence[FlightEntry]) -> bool:
    return len(entries) > 1 or "coalesced" in entries[-1].wire


def _is_finished(context: _Context, entries: Sequence[FlightEntry]) -> bool:
    last = entries[-1]
    if any(entry.is_complete for entry in entries):
        return True
    if last.is_hooked and last.wire == "barrier":
        # The host may have run it; a rank that has gone on has left it.
        return last.seq < context.reached.get(last.pg_id, 0)
    if last.is_hooked or not last.device or "coalesced" in last.wire:
        return False
    # The entry that ends a group directly follows its parts: this one is no part.
    if len(entries) == 1 and (context.whole or last.record + 1 in context.records):
        return False
    completed = context.status.get(last.pg_id, _NO_STATUS)[2]
    if completed >= 0 and last.pg_id not in context.mixed:
        return completed >= last.seq
    return _is_group(entries) or (last.p2p and last.pg_id in context.batching)
