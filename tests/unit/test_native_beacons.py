"""The wrappers have the GPU tell, on the stream that is current, how far it has come."""

from __future__ import annotations

import os
import sys
import threading
import time
import types
from typing import TYPE_CHECKING, Any

import pytest
from fake_cuda import FakeCuda, build
from fake_torch import Group, Work, raising
from stub import OnDevice as Tensor
from stub import torch

from hangwatch import _native
from hangwatch.agent.sample.flight import RELAXED, captures_left_alone
from hangwatch.agent.torch_api import stream_function
from hangwatch.diagnosis import diagnose
from hangwatch.evidence.pages.reader import parse_page
from hangwatch.evidence.snapshot import rank_snapshot
from hangwatch.model.kinds import Kind, Reason
from hangwatch.model.snapshot import JobSnapshot, ProcessState, Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangwatch.model.page import PageEvent, PageGroup, RankPage


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(library: Path) -> FakeCuda:
    return FakeCuda(library)


class Rank:
    """A rank with one group of two, and its page."""

    def __init__(self, path: Path, cuda: FakeCuda) -> None:
        self.path = path
        self.cuda = cuda
        self.group = Group()

    def define(self, backend: str = "nccl") -> None:
        _native.define_group(0, "0", "", [0, 1], 0, backend)

    @property
    def page(self) -> RankPage:
        return parse_page(self.path.read_bytes())

    @property
    def told(self) -> PageGroup:
        return self.page.groups[0]

    @property
    def last(self) -> PageEvent:
        return self.page.events[-1]

    def runs(self, count: int = -1) -> tuple[int, int]:
        """Let the default stream go on; returns what has been reached and passed."""
        self.cuda.run(count=count)
        return self.told.reached, self.told.passed


