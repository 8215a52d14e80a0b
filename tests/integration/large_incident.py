"""An incident of 10,240 ranks: tensor 8, pipeline 16, data 80 on 1,280 nodes of 8 GPUs.

One rank is stuck in its data loader in the middle of a step. Its tensor group waits for
it, its neighbours in the pipeline, and all others through their data parallel groups.
Nothing here was measured: it is made as such a job would look.
"""

from __future__ import annotations

from random import Random

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.report import Evidence, Moment, RunInfo
from hangwatch.model.snapshot import (
    Child,
    Frame,
    GroupProgress,
    JobSnapshot,
    OpRecord,
    ProcessState,
    RankSnapshot,
    ThreadStack,
    Thresholds,
)

TENSOR, PIPELINE = 8, 16
SCRIPT = "/home/ada/pretrain.py"
LINES = {
    18: "    with open(self.shards[index]) as shard:  # a mount that does not answer",
    40: "def step(batch, mesh):",
    41: "    hidden = embed(batch)",
    55: "    for batch in loader:",
    61: "        dist.all_reduce(partial, group=mesh['tp'].get_group())",
    72: "        dist.recv(activation, src=previous, group=mesh['pp'].get_group())",
    77: "        dist.send(activation, dst=following, group=mesh['pp'].get_group())",
    90: "        dist.all_reduce(gradient, group=mesh['dp'].get_group())",
    120: "main()",
}
SOURCE = "\n".join(LINES.get(number, "        ...") for number in range(1, 121))
TORCH = "/usr/lib/python3/dist-packages/torch"
ALIVE = ProcessState(alive=True, state="S", wchan="futex_do_wait")
STUCK_S = 42.0
STEP_S = 0.8
NODE = 8


