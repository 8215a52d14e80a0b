"""The metric families of the GPUs of one node, labelled with their UUIDs.

What is measured of a whole GPU has its UUID also where it is divided into MIG devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from hangwatch.metrics.families import NAMESPACE
from hangwatch.metrics.labels import cut
from hangwatch.model.gpu import THROTTLE_REASONS, GpuState, NodeGpus
from hangwatch.model.kinds import GpuHealth

Row = tuple[tuple[str, ...], float]
"""Values of the labels after ``gpu``, and the value of the sample."""
Rows = Callable[[GpuState], Iterable[Row]]


def gpu_metrics(node: NodeGpus) -> Iterator[Metric]:
    """All of them. A figure that NVML does not give has no sample."""
    yield from _nvml(node)
    wholes = {gpu.parent or gpu.uuid: gpu for gpu in node.gpus}
    units = {gpu.uuid: gpu for gpu in node.gpus}
    yield _info(units)
    yield _ranks(units)
    for name, help_text, labels, rows in _UNIT_GAUGES:
        yield _gauge(name, help_text, labels, units, rows)
    for name, help_text, labels, rows in _GAUGES:
        yield _gauge(name, help_text, labels, wholes, rows)
    for name, help_text, labels, rows in _COUNTERS:
        counter = CounterMetricFamily(NAMESPACE + name, help_text, labels=("gpu", *labels))
        for uuid, gpu in wholes.items():
            for values, number in rows(gpu):
                counter.add_metric((cut(uuid), *values), number)
        yield counter
    xids = CounterMetricFamily(
        f"{NAMESPACE}gpu_xid_errors_total",
        "Errors that the driver has reported of the GPU since the run was first watched.",
        labels=("gpu", "xid"),
    )
    for uuid, gpu in units.items():
        for xid in gpu.xids:
            xids.add_metric((cut(uuid), str(xid.number)), xid.count)
    yield xids


def _nvml(node: NodeGpus) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        f"{NAMESPACE}nvml_up", "Whether the GPUs can be read by NVML.", value=not node.off
    )
    info = InfoMetricFamily(f"{NAMESPACE}nvml", "Why they cannot, empty if they can.")
    info.add_metric((), {"reason": cut(node.off)})
    yield info


def _info(units: dict[str, GpuState]) -> Metric:
    info = InfoMetricFamily(f"{NAMESPACE}gpu", "What the GPU, or MIG device, is.")
    for uuid, gpu in units.items():
        values = {"gpu": cut(uuid), "index": str(gpu.index), "model": cut(gpu.name)}
        info.add_metric((), values)
    return info


def _ranks(units: dict[str, GpuState]) -> Metric:
    info = InfoMetricFamily(
        f"{NAMESPACE}gpu_rank", "That the rank uses the GPU.", labels=("gpu", "rank")
    )
    for uuid, gpu in units.items():
        for rank in gpu.ranks:
            info.add_metric((cut(uuid), str(rank)), {})
    return info


def _gauge(
    name: str, help_text: str, labels: tuple[str, ...], gpus: dict[str, GpuState], rows: Rows
) -> Metric:
    family = GaugeMetricFamily(NAMESPACE + name, help_text, labels=("gpu", *labels))
    for uuid, gpu in gpus.items():
        for values, number in rows(gpu):
            family.add_metric((cut(uuid), *values), number)
    return family


def _one(value: float | None) -> list[Row]:
    return [] if value is None else [((), value)]


def _each(**values: float | None) -> list[Row]:
    return [((name,), value) for name, value in values.items() if value is not None]


def _throttled(gpu: GpuState) -> list[Row]:
    if gpu.throttle is None:
        return []
    return [((reason,), reason in gpu.throttle) for reason in THROTTLE_REASONS]


_Family = tuple[str, str, tuple[str, ...], "Rows"]

_UNIT_GAUGES: tuple[_Family, ...] = (
    (
        "gpu_utilization_ratio",
        "Part of the last moment in which the GPU ran a kernel.",
        (),
        lambda gpu: _one(gpu.utilization),
    ),
    (
        "gpu_memory_used_bytes",
        "GPU memory in use, by all processes.",
        (),
        lambda gpu: _one(gpu.memory_used_bytes),
    ),
    (
        "gpu_memory_total_bytes",
        "GPU memory.",
        (),
        lambda gpu: _one(gpu.memory_total_bytes),
    ),
    (
        "gpu_unreadable",
        "How many figures NVML should have given at the last reading and did not.",
        (),
        lambda gpu: _one(len(gpu.unreadable)),
    ),
)
"""Of a MIG device where there are any."""
_GAUGES: tuple[_Family, ...] = (
    (
        "gpu_health",
        "Whether the GPU is ok, lost, needs a reset, or NVML gets no answer about it.",
        ("health",),
        lambda gpu: [((health.value,), gpu.health is health) for health in GpuHealth],
    ),
    (
        "gpu_clock_hertz",
        "Clock of the multiprocessors (sm) and of the memory.",
        ("clock",),
        lambda gpu: _each(sm=gpu.sm_clock_hz, memory=gpu.memory_clock_hz),
    ),
    (
        "gpu_throttled",
        "Whether the clocks are lower for this reason.",
        ("reason",),
        _throttled,
    ),
    (
        "gpu_remapped_rows",
        (
            "Rows of memory that were remapped after correctable and uncorrectable errors; whether "
            "a remapping is pending, and whether one failed."
        ),
        ("kind",),
        lambda gpu: _each(**(gpu.remapped_rows or {})),
    ),
    (
        "gpu_temperature_celsius",
        "Temperature of the GPU.",
        (),
        lambda gpu: _one(gpu.temperature_c),
    ),
    ("gpu_power_watts", "Power that the GPU draws.", (), lambda gpu: _one(gpu.power_w)),
)
"""Of a whole GPU."""
_COUNTERS: tuple[_Family, ...] = (
    (
        "gpu_ecc_errors_total",
        "ECC errors since the driver was loaded, corrected and uncorrected.",
        ("kind",),
        lambda gpu: _each(corrected=gpu.ecc_corrected, uncorrected=gpu.ecc_uncorrected),
    ),
    (
        "gpu_nvlink_errors_total",
        "CRC errors, replays and recoveries of all NVLinks since the driver was loaded.",
        (),
        lambda gpu: _one(gpu.nvlink_errors),
    ),
)
