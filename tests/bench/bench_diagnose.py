"""Time and memory of one diagnosis, from 1,024 to 131,072 ranks.

A job with tensor (8), pipeline (16) and data (the rest) parallel groups in which one
rank is stuck in its data loader in the middle of a step: its tensor group waits for
it in a collective, the neighbours in its pipelines in a recv or send, and all the
others in the all_reduce of their data parallel group, directly or three groups away.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import time

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Kind, OpState, Phase
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

TENSOR, PIPELINE = 8, 16
THRESHOLDS = Thresholds(suspect_after_s=10.0, hang_after_s=300.0)
SCRIPT = "/home/ada/pretrain.py"
SOURCE = "".join(f"    step_{line}(model, batch)\n" for line in range(1, 1001))
ALIVE = ProcessState(alive=True, state="S")
MIB = 1024
"""KiB."""


def made(data: int, pipeline_size: int = PIPELINE) -> tuple[JobSnapshot, int]:
    """The snapshot, and the rank that is stuck in it."""
    size = data * pipeline_size * TENSOR

    def rank(d: int, p: int, t: int) -> int:
        return (d * pipeline_size + p) * TENSOR + t

    tensor = {
        (d, p): GroupKey(tuple(rank(d, p, t) for t in range(TENSOR)), "tp")
        for d in range(data)
        for p in range(pipeline_size)
    }
    pipeline = {
        (d, t): GroupKey(tuple(rank(d, p, t) for p in range(pipeline_size)), "pp")
        for d in range(data)
        for t in range(TENSOR)
    }
    across = {
        (p, t): GroupKey(tuple(rank(d, p, t) for d in range(data)), "dp")
        for p in range(pipeline_size)
        for t in range(TENSOR)
    }
    world = GroupKey(tuple(range(size)), "default_pg")
    stuck = (data // 2, pipeline_size // 2 - 1, 3)
    ranks = []
    for d in range(data):
        for p in range(pipeline_size):
            for t in range(TENSOR):
                keys = tensor[d, p], pipeline[d, t], across[p, t], world
                neighbour = rank(d, p - 1 if p > stuck[1] else p + 1, t)
                call = wait_of((d, p, t), stuck, keys, neighbour, rank(*stuck))
                ranks.append(snapshot(rank(d, p, t), keys, call))
    return JobSnapshot(size, tuple(ranks), sources={SCRIPT: SOURCE}), rank(*stuck)


def wait_of(
    at: tuple[int, int, int],
    stuck: tuple[int, int, int],
    keys: tuple[GroupKey, GroupKey, GroupKey, GroupKey],
    neighbour: int,
    culprit: int,
) -> OpRecord | None:
    """What a rank waits in; None for the one that is stuck."""
    tensor, pipeline, across, _ = keys
    if at == stuck:
        return None
    if culprit in tensor.ranks:
        return call(tensor, 401, "all_reduce", 61)
    if at[0] == stuck[0]:
        wire, line = ("recv", 72) if at[1] > stuck[1] else ("send", 77)
        return call(pipeline, 33, wire, line, peer=neighbour)
    return call(across, 21, "all_reduce", 90)


def call(  # noqa: PLR0913 (what differs, half of it by keyword)
    group: GroupKey,
    seq: int,
    op: str,
    line: int,
    *,
    state: OpState = OpState.BLOCKED,
    peer: int = -1,
) -> OpRecord:
    """A call as a rank's page has it."""
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
        site=Site(SCRIPT, line, "train"),
        issued_age_s=42.0,
        blocked_age_s=42.0 if state is OpState.BLOCKED else None,
    )


def snapshot(
    rank: int, keys: tuple[GroupKey, GroupKey, GroupKey, GroupKey], waits: OpRecord | None
) -> RankSnapshot:
    """One rank: its groups, its last calls, and a stack where it is stuck."""
    tensor, pipeline, across, world = keys
    done = OpState.DONE
    ops = [
        call(across, 20, "all_reduce", 90, state=done),
        call(tensor, 399, "all_reduce", 61, state=done),
        call(tensor, 400, "all_reduce", 64, state=done),
    ]
    reached = {"tp": 400, "dp": 20}
    if waits is not None:
        ops.append(waits)
        reached[waits.group.desc] = waits.seq
    loader = Frame("/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py", 1450, "_next")
    stack = ThreadStack("MainThread", rank + 10, True, False, (loader, Frame(SCRIPT, 55, "train")))  # noqa: FBT003 (active, owns_gil)
    return RankSnapshot(
        rank=rank,
        node=f"n{rank // 8}",
        pid=rank + 10,
        phase=Phase.RUNNING,
        process=ALIVE,
        groups=(
            GroupProgress(tensor, "1", reached["tp"], 400),
            GroupProgress(pipeline, "2", 0, 0, p2p=33),
            GroupProgress(across, "3", reached["dp"], 20),
            GroupProgress(world, "0", 3, 3),
        ),
        ops=tuple(ops),
        gil_age_s=0.3,
        heartbeat_age_s=0.1,
        threads=(stack,) if waits is None else None,
    )


def measure(data: int) -> dict[str, float]:
    """Diagnose once; seconds, and MiB of the process before and at its most."""
    job, stuck = made(data)
    gc.collect()
    gc.freeze()  # as it was read from pages or the store, long before
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    begin, cpu = time.perf_counter(), time.process_time()
    (verdict, *others) = diagnose(job, THRESHOLDS)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    assert not others
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (stuck,)), verdict
    assert len(verdict.victims) == len(job.ranks) - 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    return {"ranks": len(job.ranks), "s": seconds, "cpu_s": cpu_seconds, "mib": before, "max": peak}


def main() -> None:
    """One process for each size, so that its memory is its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=int, nargs="*", default=[8, 32, 128, 512, 1024])
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    print("ranks     seconds  CPU s   us a rank  MiB with the snapshot  MiB at most")
    for data in options.data:
        words = [sys.executable, __file__, "--child", str(data)]
        output = subprocess.run(words, check=True, env=dict(os.environ), stdout=subprocess.PIPE)  # noqa: S603
        found = json.loads(output.stdout)
        each = found["s"] / found["ranks"] * 1e6
        print(
            f"{found['ranks']:7}  {found['s']:8.3f}  {found['cpu_s']:5.2f}  {each:10.2f}"
            f"  {found['mib']:21.0f}  {found['max']:11.0f}"
        )


if __name__ == "__main__":
    main()
