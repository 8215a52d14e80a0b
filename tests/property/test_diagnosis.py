"""What holds of every verdict, whatever the snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from evidence import gist, renamed
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import SCRIPT, Planted, healthy_jobs, planted_faults, stuck_jobs

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Certainty, Kind, OpState, Phase, State
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.snapshot import (
    Child,
    Frame,
    GroupProgress,
    JobSnapshot,
    NewGroup,
    OpRecord,
    ProcessState,
    RankSnapshot,
    ThreadStack,
    Thresholds,
)
from hangwatch.model.verdict import OK

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

THRESHOLDS = Thresholds(suspect_after_s=10.0, hang_after_s=300.0)
FILES = (
    SCRIPT,
    "/x/site-packages/torch/autograd/graph.py",
    "<frozen runpy>",
    "",
    "/usr/lib/libc.so.6",
)
SOURCE = """
def main():
    for step in range(10):
        loss.backward()
        if rank == 0:
            dist.barrier()
    dist.barrier()
"""

numbers = st.integers(-2, 6) | st.sampled_from([-(10**12), 10**12])
ages = st.floats(0, 1000) | st.sampled_from([float("nan"), float("inf"), -1.0])
texts = st.sampled_from(["", "all_reduce", "send", "recv", "Connection closed by peer", "x\n{}`"])
sites = st.none() | st.builds(Site, st.sampled_from(FILES), numbers, texts, st.none() | texts)
keys = st.builds(
    GroupKey, st.lists(numbers, max_size=4).map(tuple), st.sampled_from(["", "default_pg"]), numbers
)
some_keys = st.sampled_from(
    [GroupKey((0, 1, 2, 3), "default_pg"), GroupKey((0, 1)), GroupKey((1, 0)), GroupKey(())]
)
groups = some_keys | keys
ops = st.builds(
    OpRecord,
    group=groups,
    op=texts,
    wire=texts,
    seq=numbers,
    p2p=st.booleans(),
    state=st.sampled_from(OpState),
    shape=st.lists(numbers, max_size=2).map(tuple),
    root=numbers,
    peer=numbers,
    tag=st.integers(0, 1),
    site=sites,
    issued_age_s=ages,
    blocked_age_s=st.none() | ages,
    source=st.sampled_from(["page", "flight"]),
)
new_groups = st.builds(NewGroup, numbers, numbers, groups, sites, ages)
frames = st.builds(Frame, st.sampled_from(FILES), numbers, texts)
threads = st.builds(
    ThreadStack,
    st.sampled_from(["MainThread", ""]),
    numbers,
    st.booleans(),
    st.booleans(),
    st.lists(frames, max_size=4).map(tuple),
)
processes = st.builds(
    ProcessState,
    alive=st.booleans(),
    state=st.sampled_from(["", "S", "T", "Z"]),
    wchan=texts,
    tracer_pid=numbers,
    exit_code=st.none() | numbers,
    signal=st.none() | st.sampled_from([6, 9, 15, -3]),
    oom_killed=st.booleans(),
    gone_age_s=st.none() | ages,
    terminated_by_launcher=st.booleans(),
)
ranks = st.builds(
    RankSnapshot,
    rank=numbers,
    node=st.sampled_from(["", "n0"]),
    pid=numbers,
    phase=st.sampled_from(Phase),
    process=processes,
    phase_age_s=ages,
    groups=st.lists(
        st.builds(GroupProgress, groups, texts, numbers, numbers, alive=st.booleans()), max_size=3
    ).map(tuple),
    ops=st.lists(ops, max_size=6).map(tuple),
    in_call=st.sampled_from(["", "new_group", "init_process_group", "destroy_process_group", "?"]),
    in_call_age_s=ages,
    in_call_site=sites,
    new_groups=st.lists(new_groups, max_size=4).map(tuple),
    exception=st.none() | st.builds(ExceptionRecord, texts, texts, sites),
    exception_age_s=st.none() | ages,
    handling=texts,
    gil_age_s=st.none() | ages,
    heartbeat_age_s=st.none() | ages,
    pending_age_s=st.none() | ages,
    threads=st.none() | st.lists(threads, max_size=2).map(tuple),
    children=st.lists(
        st.builds(Child, numbers, texts, processes, st.lists(threads, max_size=1).map(tuple)),
        max_size=1,
    ).map(tuple),
    flight=st.booleans(),
)
garbage = st.builds(
    JobSnapshot,
    world_size=numbers,
    ranks=st.lists(ranks, max_size=5).map(tuple),
    ended=st.booleans(),
    exit_code=st.none() | numbers,
    lost_nodes=st.sampled_from([(), ("n0",)]),
    unseen=st.sampled_from([(), ("node n1 did not answer",)]),
    sources=st.sampled_from([{}, {SCRIPT: SOURCE}, {SCRIPT: "def ("}]),
)


@given(garbage)
@settings(max_examples=400)
def test_no_snapshot_makes_it_raise(job: JobSnapshot) -> None:
    verdicts = diagnose(job, THRESHOLDS)
    assert verdicts
    for verdict in verdicts:
        assert list(verdict.culprits) == sorted(set(verdict.culprits))
        assert list(verdict.victims) == sorted(set(verdict.victims))
        assert not set(verdict.culprits) & set(verdict.victims)
        assert verdict.headline.endswith(".")
        assert (verdict.kind is None) == (verdict == OK)


@given(stuck_jobs(), st.data())
@settings(max_examples=150)
def test_the_verdict_is_the_same_under_any_renaming_of_ranks(
    job: JobSnapshot, data: DataObject
) -> None:
    names = data.draw(st.permutations(range(job.world_size)))
    expected = [
        gist(
            replace(
                verdict,
                culprits=tuple(sorted(names[rank] for rank in verdict.culprits)),
                victims=tuple(sorted(names[rank] for rank in verdict.victims)),
            )
        )
        for verdict in diagnose(job, THRESHOLDS)
    ]
    found = [gist(verdict) for verdict in diagnose(renamed(job, names), THRESHOLDS)]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def lessened(draw: DataObject, job: JobSnapshot) -> JobSnapshot:
    """The same job with evidence taken away."""
    kept = []
    for rank in job.ranks:
        match draw.draw(st.sampled_from(["all", "all", "none", "stack", "flight", "ring"])):
            case "all":
                kept.append(rank)
            case "stack":
                kept.append(replace(rank, threads=None, children=()))
            case "flight":
                own = tuple(op for op in rank.ops if op.source == "page")
                kept.append(replace(rank, ops=own, flight=False))
            case "ring":
                waits = [op for op in rank.ops if op.state is not OpState.DONE]
                kept.append(replace(rank, ops=tuple(waits)))
    sources = job.sources if draw.draw(st.booleans()) else {}
    return replace(job, ranks=tuple(kept), sources=sources)


@given(stuck_jobs(), st.data())
@settings(max_examples=200)
def test_less_evidence_never_proves_it_of_somebody_else(job: JobSnapshot, data: DataObject) -> None:
    whole = diagnose(job, THRESHOLDS)
    less = diagnose(lessened(data, job), THRESHOLDS)
    guilty = {rank for verdict in whole for rank in verdict.culprits}
    for verdict in less:
        if verdict.kind is not None and verdict.certainty is Certainty.PROVED:
            assert set(verdict.culprits) <= guilty


@given(planted_faults())
@settings(max_examples=200)
def test_the_planted_culprit_is_named_and_alone_where_a_majority_knows_better(
    planted: Planted,
) -> None:
    main = diagnose(planted.job, THRESHOLDS)[0]
    if main.kind is None:
        return
    assert planted.culprit in main.culprits
    alone = planted.group is not None and len(planted.group.ranks) > 2
    if alone and main.kind is not Kind.ORDER_INVERSION:
        assert main.culprits == (planted.culprit,)


@given(healthy_jobs())
@settings(max_examples=150)
def test_a_healthy_job_is_never_proved_to_hang(job: JobSnapshot) -> None:
    for verdict in diagnose(job, THRESHOLDS):
        assert verdict.state in (State.OK, State.SLOW)
        assert verdict.certainty is not Certainty.PROVED or verdict.kind is None
