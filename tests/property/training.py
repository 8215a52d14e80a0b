"""Generates training scripts, the programs that their ranks run, and faults in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from simulator import (
    Instruction,
    Issue,
    Join,
    Mode,
    Rules,
)

from hangwatch.model.calls import GroupKey

if TYPE_CHECKING:
    from random import Random

    from hangwatch.model.kinds import What

Steps = Callable[[int, int], list[Instruction]]
"""(rank, step of the loop) to what it runs."""
RECOVERS_S = 20_000.0
"""What is called stuck goes on after so long: nothing that waits for it was final."""


class Fault(StrEnum):
    """What is wrong with the job."""

    NONE = "none"
    SLOW = "slow"
    BUSY = "busy"
    STOPPED = "stopped"
    KILLED = "killed"
    RAISED = "raised"
    EARLY = "early"
    MORE = "more"
    SKIP = "skip"
    EXTRA = "extra"
    OTHER_OP = "other_op"
    OTHER_SIGNATURE = "other_signature"
    SWAP = "swap"
    LOST_P2P = "lost_p2p"
    FEWER = "fewer"
    NO_INIT = "no_init"
    NO_NEW_GROUP = "no_new_group"
    STUCK = "stuck"


@dataclass(frozen=True)
class Plan:
    """A fault of one rank, at a statement of a step."""

    fault: Fault
    rank: int = -1
    step: int = -1
    statement: int = -1
    style: int = 0

    def hits(self, rank: int, step: int) -> bool:
        return (rank, step) == (self.rank, self.step)


@dataclass
class Layout:
    """The groups of a job. ``families``: name to the group of each rank, -1 for none."""

    size: int
    keys: list[GroupKey] = field(default_factory=list)
    families: dict[str, list[int]] = field(default_factory=dict)

    def add(self, family: str, groups: list[tuple[int, ...]], desc: str) -> None:
        of = self.families.setdefault(family, [-1] * self.size)
        for ranks in groups:
            for rank in ranks:
                of[rank] = len(self.keys)
            known = sum(key.ranks == ranks and key.desc == desc for key in self.keys)
            self.keys.append(GroupKey(ranks, desc, known))

    def members(self, group: int) -> tuple[int, ...]:
        return self.keys[group].ranks


@dataclass
class Script:
    """The text of the training script as it grows."""

    lines: list[str] = field(default_factory=list)

    def add(self, indent: int, text: str) -> int:
        self.lines.append("    " * indent + text)
        return len(self.lines)


@dataclass
class Job:
    """What the simulator runs, and the truth about it."""

    layout: Layout
    programs: list[list[Instruction]]
    source: str
    plans: list[Plan]
    rules: Rules
    causes: frozenset[tuple[What, int | None]]
    """Why its faults come to it: what, and the line, None where that may be any. Each is right."""


def layout(rng: Random) -> Layout:
    """The default group, and those of a mesh or overlapping ones."""
    size = rng.choice((2, 3, 4, 4, 4, 6, 8, 8, 8, 12, 16))
    made = Layout(size)
    made.add("world", [tuple(range(size))], "default_pg")
    described = rng.random() < 0.7
    shapes = [(a, b, c) for a in (1, 2, 3, 4) for b in (1, 2, 4) for c in (1, 2, 4, 8)]
    shapes = [(a, b, c) for a, b, c in shapes if a * b * c == size and max(a, b, c) < size]
    if shapes and rng.random() < 0.75:
        tp, pp, dp = rng.choice(shapes)
        grid = {
            (d, p, t): (d * pp + p) * tp + t
            for d in range(dp)
            for p in range(pp)
            for t in range(tp)
        }
        for name, axis, length in (("dp", 0, dp), ("pp", 1, pp), ("tp", 2, tp)):
            if length > 1:
                rows: dict[tuple[int, ...], list[int]] = {}
                for at, rank in grid.items():
                    rows.setdefault(at[:axis] + at[axis + 1 :], []).append(rank)
                groups = [tuple(row) for row in rows.values()]
                made.add(name, groups, name if described else "")
    elif size > 2:
        for name in ("ep", "cp")[: rng.randint(0, 2)]:
            ranks = tuple(sorted(rng.sample(range(size), rng.randint(2, size))))
            made.add(name, [ranks], name if described else "")
    return made


# --- Statements of the training loop ----------------------------------------------

OPS = ("all_reduce", "all_reduce", "all_gather", "broadcast", "barrier", "reduce", "all_to_all")
ROOTED = ("broadcast", "reduce", "gather")


@dataclass
class Collective:
    """A blocking or asynchronous collective of the group that a rank has in a family."""

    layout: Layout
    family: str
    op: str
    mode: Mode
    size: int
    helper: int = 0
    """Line of a function that all such calls go through, 0 for none."""
    handle: str = ""

    def emit(self, script: Script, indent: int) -> Steps:
        beside = ", async_op=True" if self.mode is Mode.ASYNC else ""
        text = f"dist.{self.op}(x, group={self.family}_group{beside})"
        if self.helper:
            text = f"sync(x, {self.family}_group)"
        line = script.add(indent, f"{self.handle} = {text}" if self.handle else text)
        of = self.layout.families[self.family]

        def steps(rank: int, _step: int) -> list[Instruction]:
            return [self.issue(line, of[rank])] if of[rank] >= 0 else []

        return steps

    def issue(self, line: int, group: int) -> Issue:
        return Issue(
            line,
            group,
            self.op,
            self.mode,
            size=0 if self.op == "barrier" else self.size,
            dtype="" if self.op == "barrier" else "float32",
            root=self.layout.members(group)[0] if self.op in ROOTED else -1,
            handle=self.handle,
            function="sync" if self.helper else "main",
            inner=self.helper,
        )


@dataclass
class Waiting:
    """Waits for what was issued asynchronously before."""

    handle: str

    def emit(self, script: Script, indent: int) -> Steps:
        line = script.add(indent, f"{self.handle}.wait()")
        return lambda _rank, _step: [Join(line, (self.handle,))]


@dataclass
class Backward:
    """DistributedDataParallel's buckets, which C++ issues and waits for."""

    layout: Layout
    family: str
    sizes: tuple[int, ...]

    def emit(self, script: Script, indent: int) -> Steps:
        line = script.add(indent, "loss.backward()")
        of = self.layout.families[self.family]

        def steps(rank: int, _step: int) -> list[Instruction]:
            if of[rank] < 0:
                return []
            found: list[Instruction] = [
                Issue(line, of[rank], "all_reduce", Mode.CPP, size=size, handle=f"bucket{size}")
                for size in self.sizes
            ]
            return [*found, Join(line, tuple(f"bucket{size}" for size in self.sizes), by_cpp=True)]

        return steps


