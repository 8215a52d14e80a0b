"""What the errors mean that NVIDIA's driver reports of a GPU, by their number (Xid).

After NVIDIA's catalogue: https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto


class Weight(IntEnum):
    """What an Xid says of who is at fault; the greater, the surer."""

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
    """What an Xid means; of one that is not in the table, that it may mean anything."""
    return XIDS.get(number, _UNKNOWN)
