"""The job as an index: groups by number, the progress of each rank, and the calls of ranks.

Group keys may name a hundred thousand ranks, so they are hashed once each and
known by a small number (``gid``) from there on. Building it takes time linear in
ranks, their groups and their recorded calls.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field

from hangwatch.diagnosis.facts.namesakes import distinguish
from hangwatch.diagnosis.facts.wait_points import Slot
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import MAX_WORLD
from hangwatch.model.snapshot import GroupProgress, JobSnapshot, OpRecord, RankSnapshot


def at_most_half(part: Sized, whole: Sized) -> bool:
    """Return True if a part is at most half, and not empty."""
    return 0 < 2 * len(part) <= len(whole)


def at_least_half(part: Sized, whole: Sized) -> bool:
    """Return True if a part is at least half."""
    return 2 * len(part) >= len(whole)


def is_majority(part: Sized, whole: Sized) -> bool:
    """Return True if a part is more than half."""
    return 2 * len(part) > len(whole)


NEW_GROUP = "new_group"
SETTING_UP = GroupKey((), NEW_GROUP)
"""The key of a group of all ranks of the job, in which they make groups one after the other."""

_PHASES = {phase: number for number, phase in enumerate(Phase)}
_UNFINISHED = frozenset({OpState.ISSUED, OpState.BLOCKED})


@dataclass(slots=True)
class Job:
    """A snapshot, indexed. Read only once ``index`` has returned it."""

    snapshot: JobSnapshot
    ranks: dict[int, RankSnapshot] = field(default_factory=dict)
    keys: list[GroupKey] = field(default_factory=list)
    progress: dict[int, dict[int, GroupProgress]] = field(default_factory=dict)
    """rank to gid to progress."""
    guessed: set[int] = field(default_factory=set)
    """The gids of groups that are one on all ranks by clocks alone."""
    reached: list[dict[int, int]] = field(default_factory=list)
    """gid to rank to the last slot that it entered."""
    ops: dict[int, list[tuple[int, OpRecord]]] = field(default_factory=dict)
    """rank to (gid, record), oldest first."""
    unfinished: dict[int, list[int]] = field(default_factory=dict)
    """rank to the positions in ``ops`` of its calls that are not over, for ranks with any."""
    devices: dict[int, list[int]] = field(default_factory=dict)
    """The same of the calls that a device runs."""
    _gids: dict[GroupKey, int] = field(default_factory=dict)
    _gid_by_id: dict[int, int] = field(default_factory=dict)
    _by_group: list[list[tuple[int, OpRecord]]] = field(default_factory=list)
    _by_slot: dict[int, dict[int, dict[int, OpRecord]]] = field(default_factory=dict)
    _settled: dict[int, int] = field(default_factory=dict)

    def gid(self, key: GroupKey) -> int:
        """The number of a group, a new one for a group not seen before."""
        gid = self._gid_by_id.get(id(key))
        if gid is None:
            gid = self._gids.setdefault(key, len(self.keys))
            if gid == len(self.keys):
                self.keys.append(key)
                self.reached.append({})
                self._by_group.append([])
            self._gid_by_id[id(key)] = gid
        return gid

    def add_calls(self, rank: int, records: Iterable[OpRecord]) -> None:
        """Index a rank's calls. A call is recorded before it is counted, so it counts here."""
        calls = self.ops[rank] = []
        known = self._gid_by_id
        for record in records:
            gid = known.get(id(record.group))
            if gid is None:
                gid = self.gid(record.group)
            if record.state in _UNFINISHED:
                self.unfinished.setdefault(rank, []).append(len(calls))
                if record.device:
                    self.devices.setdefault(rank, []).append(len(calls))
            calls.append((gid, record))
            if record.p2p or record.seq < 1:
                continue
            self._by_group[gid].append((rank, record))
            reached = self.reached[gid]
            if record.seq > reached.get(rank, 0):
                reached[rank] = record.seq

    def group_name(self, gid: int) -> str:
        """The name that c10d gives a group on the first rank that has it; empty for none."""
        return next((groups[gid].name for groups in self.progress.values() if gid in groups), "")

    def members(self, gid: int) -> tuple[int, ...]:
        """Ranks of a group; those seen in it where its key names none."""
        return self.keys[gid].ranks or tuple(sorted(self.reached[gid]))

    def arrived(self, rank: int, slot: Slot) -> bool:
        """Return True if a rank has entered a slot."""
        return self.reached[slot.gid].get(rank, 0) >= slot.seq

    def settled(self, gid: int) -> int:
        """The last slot of a group that all its members have entered and one has completed."""
        if gid not in self._settled:
            members, reached = self.members(gid), self.reached[gid]
            known = (self.progress.get(rank, {}).get(gid) for rank in members)
            entered = min((reached.get(rank, 0) for rank in members), default=0)
            completed = max((own.completed for own in known if own is not None), default=0)
            self._settled[gid] = min(entered, completed)
        return self._settled[gid]

    def record(self, rank: int, slot: Slot) -> OpRecord | None:
        """The call that a rank issued at a slot, where that is still known."""
        return self.slots(slot.gid).get(slot.seq, {}).get(rank)

    def slots(self, gid: int) -> dict[int, dict[int, OpRecord]]:
        """Known collectives of a group: slot to rank to record."""
        found = self._by_slot.get(gid)
        if found is None:
            found = self._by_slot[gid] = {}
            for rank, record in self._by_group[gid]:
                found.setdefault(record.seq, {}).setdefault(rank, record)
        return found

    def assume(self, rank: int, slot: Slot, record: OpRecord) -> None:
        """Assume that a rank issued this call at a slot, where none is recorded."""
        self.slots(slot.gid).setdefault(slot.seq, {}).setdefault(rank, record)

    def passed(self, rank: int, slot: Slot) -> bool:
        """Return True if a slot is known to be complete on a rank."""
        record = self.record(rank, slot)
        if record is not None:
            return record.state is OpState.DONE
        progress = self.progress.get(rank, {}).get(slot.gid)
        return progress is not None and progress.completed >= slot.seq

    def has_left(self, rank: int, gid: int) -> bool:
        """Return True if a rank has destroyed a group."""
        progress = self.progress.get(rank, {}).get(gid)
        return progress is not None and not progress.alive

    def world(self) -> range:
        """All ranks of the job."""
        size = self.snapshot.world_size
        if not 0 < size <= MAX_WORLD:
            size = max((rank + 1 for rank in self.ranks if rank < MAX_WORLD), default=0)
        return range(size)


