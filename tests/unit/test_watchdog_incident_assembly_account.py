"""The timeline of an incident."""

from __future__ import annotations

from dataclasses import replace

from snapshots import job, rank, world

from hangwatch.model.gpu import GpuState, Xid
from hangwatch.model.kinds import Certainty, Reason, State
from hangwatch.model.report import RasAnswer, RunInfo
from hangwatch.model.verdict import Verdict, Wait
from hangwatch.watchdog.incident.evidence import Collected
from hangwatch.watchdog.incident.reporter import MAX_ERRORS, Account, Judged
from hangwatch.watchdog.incident.stages import Announce

GPU = GpuState("GPU-1", 3, "NVIDIA H100")
WAIT = Wait(0, world(2), 4, "all_reduce", (1,), 20.0)
VERDICT = Verdict(
    State.SLOW, None, Reason.UNKNOWN, Certainty.LIKELY, waits=(WAIT,), stuck_age_s=20.0
)


def timeline(*gpus: GpuState) -> list[tuple[int, str]]:
    """(Rank, text) of each line."""
    found = job(*(replace(rank(n, world(2)), gpu=gpu) for n, gpu in enumerate(gpus)))
    account = Account(RunInfo("r1", ("train.py",), ""))
    account.add(Announce.SLOW, VERDICT)
    evidence = account.evidence(Judged((VERDICT,), found, Collected(0, 2, ())), ())
    assert [one.at for one in evidence.timeline] == sorted(one.at for one in evidence.timeline)
    return [(one.rank, one.what) for one in evidence.timeline]


def test_errors_of_gpus_stand_where_they_came() -> None:
    before, after = Xid(31, 2, 60.0), Xid(79, 1, 5.0)
    sick = replace(GPU, xids=(before, after))
    assert timeline(GPU, sick) == [
        (1, "Xid 31 of GPU 3: it has reported an access to an illegal address, 2 times by now."),
        (-1, "The longest wait begins."),
        (1, "Xid 79 of GPU 3: it has fallen off the bus."),
        (-1, "SLOW: "),
    ]


def test_a_gpu_that_ranks_share_has_its_errors_once() -> None:
    sick = replace(GPU, xids=(Xid(79, 1, 5.0),))
    assert [number for number, _ in timeline(sick, sick)] == [-1, 0, -1]


def test_what_another_node_makes_up_is_bounded() -> None:
    odd = replace(GPU, xids=tuple(Xid(n, 1, 1e300) for n in range(1000)))
    assert len(timeline(odd)) == 2 + MAX_ERRORS
    assert len(timeline(replace(GPU, xids=(Xid(79, 1, float("-inf")),)))) == 3


def test_nccl_is_named_by_what_runs() -> None:
    account = Account(RunInfo("r1", ("train.py",), ""))
    account.add(Announce.SLOW, VERDICT)
    flights = {0: b'{"comm_lib_version":"","entries":[]}', 1: b'{"nccl_version": "2.27.5", "e'}
    judged = Judged((VERDICT,), job(rank(0, world(2))), Collected(0, 2, (), flights=flights))
    assert account.evidence(judged, ()).run.versions["NCCL"] == "2.27.5"
    ras = RasAnswer(b"{}", is_json=True, complete=True, version="2.28.3")
    evidence = account.evidence(replace(judged, ras=ras), ())
    assert evidence.run.versions["NCCL"] == "2.28.3"
    assert evidence.timeline[-1].what == (
        "RAS of NCCL 2.28.3: all ranks answer and have launched the same; it does not look at GPUs."
    )
    later = account.evidence(judged, ())  # when nobody can be asked any more
    assert (later.ras, later.timeline[-1]) == (evidence.ras, evidence.timeline[-1])
    cut = account.evidence(replace(judged, ras=replace(ras, complete=False)), ())
    assert cut.timeline[-1].what == "RAS of NCCL 2.28.3: it did not answer in full."
