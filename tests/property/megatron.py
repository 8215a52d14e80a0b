"""Jobs as Megatron-LM runs them, up to the moment at which nothing moves any more.

A simulation of programs, which enqueue, and of devices, which run what is enqueued in
its order: tensor, data and expert parallel collectives, a 1F1B pipeline of coalesced
sends and recvs, gradients reduced beside the backward pass. It shares no code with hangwatch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import NamedTuple

UNIX_NS = 1_760_000_000 * 10**9


class Fault(Enum):
    """What is wrong with a rank from some moment on."""

    HOST = auto()
    """Its program makes no further call; its device runs what is enqueued."""
    GPU_ERROR = auto()
    """Its device runs nothing more, no event completes any more, and its program soon
    gets an error too."""
    GPU_KERNEL = auto()
    """A kernel never ends; the program goes on until it needs a result."""


class Layout(NamedTuple):
    """Sizes of the tensor, data and pipeline parallel groups."""

    tp: int
    dp: int
    pp: int

    @property
    def world(self) -> int:
        return self.tp * self.dp * self.pp


class Group(NamedTuple):
    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Work:
    """One thing on a device: a collective, a group of sends and recvs, or a kernel."""

    group: Group | None
    op: str = "kernel"
    peers: tuple[tuple[str, int], ...] = ()
    """(send or recv, rank) of point-to-point calls."""
    beside: bool = False
    """On a stream of its own, which the following work does not wait for."""
    seq: int = 0
    p2p_seq: int = 0
    op_id: int = 0
    at_ns: int = 0
    done: bool = False
    begun: bool = False
    met: set[tuple[str, int]] = field(default_factory=set)
    """Those of ``peers`` whose data has moved."""


ENDLESS = "endless"
SYNC = Work(None, "sync")
"""The program waits until its device has run everything."""


def groups_of(layout: Layout) -> list[Group]:
    """All groups, in the order in which all ranks make them."""
    tp, dp, pp = layout
    stage = tp * dp
    sets: list[tuple[str, list[tuple[int, ...]]]] = [
        ("default_pg", [tuple(range(layout.world))]),
        (
            "DATA_PARALLEL_GROUP",
            [
                tuple(range(s * stage + t, (s + 1) * stage, tp))
                for s in range(pp)
                for t in range(tp)
            ],
        ),
        (
            "TENSOR_MODEL_PARALLEL_GROUP",
            [tuple(range(first, first + tp)) for first in range(0, layout.world, tp)],
        ),
        (
            "PIPELINE_MODEL_PARALLEL_GROUP",
            [tuple(range(first, layout.world, stage)) for first in range(stage)],
        ),
        (
            "EXPERT_MODEL_PARALLEL_GROUP",
            [tuple(range(s * stage, (s + 1) * stage)) for s in range(pp)],
        ),
    ]
    made = [(desc, ranks) for desc, all_ranks in sets for ranks in all_ranks]
    return [Group(str(name), desc, ranks) for name, (desc, ranks) in enumerate(made)]


class Program:
    """What one rank's training step issues, endlessly."""

    def __init__(self, layout: Layout, groups: list[Group], rank: int) -> None:
        self.groups = {group.desc.split("_")[0]: group for group in groups if rank in group.ranks}
        self.stage = rank // (layout.tp * layout.dp)
        self.last = layout.pp - 1
        self.width = layout.tp * layout.dp
        self.rank = rank

    def step(self, micro_batches: int) -> list[Work]:
        warm = min(self.last - self.stage, micro_batches)
        done: list[Work] = []
        for _ in range(warm):
            done += [*self._p2p(recv=-1), *self._forward(), *self._p2p(send=1)]
        steady = micro_batches - warm
        done += self._p2p(recv=-1) if steady else []
        for index in range(steady):
            done += [*self._forward(), *self._p2p(send=1, recv=1), *self._backward()]
            last = index == steady - 1
            done += self._p2p(send=-1) if last else self._p2p(send=-1, recv=-1)
        for _ in range(warm):
            done += [*self._p2p(recv=1), *self._backward(), *self._p2p(send=-1)]
        expert, tensor = self.groups["EXPERT"], self.groups["TENSOR"]
        done += [
            Work(tensor, "all_reduce"),
            Work(self.groups["DATA"], "all_reduce"),
            Work(self.groups["default"], "all_reduce"),
            SYNC,
            Work(expert, "_all_gather_base"),
        ]
        return done

    def _forward(self) -> list[Work]:
        tensor = self.groups["TENSOR"]
        return [
            Work(None),
            Work(tensor, "_all_gather_base"),
            Work(None),
            Work(self.groups["EXPERT"], "_all_gather_base"),
            SYNC,
            Work(self.groups["EXPERT"], "all_to_all"),
            Work(None),
            Work(tensor, "_reduce_scatter_base"),
        ]

    def _backward(self) -> list[Work]:
        tensor = self.groups["TENSOR"]
        return [
            Work(tensor, "_all_gather_base"),
            Work(None),
            Work(self.groups["EXPERT"], "all_to_all"),
            Work(self.groups["DATA"], "all_reduce", beside=True),
            Work(tensor, "_reduce_scatter_base"),
            Work(None),
        ]

    def _p2p(self, *, send: int = 0, recv: int = 0) -> list[Work]:
        """Sends to and recvs from the next stage (1) or the one before (-1)."""
        calls = [
            (call, self.rank + way * self.width)
            for call, way in (("send", send), ("recv", recv))
            if way and 0 <= self.stage + way <= self.last
        ]
        return [Work(self.groups["PIPELINE"], "p2p", tuple(calls))] if calls else []


