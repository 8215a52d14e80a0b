"""What people are told of the GPUs of their ranks, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from made_pages import page, write
from watched import Watched

from hangwatch.efficiency.habits import Finding
from hangwatch.evidence.gpu.reader import Gpus
from hangwatch.model.gpu import GpuState, NodeGpus, Xid
from hangwatch.model.kinds import Cost, GpuHealth
from hangwatch.watchdog.gpus import GpuWatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hangwatch.evidence.gpu.reader import LocalRank

GPU = GpuState("GPU-1", 1, "NVIDIA H100", ranks=(0,), utilization=0.5)


class FakeGpus(Gpus):
    """What NVML would have said; nothing is started."""

    def __init__(self) -> None:
        super().__init__("the fake asks nobody")
        self.said = NodeGpus()
        self.shared: GpuState | None = None
        self.why = ""
        self.given: Sequence[LocalRank] = ()
        self.broken = False

    @property
    def trouble(self) -> str:
        return self.why

    def watch(self, ranks: Sequence[LocalRank], *, active: bool) -> None:
        if self.broken:
            raise RuntimeError("an error of ours")
        self.given = ranks
        assert active is bool(ranks)

    def node(self) -> NodeGpus:
        return self.said

    def crowded(self) -> GpuState | None:
        return self.shared


class Bench(Watched):
    """A watch over one rank, this process."""

    def __init__(self, where: Path) -> None:
        super().__init__(where)
        self.gpus = FakeGpus()
        self.device = where / "nvidia"
        self.watch = GpuWatch(self.gpus, self.news, device=str(self.device))
        write(self.run_dir, page(0))

    def look(self, *gpus: GpuState, after_s: float = 2.0, **node: Any) -> str:
        """A look a while later; all that was said so far."""
        self.gpus.said = NodeGpus(gpus, **node)
        self.watch.look(self.seen(after_s))
        return self.said


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def test_sound_gpus_are_no_news(bench: Bench) -> None:
    assert bench.look(GPU) == ""
    assert bench.news.lost == []


def test_an_error_is_said_once_for_each_gpu(bench: Bench) -> None:
    broken = replace(GPU, xids=(Xid(48, 1, 0.1),))
    said = bench.look(broken)
    assert "GPU 1 (rank 0) has an uncorrectable memory error (Xid 48)." in said
    assert bench.look(replace(broken, xids=(Xid(48, 2, 0.1),))) == said


def test_errors_of_gpus_that_no_rank_uses_are_no_news_of_this_job(bench: Bench) -> None:
    assert bench.look(replace(GPU, ranks=(), xids=(Xid(48),), health=GpuHealth.LOST)) == ""


def test_notes_of_the_driver_are_no_news(bench: Bench) -> None:
    assert bench.look(replace(GPU, xids=(Xid(63, 1, 0.0), Xid(12345, 1, 0.0)))) == ""


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (GpuHealth.LOST, "GPU 1 (rank 0) has fallen off the bus"),
        (GpuHealth.RESET_REQUIRED, "GPU 1 (rank 0) has to be reset"),
        (GpuHealth.SILENT, "GPU 1 (rank 0) no longer responds to NVML"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_said_once(
    bench: Bench, health: GpuHealth, words: str
) -> None:
    assert words in bench.look(replace(GPU, health=health))
    assert bench.look(replace(GPU, health=health)).count(words) == 1


def test_figures_that_fail_are_kept_for_the_report(bench: Bench) -> None:
    assert bench.look(replace(GPU, unreadable=("power", "memory"))) == ""
    assert bench.news.lost == [
        "NVML does not report all values of GPU 1 (rank 0): power, memory",
    ]


def test_without_nvml_only_jobs_on_gpus_have_lost_something(bench: Bench) -> None:
    bench.gpus.why = "a driver mismatch"
    bench.look()
    assert bench.news.lost == []
    bench.device.with_name("nvidiactl").touch()
    with bench.device.with_name("nvidia0").open("w"):
        bench.look(after_s=10)
    assert bench.gpus.given[0].on_device
    assert bench.news.lost == ["nothing is known of the GPUs: a driver mismatch"]


def test_a_gpu_that_is_assumed_for_long_is_kept_for_the_report(bench: Bench) -> None:
    bench.look(replace(GPU, assumed=True))
    assert bench.news.lost == []
    assert bench.look(replace(GPU, assumed=True), after_s=40) == ""
    assert "NVML names none of the processes of rank 0" in bench.news.lost[0]


def test_ranks_that_share_a_gpu_for_a_moment_are_no_news(bench: Bench) -> None:
    bench.gpus.shared = shared = replace(GPU, ranks=(0, 1))
    idle = replace(GPU, uuid="GPU-2", index=2, ranks=())
    assert bench.look(shared, idle) == ""
    bench.gpus.shared = None
    assert bench.look(shared, idle, after_s=20) == ""
    bench.gpus.shared = shared
    assert bench.look(shared, idle, after_s=1) == ""
    said = bench.look(shared, idle, after_s=20)
    assert "all 2 ranks of this node use GPU 1, and none of them the 1 other" in said
    assert bench.look(shared, idle, after_s=20) == said
    assert bench.watch.findings == (Finding(Cost.ONE_GPU, (0, 1), count=1, other=1),)


def test_an_error_of_ours_costs_the_gpus_alone(bench: Bench) -> None:
    bench.gpus.broken = True
    assert "the GPUs cannot be watched: RuntimeError" in bench.look()
