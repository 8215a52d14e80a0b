"""What NVML says of the GPUs of this machine, once, for ``hangwatch doctor``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from hangwatch.errors import EvidenceError
from hangwatch.evidence.gpu.nvml import NO_DRIVER
from hangwatch.evidence.gpu.reader import Gpus
from hangwatch.model.kinds import GpuHealth

ANSWER_S = 10.0
_POLL_S = 0.02


def examine_gpus(answer_s: float = ANSWER_S) -> str:
    """The driver and its GPUs, in one line. Raises EvidenceError for what is worth a note."""
    gpus = Gpus()
    gpus.watch((), active=True)
    deadline = time.monotonic() + answer_s
    while time.monotonic() < deadline and not (gpus.trouble or gpus.all_answered):
        time.sleep(_POLL_S)
    if gpus.trouble == NO_DRIVER:
        return f"none: {NO_DRIVER}"
    if gpus.trouble:
        raise EvidenceError(gpus.trouble)
    what, odd = _models(gpus), list(_oddities(gpus))
    if not gpus.all_answered:
        odd.append(f"NVML has not answered within {answer_s:g} s")
    if odd:
        raise EvidenceError("; ".join((what, *odd)))
    return what


def _models(gpus: Gpus) -> str:
    names = Counter(gpu.name or "unknown GPU" for gpu in gpus.node().gpus)
    models = ", ".join(f"{count} x {name}" for name, count in names.items())
    return f"{models or 'no GPU'}, driver {gpus.driver or 'unknown'}"


def _oddities(gpus: Gpus) -> Iterator[str]:
    for gpu in gpus.node().gpus:
        if gpu.health is not GpuHealth.OK:
            yield f"GPU {gpu.index} is {gpu.health.replace('_', ' ')}"
        if gpu.unreadable:
            yield f"GPU {gpu.index} does not give: {', '.join(gpu.unreadable)}"
    for uuid, why in gpus.without_events.items():
        yield f"no Xid errors are told of {uuid} ({why})"
