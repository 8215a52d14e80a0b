"""Tells of the GPUs of those who are to blame, where they have failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.model.kinds import Kind, Reason
from hangwatch.text import capital

MAX_TOLD = 4
_KINDS = frozenset(
    {
        Kind.NEVER_ENTERED,
        Kind.DIED,
        Kind.MISSING_PEER,
        Kind.INIT_INCOMPLETE,
        Kind.COLLECTIVE_STUCK,
    }
)
"""Where the program has not left its order, so that the device may be what keeps the rank."""
_ENDS = frozenset({Reason.EXCEPTION, Reason.SIGNAL, Reason.EXITED, Reason.UNKNOWN})
"""How a program ends whose GPU has failed."""


def with_fault(case: Case, finding: Finding) -> Finding:
    """The finding, with what is wrong with the GPUs of its culprits."""
    if finding.kind not in _KINDS:
        return finding
    told = [text for rank in finding.culprits for text in _told(case, finding, rank)]
    if not told:
        return finding
    sure = any((fault := case.fault(rank)) and fault.sure for rank in finding.culprits)
    died = finding.kind is Kind.DIED and sure and finding.reason in _ENDS
    text = finding.text.adding(*told[:MAX_TOLD])
    return replace(finding, text=text, reason=Reason.GPU_FAULT if died else finding.reason)


def _told(case: Case, finding: Finding, rank: int) -> Iterator[str]:
    fault, gpu = case.fault(rank), case.job.ranks[rank].gpu if rank in case.job.ranks else None
    if fault is None or gpu is None:
        return
    if fault.what in finding.text.headline:
        yield f"{capital(fault.gpu)}: {fault.detail}"
    else:
        is_or_was = "was" if rank in case.ended else "is"
        yield f"Rank {rank} {is_or_was} on {fault.what}. {fault.detail}"
    if gpu.assumed:
        yield (
            f"That rank {rank} uses this GPU is concluded from its LOCAL_RANK: NVML does not "
            "name its process."
        )