class _Job:
    """Groups by coordinates (data, pipeline, tensor)."""

    def __init__(self, data: int) -> None:
        self.data = data
        self.size = data * PIPELINE * TENSOR
        self.stuck = (data // 2, PIPELINE // 2 - 1, 3)
        self.world = GroupKey(tuple(range(self.size)), "default_pg")
        axes = range(data), range(PIPELINE), range(TENSOR)
        self.tensor = {
            (d, p): GroupKey(tuple(self.rank(d, p, t) for t in axes[2]), "tp")
            for d in axes[0]
            for p in axes[1]
        }
        self.pipeline = {
            (d, t): GroupKey(tuple(self.rank(d, p, t) for p in axes[1]), "pp")
            for d in axes[0]
            for t in axes[2]
        }
        self.across = {
            (p, t): GroupKey(tuple(self.rank(d, p, t) for d in axes[0]), "dp")
            for p in axes[1]
            for t in axes[2]
        }

    @staticmethod
    def rank(d: int, p: int, t: int) -> int:
        return (d * PIPELINE + p) * TENSOR + t


def large_incident(data: int = 80) -> Evidence:
    """The incident, of data x 128 ranks."""
    made = _Job(data)
    random = Random(7)  # noqa: S311 (no secrets here)
    ranks = tuple(
        _snapshot(made, (d, p, t), random)
        for d in range(data)
        for p in range(PIPELINE)
        for t in range(TENSOR)
    )
    job = JobSnapshot(
        made.size,
        ranks,
        sources={SCRIPT: SOURCE},
        unseen=("node n1279 did not answer within 5 s",),
    )
    return Evidence(
        RunInfo(
            "pretrain-7",
            ("torchrun", "--nnodes=1280", "--nproc-per-node=8", SCRIPT),
            "2026-01-02T03:00:00.000+00:00",
            {"hangwatch": "0.1.0", "torch": "2.13.0", "nccl": "2.27.3"},
        ),
        job,
        diagnose(job, Thresholds(10.0, 30.0)),
        "2026-01-02T03:04:05.500+00:00",
        12.5,
        environment={"NCCL_DEBUG": "WARN"},
        timeline=(Moment("2026-01-02T03:03:53.000+00:00", "The longest wait begins."),),
    )


def _snapshot(made: _Job, at: tuple[int, int, int], random: Random) -> RankSnapshot:
    d, p, t = at
    number = made.rank(d, p, t)
    keys = made.tensor[d, p], made.pipeline[d, t], made.across[p, t]
    waits = _wait(made, at)
    skew = random.uniform(0.0, 0.02)
    ops = [
        _call(key, base + step, op, line, OpState.DONE, STUCK_S + (8 - step) * STEP_S + part + skew)
        for step in range(8)
        for key, base, op, line, part in (
            (keys[0], 393, "all_reduce", 61, 0.5),
            (keys[2], 13, "all_reduce", 90, 0.1),
        )
    ]
    reached = {"tp": 400, "dp": 20}
    if waits is not None:
        key, seq, op, line, peer = waits
        age = STUCK_S - skew - 0.05 * abs(d - made.stuck[0])
        ops.append(_call(key, seq, op, line, OpState.BLOCKED, max(1.0, age), peer))
        reached[key.desc] = seq
    line = waits[3] if waits else 55
    stack = (Frame(SCRIPT, line, "step" if waits else "main"), Frame(SCRIPT, 120, "<module>"))
    library = "distributed/distributed_c10d.py" if waits else "utils/data/dataloader.py"
    frames = (Frame(f"{TORCH}/{library}", 1450, waits[2] if waits else "_next"), *stack)
    worker = (Frame(SCRIPT, 18, "Shards.__getitem__"), Frame(f"{TORCH}/fetch.py", 52, "fetch"))
    child = Child(9, "pt_data_worker", ALIVE, (_thread(9, worker),))
    return RankSnapshot(
        rank=number,
        node=f"n{number // NODE:04}",
        pid=number + 100,
        phase=Phase.RUNNING,
        process=ALIVE,
        groups=(
            GroupProgress(made.world, "0", 3, 3),
            GroupProgress(keys[0], "1", reached["tp"], 400),
            GroupProgress(keys[1], "2", 0, 0, p2p=33),
            GroupProgress(keys[2], "3", reached["dp"], 20),
        ),
        ops=tuple(ops),
        gil_age_s=0.3,
        heartbeat_age_s=0.1,
        threads=(_thread(number + 100, frames),),
        children=() if waits else (child,),
        missing_evidence=("no Flight Recorder: it did not answer",) if number % 97 == 0 else (),
    )


def _wait(made: _Job, at: tuple[int, int, int]) -> tuple[GroupKey, int, str, int, int] | None:
    """Group, place, call, line and peer of what a rank waits in; None for the stuck one."""
    d, p, t = at
    if at == made.stuck:
        return None
    if (d, p) == made.stuck[:2]:
        return made.tensor[d, p], 401, "all_reduce", 61, -1
    if d == made.stuck[0]:
        after = p > made.stuck[1]
        peer = made.rank(d, p - 1 if after else p + 1, t)
        return (made.pipeline[d, t], 33, *(("recv", 72) if after else ("send", 77)), peer)
    return made.across[p, t], 21, "all_reduce", 90, -1


def _thread(tid: int, frames: tuple[Frame, ...]) -> ThreadStack:
    return ThreadStack("MainThread", tid, active=True, owns_gil=False, frames=frames)


def _call(  # noqa: PLR0913 (what differs)
    group: GroupKey, seq: int, op: str, line: int, state: OpState, age_s: float, peer: int = -1
) -> OpRecord:
    return OpRecord(
        group=group,
        op=op,
        wire=op,
        seq=seq,
        p2p=peer >= 0,
        state=state,
        dtype="bfloat16",
        shape=(4096, 8192),
        peer=peer,
        site=Site(SCRIPT, line, "step"),
        issued_age_s=age_s,
        blocked_age_s=age_s if state is OpState.BLOCKED else None,
    )
