"""Generates jobs: a program of collectives over groups that ranks have run in part.

A small model of a run, which shares nothing with the diagnosis. Each rank has the
list of collectives that it issues, blocking. The ranks run until nobody can go on,
or, in a healthy job, until a random moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.snapshot import (
    Frame,
    GroupProgress,
    JobSnapshot,
    OpRecord,
    ProcessState,
    RankSnapshot,
    ThreadStack,
)

SCRIPT = "/home/u/train.py"
AUTOGRAD = "/usr/lib/python3/dist-packages/torch/autograd/graph.py"
MEMORY = 40
"""Calls that a ring keeps."""


@dataclass(frozen=True)
class Call:
    """One collective in a rank's program."""

    group: GroupKey
    op: str
    line: int
    size: int = 4
    by_cpp: bool = False
    """Issued by C++ (DDP's reducer): the page does not know of it, the recorder does."""


@dataclass
class Rank:
    """A rank of the model: what it has still to do, and what it did."""

    program: list[Call]
    counts: dict[GroupKey, int] = field(default_factory=dict)
    done: list[tuple[Call, int]] = field(default_factory=list)
    waits: tuple[Call, int] | None = None
    sleeps: bool = False
    exited: bool = False


def run(programs: list[list[Call]], sleepers: dict[int, int], steps: int) -> list[Rank]:
    """Run blocking collectives; sleepers maps a rank to the call that it never makes."""
    ranks = [Rank(list(program)) for program in programs]
    for _ in range(steps):
        moved = False
        for number, rank in enumerate(ranks):
            if rank.waits is not None or rank.exited or rank.sleeps:
                continue
            moved = True
            if sleepers.get(number) == len(rank.done):
                rank.sleeps = True
            elif not rank.program:
                rank.exited = True
            else:
                call = rank.program.pop(0)
                rank.counts[call.group] = rank.counts.get(call.group, 0) + 1
                rank.waits = (call, rank.counts[call.group])
        moved |= _complete(ranks)
        if not moved:
            break
    return ranks


def _complete(ranks: list[Rank]) -> bool:
    """Let the collectives go on that all members are in, alike."""
    moved = False
    for rank in ranks:
        if rank.waits is None:
            continue
        call, seq = rank.waits
        members = [ranks[number] for number in call.group.ranks]
        if all(
            member.waits is not None
            and member.waits[1] == seq
            and (member.waits[0].group, member.waits[0].op, member.waits[0].size)
            == (call.group, call.op, call.size)
            for member in members
        ):
            for member in members:
                assert member.waits is not None
                member.done.append(member.waits)
                member.waits = None
            moved = True
    return moved


def snapshot(ranks: list[Rank], age_s: float) -> JobSnapshot:
    """What hangwatch would see of the model."""
    return JobSnapshot(
        world_size=len(ranks),
        ranks=tuple(_rank(number, rank, age_s) for number, rank in enumerate(ranks)),
    )


def _rank(number: int, rank: Rank, age_s: float) -> RankSnapshot:
    calls = [(call, seq, OpState.DONE) for call, seq in rank.done[-MEMORY:]]
    stack: tuple[Frame, ...] = (Frame(SCRIPT, 3, "main"),)
    if rank.waits is not None:
        call, seq = rank.waits
        calls.append((call, seq, OpState.ISSUED if call.by_cpp else OpState.BLOCKED))
        stack = (Frame(SCRIPT, call.line, "main"),)
        if call.by_cpp:
            stack = (Frame(AUTOGRAD, 979, "_engine_run_backward"), *stack)
    completed: dict[GroupKey, int] = {}
    for call, seq in rank.done:
        completed[call.group] = seq
    return RankSnapshot(
        rank=number,
        node="n0",
        pid=100 + number,
        phase=Phase.EXITED if rank.exited else Phase.RUNNING,
        process=ProcessState(
            alive=not rank.exited,
            state="S",
            exit_code=0 if rank.exited else None,
            gone_age_s=age_s if rank.exited else None,
        ),
        groups=tuple(
            GroupProgress(key, str(i), count, -1 if rank.waits else completed.get(key, 0))
            for i, (key, count) in enumerate(rank.counts.items())
        ),
        ops=tuple(_record(call, seq, state, age_s) for call, seq, state in calls),
        gil_age_s=0.1,
        heartbeat_age_s=0.1,
        pending_age_s=age_s if rank.waits is not None else None,
        flight=not rank.exited,
        threads=None if rank.exited else (_thread(stack),),
    )


