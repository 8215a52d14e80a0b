"""Builds the small snapshots that the diagnosis is tested on."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.snapshot import (
    Frame,
    GroupProgress,
    JobSnapshot,
    OpRecord,
    ProcessState,
    RankSnapshot,
    ThreadStack,
    Thresholds,
)

if TYPE_CHECKING:
    from hangwatch.model.verdict import Verdict

THRESHOLDS = Thresholds(suspect_after_s=10.0, hang_after_s=300.0)
ALIVE = ProcessState(alive=True, state="S")
TORCH = "/usr/lib/python3/dist-packages/torch"
SCRIPT = "/home/u/train.py"


def world(size: int, desc: str = "default_pg") -> GroupKey:
    """The default group."""
    return GroupKey(tuple(range(size)), desc)


W = world(4)
PAIR = world(2)
TP = [GroupKey((0, 1), "tp"), GroupKey((2, 3), "tp")]
DP = [GroupKey((0, 2), "dp"), GroupKey((1, 3), "dp")]


def site(line: int, function: str = "main", file: str = SCRIPT) -> Site:
    return Site(file, line, function)


def frame(line: int, function: str = "main", file: str = SCRIPT) -> Frame:
    return Frame(file, line, function)


BACKWARD = (
    Frame(f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward"),
    Frame(f"{TORCH}/autograd/__init__.py", 395, "backward"),
    Frame(f"{TORCH}/_tensor.py", 623, "backward"),
)


def main_thread(*frames: Frame, owns_gil: bool = False) -> tuple[ThreadStack, ...]:
    """The stack of a process with one thread, innermost frame first."""
    return (ThreadStack("MainThread", 1, active=True, owns_gil=owns_gil, frames=frames),)


def op(  # noqa: PLR0913 (each is a field of the record)
    group: GroupKey,
    seq: int,
    name: str = "all_reduce",
    state: OpState = OpState.DONE,
    *,
    line: int | None = 20,
    age: float = 20.0,
    **fields: Any,
) -> OpRecord:
    """A call that Python issued, or C++ where ``source`` is ``flight``."""
    if fields.get("source") == "flight":
        line = None
    record = OpRecord(
        group=group,
        op=name,
        wire=fields.pop("wire", name),
        seq=seq,
        p2p=name in ("send", "recv"),
        state=state,
        dtype="float32",
        shape=(4,),
        site=site(line) if line is not None else None,
        issued_age_s=age,
        blocked_age_s=age if state is OpState.BLOCKED else None,
    )
    return replace(record, **fields)


def blocked(group: GroupKey, seq: int, name: str = "all_reduce", **fields: Any) -> OpRecord:
    """A call that the rank is inside of."""
    return op(group, seq, name, OpState.BLOCKED, **fields)


def rank(
    number: int,
    group: GroupKey | None = None,
    *ops: OpRecord,
    enqueued: int | None = None,
    completed: int | None = None,
    **fields: Any,
) -> RankSnapshot:
    """A living rank. What it has enqueued follows from its calls unless it is said."""
    groups = fields.pop("groups", None)
    if groups is None:
        keys = dict.fromkeys([*([group] if group else []), *(o.group for o in ops)])
        groups = tuple(_progress(key, str(i), ops) for i, key in enumerate(keys))
        if enqueued is not None:
            groups = (replace(groups[0], enqueued=enqueued), *groups[1:])
        if completed is not None:
            groups = (replace(groups[0], completed=completed), *groups[1:])
    made = RankSnapshot(
        rank=number,
        node="n0",
        pid=1000 + number,
        phase=Phase.RUNNING,
        process=ALIVE,
        groups=groups,
        ops=ops,
        gil_age_s=0.2,
        heartbeat_age_s=0.1,
    )
    return replace(made, **fields)


def _progress(key: GroupKey, name: str, ops: tuple[OpRecord, ...]) -> GroupProgress:
    mine = [o for o in ops if o.group == key and not o.p2p]
    return GroupProgress(
        key=key,
        name=name,
        enqueued=max((o.seq for o in mine), default=0),
        completed=max((o.seq for o in mine if o.state is OpState.DONE), default=0),
        p2p=sum(1 for o in ops if o.group == key and o.p2p),
    )


def job(*ranks: RankSnapshot, size: int | None = None, **fields: Any) -> JobSnapshot:
    return JobSnapshot(world_size=size if size is not None else len(ranks), ranks=ranks, **fields)


def source(text: str) -> dict[str, Any]:
    """Fields of a job with the user's script, whose line 1 is the first one written."""
    return {"sources": {SCRIPT: dedent(text).removeprefix("\n")}}


def only(found: JobSnapshot) -> Verdict:
    """The one verdict on it."""
    (verdict,) = diagnose(found, THRESHOLDS)
    return verdict


def raised(name: str, message: str = "", line: int | None = 33, age: float = 8.0) -> dict[str, Any]:
    """Fields of a rank that an exception ended."""
    return {
        "phase": Phase.RAISED,
        "process": ProcessState(alive=False, exit_code=1, gone_age_s=age),
        "exception": ExceptionRecord(name, message, site(line) if line else None),
        "exception_age_s": age,
    }


def killed(number: int, age: float = 8.0, **fields: Any) -> dict[str, Any]:
    """Fields of a rank that a signal ended."""
    return {"process": ProcessState(alive=False, signal=number, gone_age_s=age, **fields)}


def exited(age: float = 5.0) -> dict[str, Any]:
    """Fields of a rank whose program came to its end."""
    return {
        "phase": Phase.EXITED,
        "process": ProcessState(alive=False, exit_code=0, gone_age_s=age),
        "phase_age_s": age,
    }
