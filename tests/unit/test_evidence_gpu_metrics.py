"""The GPUs of a node as Prometheus would scrape them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hangwatch.metrics.gpu import gpu_metrics
from hangwatch.model.gpu import GpuState, NodeGpus, Xid
from hangwatch.model.kinds import GpuHealth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

H100 = GpuState(
    uuid="GPU-1",
    index=3,
    name="NVIDIA H100",
    ranks=(4, 5),
    utilization=0.97,
    memory_used_bytes=1 << 30,
    memory_total_bytes=80 << 30,
    temperature_c=61.0,
    power_w=350.5,
    sm_clock_hz=1.98e9,
    memory_clock_hz=2.619e9,
    throttle=("sw_power_cap",),
    ecc_corrected=2,
    ecc_uncorrected=0,
    remapped_rows={"correctable": 1, "pending": 0},
    nvlink_errors=7,
    xids=(Xid(31, 2, 5.0), Xid(79, 1, 3.0)),
    unreadable=("power",),
)


class Gpus(Collector):
    def __init__(self, node: NodeGpus) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield from gpu_metrics(self._node)


def scraped(node: NodeGpus) -> dict[tuple[str, ...], float]:
    """(Name without its prefix, label values by their names) to value."""
    registry = CollectorRegistry()
    registry.register(Gpus(node))
    text = generate_latest(registry).decode()
    return {
        (
            sample.name.removeprefix("hangwatch_"),
            *(f"{name}={value}" for name, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_each_figure_has_a_sample_in_base_units() -> None:
    found = scraped(NodeGpus((H100,)))
    assert {key: value for key, value in found.items() if key[0] != "gpu_throttled"} == {
        ("nvml_up",): 1,
        ("nvml_info", "reason="): 1,
        ("gpu_info", "gpu=GPU-1", "index=3", "model=NVIDIA H100"): 1,
        ("gpu_rank_info", "gpu=GPU-1", "rank=4"): 1,
        ("gpu_rank_info", "gpu=GPU-1", "rank=5"): 1,
        ("gpu_utilization_ratio", "gpu=GPU-1"): 0.97,
        ("gpu_memory_used_bytes", "gpu=GPU-1"): 1 << 30,
        ("gpu_memory_total_bytes", "gpu=GPU-1"): 80 << 30,
        ("gpu_unreadable", "gpu=GPU-1"): 1,
        ("gpu_health", "gpu=GPU-1", "health=ok"): 1,
        ("gpu_health", "gpu=GPU-1", "health=lost"): 0,
        ("gpu_health", "gpu=GPU-1", "health=reset_required"): 0,
        ("gpu_health", "gpu=GPU-1", "health=silent"): 0,
        ("gpu_clock_hertz", "clock=sm", "gpu=GPU-1"): 1.98e9,
        ("gpu_clock_hertz", "clock=memory", "gpu=GPU-1"): 2.619e9,
        ("gpu_remapped_rows", "gpu=GPU-1", "kind=correctable"): 1,
        ("gpu_remapped_rows", "gpu=GPU-1", "kind=pending"): 0,
        ("gpu_temperature_celsius", "gpu=GPU-1"): 61,
        ("gpu_power_watts", "gpu=GPU-1"): 350.5,
        ("gpu_ecc_errors_total", "gpu=GPU-1", "kind=corrected"): 2,
        ("gpu_ecc_errors_total", "gpu=GPU-1", "kind=uncorrected"): 0,
        ("gpu_nvlink_errors_total", "gpu=GPU-1"): 7,
        ("gpu_xid_errors_total", "gpu=GPU-1", "xid=31"): 2,
        ("gpu_xid_errors_total", "gpu=GPU-1", "xid=79"): 1,
    }
    throttled = {key[2]: value for key, value in found.items() if key[0] == "gpu_throttled"}
    assert [reason for reason, value in throttled.items() if value] == ["reason=sw_power_cap"]
    assert len(throttled) == 8


def test_a_figure_that_is_not_known_has_no_sample() -> None:
    found = scraped(NodeGpus((GpuState("GPU-1", 0, health=GpuHealth.LOST),)))
    assert {key[0] for key in found} == {
        *("nvml_up", "nvml_info", "gpu_info", "gpu_unreadable", "gpu_health"),
    }
    assert found["gpu_health", "gpu=GPU-1", "health=lost"] == 1


def test_what_is_the_whole_gpus_is_there_once_for_all_mig_devices() -> None:
    parts = tuple(
        GpuState(f"MIG-{n}", 0, parent="GPU-1", temperature_c=50.0, memory_used_bytes=n)
        for n in range(3)
    )
    found = scraped(NodeGpus(parts))
    assert [key for key in found if key[0] == "gpu_temperature_celsius"] == [
        ("gpu_temperature_celsius", "gpu=GPU-1")
    ]
    assert found["gpu_memory_used_bytes", "gpu=MIG-2"] == 2


def test_why_nothing_is_known_is_told() -> None:
    found = scraped(NodeGpus((), "--no-gpu"))
    assert found == {("nvml_up",): 0, ("nvml_info", "reason=--no-gpu"): 1}


def test_hostile_names_stay_label_values() -> None:
    odd = GpuState('GPU-1"} 1\nhangwatch_up 0', 0, "x" * 5000)
    found = scraped(NodeGpus((odd,)))
    assert ("up",) not in found
    assert all(len(part) < 100 for key in found for part in key)