def _thread(frames: tuple[Frame, ...]) -> ThreadStack:
    return ThreadStack("MainThread", 1, active=True, owns_gil=False, frames=frames)


def _record(call: Call, seq: int, state: OpState, age_s: float) -> OpRecord:
    return OpRecord(
        group=call.group,
        op=call.op,
        wire=call.op,
        seq=seq,
        p2p=False,
        state=state,
        dtype="float32",
        shape=(call.size,),
        site=None if call.by_cpp else Site(SCRIPT, call.line, "main"),
        source="flight" if call.by_cpp else "page",
        issued_age_s=age_s,
        blocked_age_s=age_s if state is OpState.BLOCKED else None,
    )


@st.composite
def programs(draw: st.DrawFn) -> list[list[Call]]:
    """A correct program: the same collectives in the same order on all members."""
    size = draw(st.integers(2, 6))
    world = GroupKey(tuple(range(size)), "default_pg")
    keys = [world]
    for number in range(draw(st.integers(0, 3))):
        members = draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=size))
        keys.append(GroupKey(tuple(sorted(members)), f"group{number}"))
    lines: list[list[Call]] = [[] for _ in range(size)]
    loop = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(keys) - 1),
                st.sampled_from(["all_reduce", "barrier", "gather", "reducer"]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    for _ in range(draw(st.integers(1, 4))):
        for line, (index, op) in enumerate(loop):
            by_cpp = op == "reducer"
            name = "all_reduce" if by_cpp else op
            call = Call(keys[index], name, 20 + line, by_cpp=by_cpp)
            for member in call.group.ranks:
                lines[member].append(call)
    return lines


@st.composite
def healthy_jobs(draw: st.DrawFn) -> JobSnapshot:
    """A correct program at a random moment, some ranks being slow."""
    lines = draw(programs())
    slow = draw(st.dictionaries(st.integers(0, len(lines) - 1), st.integers(0, 8), max_size=2))
    ranks = run(lines, slow, draw(st.integers(0, 60)))
    return snapshot(ranks, draw(st.floats(0, 299)))


@dataclass(frozen=True)
class Planted:
    """A job with one fault in it."""

    job: JobSnapshot
    culprit: int
    fault: str
    group: GroupKey | None = None
    """The group in which the culprit does something else."""


@st.composite
def planted_faults(draw: st.DrawFn) -> Planted:
    """A program with a fault in one rank, run until nothing moves."""
    lines = draw(programs())
    culprit = draw(st.integers(0, len(lines) - 1))
    mine = lines[culprit]
    if not mine:
        return Planted(snapshot(run(lines, {}, 500), 5.0), culprit, "none")
    at = draw(st.integers(0, len(mine) - 1))
    call = mine[at]
    fault = draw(st.sampled_from(["sleep", "op", "size", "skip", "extra", "early"]))
    match fault:
        case "op":
            mine[at] = Call(call.group, "broadcast", 50)
        case "size":
            mine[at] = Call(call.group, "all_reduce", call.line, 5)
        case "skip":
            del mine[at]
        case "extra":
            mine.insert(at, Call(call.group, "all_gather", 51))
        case "early":
            del mine[at:]
    sleepers = {culprit: at} if fault == "sleep" else {}
    ranks = run(lines, sleepers, 500)
    return Planted(
        snapshot(ranks, draw(st.sampled_from([5.0, 50.0, 500.0]))), culprit, fault, call.group
    )


def stuck_jobs() -> st.SearchStrategy[JobSnapshot]:
    """The jobs of planted_faults."""
    return planted_faults().map(lambda planted: planted.job)
