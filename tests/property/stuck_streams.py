"""Jobs whose hosts are ahead of their devices, and one rank of which is stuck.

Each rank runs the common program, a list of collectives in tensor and data parallel
groups, as far as its device comes; its host has enqueued some more. What ranks tell is
made into pages with beacons, as the native recorder leaves them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hangwatch.evidence.snapshot import rank_snapshot
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import Identity, PageEvent, PageGroup, RankPage
from hangwatch.model.snapshot import JobSnapshot, ProcessState

if TYPE_CHECKING:
    from random import Random

NOW_NS = 1_000_000_000_000
STUCK_NS = 60_000_000_000
STEPS = 40
SITE = Site("/home/me/train.py", 42, "step")
_ALIVE = ProcessState(alive=True, state="S")


class Fault(Enum):
    """What goes wrong at a rank's call."""

    STREAM = "a kernel before the call runs for ever"
    HOST = "the program never makes the call"
    NETWORK = "all members come to the call, and it does not complete"
    KERNELS = "a kernel before the call runs for ever on each member"


@dataclass(frozen=True, slots=True)
class StuckJob:
    """A job that stands still. Calls are (group, place) by rank, in the order of issue."""

    size: int
    groups: tuple[GroupKey, ...]
    calls: dict[int, tuple[tuple[int, int], ...]]
    fault: Fault
    culprit: int
    place: tuple[int, int]
    """The call that it is stuck at."""
    at: dict[int, int]
    """How many calls each rank's device has completed."""
    completed: dict[int, float]
    """How many of those c10d had been seen to have completed, as a part."""
    lead: dict[int, int]
    """How many more each host has enqueued than its device has come to."""
    backend: str

    def seen(self) -> JobSnapshot:
        """What the watchdog has of it."""
        pages = [self._page(rank) for rank in range(self.size)]
        return JobSnapshot(
            world_size=self.size,
            ranks=tuple(rank_snapshot(page, _ALIVE, "node", NOW_NS) for page in pages),
        )

    def arrived(self, rank: int) -> bool:
        """Whether its device has come to the call after the last one that it completed."""
        at, calls = self.at[rank], self.calls[rank]
        hindered = self.fault is Fault.KERNELS or (
            rank == self.culprit and self.fault is not Fault.NETWORK
        )
        return at < len(calls) and not (hindered and calls[at] == self.place)

    def _issued(self, rank: int) -> int:
        if rank == self.culprit and self.fault is Fault.HOST:
            return self.calls[rank].index(self.place)
        return min(self.at[rank] + 1 + self.lead[rank], len(self.calls[rank]))

    def _page(self, rank: int) -> RankPage:
        done = self.at[rank]
        reached = done + self.arrived(rank)
        issued = self.calls[rank][: self._issued(rank)]
        events, groups = [], []
        for index, (gid, seq) in enumerate(issued):
            blocked = self.backend == "gloo" and index == len(issued) - 1 and index >= done
            state = OpState.BLOCKED if blocked else OpState.ISSUED
            over = self.backend == "gloo" and index < done
            events.append(
                PageEvent(
                    index,
                    gid,
                    "all_reduce",
                    "all_reduce",
                    seq,
                    dtype="float32",
                    shape=(4,),
                    state=OpState.DONE if over else state,
                    issued_ns=NOW_NS - STUCK_NS - (len(issued) - index) * 1000,
                    blocked_ns=NOW_NS - STUCK_NS if blocked else 0,
                    site=SITE,
                    device=0,
                )
            )
        for gid in sorted({gid for gid, _ in self.calls[rank]}):
            own = [seq for g, seq in issued if g == gid]
            passed = _last(issued[:done], gid, own)
            groups.append(
                PageGroup(
                    gid,
                    str(gid),
                    self.groups[gid],
                    self.backend,
                    enqueued=len(own),
                    completed=int(max(0, passed) * self.completed[rank]),
                    entered=len(own),
                    reached=_last(issued[:reached], gid, own),
                    passed=passed,
                    changed_ns=NOW_NS - STUCK_NS,
                )
            )
        return RankPage(
            identity=Identity(1000 + rank, 1, rank, self.size),
            recorder="native",
            recorder_reason="",
            phase=Phase.RUNNING,
            phase_ns=1,
            created_ns=1,
            heartbeat_ns=NOW_NS,
            gil_ns=NOW_NS,
            handling="",
            pending_since_ns=NOW_NS - STUCK_NS,
            in_call="",
            in_call_ns=0,
            in_call_site=None,
            exception=None,
            swallowed=0,
            disarmed="",
            groups=tuple(groups),
            events=tuple(events),
            beacons="",
        )


def _last(calls: tuple[tuple[int, int], ...], gid: int, asked: list[int]) -> int:
    if not asked:
        return -1
    return max((seq for g, seq in calls if g == gid), default=0)


def make(rng: Random, fault: Fault, backend: str) -> StuckJob:
    """A job of two to four by two to four ranks."""
    tensor, data = rng.randint(2, 4), rng.randint(2, 4)
    size = tensor * data
    groups = [
        *(GroupKey(tuple(range(d * tensor, (d + 1) * tensor)), "tp") for d in range(data)),
        *(GroupKey(tuple(range(t, size, tensor)), "dp") for t in range(tensor)),
        GroupKey(tuple(range(size)), "world"),
    ]
    calls: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(size)}
    counts = dict.fromkeys(range(len(groups)), 0)
    for _ in range(STEPS):
        kind = rng.choices(("tp", "dp", "world"), (5, 4, 1))[0]
        for gid, group in enumerate(groups):
            if group.desc == kind:
                counts[gid] += 1
                for rank in group.ranks:
                    calls[rank].append((gid, counts[gid]))
    culprit = rng.randrange(size)
    place = rng.choice(calls[culprit][: STEPS // 2])
    lead = {rank: rng.choice((0, 1, 3, 8)) if backend == "nccl" else 0 for rank in calls}
    completed = {rank: rng.random() for rank in calls}
    fixed = {rank: tuple(own) for rank, own in calls.items()}
    at = _run(groups, fixed, fault, culprit, place)
    return StuckJob(size, tuple(groups), fixed, fault, culprit, place, at, completed, lead, backend)


def _run(
    groups: list[GroupKey],
    calls: dict[int, tuple[tuple[int, int], ...]],
    fault: Fault,
    culprit: int,
    place: tuple[int, int],
) -> dict[int, int]:
    """Let all devices go on until nothing moves; returns how many calls each has completed."""
    at = dict.fromkeys(calls, 0)
    moved = True
    while moved:
        moved = False
        for rank, own in calls.items():
            here = own[at[rank]] if at[rank] < len(own) else None
            if here is None:
                continue
            members = groups[here[0]].ranks
            together = all(at[m] < len(calls[m]) and calls[m][at[m]] == here for m in members)
            if together and here != place:
                moved = True
                for member in members:
                    at[member] += 1
    assert calls[culprit][at[culprit]] == place
    assert fault in Fault
    return at
