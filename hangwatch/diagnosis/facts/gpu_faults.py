"""Failures of the GPU of a rank, and their effects.

The numbers of the driver's errors (Xid) are those of NVIDIA's catalogue:
https://docs.nvidia.com/deploy/xid-errors/

A failure alone does not blame a rank, which may still work on a GPU that had an error an hour ago.
It explains why a rank that others wait for does not come, and which of the ranks in a collective
keeps it from completing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto

from hangwatch.diagnosis.facts.job import seconds
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import GpuHealth


class Weight(IntEnum):
    """Strength of the evidence for a fault of the GPU, weakest first."""

    NOTE = auto()
    """No failure is known."""
    PROGRAM = auto()
    """The program's kernels on the GPU have ended, mostly by an error of the program."""
    HARDWARE = auto()
    """The GPU, its memory or its links have failed, or the firmware on it."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The text on an error of a GPU."""

    weight: Weight
    what: str
    """To follow ``which``."""
    detail: str
    """Sentences on its meaning and on remedies."""


_NOTE, _PROGRAM, _HARDWARE = Weight.NOTE, Weight.PROGRAM, Weight.HARDWARE

XIDS: dict[int, Meaning] = {
    79: Meaning(
        _HARDWARE,
        "has fallen off the bus",
        "The driver lost contact with it over PCI Express (power, heat, the slot or the GPU "
        "itself). A reboot is usually needed.",
    ),
    95: Meaning(
        _HARDWARE,
        "has an uncontained memory error",
        "An uncorrectable error of its memory may have spread to all programs on it. It has to "
        "be reset.",
    ),
    48: Meaning(
        _HARDWARE,
        "has an uncorrectable memory error",
        "A double-bit ECC error: data in its memory is lost. It has to be reset; if this happens "
        "again, replaced.",
    ),
    140: Meaning(
        _HARDWARE,
        "has an unrecovered memory error",
        "An ECC error of its memory could not be repaired. It has to be reset.",
    ),
    64: Meaning(
        _HARDWARE,
        "cannot remap a bad row of its memory",
        "The repair of a memory error could not be recorded. It has to be reset; if this happens "
        "again, replaced.",
    ),
    94: Meaning(
        _HARDWARE,
        "has a contained memory error",
        "An uncorrectable error of its memory hit only this program, whose work on it has "
        "ended. Restart the program.",
    ),
    119: Meaning(
        _HARDWARE,
        "does not answer the driver (GSP timeout)",
        "The processor on the GPU that runs part of the driver has stopped answering. It has to "
        "be reset; a newer driver may help.",
    ),
    120: Meaning(
        _HARDWARE,
        "has an error of its system processor (GSP)",
        "The part of the driver that runs on the GPU has failed. It has to be reset; a newer "
        "driver may help.",
    ),
    62: Meaning(
        _HARDWARE,
        "has halted its microcontroller",
        "Firmware or hardware of the GPU has failed. It has to be reset.",
    ),
    74: Meaning(
        _HARDWARE,
        "has an NVLink error",
        "A link to another GPU or to an NVSwitch has failed. Look at both ends: nvidia-smi "
        "nvlink -e counts the errors.",
    ),
    31: Meaning(
        _PROGRAM,
        "has reported an access to an illegal address",
        "A kernel accessed memory that is not its own, mostly an error of the program: "
        "compute-sanitizer finds it.",
    ),
    13: Meaning(
        _PROGRAM,
        "has reported an exception in a kernel",
        "A kernel did something that is not allowed, such as an index out of bounds, mostly an "
        "error of the program: compute-sanitizer finds it.",
    ),
    43: Meaning(
        _PROGRAM,
        "has stopped a program's kernels",
        "The program's work had an error and was stopped; the GPU itself is healthy.",
    ),
    45: Meaning(
        _PROGRAM,
        "has cleaned up after a program",
        "The work of a program was removed after an earlier error, or because it was killed: "
        "this is the effect of something else.",
    ),
    109: Meaning(
        _PROGRAM,
        "could not switch between programs in time",
        "A kernel did not yield. The program, the driver or the GPU may be at fault.",
    ),
    63: Meaning(
        _NOTE,
        "has taken a bad row of its memory out of use",
        "A memory error was repaired; the repair is complete after the next reset.",
    ),
    92: Meaning(
        _NOTE,
        "has many correctable memory errors",
        "The errors are corrected, but the memory may fail.",
    ),
}
"""The gravest error first."""

_UNKNOWN = Meaning(
    Weight.NOTE, "has reported an error", "NVIDIA's catalogue of Xid errors says what it means."
)


def meaning(number: int) -> Meaning:
    """The meaning of an Xid; one that is not in the table may mean anything."""
    return XIDS.get(number, _UNKNOWN)


_ORDER = {number: place for place, number in enumerate(XIDS)}
HEALTH = {
    GpuHealth.LOST: Meaning(
        _HARDWARE,
        "has fallen off the bus",
        "NVML lost contact with it; a reboot is usually needed.",
    ),
    GpuHealth.RESET_REQUIRED: Meaning(
        _HARDWARE,
        "has to be reset",
        "NVML reports that it cannot be used before that.",
    ),
    GpuHealth.SILENT: Meaning(
        _NOTE,
        "no longer responds to NVML",
        "The driver may be stuck.",
    ),
}
"""The states of a GPU that is not well."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the GPU of a rank."""

    gpu: str
    """``GPU 3``."""
    what: str
    """``GPU 3, which has fallen off the bus (Xid 79)``."""
    detail: str
    """Sentences on its meaning and on remedies."""
    sure: bool
    """Hardware has failed; otherwise the program may have made the error."""


def gpu_name(gpu: GpuState) -> str:
    """``GPU 3``, ``a MIG device of GPU 3``."""
    return f"{'a MIG device of ' if gpu.parent else ''}GPU {gpu.index}"


def gpu_fault(gpu: GpuState | None, within_s: float) -> Fault | None:
    """The gravest fault of a GPU, None if it has none within ``within_s``."""
    if gpu is None:
        return None
    name = gpu_name(gpu)
    recent = [xid.number for xid in gpu.xids if seconds(xid.age_s) <= within_s]
    recent.sort(key=lambda number: (_ORDER.get(number, len(_ORDER)), number))
    worst = next((number for number in recent if meaning(number).weight > Weight.NOTE), None)
    hard = worst is not None and meaning(worst).weight is Weight.HARDWARE
    health = HEALTH.get(gpu.health)
    if health is not None and health.weight is Weight.HARDWARE:
        named = f" (Xid {worst})" if worst is not None and hard else ""
        detail = meaning(worst).detail if worst is not None and hard else health.detail
        return Fault(name, f"{name}, which {health.what}{named}", detail, sure=True)
    ecc_s = gpu.ecc_uncorrected_age_s
    if not hard and gpu.ecc_uncorrected_new > 0 and (ecc_s is None or seconds(ecc_s) <= within_s):
        count = gpu.ecc_uncorrected_new
        return Fault(
            name,
            f"{name}, which has had {count} uncorrectable memory "
            f"error{'s' if count != 1 else ''} (ECC)",
            meaning(48).detail,
            sure=True,
        )
    if worst is not None:
        error = meaning(worst)
        return Fault(name, f"{name}, which {error.what} (Xid {worst})", error.detail, sure=hard)
    if health is not None:
        return Fault(name, f"{name}, which {health.what}", health.detail, sure=False)
    return None
