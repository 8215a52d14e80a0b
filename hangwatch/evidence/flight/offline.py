"""Makes the snapshot that diagnose() judges from stored dumps of the Flight Recorder.

A dump tells which calls a rank has handed to its backends, and which of those are
complete. It does not tell what the rank does instead of the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangwatch.evidence.flight.calls import Call, calls, is_open_barrier, peer_of
from hangwatch.evidence.flight.groups import Groups, find_groups
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.flight import FlightDump, FlightEntry
from hangwatch.model.frames import is_user_file
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.snapshot import (
    GroupProgress,
    JobSnapshot,
    OpRecord,
    ProcessState,
    RankSnapshot,
)

_C10D = "/torch/distributed/distributed_c10d.py"
_WRAPPERS = {"wrapper", "_decorator"}
_ALIVE = ProcessState(alive=True)


def job_snapshot(dumps: Mapping[int, FlightDump], taken_unix_ns: Mapping[int, int]) -> JobSnapshot:
    """The job that the ranks' dumps are of.

    taken_unix_ns: when a rank's dump was taken. Without it ages count from the newest
    call of all dumps, so they are too small. Ranks' clocks may differ: an age is
    the difference of two times of one rank wherever that can be.
    """
    newest_ns = max((newest(dump) for dump in dumps.values()), default=0)
    world_size = _world_size(dumps)
    groups = find_groups(dumps, world_size)
    made = {rank: calls(dump) for rank, dump in dumps.items()}
    met = _met(made, groups)
    made = {
        rank: [replace(c, finished=c.finished or _place(c, groups, rank) in met) for c in found]
        for rank, found in made.items()
    }
    job = _Job(
        groups,
        counts_p2p=frozenset(
            groups.by_name[rank][call.first.group_name]
            for rank, found in made.items()
            for call in found
            if call.first.p2p
        ),
        timed=any(c.started and not c.finished for found in made.values() for c in found),
    )
    return JobSnapshot(
        world_size=world_size,
        ranks=tuple(
            _rank(rank, dump, made[rank], job, taken_unix_ns.get(rank, newest_ns))
            for rank, dump in sorted(dumps.items())
        ),
        unseen=_unseen(dumps, groups, met),
    )


def _place(call: Call, groups: Groups, rank: int) -> tuple[GroupKey, int] | None:
    """The place of a barrier of which it may never be told that it is complete."""
    if not is_open_barrier(call):
        return None
    return groups.by_name[rank][call.first.group_name], call.first.seq


def _met(made: Mapping[int, Sequence[Call]], groups: Groups) -> set[tuple[GroupKey, int] | None]:
    """Such barriers that all members have entered: the host may have run them long ago."""
    counts = Counter(_place(call, groups, rank) for rank, found in made.items() for call in found)
    return {place for place, count in counts.items() if place and count >= len(place[0].ranks)}


def newest(dump: FlightDump) -> int:
    """When the newest call of a dump was made, Unix time in ns, 0 if there is none."""
    return max((entry.created_unix_ns for entry in dump.entries), default=0)


def _world_size(dumps: Mapping[int, FlightDump]) -> int:
    members = (max(ranks) for dump in dumps.values() for _, ranks in dump.configs.values() if ranks)
    return max([*dumps, *members], default=-1) + 1


@dataclass(frozen=True, slots=True)
class _Job:
    """What all dumps tell together."""

    groups: Groups
    counts_p2p: frozenset[GroupKey]
    """Groups of which some rank made a point-to-point call: ``pg_status`` counts those too."""
    timed: bool
    """The recorders take the times at which calls begin to run (TORCH_NCCL_ENABLE_TIMING)."""


def _rank(
    rank: int, dump: FlightDump, found: Sequence[Call], job: _Job, now_ns: int
) -> RankSnapshot:
    names = job.groups.by_name[rank]
    by_name: dict[str, list[Call]] = {name: [] for name in names}
    for call in found:
        by_name[call.first.group_name].append(call)
    progress = (
        _progress(name, key, by_name[name], _status(rank, dump, name, job), timed=job.timed)
        for name, key in names.items()
    )
    return RankSnapshot(
        rank=rank,
        node="",
        pid=0,
        phase=Phase.RUNNING,
        process=_ALIVE,
        groups=tuple(group for group in progress if group is not None),
        ops=tuple(
            record
            for call in found
            for record in _records(call, names[call.first.group_name], now_ns, timed=job.timed)
        ),
        flight=True,
        recorder="",
    )


def _status(rank: int, dump: FlightDump, name: str, job: _Job) -> int | None:
    """The last collective of a group by ``pg_status``, None where it counts other things too.

    gloo, which tells no members, counts all operations there.
    """
    pg_id = job.groups.pg_ids[rank].get(name)
    if pg_id not in dump.status or name not in dump.configs:
        return None
    if job.groups.by_name[rank][name] in job.counts_p2p:
        return None
    return max(0, dump.status[pg_id][0])


def _progress(
    name: str, key: GroupKey, found: Sequence[Call], enqueued: int | None, *, timed: bool
) -> GroupProgress | None:
    """How far a rank has come in a group; None where nothing tells."""
    own = [call for call in found if not call.first.p2p]
    if enqueued is None and not found:
        return None
    enqueued = max([enqueued or 0, *(call.first.seq for call in own)])
    # What is no longer, or not, in the recorder is complete.
    pending = [call.first.seq for call in own if not call.finished]
    completed = min(pending) - 1 if pending else enqueued
    running = [call.first.seq for call in own if call.started]
    return GroupProgress(
        key=key,
        name=name,
        enqueued=enqueued,
        completed=completed,
        p2p=sum(len(call.parts) for call in found if call.first.p2p),
        started=max([completed, *running]) if timed else -1,
    )


def _records(call: Call, key: GroupKey, now_ns: int, *, timed: bool) -> Iterable[OpRecord]:
    """A call as the diagnosis sees it: a group of point-to-point calls one by one."""
    begun = call.started if timed else None
    if not call.first.p2p:
        yield _record(call, call.first, call.wire, key, now_ns, begun=begun)
        return
    for part in call.parts:
        if part.src >= 0:
            yield _record(call, part, part.wire, key, now_ns, begun=begun)


def _record(  # noqa: PLR0913 (what becomes one record)
    call: Call, entry: FlightEntry, wire: str, key: GroupKey, now_ns: int, *, begun: bool | None
) -> OpRecord:
    grouped = len(call.entries) > 1 and not entry.p2p
    return OpRecord(
        group=key,
        op=_function(entry.frames) or wire,
        wire=wire,
        seq=entry.seq,
        p2p=entry.p2p,
        state=OpState.DONE if call.finished else OpState.ISSUED,
        dtype="" if grouped else entry.dtype,
        shape=() if grouped else entry.shape,
        peer=peer_of(entry, key),
        is_async=True,
        site=next((s for s in entry.frames if s.line > 0 and is_user_file(s.file)), None),
        issued_age_s=max(0, now_ns - entry.created_unix_ns) / 1e9,
        source="flight",
        device=entry.device,
        begun=begun,
        sends=() if grouped else entry.sends,
        receives=() if grouped else entry.receives,
    )


def _function(frames: Iterable[Site]) -> str:
    """What the user called: the outermost function of torch.distributed on the stack."""
    found = ""
    for frame in frames:
        if is_user_file(frame.file):
            break
        if frame.file.endswith(_C10D) and frame.function not in _WRAPPERS:
            found = frame.function
    return found


def _unseen(
    dumps: Mapping[int, FlightDump], groups: Groups, met: Collection[object]
) -> tuple[str, ...]:
    """What dumps do not tell, for people."""
    found = ["dumps hold calls, not what a rank does instead of one: run hangwatch live for that"]
    if met:
        found.append("whether a barrier that all have entered is complete: it is taken to be")
    if groups.inferred:
        found.append("gloo's dumps do not tell who is in a group: those that used it are taken")
    versions = sorted({dump.version for dump in dumps.values()}, key=_numbers)
    if len(versions) > 1:
        found.append(f"the dumps are of different recorders: {', '.join(versions[:8])}")
    return tuple(found)


def _numbers(version: str) -> tuple[int, ...]:
    """A version to sort by: 2.10 comes after 2.9."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
