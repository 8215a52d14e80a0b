"""Failures of the GPU of a rank, and what they explain.

The numbers of the driver's errors (Xid) are those of NVIDIA's catalogue:
https://docs.nvidia.com/deploy/xid-errors/

A failure blames no rank by itself: ranks with sound counters go on with a GPU that had an error
an hour ago. It explains why a rank that others wait for does not come, and which one of the ranks
that are all in one collective keeps it from completing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto

from hangwatch.diagnosis.facts.job import seconds
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import GpuHealth


class Weight(IntEnum):
    """The evidence of an Xid for a fault of the GPU; the greater, the surer."""

    NOTE = auto()
    """The GPU works on."""
    PROGRAM = auto()
    """The program's kernels on the GPU have ended; mostly by an error of its own."""
    HARDWARE = auto()
    """The GPU, its memory or its links have failed, or the firmware on it."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """An Xid for people."""

    weight: Weight
    what: str
    """To follow ``which``."""
    detail: str
    """A sentence on what it means, and what helps."""


_NOTE, _PROGRAM, _HARDWARE = Weight.NOTE, Weight.PROGRAM, Weight.HARDWARE

XIDS: dict[int, Meaning] = {
    79: Meaning(
        _HARDWARE,
        "has fallen off the bus",
        "The driver cannot reach it over PCI Express any more: power, heat, the slot or the GPU "
        "itself. It comes back with a reboot, if at all.",
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
        "A double-bit ECC error: what was in that memory is lost. It has to be reset; if that "
        "happens again, replaced.",
    ),
    140: Meaning(
        _HARDWARE,
        "has an unrecovered memory error",
        "An ECC error of its memory could not be repaired. It has to be reset.",
    ),
    64: Meaning(
        _HARDWARE,
        "cannot remap a bad row of its memory",
        "The repair of a memory error could not be recorded. It has to be reset; if that happens "
        "again, replaced.",
    ),
    94: Meaning(
        _HARDWARE,
        "has a contained memory error",
        "An uncorrectable error of its memory hit this program alone, whose work on it has "
        "ended. The program has to be started anew.",
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
        "has met an illegal address",
        "A kernel accessed memory that is not its own, mostly an error of the program: "
        "compute-sanitizer finds it.",
    ),
    13: Meaning(
        _PROGRAM,
        "has met an exception in a kernel",
        "A kernel did something that is not allowed, such as an index out of bounds, mostly an "
        "error of the program: compute-sanitizer finds it.",
    ),
    43: Meaning(
        _PROGRAM,
        "has ended a program's kernels",
        "The program's work met an error and was stopped; the GPU itself is sound.",
    ),
    45: Meaning(
        _PROGRAM,
        "has cleaned up after a program",
        "The work of a program was removed after an earlier error, or because it was killed: "
        "this follows from something else.",
    ),
    109: Meaning(
        _PROGRAM,
        "could not switch between programs in time",
        "A kernel did not make way. It may be the program, the driver or the GPU.",
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
"""The gravest first."""

_UNKNOWN = Meaning(
    Weight.NOTE, "has reported an error", "NVIDIA's catalogue of Xid errors says what it means."
)


def meaning(number: int) -> Meaning:
    """The meaning of an Xid; one that is not in the table may mean anything."""
    return XIDS.get(number, _UNKNOWN)


MARGIN_S = 60.0
"""An error may come so long before a rank waits: the program runs ahead of its device."""
_ORDER = {number: place for place, number in enumerate(XIDS)}
_HEALTH = {
    GpuHealth.LOST: (
        "has fallen off the bus",
        "NVML cannot reach it any more. It comes back with a reboot, if at all.",
    ),
    GpuHealth.RESET_REQUIRED: (
        "has to be reset",
        "NVML says that it cannot be used before that.",
    ),
    GpuHealth.SILENT: (
        "NVML gets no answer of",
        "The driver may be stuck with it.",
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the GPU of a rank."""

    gpu: str
    """``GPU 3``."""
    what: str
    """``GPU 3, which has fallen off the bus (Xid 79)``."""
    detail: str
    """A sentence or two."""
    sure: bool
    """Hardware has failed; else its program may have made the error."""


def gpu_fault(gpu: GpuState | None, within_s: float) -> Fault | None:
    """The gravest fault of a GPU, None if it has none within ``within_s``."""
    if gpu is None:
        return None
    name = f"{'a MIG device of ' if gpu.parent else ''}GPU {gpu.index}"
    recent = [xid.number for xid in gpu.xids if seconds(xid.age_s) <= within_s]
    recent.sort(key=lambda number: (_ORDER.get(number, len(_ORDER)), number))
    worst = next((number for number in recent if meaning(number).weight > Weight.NOTE), None)
    hard = worst is not None and meaning(worst).weight is Weight.HARDWARE
    health = _HEALTH.get(gpu.health)
    if health is not None and gpu.health is not GpuHealth.SILENT:
        named = f" (Xid {worst})" if worst is not None and hard else ""
        detail = meaning(worst).detail if worst is not None and hard else health[1]
        return Fault(name, f"{name}, which {health[0]}{named}", detail, sure=True)
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
        return Fault(name, f"{name}, which {health[0]}", health[1], sure=False)
    return None
