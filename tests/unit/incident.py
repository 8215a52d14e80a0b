"""An incident as the watchdog describes it: rank 2 of 4 sleeps in its data loader."""

from __future__ import annotations

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Certainty, Kind, Phase, Reason, State
from hangwatch.model.report import Evidence, Moment, RunInfo
from hangwatch.model.snapshot import (
    Child,
    Frame,
    GroupProgress,
    JobSnapshot,
    ProcessState,
    RankSnapshot,
    ThreadStack,
)
from hangwatch.model.verdict import Collective, Verdict, Wait

TRAIN = "/home/ada/train.py"
SOURCE = """\
class Samples:
    def __getitem__(self, index):
        if index == 160:
            time.sleep(3600)  # a dead mount
        return sample

def main():
    for samples in loader:
        loss.backward()
"""
WORLD = GroupKey((0, 1, 2, 3), "default_pg")
BACKWARD = Site(TRAIN, 9, "main")
STALL = Site(TRAIN, 4, "__getitem__", "time.sleep(3600)  # a dead mount")
TORCH = "/usr/lib/python3/dist-packages/torch"
WAITING = (
    Frame(f"{TORCH}/autograd/graph.py", 800, "_engine_run_backward"),
    Frame(TRAIN, 9, "main"),
    Frame(TRAIN, 12, "<module>"),
)
LOADING = (
    Frame("/usr/lib/python3.11/multiprocessing/queues.py", 113, "get"),
    Frame(f"{TORCH}/utils/data/dataloader.py", 1243, "_try_get_data"),
    Frame(TRAIN, 8, "main"),
    Frame(TRAIN, 12, "<module>"),
)
STALLED = (
    Frame(TRAIN, 4, "__getitem__"),
    Frame(f"{TORCH}/utils/data/_utils/fetch.py", 52, "fetch"),
    Frame(TRAIN, 8, "main"),
)


def rank(number: int) -> RankSnapshot:
    """One rank; number 2 is the culprit, with a worker."""
    culprit = number == 2
    worker = Child(
        5002, "python train.py", ProcessState(alive=True, state="S"), (thread(5002, STALLED),)
    )
    return RankSnapshot(
        rank=number,
        node="node-a",
        pid=4000 + number,
        phase=Phase.RUNNING,
        process=ProcessState(alive=True, state="S", wchan="futex_do_wait"),
        groups=(GroupProgress(WORLD, "0", 40 if culprit else 41, 40),),
        threads=(thread(4000 + number, LOADING if culprit else WAITING),),
        children=(worker,) if culprit else (),
        missing_evidence=("no Flight Recorder: it did not answer",) if number == 3 else (),
    )


def thread(tid: int, frames: tuple[Frame, ...]) -> ThreadStack:
    """A main thread."""
    return ThreadStack("MainThread", tid, active=False, owns_gil=False, frames=frames)


VERDICT = Verdict(
    state=State.HANG,
    kind=Kind.NEVER_ENTERED,
    reason=Reason.DATA_LOADING,
    certainty=Certainty.LIKELY,
    culprits=(2,),
    victims=(0, 1, 3),
    group=WORLD,
    group_name="0",
    collective=Collective("all_reduce", 41, "float32", (1153,)),
    site=STALL,
    victim_site=BACKWARD,
    headline="Rank 2 is stuck in its data loader; ranks 0, 1, 3 wait for it in all_reduce #41.",
    explanation="A worker of its DataLoader has been in __getitem__ for 8.2 s.",
    advice=("Look at what __getitem__ reads.", "Give the DataLoader a timeout."),
    waits=tuple(Wait(r, WORLD, 41, "all_reduce", (2,), 8.0 + r / 10, BACKWARD) for r in (0, 1, 3)),
    stuck_age_s=8.3,
)

EVIDENCE = Evidence(
    run=RunInfo(
        "night-7", ("torchrun", "train.py"), "2026-01-02T03:00:00.000+00:00", {"torch": "2.13.0"}
    ),
    job=JobSnapshot(4, tuple(rank(number) for number in range(4)), sources={TRAIN: SOURCE}),
    verdicts=(VERDICT,),
    detected_at="2026-01-02T03:04:05.500+00:00",
    detected_after_s=8.25,
    pages={2: b"\x00page"},
    flights={2: b'{"entries": []}'},
    environment={"NCCL_DEBUG": "INFO"},
    timeline=(Moment("2026-01-02T03:04:00.000+00:00", "rank 2 stopped", 2),),
    lost=("no stack of rank 1",),
)