@dataclass(slots=True)
class Rank:
    """One rank: what it will issue, has issued, and where its device is."""

    todo: list[Work]
    issued: list[Work] = field(default_factory=list)
    counts: dict[str, list[int]] = field(default_factory=dict)
    """Name of a group to (collectives, groups of point-to-point calls, operations)."""
    device_halted: bool = False
    host_left: int = 1 << 30
    """Calls that its program still gets to make."""
    queue: list[Work] = field(default_factory=list)
    """What is issued and not done, oldest first."""


class Job:
    """A job that runs until nothing moves any more."""

    def __init__(
        self, layout: Layout, seed: int, faults: dict[int, Fault], *, anytime: bool = False
    ) -> None:
        """anytime: also hit ranks that wait already, behind which the fault may be hidden."""
        self.anytime = anytime
        self.random = Random(seed)  # noqa: S311 (no secrets here)
        self.layout = layout
        self.groups = groups_of(layout)
        self.clock_ns = UNIX_NS
        self.ranks = [self._rank(number, steps=4) for number in range(layout.world)]
        steps = len(self.ranks[0].todo)
        self.strikes_at = self.random.randrange(steps // 3, steps // 2)
        self.faults = faults
        self.struck = False
        self._run()

    def _rank(self, number: int, steps: int) -> Rank:
        program = Program(self.layout, self.groups, number)
        return Rank(
            [
                SYNC if work is SYNC else Work(work.group, work.op, work.peers, work.beside)
                for _ in range(steps)
                for work in program.step(4)
            ]
        )

    def _run(self) -> None:
        order = list(range(self.layout.world))
        moving = True
        while moving:
            self.random.shuffle(order)
            moving = False
            for rank in order:
                moving |= self._issue(self.ranks[rank], self.random.randrange(1, 9))
            moving |= self._run_devices()
            if not self.struck and self._is_time():
                self.struck = True
                for number, fault in self.faults.items():
                    self._strike(self.ranks[number], fault)

    def _is_time(self) -> bool:
        """Whether all are well into the job, and nobody who is hit waits already."""
        due = all(len(self.ranks[number].issued) >= self.strikes_at for number in self.faults)
        idle = all(
            not self.ranks[number].queue
            for number, fault in self.faults.items()
            if fault is not Fault.GPU_ERROR
        )
        return due and (idle or self.anytime)

    def _strike(self, rank: Rank, fault: Fault) -> None:
        rank.device_halted = fault is Fault.GPU_ERROR
        if fault is Fault.HOST:
            rank.host_left = 0
        if fault is Fault.GPU_KERNEL:
            rank.queue.append(Work(None, ENDLESS))
        if fault is Fault.GPU_ERROR:
            rank.host_left = self.random.randrange(4)
            # What completed last was not looked at before, and cannot be any more.
            done = [work for work in rank.issued if work.done and not work.peers]
            for work in done[-self.random.randrange(1, 4) :]:
                work.done = False

    def _issue(self, rank: Rank, count: int) -> bool:
        moved = False
        for _ in range(count):
            if not rank.todo or rank.host_left <= 0:
                break
            if rank.todo[0] is SYNC and (rank.queue or rank.device_halted):
                break
            work = rank.todo.pop(0)
            moved = True
            if work is SYNC:
                continue
            rank.host_left -= 1
            rank.queue.append(work)
            if work.group is not None:
                self._count(rank, work, work.group)
                rank.issued.append(work)
        return moved

    def _count(self, rank: Rank, work: Work, group: Group) -> None:
        counts = rank.counts.setdefault(group.name, [0, 0, 0])
        counts[1 if work.peers else 0] += 1
        counts[2] += max(1, len(work.peers))
        work.seq, work.p2p_seq, work.op_id = counts
        self.clock_ns += self.random.randrange(1, 50_000)
        work.at_ns = self.clock_ns

    def _run_devices(self) -> bool:
        """Let all devices run as far as they get."""
        moved = False
        again = True
        while again:
            again = False
            for number, rank in enumerate(self.ranks):
                for work in fronts(rank):
                    again |= self._advance(number, work)
            moved |= again
        return moved

    def _advance(self, number: int, work: Work) -> bool:
        work.begun = True
        if work.op == ENDLESS:
            there = []
        elif work.group is None:
            there = [(number, work)]
        elif work.peers:
            self._transfer(number, work)
            there = [(number, work)] if work.met == set(work.peers) else []
        else:
            at = [(member, self._at(member, work)) for member in work.group.ranks]
            there = [(member, other) for member, other in at if other is not None]
            there = there if len(there) == len(at) else []
        for member, part in there:
            part.done = part.begun = True
            rank = self.ranks[member]
            rank.queue = [other for other in rank.queue if other is not part]
        return bool(there)

    def _at(self, member: int, work: Work) -> Work | None:
        for other in fronts(self.ranks[member]):
            if other.group == work.group and not other.peers and other.seq == work.seq:
                return other
        return None

    def _transfer(self, number: int, work: Work) -> None:
        """Move the data of those parts whose counterpart is there."""
        for call, peer in work.peers:
            wanted = ("recv" if call == "send" else "send", number)
            for other in fronts(self.ranks[peer]):
                if wanted in other.peers and wanted not in other.met:
                    other.met.add(wanted)
                    work.met.add((call, peer))


def fronts(rank: Rank) -> list[Work]:
    """What a device is at: what has nothing before it but work that runs beside."""
    found: list[Work] = []
    busy: set[str] = set()
    for work in rank.queue if not rank.device_halted else ():
        name = work.group.name if work.group else ""
        if name not in busy:
            found.append(work)
        busy.add(name)
        if not work.beside:
            break
    return found
