"""The metric families of the GPUs of one node, labelled with their UUIDs.

The figures of a whole GPU have its UUID also if it is divided into MIG devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

from hangwatch.metrics.families import Row, family, info
from hangwatch.metrics.labels import label
from hangwatch.model.gpu import THROTTLE_REASONS, GpuState, NodeGpus
from hangwatch.model.kinds import GpuHealth


def gpu_metrics(node: NodeGpus) -> Iterator[Metric]:
    """Yield all families. A figure that NVML does not give has no sample."""
    yield family("nvml_up", "1 if NVML can read the GPUs, else 0.", (), [((), not node.off)])
    yield info(
        "nvml",
        "The reason why NVML cannot read the GPUs, empty if it can.",
        ("reason",),
        [(label(node.off),)],
    )
    units = {label(gpu.uuid): gpu for gpu in node.gpus}
    yield info(
        "gpu",
        "Identity of the GPU, or of the MIG device.",
        ("gpu", "index", "model"),
        [(uuid, str(gpu.index), label(gpu.name)) for uuid, gpu in units.items()],
    )
    yield info(
        "gpu_rank",
        "The GPU that the rank uses.",
        ("gpu", "rank"),
        [(uuid, str(rank)) for uuid, gpu in units.items() for rank in gpu.ranks],
    )
    wholes = {label(gpu.parent or gpu.uuid): gpu for gpu in node.gpus}
    for gpus, made in ((units, _OF_UNITS), (wholes, _OF_GPUS)):
        for name, help_text, labels, rows in made:
            yield family(
                name,
                help_text,
                ("gpu", *labels),
                [((uuid, *row), value) for uuid, gpu in gpus.items() for row, value in rows(gpu)],
            )


def _each(**values: float | None) -> list[Row]:
    return [((name,), value) for name, value in values.items()]


def _figure(name: str, help_text: str, field: str) -> _Family:
    """Return the family of a figure that a GPU has once."""
    return name, help_text, (), lambda gpu: [((), getattr(gpu, field))]


_Family = tuple[str, str, tuple[str, ...], Callable[[GpuState], Iterable[Row]]]
"""Name, help, labels after ``gpu``, and the rows of one GPU."""

_OF_UNITS: tuple[_Family, ...] = (
    _figure(
        "gpu_utilization_ratio",
        "Share of the last sampling period in which the GPU ran a kernel.",
        "utilization",
    ),
    _figure("gpu_memory_used_bytes", "GPU memory in use, by all processes.", "memory_used_bytes"),
    _figure("gpu_memory_total_bytes", "GPU memory.", "memory_total_bytes"),
    (
        "gpu_unreadable",
        "Figures that NVML should have given at the last reading and did not.",
        (),
        lambda gpu: [((), len(gpu.unreadable))],
    ),
    (
        "gpu_xid_errors_total",
        "Errors that the driver has reported of the GPU since the run was first watched.",
        ("xid",),
        lambda gpu: [((str(xid.number),), xid.count) for xid in gpu.xids],
    ),
)
"""Figures of a GPU, or of a MIG device if it is divided."""
_OF_GPUS: tuple[_Family, ...] = (
    (
        "gpu_health",
        "1 for the state that the GPU is in, 0 for the others.",
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
        "1 if the clocks are lower for this reason, else 0.",
        ("reason",),
        lambda gpu: [
            ((reason,), None if gpu.throttle is None else reason in gpu.throttle)
            for reason in THROTTLE_REASONS
        ],
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
    _figure("gpu_temperature_celsius", "Temperature of the GPU.", "temperature_c"),
    _figure("gpu_power_watts", "Power that the GPU draws.", "power_w"),
    (
        "gpu_ecc_errors_total",
        "ECC errors since the driver was loaded, corrected and uncorrected.",
        ("kind",),
        lambda gpu: _each(corrected=gpu.ecc_corrected, uncorrected=gpu.ecc_uncorrected),
    ),
    _figure(
        "gpu_nvlink_errors_total",
        "CRC errors, replays and recoveries of all NVLinks since the driver was loaded.",
        "nvlink_errors",
    ),
)
"""Figures of a whole GPU."""
