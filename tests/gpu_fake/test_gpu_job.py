"""A real job under watch on a machine whose GPUs are the fake library's."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fake_nvml import BLOCK, LOST, error
from harness import read_reports
from prometheus_client.parser import text_string_to_metric_families
from steady import TORCHRUN, Job

from hangwatch.evidence.processes import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from fake_nvml import FakeNvml

QUICK = ("--suspect-after", "6", "--metrics-addr", "127.0.0.1:0")


class Watched:
    """The job, its GPUs and what its watchdog tells of them."""

    def __init__(self, job: Job, fake: FakeNvml, base: Path) -> None:
        self.job = job
        self._fake = fake
        self._base = base

    def gpu(self, index: int, **figures: str) -> None:
        """Change what a GPU shows."""
        self._fake.gpu(index, **figures)
        self._fake.write()

    def place(self, *gpus: int) -> None:
        """Put rank 0, 1, ... on these GPUs."""
        self.job.until_running()
        found = {one.rank: one.pid for one in Tree().launched_ranks(self.job.process.pid)}
        for index in range(4):
            mine = [found[rank] for rank, gpu in enumerate(gpus) if gpu == index]
            self._fake.gpu(index, processes=" ".join(f"{pid} 1000000" for pid in mine))
        self._fake.write()

    def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of all series of a name, as they are scraped now."""
        found = []
        with suppress(OSError, ValueError):
            (file,) = self._base.glob("hangwatch-metrics/*.json")
            target = json.loads(file.read_text())[0]["targets"][0]
            with urllib.request.urlopen(f"http://{target}/metrics", timeout=30) as answer:
                text = answer.read().decode()
            for family in text_string_to_metric_families(text):
                found += [(one.labels, one.value) for one in family.samples if one.name == name]
        return found

    def ranks(self) -> set[tuple[str, str]]:
        """(GPU, rank) of the metrics."""
        return {(of["gpu"], of["rank"]) for of, _ in self.series("hangwatch_gpu_rank_info")}

    def report(self, **verdict: str) -> dict[str, Any]:
        """The first report, once its verdict is such a one."""

        def wanted(report: dict[str, Any]) -> bool:
            return all(report["verdict"][name] == value for name, value in verdict.items())

        directory = self.job.where / "hangwatch-reports"
        self.job.until(lambda: any(map(wanted, read_reports(directory))), f"a report: {verdict}")
        return next(filter(wanted, read_reports(directory)))


def start(tmp_path: Path, fake: FakeNvml, *options: str) -> Watched:
    base = tmp_path / "shm"
    base.mkdir()
    fake.gpus(4)
    fake.write()
    env = {"HANGWATCH_DIR": str(base), **fake.environment()}
    job = Job(tmp_path, *QUICK, *options, env=env, launch=TORCHRUN)
    return Watched(job, fake, base)


def test_ranks_share_a_gpu_then_one_falls_off_the_bus(tmp_path: Path, fake: FakeNvml) -> None:
    watched = start(tmp_path, fake)
    both = {("GPU-2", "0"), ("GPU-3", "1")}
    with watched.job as job:
        watched.place(2, 2)
        job.until_said("all 2 ranks of this node use GPU 2, and none of them the 3 others")
        watched.place(2, 3)
        job.until(lambda: watched.ranks() == both, "the GPUs' ranks")
        power = {of["gpu"]: watts for of, watts in watched.series("hangwatch_gpu_power_watts")}
        assert power == dict.fromkeys((f"GPU-{n}" for n in range(4)), 350.5)
        watched.gpu(3, xids="79", all=error(LOST))
        job.until_said("GPU 3 (rank 1) has fallen off the bus (Xid 79)")
        job.until_said("NVML lost contact with it")
        job.pause()
        report = watched.report(reason="gpu_fault")
        verdict = report["verdict"]
        assert verdict["kind"] == "never_entered"
        assert verdict["culprits"] == [1]
        assert "it is on GPU 3, which has fallen off the bus (Xid 79)" in verdict["headline"]
        gpus = [rank["gpu"] for rank in report["ranks"]]
        assert [(gpu["uuid"], gpu["health"]) for gpu in gpus] == [
            ("GPU-2", "ok"),
            ("GPU-3", "lost"),
        ]
        assert gpus[0]["temperature_c"] == 61
        assert (gpus[1]["xids"], gpus[1]["temperature_c"]) == ({"79": 1}, None)
        ((labels, count),) = watched.series("hangwatch_gpu_xid_errors_total")
        assert (labels["gpu"], labels["xid"], count) == ("GPU-3", "79", 1)
        job.says_once("(Xid 79). The driver")
        job.says_once("torch.cuda.set_device")
        job.go_on()
        job.ends_well()


def test_the_next_watchdog_knows_of_the_errors(tmp_path: Path, fake: FakeNvml) -> None:
    watched = start(tmp_path, fake)
    both = {("GPU-0", "0"), ("GPU-1", "1")}
    with watched.job as job:
        watched.place(0, 1)
        job.until(lambda: watched.ranks() == both, "the GPUs' ranks")
        watched.gpu(1, xids="94")
        saved = job.run_dir() / "watchdog.json"
        job.until(lambda: b'"xids":[[94' in saved.read_bytes(), "the state to be saved")
        (old,) = job.watchdogs()
        os.kill(old, signal.SIGKILL)
        job.pause()
        report = watched.report(reason="gpu_fault")
        assert "contained memory error (Xid 94)" in report["verdict"]["headline"]
        assert old not in job.watchdogs()
        job.says_once("(Xid 94). An")
        job.go_on()
        job.ends_well()


def test_nvml_that_blocks_for_ever_costs_the_gpus_alone(tmp_path: Path, fake: FakeNvml) -> None:
    fake.values["init"] = BLOCK
    fake.write()
    watched = start(tmp_path, fake)
    with watched.job as job:
        job.until_running()
        job.until(lambda: watched.series("hangwatch_nvml_up"), "the metrics")
        job.pause()
        report = watched.report(kind="never_entered")
        assert [rank["gpu"] for rank in report["ranks"]] == [None, None]
        assert report["verdict"]["culprits"] == [1]
        ((_, up),) = watched.series("hangwatch_nvml_up")
        assert up == 0
        job.go_on()
        job.ends_well()


def test_no_gpu_leaves_them_alone(tmp_path: Path, fake: FakeNvml) -> None:
    watched = start(tmp_path, fake, "--no-gpu")
    with watched.job as job:
        watched.place(0, 1)
        reason = [({"reason": "--no-gpu"}, 1.0)]
        job.until(
            lambda: (
                [
                    ({"reason": of["reason"]}, value)
                    for of, value in watched.series("hangwatch_nvml_info")
                ]
                == reason
            ),
            "the reason",
        )
        assert watched.series("hangwatch_gpu_info") == []
        job.ends_well()