def index(snapshot: JobSnapshot) -> Job:
    """Build the index. Of a rank that is there twice, the one further in life counts."""
    job = Job(snapshot)
    for rank in snapshot.ranks:
        other = job.ranks.get(rank.rank)
        if rank.rank >= 0 and (other is None or _PHASES[rank.phase] > _PHASES[other.phase]):
            job.ranks[rank.rank] = rank
    job.ranks, guessed = distinguish(job.ranks)
    for number, rank in job.ranks.items():
        progress = job.progress[number] = {job.gid(group.key): group for group in rank.groups}
        for gid, group in progress.items():
            job.reached[gid][number] = group.enqueued
    setting_up = any(rank.in_call == NEW_GROUP for rank in job.ranks.values())
    for number, rank in job.ranks.items():
        job.add_calls(number, _calls(rank) if setting_up else rank.ops)
    job.guessed = {job.gid(key) for key in guessed}
    return job


def _calls(rank: RankSnapshot) -> Iterable[OpRecord]:
    """The calls of a rank, oldest first; new_group counts as a call of a group of all ranks."""
    made = [
        OpRecord(
            SETTING_UP,
            NEW_GROUP,
            NEW_GROUP,
            call.number,
            p2p=False,
            state=OpState.DONE,  # as far as ops show
            site=call.site,
            issued_age_s=call.age_s,
        )
        for call in rank.new_groups
        if call.number >= 0
    ]
    return heapq.merge(rank.ops, made, key=lambda record: -record.issued_age_s)


def seconds(age_s: float | None) -> float:
    """An age as a number to calculate with: 0 for unknown, negative and not finite."""
    if age_s is None or not math.isfinite(age_s):
        return 0.0
    return max(0.0, age_s)
