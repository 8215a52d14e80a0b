"""A watched job can be watched by Prometheus, too, and is not harmed by it.

The job is a real one, and so is the Prometheus, which finds it by the file that the
watchdog leaves for it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from harness import free_port
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import prometheus
from steady import TORCHRUN, Job
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


QUICK = ("--suspect-after", "1")


class Scraped:
    """The metrics of a job whose run directory lies in a place of the test's own."""

    def __init__(self, where: Path) -> None:
        self.base = where / "shm"
        self.base.mkdir()

    @property
    def env(self) -> Mapping[str, str]:
        """What the job is started with."""
        return {"HANGWATCH_DIR": str(self.base)}

    def files(self) -> list[Path]:
        """The files that Prometheus would find."""
        return list(self.base.glob("hangwatch-metrics/*.json"))

    def target(self) -> str:
        """Where the metrics are."""
        (file,) = self.files()
        ((content,),) = ([json.loads(file.read_text())[0]["targets"]],)
        return str(content[0])

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series of now, None where it is not there."""
        with suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://{self.target()}/metrics", timeout=30) as answer:
                text = answer.read().decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == name and labels.items() <= sample.labels.items():
                        return float(sample.value)
        return None


@pytest.fixture
def scraped(tmp_path: Path) -> Scraped:
    return Scraped(tmp_path)


def test_prometheus_finds_the_job_and_sees_it_stall_and_go_on(
    tmp_path: Path, scraped: Scraped
) -> None:
    options = (*QUICK, "--metrics-addr", "127.0.0.1:0")
    with (
        prometheus(
            tmp_path / "prometheus", scraped.base / "hangwatch-metrics", free_port()
        ) as server,
        Job(tmp_path, *options, env=scraped.env) as job,
    ):

        def ranks(expression: str) -> set[str]:
            return {one["metric"].get("rank", "") for one in server.now(expression)}

        def until_ranks(expression: str, expected: set[str]) -> None:
            job.until(lambda: ranks(expression) == expected, expression)

        until_ranks("rate(hangwatch_collectives_enqueued_total[10s]) > 0", {"0", "1"})
        until_ranks("hangwatch_arrival_spread_seconds_count > 0", {""})
        until_ranks("hangwatch_rank_loop_period_seconds < 1", {"0", "1"})
        until_ranks("hangwatch_rank_up == 1", {"0", "1"})
        until_ranks("up == 1", {""})
        job.pause()
        until_ranks("hangwatch_rank_waiting_seconds > 2", {"0"})
        until_ranks('hangwatch_rank_wait_info{group="default_pg", op="all_reduce"}', {"0"})
        until_ranks(
            'hangwatch_verdict_info{state="slow", kind="never_entered", culprits="1"}', {""}
        )
        until_ranks("hangwatch_group_lag_collectives == 1", {"1"})
        job.go_on()
        until_ranks("hangwatch_rank_waiting_seconds == 0", {"0", "1"})
        until_ranks("hangwatch_verdict_info", set())
        until_ranks('hangwatch_verdicts_total{state="slow"} == 1', {""})
        job.ends_well()
        assert scraped.files() == []
        until(lambda: not ranks("up"), "Prometheus to forget the target")


def test_what_is_known_is_served_over_http(tmp_path: Path, scraped: Scraped) -> None:
    port = free_port()
    options = ("--metrics-addr", f"127.0.0.1:{port}")
    with Job(tmp_path, *options, env=scraped.env, launch=TORCHRUN) as job:
        job.until(scraped.files, "the file")
        assert scraped.target() == f"127.0.0.1:{port}"
        job.until(lambda: scraped.value("hangwatch_rank_info", rank="1"), "rank 1")
        info = {"command": "torchrun steady.py"}
        job.until(lambda: scraped.value("hangwatch_run_info", **info), "the run")
        names = ("enqueued", "entered", "completed")
        job.until(
            lambda: all(scraped.value(f"hangwatch_collectives_{name}_total") for name in names),
            "progress",
        )
        job.until(lambda: not scraped.value("hangwatch_run_info", torch=""), "torch's version")
        assert scraped.value("hangwatch_watchdog_failures_total") == 0
        assert scraped.value("hangwatch_ranks_expected") == 2
        job.ends_well()


def test_a_port_that_is_taken_costs_nothing_but_the_port(tmp_path: Path, scraped: Scraped) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("-v", "--metrics-addr", f"127.0.0.1:{port}")
        with Job(tmp_path, *options, env=scraped.env) as job:
            job.until(lambda: scraped.value("hangwatch_rank_up", rank="1"), "rank 1")
            assert scraped.target() != f"127.0.0.1:{port}"
            job.says_once(f"{port} is taken")
            job.ends_well()


def test_metrics_can_be_turned_off(tmp_path: Path, scraped: Scraped) -> None:
    with Job(tmp_path, "-v", "--metrics-addr", "off", env=scraped.env) as job:
        job.until_running()
        job.ends_well()
        assert "metrics" not in job.said()
    assert [path.name for path in scraped.base.iterdir()] == [f"hangwatch-{os.getuid()}"]


def test_an_address_that_is_not_ours_costs_the_metrics_alone(
    tmp_path: Path, scraped: Scraped
) -> None:
    with Job(tmp_path, "--metrics-addr", "203.0.113.7:9853", env=scraped.env) as job:
        job.until_said("no metrics: cannot listen at 203.0.113.7:9853")
        job.until_running()
        job.ends_well()
        assert scraped.files() == []
        assert any("no metrics" in text for text in job.lost())


def test_an_address_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    with Job(tmp_path, "--metrics-addr", "9853") as job:
        assert job.wait() == 2
        job.says_once("use HOST:PORT such as 127.0.0.1:9853")


def test_the_watchdog_that_takes_over_serves_again_at_the_same_port(
    tmp_path: Path, scraped: Scraped
) -> None:
    options = (*QUICK, "--metrics-addr", "127.0.0.1:0")
    with Job(tmp_path, *options, env=scraped.env) as job:
        job.until_running()
        job.pause()
        job.until(lambda: scraped.value("hangwatch_verdict_info", state="slow"), "the verdict")
        before = scraped.target()
        # Its state is kept at an announcement and every ten seconds.
        job.until(lambda: list(job.run_dir().glob("watchdog.json")), "its state")
        killed = min(job.watchdogs())  # not what it has just forked
        os.kill(killed, signal.SIGKILL)
        job.until(lambda: set(job.watchdogs()) - {killed}, "another watchdog")
        job.until(lambda: scraped.value("hangwatch_rank_up", rank="1"), "rank 1")
        assert scraped.target() == before
        assert scraped.value("hangwatch_verdict_info", state="slow", culprits="1") == 1
        assert scraped.value("hangwatch_verdicts_total", state="slow") == 1
        job.go_on()
        job.until(lambda: not scraped.value("hangwatch_verdict_info"), "the end of the incident")
        job.ends_well()
        assert scraped.files() == []


def test_the_node_that_others_wait_for_shows_the_verdict_until_it_goes_on(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in ("waits", "holds-up")]
    for where in nodes:
        where.mkdir()
    victim, culprit = (Scraped(where) for where in nodes)
    port, options = free_port(), (*QUICK, "--run-id", "both", "--metrics-addr", "127.0.0.1:0")
    first, second = (
        Job(
            where,
            *options,
            env={**scraped.env, "GLOO_SOCKET_IFNAME": "lo"},
            launch=(
                *("torchrun", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={rank}"),
                *("--master-addr=127.0.0.1", f"--master-port={port}"),
            ),
        )
        for rank, (where, scraped) in enumerate(zip(nodes, (victim, culprit), strict=True))
    )
    with first, second:
        first.until_running()
        second.pause()
        verdict = {"state": "slow", "kind": "never_entered", "culprits": "1"}
        for job, scraped in ((first, victim), (second, culprit)):
            job.until(
                lambda scraped=scraped: scraped.value("hangwatch_verdict_info", **verdict),  # type: ignore[misc]
                "the verdict",
            )
        waiting = "hangwatch_rank_waiting_seconds"
        first.until(lambda: (victim.value(waiting) or 0) > 6, "a longer wait")
        assert culprit.value("hangwatch_verdict_info", **verdict) == 1
        second.go_on()
        for job, scraped in ((first, victim), (second, culprit)):
            job.until(
                lambda scraped=scraped: scraped.value("hangwatch_verdict_info") is None,  # type: ignore[misc]
                "the end of the incident",
            )
        first.ends_well()
        assert second.wait() == 0