@pytest.fixture
def rank(tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setitem(sys.modules, "torch", torch())
    rank = Rank(tmp_path / "r0-0-1.page", cuda)
    _native.open_page(str(rank.path), {"pid": os.getpid(), "rank": 0, "world_size": 2})
    _native.set_prefixes([], [])
    _native.wrap_methods(Group, Work, lambda group: 0 if group is rank.group else -1)
    _native.use_streams(cuda.current_stream, str(cuda.library))
    rank.define()
    yield rank
    _native.unwrap_methods()
    _native.close_page()


def test_the_gpu_tells_that_it_has_come_to_a_call_and_is_behind_it(rank: Rank) -> None:
    rank.group.result = work = Work()
    assert rank.group.allreduce([Tensor()]) is work
    assert (rank.told.reached, rank.told.passed) == (0, -1)
    assert rank.last.device == 0
    assert rank.runs() == (1, -1)
    assert work.wait()
    assert (rank.told.reached, rank.told.passed) == (1, 0)
    assert rank.runs() == (1, 1)
    assert rank.page.beacons == ""
    assert rank.page.swallowed == 0


def test_the_beacon_is_on_its_stream_before_the_call_is_made(rank: Rank) -> None:
    pending: list[int] = []
    rank.group.during = lambda: pending.append(rank.cuda.pending())
    rank.group.allreduce([Tensor()])
    assert pending == [1]


def test_a_call_that_gives_no_work_is_passed_where_it_returns(rank: Rank) -> None:
    rank.group.allreduce([Tensor()])
    assert rank.cuda.pending() == 2
    assert rank.runs(1) == (1, 0)
    assert rank.runs() == (1, 1)


def test_a_work_that_nobody_waits_for_is_not_told_as_passed(rank: Rank) -> None:
    rank.group.result = Work()
    rank.group.allreduce([Tensor()])
    assert rank.runs() == (1, -1)


def test_a_call_or_a_wait_that_raises_is_not_told_as_passed(rank: Rank) -> None:
    rank.group.during = raising(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        rank.group.allreduce([Tensor()])
    assert rank.runs() == (1, -1)


def test_the_wait_is_told_on_the_stream_that_waits(rank: Rank) -> None:
    compute, side = rank.cuda.stream(), rank.cuda.stream()
    rank.group.result = work = Work()
    rank.cuda.current[0] = side
    rank.group.allreduce([Tensor()])
    rank.cuda.current[0] = compute
    work.synchronize()
    assert (rank.cuda.pending(side), rank.cuda.pending(compute)) == (1, 1)


def test_streams_that_overlap_are_told_apart(rank: Rank) -> None:
    # As FSDP has it: the next all_gather does not wait for the compute, reduce_scatter does.
    gather, compute = rank.cuda.stream(), rank.cuda.stream()
    rank.cuda.current[0] = gather
    rank.group.allreduce([Tensor()])
    rank.cuda.current[0] = compute
    rank.group.allreduce([Tensor()])
    rank.cuda.current[0] = gather
    rank.group.allreduce([Tensor()])
    rank.cuda.run(gather)
    assert (rank.told.reached, rank.told.passed) == (1, 1)
    rank.cuda.run(compute)
    assert (rank.told.reached, rank.told.passed) == (3, 3)


def test_each_device_has_its_own_current_stream(rank: Rank) -> None:
    rank.cuda.context(1, active=True)
    second = rank.cuda.current[1] = rank.cuda.stream(1)
    rank.group.allreduce([Tensor(1)])
    assert rank.last.device == 1
    assert (rank.cuda.pending(), rank.cuda.pending(second)) == (0, 2)


def test_tensors_on_the_cpu_and_calls_to_one_peer_have_none(rank: Rank) -> None:
    rank.group.allreduce([Tensor(-1)])
    rank.group.send([Tensor()], 1, 0)
    assert rank.cuda.writes == 0
    assert {event.device for event in rank.page.events} == {-1}
    assert (rank.told.reached, rank.told.passed) == (-1, -1)
    assert rank.page.beacons == "no collective on a CUDA device was issued from Python so far"


def test_a_barrier_of_nccl_is_on_the_device_that_the_group_used_before(rank: Rank) -> None:
    rank.group.barrier()
    assert rank.cuda.writes == 0
    rank.group.allreduce([Tensor()])
    rank.group.barrier()
    assert rank.runs() == (3, 3)
    rank.define("gloo")
    rank.group.allreduce([Tensor()])
    rank.group.barrier()
    assert [event.device for event in rank.page.events] == [0, -1]


def test_gloo_has_beacons_for_tensors_on_a_device(rank: Rank) -> None:
    rank.define("gloo")
    rank.group.allreduce([Tensor()])
    assert rank.last.device == 0
    assert rank.runs() == (1, 1)


def test_nothing_is_enqueued_while_the_stream_is_captured(rank: Rank) -> None:
    stream = rank.cuda.current[0] = rank.cuda.stream()
    rank.cuda.capture(stream, on=True)
    rank.group.allreduce([Tensor()])
    assert rank.last.device == -1
    rank.cuda.capture(stream, on=False)
    rank.group.allreduce([Tensor()])
    rank.cuda.run(stream)
    assert (rank.told.reached, rank.told.passed) == (2, 2)


def test_a_coalesced_group_of_calls_is_passed_as_one(rank: Rank) -> None:
    rank.group._start_coalescing(1)  # noqa: SLF001 (as torch does)
    rank.group.result = work = Work()
    number = rank.group.number
    rank.group.allreduce([Tensor()])
    rank.group.number = number  # NCCL counts the group, not its parts
    rank.group.allreduce([Tensor()])
    rank.group.number = number
    assert rank.group._end_coalescing(1) is work  # noqa: SLF001 (as torch does)
    rank.runs()
    assert rank.told.passed == -1
    work.wait()
    assert rank.runs() == (1, 1)


@pytest.mark.parametrize("current_stream", [lambda _: "no number", lambda _: 1 // 0, lambda: 0])
def test_a_torch_that_tells_no_stream_ends_them_and_nothing_else(
    rank: Rank, current_stream: Any
) -> None:
    _native.use_streams(current_stream, str(rank.cuda.library))
    rank.group.result = work = Work()
    assert rank.group.allreduce([Tensor()]) is work
    assert rank.group.allreduce([Tensor()]) is work
    assert rank.page.beacons == "torch does not tell its current stream"
    assert rank.page.swallowed == 0
    assert rank.told.enqueued == 2


def test_a_failing_driver_ends_them_and_nothing_else(rank: Rank) -> None:
    rank.group.allreduce([Tensor()])
    rank.cuda.run()
    rank.cuda.fail("cuStreamWriteValue64_v2", 700)
    rank.group.result = work = Work()
    assert rank.group.allreduce([Tensor()]) is work
    assert work.wait()
    assert rank.page.beacons == "CUDA_ERROR_ILLEGAL_ADDRESS in cuStreamWriteValue64"
    assert (rank.told.reached, rank.told.passed, rank.told.enqueued) == (-1, -1, 2)
    assert (rank.page.swallowed, rank.page.disarmed) == (0, "")


def test_no_context_is_made_for_a_device_that_the_process_does_not_use(rank: Rank) -> None:
    rank.cuda.context(0, active=False)
    rank.group.allreduce([Tensor()])
    assert rank.cuda.writes == 0
    rank.cuda.context(0, active=True)
    rank.group.allreduce([Tensor()])
    assert rank.runs() == (2, 2)


def test_a_disarmed_recorder_writes_none(rank: Rank) -> None:
    _native.disarm()
    rank.group.allreduce([Tensor()])
    assert rank.cuda.writes == 0


def test_in_a_forked_child_there_are_none(rank: Rank) -> None:
    rank.group.allreduce([Tensor()])
    child = os.fork()
    if child == 0:
        before = rank.cuda.writes
        rank.group.allreduce([Tensor()])
        os._exit(0 if rank.cuda.writes == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rank.runs() == (1, 1)


def test_references_are_given_back(rank: Rank) -> None:
    tensor, work = Tensor(), Work()
    rank.group.result = work
    rank.group.allreduce([tensor])
    rank.group.calls.clear()
    before = sys.getrefcount(tensor), sys.getrefcount(work), sys.getrefcount(rank.group)
    for _ in range(100):
        rank.group.allreduce([tensor])
        work.wait()
        rank.cuda.run()
        rank.group.calls.clear()
    assert (sys.getrefcount(tensor), sys.getrefcount(work), sys.getrefcount(rank.group)) == before


def test_a_stream_that_is_full_makes_only_its_own_thread_wait(rank: Rank) -> None:
    rank.cuda.block()
    thread = threading.Thread(target=lambda: rank.group.allreduce([Tensor()]), daemon=True)
    thread.start()
    rank.cuda.wait_until_blocked()
    # Here nobody comes if the thread keeps the GIL.
    assert rank.told.reached == 0
    assert rank.last.state == "blocked"
    rank.cuda.unblock()
    thread.join(60)
    assert not thread.is_alive()
    assert rank.runs() == (1, 1)


def test_a_machine_is_examined_without_a_context(cuda: FakeCuda) -> None:
    cuda.context(0, active=False)  # the fake ends the process that makes one
    assert _native.examine_beacons(str(cuda.library)) == (2, "")
    cuda.fail("cuInit", 801)
    assert _native.examine_beacons(str(cuda.library)) == (0, "CUDA_ERROR_NOT_SUPPORTED in cuInit")
    devices, why = _native.examine_beacons("libno-such-thing.so.1")
    assert (devices, "libno-such-thing.so.1" in why) == (0, True)


def test_torchs_own_function_tells_the_stream(rank: Rank) -> None:
    side = rank.cuda.current[0] = rank.cuda.stream()
    core = types.SimpleNamespace(_cuda_getCurrentRawStream=rank.cuda.current_stream)
    found = stream_function({"torch._C": core})
    assert found is not None
    _native.use_streams(found)
    rank.group.allreduce([Tensor()])
    assert rank.cuda.pending(side) == 2
    # A torch without CUDA has no such function.
    assert stream_function({"torch._C": types.SimpleNamespace()}) is None
    assert stream_function({}) is None


def test_a_page_that_nobody_gave_streams_says_so(tmp_path: Path) -> None:
    path = tmp_path / "r0-0-1.page"
    _native.open_page(str(path), {"pid": os.getpid(), "rank": 0, "world_size": 2})
    assert parse_page(path.read_bytes()).beacons == "this torch has no CUDA"
    _native.close_page()


@pytest.mark.parametrize("stuck", [0, 1])
def test_of_two_ranks_that_enqueued_the_same_the_one_with_the_stuck_stream_is_named(
    rank: Rank, tmp_path: Path, stuck: int
) -> None:
    seen = []
    for number in range(2):
        _native.close_page()
        rank.path = tmp_path / f"r0-{number}-2.page"
        _native.open_page(str(rank.path), {"pid": 1, "rank": number, "world_size": 2})
        _native.use_streams(rank.cuda.current_stream, str(rank.cuda.library))
        rank.define()
        rank.group.number = 0
        for _ in range(5):
            rank.group.allreduce([Tensor()])
        rank.cuda.run(count=3 * 2)  # three calls are over, as on all ranks
        _native.sample_number(0, rank.group, 3)
        _native.beat("", True, True)
        rank.cuda.run(count=0 if number == stuck else 1)
        seen.append(rank.page)
    now_ns = time.monotonic_ns() + 60 * 10**9
    alive = ProcessState(alive=True)
    job = JobSnapshot(2, tuple(rank_snapshot(page, alive, "node", now_ns) for page in seen))
    assert [[g.started for g in one.groups] for one in job.ranks] == [
        [3 if number == stuck else 4] for number in range(2)
    ]
    (verdict,) = diagnose(job, Thresholds(suspect_after_s=10, hang_after_s=30))
    assert (verdict.culprits, verdict.victims) == ((stuck,), (1 - stuck,))
    assert (verdict.kind, verdict.reason) == (Kind.NEVER_ENTERED, Reason.GPU_KERNEL)
    assert verdict.collective is not None
    assert (verdict.collective.op, verdict.collective.seq) == ("all_reduce", 4)


def test_a_dump_of_the_recorder_disturbs_no_capture(cuda: FakeCuda) -> None:
    with captures_left_alone(str(cuda.library)):
        assert cuda.capture_mode == RELAXED
    assert cuda.capture_mode == 0
    with captures_left_alone("libnothing.so.7"):
        assert cuda.capture_mode == 0
