"""Makes the snapshot that diagnose() judges from stored dumps of the Flight Recorder.

A dump shows which calls a rank has handed to its backends, and which of them are
complete. It does not show what the rank does instead of the next one.

A group's name is a counter of the process: with ``split_group`` one group has several
names, and one name is several groups. Its members and description are the same on
all of them, and its place among the groups with the same ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hangwatch.evidence.flight.entries import Call, FlightDump, calls
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.frames import is_user_file
from hangwatch.model.kinds import Phase
from hangwatch.model.snapshot import (
    GroupProgress,
    JobSnapshot,
    OpRecord,
    ProcessState,
    RankSnapshot,
)

DEFAULT = "default_pg"
_LATE = 1 << 62
_C10D = "/torch/distributed/distributed_c10d.py"
_WRAPPERS = {"wrapper", "_decorator"}
_ALIVE = ProcessState(alive=True)

_Config = tuple[str, tuple[int, ...]]
"""Description and members of a group."""


def job_snapshot(dumps: Mapping[int, FlightDump], taken_unix_ns: Mapping[int, int]) -> JobSnapshot:
    """Return the job that the ranks' dumps are of.

    taken_unix_ns: when a rank's dump was taken. Without it ages count from the newest
    call of all dumps, so they are too small. Ranks' clocks may differ: an age is
    the difference of two times of one rank wherever that can be.
    """
    newest_ns = max((newest(dump) for dump in dumps.values()), default=0)
    world_size = _world_size(dumps)
    groups = _find_groups(dumps, world_size)
    made = {rank: calls(dump) for rank, dump in dumps.items()}
    complete = _complete_barriers(made, groups)
    made = {
        rank: [
            replace(call, finished=call.finished or _barrier(call, groups, rank) in complete)
            for call in of_rank
        ]
        for rank, of_rank in made.items()
    }
    job = _Job(
        groups,
        counts_p2p=frozenset(
            groups.keys[rank][call.first.group_name]
            for rank, of_rank in made.items()
            for call in of_rank
            if call.first.p2p
        ),
        timed=any(c.started and not c.finished for of_rank in made.values() for c in of_rank),
    )
    return JobSnapshot(
        world_size=world_size,
        ranks=tuple(
            _rank(rank, dump, made[rank], job, taken_unix_ns.get(rank, newest_ns))
            for rank, dump in sorted(dumps.items())
        ),
        unseen=_unseen(dumps, inferred=groups.inferred, barriers=bool(complete)),
    )


def newest(dump: FlightDump) -> int:
    """Return when the newest call of a dump was made, Unix time in ns, 0 if there is none."""
    return max((entry.created_unix_ns for entry in dump.entries), default=0)


def _world_size(dumps: Mapping[int, FlightDump]) -> int:
    members = (max(ranks) for dump in dumps.values() for _, ranks in dump.configs.values() if ranks)
    return max([*dumps, *members], default=-1) + 1


@dataclass(frozen=True, slots=True)
class _Groups:
    """The groups of all dumps."""

    keys: dict[int, dict[str, GroupKey]]
    """Rank to a group's name there to its key."""
    pg_ids: dict[int, dict[str, int]]
    """Rank to a group's name there to its pg_id, where that is known."""
    inferred: bool
    """Members are the ranks that were seen in it: the dumps have no list of them (gloo)."""


@dataclass(frozen=True, slots=True)
class _Job:
    """The facts that all dumps show together."""

    groups: _Groups
    counts_p2p: frozenset[GroupKey]
    """Groups of which some rank made a point-to-point call: ``pg_status`` counts those too."""
    timed: bool
    """The recorders take the times at which calls begin to run (TORCH_NCCL_ENABLE_TIMING)."""


_Barrier = tuple[GroupKey, int]


def _barrier(call: Call, groups: _Groups, rank: int) -> _Barrier | None:
    """Return group and number of a barrier whose completion may never be recorded, else None."""
    if not call.is_open_barrier:
        return None
    return groups.keys[rank][call.first.group_name], call.first.seq