@dataclass
class Pipeline:
    """Micro-batches through the stages of a group, forward and back."""

    layout: Layout
    family: str
    micro: int
    plans: list[Plan]

    def emit(self, script: Script, indent: int) -> Steps:
        script.add(indent, "for micro in range(micro_batches):")
        script.add(indent + 1, "if stage > 0:")
        recv = script.add(indent + 2, "dist.recv(x, previous)")
        script.add(indent + 1, "x = block(x)")
        script.add(indent + 1, "if stage < stages - 1:")
        send = script.add(indent + 2, "dist.send(x, following)")
        script.add(indent, "for micro in range(micro_batches):")
        script.add(indent + 1, "if stage < stages - 1:")
        recv_back = script.add(indent + 2, "dist.recv(grad, following)")
        script.add(indent + 1, "if stage > 0:")
        send_back = script.add(indent + 2, "dist.send(grad, previous)")
        of = self.layout.families[self.family]

        def steps(rank: int, step: int) -> list[Instruction]:
            group = of[rank]
            if group < 0:
                return []
            members = self.layout.members(group)
            stage = members.index(rank)
            micro = self.micro - self._hit(Fault.FEWER, rank, step)
            found: list[Instruction] = []
            for lines, forward in (((recv, send), True), ((recv_back, send_back), False)):
                source = stage - 1 if forward else stage + 1
                target = stage + 1 if forward else stage - 1
                for _ in range(micro):
                    if 0 <= source < len(members):
                        found.append(Issue(lines[0], group, "recv", peer=members[source]))
                    if 0 <= target < len(members):
                        found.append(Issue(lines[1], group, "send", peer=members[target]))
            if self._hit(Fault.LOST_P2P, rank, step) and found:
                del found[self.plans[0].style % len(found)]
            return found

        return steps

    def _hit(self, fault: Fault, rank: int, step: int) -> bool:
        return any(plan.fault is fault and plan.hits(rank, step) for plan in self.plans)


@dataclass
class Ring:
    """batch_isend_irecv with both neighbours of a ring."""

    layout: Layout
    family: str
    plans: list[Plan]

    def emit(self, script: Script, indent: int) -> Steps:
        issue = script.add(indent, "reqs = dist.batch_isend_irecv(ops)")
        script.add(indent, "for req in reqs:")
        wait = script.add(indent + 1, "req.wait()")
        of = self.layout.families[self.family]

        def steps(rank: int, step: int) -> list[Instruction]:
            if of[rank] < 0:
                return []
            members = self.layout.members(of[rank])
            at = members.index(rank)
            ahead, behind = members[(at + 1) % len(members)], members[at - 1]
            found: list[Instruction] = [
                Issue(issue, of[rank], "isend", Mode.ASYNC, peer=ahead, handle="req0"),
                Issue(issue, of[rank], "irecv", Mode.ASYNC, peer=behind, handle="req1"),
            ]
            for plan in self.plans:
                if plan.fault is Fault.LOST_P2P and plan.hits(rank, step):
                    del found[plan.style % 2]
            return [*found, Join(wait, ("req0", "req1"))]

        return steps


Statement = Collective | Waiting | Backward | Pipeline | Ring


def statements(rng: Random, made: Layout, plans: list[Plan], helper: int) -> list[Statement]:
    """The body of the loop."""
    found: list[Statement] = []
    families = list(made.families)
    overlap: list[str] = []
    for number in range(rng.randint(1, 5)):
        family = rng.choice(families)
        kind = rng.random()
        if kind < 0.5:
            through = helper if rng.random() < 0.4 else 0
            op = "all_reduce" if through else rng.choice(OPS)
            found.append(Collective(made, family, op, Mode.BLOCK, rng.randint(1, 9), through))
        elif kind < 0.65:
            handle = f"work{number}"
            op = rng.choice(("all_reduce", "all_gather"))
            found.append(Collective(made, family, op, Mode.ASYNC, 4, handle=handle))
            overlap.append(handle)
        elif kind < 0.8:
            found.append(Backward(made, family, tuple(range(10, 10 + rng.randint(1, 4)))))
        elif kind < 0.92:
            on = "pp" if "pp" in families else family
            found.append(Pipeline(made, on, rng.randint(1, 4), plans))
        else:
            found.append(Ring(made, family, plans))
        while overlap and rng.random() < 0.5:
            found.append(Waiting(overlap.pop(0)))
    found.extend(Waiting(handle) for handle in overlap)
    return found
