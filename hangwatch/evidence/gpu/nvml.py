"""Reads the figures of one GPU from NVML, through pynvml.

https://docs.nvidia.com/deploy/nvml-api/ describes the functions and their errors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from hangwatch.errors import EvidenceError
from hangwatch.model.gpu import THROTTLE_REASONS, GpuState
from hangwatch.model.kinds import GpuHealth

T = TypeVar("T")

MAX_PROCESSES = 1024
MAX_MIG = 64

NO_DRIVER = "no NVIDIA driver is installed here"
LIBRARY = "libnvidia-ml.so.1"
"""Comes with the driver; pynvml opens it by this name."""
_NOT_AVAILABLE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""NVML_VALUE_NOT_AVAILABLE as unsigned numbers."""
_ODD = (ValueError, TypeError, LookupError, AttributeError)
"""Raised by pynvml for odd answers, and for what it does not know."""
_MHZ = 1e6
_ROWS = ("correctable", "uncorrectable", "pending", "failure")
_MISMATCH = (
    "the driver in the kernel is of another version than its libraries: reboot, or reload the "
    "module"
)


class UnusableError(Exception):
    """A GPU that NVML cannot read any more."""

    def __init__(self, health: GpuHealth) -> None:
        super().__init__(health.value)
        self.health = health


class Nvml:
    """NVML, initialized. Calls of ``lib`` (the module pynvml) may block as long as they like."""

    def __init__(self) -> None:
        """Load and initialize NVML. Raises EvidenceError where it cannot be used."""
        try:
            # Without a driver pynvml, which is large, need not be loaded to know that.
            ctypes.CDLL(LIBRARY)
        except OSError as error:
            missing = "no such file" in str(error).lower()
            why = NO_DRIVER if missing else f"{LIBRARY} cannot be loaded: {error}"
            raise EvidenceError(why) from None
        try:
            import pynvml  # noqa: PLC0415 (see above)
        except ImportError as error:
            raise EvidenceError(f"{error}: pip install nvidia-ml-py") from None
        self.lib: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise EvidenceError(self._why(error)) from None

    def driver_version(self) -> str:
        """Return the version of the driver, empty if it cannot be had."""
        try:
            return str(self.lib.nvmlSystemGetDriverVersion())
        except (self.lib.NVMLError, *_ODD):
            return ""

    def count(self) -> int:
        """Return the number of GPUs. Raises EvidenceError."""
        try:
            return int(self.lib.nvmlDeviceGetCount())
        except self.lib.NVMLError as error:
            raise EvidenceError(self._why(error)) from None

    def lacks(self, error: Exception) -> bool:
        """True if the error means that this GPU, driver or pynvml has no such function."""
        return isinstance(error, AttributeError) or getattr(error, "value", None) in (
            self.lib.NVML_ERROR_NOT_SUPPORTED,
            self.lib.NVML_ERROR_FUNCTION_NOT_FOUND,
        )

    def check(self, error: Exception) -> None:
        """Raise UnusableError if the error means that the GPU cannot be used any more."""
        health = {
            self.lib.NVML_ERROR_GPU_IS_LOST: GpuHealth.LOST,
            self.lib.NVML_ERROR_RESET_REQUIRED: GpuHealth.RESET_REQUIRED,
        }.get(getattr(error, "value", None))
        if health is not None:
            raise UnusableError(health) from error

    def _why(self, error: Exception) -> str:
        value = getattr(error, "value", None)
        if value == self.lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return _MISMATCH
        if value == self.lib.NVML_ERROR_FUNCTION_NOT_FOUND:
            return f"the driver's {LIBRARY} is too old"
        return f"NVML: {error}"


class Asker:
    """Asks NVML for the figures of one GPU and keeps the names of figures that failed."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.failed: dict[str, None] = {}

    def __call__(self, name: str, *calls: Callable[[], T]) -> T | None:
        """Return the result of the first call that is offered; None where it fails.

        Raises UnusableError.
        """
        for call in calls:
            try:
                return call()
            except (self.nvml.lib.NVMLError, *_ODD) as error:
                self.nvml.check(error)
                if not self.nvml.lacks(error):
                    self.failed[name] = None
                    return None
        return None


def known(value: int, most: float = float("inf")) -> int:
    """Return a number of NVML's. Raises ValueError for one that means that there is none."""
    if value in _NOT_AVAILABLE or not 0 <= value <= most:
        raise ValueError(f"{value} is no figure")
    return value


@dataclass(frozen=True, slots=True)
class Unit:
    """A GPU or a MIG device: the unit that one process can have for itself."""

    state: GpuState
    processes: dict[int, int]
    """Pid, as NVML counts, to the GPU memory in use in bytes (0 if unknown)."""
    instance: int | None = None
    """GPU instance of a MIG device, which Xid events name."""


def read(nvml: Nvml, handle: Any, gpu: GpuState) -> tuple[Unit, ...]:
    """Read a GPU, or the MIG devices that it is divided into.

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
    """Read the figures of a GPU as a whole."""
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
    """Read the figures of a MIG device, or of a GPU that is not divided."""
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
        {p.pid: p.usedGpuMemory or 0 for p in (processes or ())[:MAX_PROCESSES]},
        instance,
    )


def _mig_devices(
    ask: Asker, handle: Any, gpu: GpuState
) -> Iterator[tuple[Any, GpuState, int | None]]:
    """Yield handle, names and GPU instance of each MIG device. Their numbers may have gaps."""
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
    """Sum CRC errors, replays and recoveries of all links; None where there are no links."""
    fields = (
        lib.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        lib.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
        lib.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        lib.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    )
    values = lib.nvmlDeviceGetFieldValues(handle, fields)
    counts = [_value(lib, value) for value in values if value.nvmlReturn == lib.NVML_SUCCESS]
    return sum(counts) if counts else None


def _value(lib: Any, value: Any) -> int:
    """Return the number in a field. Raises ValueError for one that is no whole number."""
    name = {
        lib.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }.get(value.valueType)
    if name is None:
        raise ValueError(f"a value of type {value.valueType}")
    return known(int(getattr(value.value, name)))
