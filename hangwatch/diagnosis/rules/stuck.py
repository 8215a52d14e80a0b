"""Judges wait points that all have reached and that do not complete: networks and devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hangwatch.diagnosis.facts.activity import Activity
from hangwatch.diagnosis.facts.channels import senders, sending
from hangwatch.diagnosis.facts.devices import are_untimed
from hangwatch.diagnosis.facts.endings import Cause
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Setup, Slot, Wait, WaitPoint
from hangwatch.diagnosis.rules.blocking import died, left_behind
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.mismatch import judge_lines, judge_unrecorded
from hangwatch.diagnosis.rules.missing import judge_names, judge_setup
from hangwatch.diagnosis.text import wording
from hangwatch.diagnosis.text.phrases import Ranks
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.kinds import Certainty, Kind, Reason
from hangwatch.text import capital

MAX_FAULTS = 4
"""Faulty GPUs that a finding describes."""
_OF_DEVICES = frozenset(
    {
        Kind.NEVER_ENTERED,
        Kind.DIED,
        Kind.MISSING_PEER,
        Kind.INIT_INCOMPLETE,
        Kind.COLLECTIVE_STUCK,
    }
)
"""Kinds where the program has not left its order, so that the device may keep the rank."""
_ENDS = frozenset({Reason.EXCEPTION, Reason.SIGNAL, Reason.EXITED, Reason.UNKNOWN})
"""The ends of a program whose GPU has failed."""


def judge_stuck(case: Case, wait_point: WaitPoint) -> Finding:
    """A wait point that all ranks have reached and that does not complete."""
    if isinstance(wait_point, Setup):
        return judge_setup(case, wait_point)
    waits = case.waits_at(wait_point)
    members = (
        case.job.members(wait_point.gid)
        if isinstance(wait_point, Slot)
        else _both_ends(case, wait_point)
    )
    ends = [case.ended[wait.rank] for wait in waits if wait.rank in case.ended]
    broken = any(end.cause is Cause.ECHO for end in ends)
    # Ended, and not because the whole job is just being ended.
    gone = {
        wait.rank
        for wait in waits
        if (end := case.ended.get(wait.rank)) is not None
        and (end.cause is not Cause.TERMINATED or left_behind(case, end))
    }
    if gone and len(gone) < len(members):
        return died(case, wait_point, tuple(sorted(gone)), Certainty.LIKELY)
    found = None
    if isinstance(wait_point, Slot):
        found = judge_names(case, wait_point)
        if found is None and not broken:
            found = judge_unrecorded(case, wait_point) or judge_lines(case, wait_point)
    return (
        found
        or _of_a_device(case, wait_point, members, broken=broken)
        or _without_culprits(case, wait_point, members, broken=broken)
    )


def _both_ends(case: Case, wait_point: Channel) -> Ranks:
    """The waiter and its peer; for a recv from any source the ranks with an unreceived message."""
    if wait_point.peer != ANYONE:
        return tuple(sorted((wait_point.waiter, wait_point.peer)))
    several = [
        rank for rank in senders(case.job, wait_point) if sending(case.job, wait_point, rank)
    ]
    return tuple(sorted((wait_point.waiter, *several)))


def _without_culprits(
    case: Case, wait_point: Slot | Channel, members: Ranks, *, broken: bool
) -> Finding:
    """Nothing distinguishes one member from the others."""
    waits = case.waits_at(wait_point)
    slot = wait_point if isinstance(wait_point, Slot) else None
    alike = slot is not None and _is_alike(case, slot)
    before = _is_before(waits)
    scene = Scene((), members, case.where(wait_point), None, case.victims_site(waits))
    about = (members, scene.where, scene.other_site)
    if before:
        text = wording.all_before(*about, alike=alike)
    elif slot is None and all(wait.connects for wait in waits):
        text = wording.connecting(*about)
    else:
        first = slot is not None and _connects(case, slot)
        text = wording.stuck(*about, alike=alike, untimed=are_untimed(waits), first=first)
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=Reason.NETWORK if broken else Reason.GPU_KERNEL if before else Reason.UNKNOWN,
        certainty=Certainty.LIKELY if alike else Certainty.POSSIBLE,
        text=text,
        final=broken,
        **case.about(wait_point, scene, case.victims_of((), [wait_point])),
    )


def _connects(case: Case, slot: Slot) -> bool:
    """Return True if NCCL connects the ranks of a group in a call: its first."""
    groups = (case.job.progress.get(rank, {}).get(slot.gid) for rank in case.direct(slot))
    return slot.seq == 1 and any(group is not None and group.in_order for group in groups)


def _is_alike(case: Case, slot: Slot) -> bool:
    """Return True if it is known of all members that they made the same call there."""
    return len(case.records_at(slot)) == len(case.job.members(slot.gid))


def _is_before(waits: Sequence[Wait]) -> bool:
    """Return True if no device has reached the work that it has to run."""
    return all(wait.record is not None and wait.record.begun is False for wait in waits)


# --- Devices ---------------------------------------------------------------------------


def _of_a_device(
    case: Case, wait_point: Slot | Channel, members: Ranks, *, broken: bool
) -> Finding | None:
    """The finding where a member does not run, or its GPU."""
    frozen = tuple(sorted(rank for rank in members if case.is_frozen(rank)))
    if frozen:
        return _frozen(case, wait_point, frozen, case.activity(frozen[0]))
    faults = {rank: fault for rank in members if (fault := case.fault(rank)) is not None}
    if faults:
        sure = any(fault.sure for fault in faults.values())
        faulty = tuple(sorted(rank for rank, fault in faults.items() if fault.sure is sure))
        doing = Activity(Reason.GPU_FAULT, fault=faults[faulty[0]].what, sure=sure)
        return replace(_frozen(case, wait_point, faulty, doing), final=broken)
    waits = case.waits_at(wait_point)
    if isinstance(wait_point, Slot) and all(wait.record and wait.record.device for wait in waits):
        past = tuple(rank for rank in members if case.job.passed(rank, wait_point))
        return _incomplete(case, wait_point, past) if past else None
    return None


def _frozen(case: Case, wait_point: Slot | Channel, culprits: Ranks, doing: Activity) -> Finding:
    """All are there, and a few of them were stopped, or their GPUs, before it was complete."""
    waits = case.waits_at(wait_point)
    others = tuple(rank for rank in case.direct(wait_point) if rank not in culprits)
    here = case.site_at(culprits[0], wait_point) if isinstance(wait_point, Slot) else None
    there = case.victims_site(wait for wait in waits if wait.rank in others)
    scene = case.scene(wait_point, culprits, here or doing.site, others, there)
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=doing.reason,
        certainty=Certainty.LIKELY if doing.sure else Certainty.POSSIBLE,
        text=wording.frozen(scene, doing),
        **case.about(wait_point, scene, case.victims_of(culprits, [wait_point])),
    )


def _incomplete(case: Case, slot: Slot, past: Ranks) -> Finding:
    """A call that is complete on the devices of some members, and not on those of the others."""
    waits = case.waits_at(slot)
    before = _is_before(waits)
    scene = case.scene(slot, case.direct(slot), case.victims_site(waits), past)
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=Reason.GPU_KERNEL if before else Reason.UNKNOWN,
        certainty=Certainty.LIKELY,
        text=wording.stuck_beside(scene, alike=_is_alike(case, slot), before=before),
        **case.about(slot, scene, ()),
    )


def with_fault(case: Case, finding: Finding) -> Finding:
    """The finding, with the faults of its culprits' GPUs."""
    if finding.kind not in _OF_DEVICES:
        return finding
    notes = [text for rank in finding.culprits for text in _fault_text(case, finding, rank)]
    if not notes:
        return finding
    sure = any((fault := case.fault(rank)) and fault.sure for rank in finding.culprits)
    died = finding.kind is Kind.DIED and sure and finding.reason in _ENDS
    explanation = wording.sentences(finding.text.explanation, *notes[:MAX_FAULTS])
    text = replace(finding.text, explanation=explanation)
    return replace(finding, text=text, reason=Reason.GPU_FAULT if died else finding.reason)


def _fault_text(case: Case, finding: Finding, rank: int) -> Iterator[str]:
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
            f"The GPU of rank {rank} was inferred from its LOCAL_RANK: NVML does not list the "
            "process."
        )