def _complete_barriers(made: Mapping[int, Sequence[Call]], groups: _Groups) -> set[_Barrier | None]:
    """Return the barriers that all members have entered: the host may have run them long ago."""
    counts = Counter(_barrier(call, groups, rank) for rank, own in made.items() for call in own)
    return {key for key, count in counts.items() if key and count >= len(key[0].ranks)}


def _rank(
    rank: int, dump: FlightDump, made: Sequence[Call], job: _Job, now_ns: int
) -> RankSnapshot:
    keys = job.groups.keys[rank]
    by_name: dict[str, list[Call]] = {name: [] for name in keys}
    for call in made:
        by_name[call.first.group_name].append(call)
    progress = (
        _progress(name, key, by_name[name], _enqueued(rank, dump, name, job), timed=job.timed)
        for name, key in keys.items()
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
            for call in made
            for record in _records(call, keys[call.first.group_name], now_ns, timed=job.timed)
        ),
        flight=True,
        recorder="",
    )


def _enqueued(rank: int, dump: FlightDump, name: str, job: _Job) -> int | None:
    """Return a group's last collective by ``pg_status``, None where it counts other things too.

    gloo, which has no list of members, counts all operations there.
    """
    pg_id = job.groups.pg_ids[rank].get(name)
    if pg_id not in dump.status or name not in dump.configs:
        return None
    if job.groups.keys[rank][name] in job.counts_p2p:
        return None
    return max(0, dump.status[pg_id][0])


def _progress(
    name: str, key: GroupKey, made: Sequence[Call], enqueued: int | None, *, timed: bool
) -> GroupProgress | None:
    """Return how far a rank has come in a group; None where that is not known."""
    own = [call for call in made if not call.first.p2p]
    if enqueued is None and not made:
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
        p2p=sum(len(call.parts) for call in made if call.first.p2p),
        started=max([completed, *running]) if timed else -1,
    )


def _records(call: Call, key: GroupKey, now_ns: int, *, timed: bool) -> Iterable[OpRecord]:
    """Yield a call as the diagnosis sees it: a group of point-to-point calls one by one."""
    p2p = call.first.p2p
    parts = [part for part in call.parts if part.src >= 0] if p2p else [call.first]
    for part in parts:
        wire = part.wire if p2p else call.wire
        record = replace(
            call.record(part, key, max(0, now_ns - part.created_unix_ns) / 1e9),
            op=_function(part.frames) or wire,
            wire=wire,
            begun=call.started if timed else None,
        )
        if len(call.entries) > 1 and not p2p:
            record = replace(record, dtype="", shape=(), sends=(), receives=())
        yield record


def _function(frames: Iterable[Site]) -> str:
    """Return what the user called: the outermost function of torch.distributed on the stack."""
    function = ""
    for frame in frames:
        if is_user_file(frame.file):
            break
        if frame.file.endswith(_C10D) and frame.function not in _WRAPPERS:
            function = frame.function
    return function


def _unseen(dumps: Mapping[int, FlightDump], *, inferred: bool, barriers: bool) -> tuple[str, ...]:
    """Return what dumps do not show, for people."""
    unseen = ["dumps hold only calls: run hangwatch live to see what a rank does instead of one"]
    if barriers:
        unseen.append("a barrier that all ranks have entered is assumed to be complete")
    if inferred:
        unseen.append(
            "gloo's dumps list no members of groups: the ranks that used a group are assumed"
        )
    versions = sorted({dump.version for dump in dumps.values()}, key=_numbers)
    if len(versions) > 1:
        unseen.append(f"the dumps are of different recorders: {', '.join(versions[:8])}")
    return tuple(unseen)


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version to sort by: 2.10 comes after 2.9."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _find_groups(dumps: Mapping[int, FlightDump], world_size: int) -> _Groups:
    configs = {rank: dict(dump.configs) for rank, dump in dumps.items()}
    inferred = _infer(dumps, configs, world_size)
    pg_ids = {rank: _pg_ids(dumps[rank], configs[rank]) for rank in dumps}
    _learn(dumps, configs, pg_ids)
    return _Groups(_keys(configs, pg_ids), pg_ids, inferred)


