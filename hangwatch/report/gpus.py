"""What report.json says of the GPU of a rank."""

from __future__ import annotations

from hangwatch.model.gpu import GpuState
from hangwatch.report.schema import Gpu


def gpu_content(gpu: GpuState | None) -> Gpu | None:
    """Plain values, None where no GPU is known. Units as the names say, utilization 0 to 1."""
    if gpu is None:
        return None
    return {
        "uuid": gpu.uuid,
        "parent": gpu.parent or None,
        "index": gpu.index,
        "name": gpu.name,
        "health": gpu.health.value,
        "ranks": list(gpu.ranks),
        "assumed": gpu.assumed,
        "utilization": gpu.utilization,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
        "sm_clock_hz": gpu.sm_clock_hz,
        "memory_clock_hz": gpu.memory_clock_hz,
        "throttle": None if gpu.throttle is None else list(gpu.throttle),
        "ecc_corrected": gpu.ecc_corrected,
        "ecc_uncorrected": gpu.ecc_uncorrected,
        "ecc_uncorrected_new": gpu.ecc_uncorrected_new,
        "remapped_rows": gpu.remapped_rows,
        "nvlink_errors": gpu.nvlink_errors,
        "xids": {str(xid.number): xid.count for xid in gpu.xids},
        "unreadable": list(gpu.unreadable),
    }
