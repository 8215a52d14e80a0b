"""Whether the GPU of a rank has failed, and what that explains.

It blames nobody by itself: ranks with sound counters go on with a GPU that had an error an hour
ago. It says why a rank that others wait for does not come, and which of those who are all in
one collective keeps it from completing.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangwatch.diagnosis.facts.job import seconds
from hangwatch.diagnosis.facts.xids import XIDS, Weight, meaning
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import GpuHealth

MARGIN_S = 60.0
"""An error may come so long before anybody waits: the program runs ahead of its device."""
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
    """What is wrong with the GPU of a rank."""

    gpu: str
    """``GPU 3``."""
    what: str
    """``GPU 3, which has fallen off the bus (Xid 79)``."""
    detail: str
    """A sentence or two."""
    sure: bool
    """Whether hardware has failed; else its program may have made the error."""


def gpu_fault(gpu: GpuState | None, within_s: float) -> Fault | None:
    """The gravest fault of a GPU, None if it has none, or none of late.

    within_s: how long ago it may have been.
    """
    if gpu is None:
        return None
    name = _name(gpu)
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
        found = meaning(worst)
        return Fault(name, f"{name}, which {found.what} (Xid {worst})", found.detail, sure=hard)
    if health is not None:
        return Fault(name, f"{name}, which {health[0]}", health[1], sure=False)
    return None


def _name(gpu: GpuState) -> str:
    return f"{'a MIG device of ' if gpu.parent else ''}GPU {gpu.index}"