def _infer(
    dumps: Mapping[int, FlightDump], configs: Mapping[int, dict[str, _Config]], world_size: int
) -> bool:
    """Add the groups whose members no dump lists; return True if there are any."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        for name, desc in {(entry.group_name, entry.group_desc) for entry in dump.entries}:
            if name not in configs[rank]:
                seen[name, desc].add(rank)
    for (name, desc), ranks in seen.items():
        members = range(world_size) if desc == DEFAULT else sorted(ranks)
        for rank in ranks:
            configs[rank][name] = desc, tuple(members)
    return any(desc != DEFAULT for _, desc in seen)


def _pg_ids(dump: FlightDump, configs: Mapping[str, _Config]) -> dict[str, int]:
    """Return name to pg_id, from the entries and from the order in which groups were made.

    ``pg_status`` lists the groups that were used, by pg_id, and ``pg_config`` the groups that
    have a communicator, by name. Both are counters: they pair up where there are as many of
    them, or, where all communicators are made at once, a pg_id is the place of a name.
    """
    known: dict[str, int] = {}
    for entry in dump.entries:
        known[entry.group_name] = max(known.get(entry.group_name, -1), entry.pg_id)
    if configs and all(name.isdecimal() for name in configs):
        names, ids = sorted(configs, key=int), sorted(dump.status)
        tries = [dict(zip(names, ids, strict=True))] if len(names) == len(ids) else []
        tries.append({name: pg_id for pg_id, name in enumerate(names) if pg_id in dump.status})
        for paired in tries:
            if known and all(paired.get(name) == pg_id for name, pg_id in known.items()):
                return paired
        if tries[:-1] and not known:
            return tries[0]
    return known


def _learn(
    dumps: Mapping[int, FlightDump],
    configs: Mapping[int, Mapping[str, _Config]],
    pg_ids: Mapping[int, dict[str, int]],
) -> None:
    """Fill the gaps by what other ranks call a pg_id: they make their groups in one order."""
    descs: dict[int, set[str]] = defaultdict(set)
    for rank, names in pg_ids.items():
        for name, pg_id in names.items():
            if name in configs[rank]:
                descs[pg_id].add(configs[rank][name][0])
    for rank, dump in dumps.items():
        by_desc: dict[str, list[str]] = defaultdict(list)
        for name, (desc, _) in configs[rank].items():
            by_desc[desc].append(name)
        for pg_id in dump.status.keys() - set(pg_ids[rank].values()):
            desc = next(iter(descs[pg_id])) if len(descs[pg_id]) == 1 else ""
            if desc and len(by_desc[desc]) == 1 and by_desc[desc][0] not in pg_ids[rank]:
                pg_ids[rank][by_desc[desc][0]] = pg_id


def _keys(
    configs: Mapping[int, Mapping[str, _Config]], pg_ids: Mapping[int, Mapping[str, int]]
) -> dict[int, dict[str, GroupKey]]:
    """Return rank to a group's name there to its key, which is the same on every rank."""
    alike: dict[_Config, dict[int, list[str]]] = defaultdict(dict)
    for rank, groups in configs.items():
        for name, config in groups.items():
            alike[config].setdefault(rank, []).append(name)
    keys: dict[int, dict[str, GroupKey]] = {rank: {} for rank in configs}
    for (desc, ranks), owners in alike.items():
        for rank, names in owners.items():
            names.sort(key=partial(_age, pg_ids[rank]))
        # A rank lists a group only once it has used it, so the shorter lists have gaps.
        longest = max(owners.values(), key=len)
        nested = all(set(names) <= set(longest) for names in owners.values())
        common = {name: index for index, name in enumerate(longest)} if nested else {}
        shared: dict[int, GroupKey] = {}
        for rank, names in owners.items():
            for place, name in enumerate(names):
                index = common.get(name, place)
                keys[rank][name] = shared.setdefault(index, GroupKey(ranks, desc, index))
    return keys


def _age(pg_ids: Mapping[str, int], name: str) -> tuple[int, int, str]:
    """Return a key that sorts a rank's groups by when they were made, as far as that is known."""
    return pg_ids.get(name, _LATE), int(name) if name.isdecimal() else _LATE, name
