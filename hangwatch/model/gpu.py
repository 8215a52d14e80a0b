"""The GPUs of a node, as NVML shows them."""

from __future__ import annotations

from dataclasses import dataclass

from hangwatch.model.kinds import GpuHealth

THROTTLE_REASONS = (
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
"""Bits 1 to 8 of nvmlClocksEventReasons in nvml.h. Bit 0, that a GPU is idle, is none."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the NVIDIA driver reported of a GPU while the run was watched."""

    number: int
    count: int = 1
    age_s: float = 0.0
    """Of the last one."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU, or a MIG device, as NVML showed it last. None: the figure could not be had."""

    uuid: str
    """Of the MIG device where it is one; ``index-N`` where it has none to be read."""
    index: int
    """NVML's, which goes by PCI bus; of the GPU that a MIG device is a part of."""
    name: str = ""
    parent: str = ""
    """UUID of the GPU that a MIG device is a part of. Clocks, power, temperature and errors
    are the whole GPU's."""
    health: GpuHealth = GpuHealth.OK
    ranks: tuple[int, ...] = ()
    """The ranks of its node that use it."""
    assumed: bool = False
    """NVML names no process of ``ranks`` (it may count pids otherwise than we see them): it is
    the GPU that LOCAL_RANK and CUDA_VISIBLE_DEVICES name."""
    utilization: float | None = None
    """Part of the time in which a kernel ran, 0 to 1."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    throttle: tuple[str, ...] | None = None
    """Reasons why its clocks are lower than they could be: some of THROTTLE_REASONS."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded, as ``ecc_corrected``."""
    ecc_uncorrected_new: int = 0
    """Since the run was first watched."""
    ecc_uncorrected_age_s: float | None = None
    """Age of the last of these."""
    remapped_rows: dict[str, int] | None = None
    """``correctable`` and ``uncorrectable`` errors that rows were remapped for; whether a
    remapping is ``pending`` or there was a ``failure`` (0 or 1)."""
    nvlink_errors: int | None = None
    """CRC errors, replays and recoveries of all links since the driver was loaded."""
    xids: tuple[Xid, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Figures that NVML should have given and did not."""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of a node. ``off``: why nothing is known of them, empty if something is."""

    gpus: tuple[GpuState, ...] = ()
    off: str = ""
