"""Reads the figures of one GPU, each for itself: what fails is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hangwatch.evidence.gpu.nvml import Asker, Nvml, known
from hangwatch.model.gpu import THROTTLE_REASONS, GpuState

MAX_PROCESSES = 1024
MAX_MIG = 64
_MHZ = 1e6
_ROWS = ("correctable", "uncorrectable", "pending", "failure")


@dataclass(frozen=True, slots=True)
class Unit:
    """What one process can have for itself: a GPU, or a MIG device."""

    state: GpuState
    processes: dict[int, int]
    """Pid, as NVML counts, to the GPU memory in use in bytes (0 if unknown)."""
    instance: int | None = None
    """GPU instance of a MIG device, which Xid events name."""


def read(nvml: Nvml, handle: Any, gpu: GpuState) -> tuple[Unit, ...]:
    """The GPU, or the MIG devices that it is divided into, as they are now.

    gpu: the GPU as far as it is known. Raises UnusableError.
    """
    ask = Asker(nvml)
    whole = _whole(ask, handle, gpu)
    lib = nvml.lib
    mode = ask("MIG mode", lambda: lib.nvmlDeviceGetMigMode(handle)[0])
    parts = _mig_devices(ask, handle, whole) if mode == lib.NVML_DEVICE_MIG_ENABLE else ()
    units = tuple(_unit(ask, *part) for part in parts)
    return units or (_unit(ask, handle, whole, None),)


def _whole(ask: Asker, handle: Any, gpu: GpuState) -> GpuState:
    """What is measured of a GPU as a whole."""
    lib = ask.nvml.lib

    def clock(kind: int) -> float:
        return known(lib.nvmlDeviceGetClockInfo(handle, kind)) * _MHZ

    def ecc(kind: int) -> int:
        return known(lib.nvmlDeviceGetTotalEccErrors(handle, kind, lib.NVML_VOLATILE_ECC))

    return replace(
        gpu,
        temperature_c=ask(
            "temperature",
            lambda: float(known(lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU))),
        ),
        power_w=ask("power", lambda: known(lib.nvmlDeviceGetPowerUsage(handle)) / 1000),
        sm_clock_hz=ask("SM clock", lambda: clock(lib.NVML_CLOCK_SM)),
        memory_clock_hz=ask("memory clock", lambda: clock(lib.NVML_CLOCK_MEM)),
        throttle=ask(
            "throttle reasons",
            lambda: _throttle(lib.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            lambda: _throttle(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        ),
        ecc_corrected=ask(
            "corrected ECC errors", lambda: ecc(lib.NVML_MEMORY_ERROR_TYPE_CORRECTED)
        ),
        ecc_uncorrected=ask(
            "uncorrected ECC errors", lambda: ecc(lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        ),
        remapped_rows=ask(
            "remapped rows",
            lambda: dict(
                zip(_ROWS, map(known, lib.nvmlDeviceGetRemappedRows(handle)), strict=True)
            ),
        ),
        nvlink_errors=ask("NVLink errors", lambda: _nvlink_errors(lib, handle)),
    )


def _unit(ask: Asker, handle: Any, state: GpuState, instance: int | None) -> Unit:
    """What is measured of a MIG device, or of a GPU that is not divided."""
    lib = ask.nvml.lib
    memory = ask("memory", lambda: lib.nvmlDeviceGetMemoryInfo(handle))
    processes = ask(
        "processes",
        lambda: lib.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        lambda: lib.nvmlDeviceGetComputeRunningProcesses_v2(handle),
    )
    state = replace(
        state,
        utilization=ask(
            "utilization",
            lambda: known(lib.nvmlDeviceGetUtilizationRates(handle).gpu, 100) / 100,
        ),
        memory_used_bytes=ask("memory", lambda: known(memory.used)) if memory else None,
        memory_total_bytes=ask("memory", lambda: known(memory.total)) if memory else None,
        unreadable=tuple(ask.failed),
    )
    return Unit(
        state,
        {one.pid: one.usedGpuMemory or 0 for one in (processes or ())[:MAX_PROCESSES]},
        instance,
    )


def _mig_devices(
    ask: Asker, handle: Any, gpu: GpuState
) -> Iterator[tuple[Any, GpuState, int | None]]:
    """Handle, names and GPU instance of each MIG device. Their numbers may have gaps."""
    lib = ask.nvml.lib
    most = ask("MIG devices", lambda: int(lib.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
    for number in range(min(most, MAX_MIG)):
        try:
            part = lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except lib.NVMLError as error:
            ask.nvml.check(error)
            if error.value != lib.NVML_ERROR_NOT_FOUND:
                ask.failed["MIG devices"] = None
            continue
        uuid = ask("UUID", partial(lib.nvmlDeviceGetUUID, part))
        name = ask("name", partial(lib.nvmlDeviceGetName, part))
        instance = ask("GPU instance", partial(lib.nvmlDeviceGetGpuInstanceId, part))
        named = replace(
            gpu, uuid=uuid or f"{gpu.uuid}/{number}", name=name or gpu.name, parent=gpu.uuid
        )
        yield part, named, instance


def _throttle(bits: int) -> tuple[str, ...]:
    return tuple(name for at, name in enumerate(THROTTLE_REASONS, 1) if known(bits) >> at & 1)


def _nvlink_errors(lib: Any, handle: Any) -> int | None:
    """CRC errors, replays and recoveries of all links; None where there are no links."""
    fields = (
        lib.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        lib.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
        lib.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        lib.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    )
    values = lib.nvmlDeviceGetFieldValues(handle, fields)
    counts = [_value(lib, one) for one in values if one.nvmlReturn == lib.NVML_SUCCESS]
    return sum(counts) if counts else None


def _value(lib: Any, value: Any) -> int:
    """Of a field, whose type NVML tells. Raises ValueError for one that is no whole number."""
    name = {
        lib.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }.get(value.valueType)
    if name is None:
        raise ValueError(f"a value of type {value.valueType}")
    return known(int(getattr(value.value, name)))
