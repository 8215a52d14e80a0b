"""diagnose(): from a snapshot of a job to its verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.advice.facts import facts_of
from hangwatch.diagnosis.advice.remedy import advice
from hangwatch.diagnosis.facts.activity import compiling
from hangwatch.diagnosis.facts.devices import not_passed, stuck_devices, without_company
from hangwatch.diagnosis.facts.endings import (
    Cause,
    Ending,
    How,
    endings,
    gave_up,
    last_call,
    may_be_of_a_library,
)
from hangwatch.diagnosis.facts.job import Job, index, seconds
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Channel, Setup, Slot, Wait
from hangwatch.diagnosis.facts.waits import find_waits
from hangwatch.diagnosis.graph import build, roots
from hangwatch.diagnosis.rules.blocking import judge_blocking
from hangwatch.diagnosis.rules.by_source import decided_by_source, refined_by_source
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.cause import cause_of
from hangwatch.diagnosis.rules.choices import choices_of
from hangwatch.diagnosis.rules.cycles import frozen_in, judge_cycle
from hangwatch.diagnosis.rules.departed import with_departure
from hangwatch.diagnosis.rules.mismatch import disputes, judge_dispute
from hangwatch.diagnosis.rules.order import of_all_in_loop
from hangwatch.diagnosis.rules.stuck import judge_stuck, with_fault
from hangwatch.diagnosis.rules.threads import unless_given_up
from hangwatch.diagnosis.source.files import Source
from hangwatch.model.codec import without_collections
from hangwatch.model.frames import program_thread
from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.snapshot import JobSnapshot, Thresholds
from hangwatch.model.verdict import OK, Verdict
from hangwatch.model.verdict import Wait as ShownWait

MOST_TURNS = 3
"""A rank may wait this many times --hang-after while others make progress: each of them may have
its turn."""


def diagnose(job: JobSnapshot, thresholds: Thresholds) -> tuple[Verdict, ...]:
    """All independent root causes, the ones that hold up most ranks first.

    ``(OK,)`` if nothing waits, or not for long enough.
    """
    if job.ended and job.exit_code == 0:
        return (OK,)
    with without_collections():
        return _judge(job, thresholds)


def _judge(job: JobSnapshot, thresholds: Thresholds) -> tuple[Verdict, ...]:
    case = _open(job)
    found = [
        (finding, verdict)
        for finding in _findings(case)
        if (verdict := _verdict(case, finding, thresholds)) is not None
    ]
    # A hang comes first, however many ranks wait in something that may still complete.
    found.sort(key=lambda pair: (pair[1].state is State.SLOW, _importance(case, *pair)))
    return tuple(verdict for _, verdict in found) or (OK,)


def _open(snapshot: JobSnapshot) -> Case:
    job = index(snapshot)
    ended = endings(job)
    waits = find_waits(job, ended, {})
    disputed = disputes(job, waits, ended)
    if disputed:
        ended = {
            rank: replace(end, cause=Cause.ECHO)
            if _died_of_a_dispute(job, rank, end, disputed)
            else end
            for rank, end in ended.items()
        }
        waits = find_waits(job, ended, disputed)
    stuck = stuck_devices(job, disputed)
    graph = build(job, waits, ended, disputed, stuck)
    for weaker in (without_company, not_passed):
        if stuck and not graph.at:  # nothing waits for them, so they do not explain a hang
            stuck = weaker(job, stuck)
            graph = build(job, waits, ended, disputed, stuck)
    return Case(job, ended, graph, Source(snapshot.sources), disputed, stuck)


def _died_of_a_dispute(job: Job, rank: int, end: Ending, disputed: Mapping[int, int]) -> bool:
    """Return True if a rank aborted or raised in a disputed slot, or after it in its group.

    On gloo a mismatch aborts the rank with the smaller buffer, often not the culprit.
    """
    if end.cause is not Cause.OWN or end.how not in (How.RAISED, How.SIGNAL):
        return False
    call = last_call(job, rank)
    gid = job.gid(call.group) if call and not call.p2p else -1
    if call and gid in disputed and call.seq >= disputed[gid]:
        return True
    # For a call that nothing of the program waits for, a thread of gloo's aborts it.
    return may_be_of_a_library(end) and any(
        job.arrived(rank, Slot(gid, first)) for gid, first in disputed.items()
    )


def _findings(case: Case) -> list[Finding]:
    job = case.job
    dead = [rank for rank, end in case.ended.items() if end.is_failure]
    found: list[Finding] = []
    blocking: list[int] = []
    for root in roots(case.graph, dead if job.snapshot.ended else ()):
        if root.is_cycle and (frozen := frozen_in(case, root)):
            blocking.extend(frozen)
        elif root.is_cycle:
            found.append(judge_cycle(case, root))
        elif root.ranks:
            blocking.extend(root.ranks)
        else:
            [point] = root.wait_points
            finding = None
            if isinstance(point, Slot) and point in case.graph.disputed:
                finding = judge_dispute(case, point)
            found.append(finding or judge_stuck(case, point))
    found.extend(judge_blocking(case, blocking))
    decided = [
        finding
        if finding.settled
        else of_all_in_loop(case, decided_by_source(case, with_departure(case, finding)))
        for finding in found
        if not _is_idle_guess(finding, found)
    ]
    return [with_fault(case, finding) for finding in _without_repeats(decided)]


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """Join the calls of new_group that get stuck because of the same ranks."""
    found: dict[object, Finding] = {}
    for number, finding in enumerate(findings):
        key = finding.culprits if finding.makes_a_group else number
        same = found.setdefault(key, finding)
        if same is not finding:
            victims = tuple(sorted({*same.victims, *finding.victims}))
            found[key] = replace(same, victims=victims)
    return list(found.values())


def _is_idle_guess(finding: Finding, others: list[Finding]) -> bool:
    """Return True if counters alone show it, and something better explains all its waits."""
    if finding.certainty is not Certainty.POSSIBLE or not finding.waits:
        return False
    waiting = {wait.rank for wait in finding.waits}
    return all(wait.inferred for wait in finding.waits) and any(
        other.certainty is not Certainty.POSSIBLE and waiting <= {*other.victims, *other.culprits}
        for other in others
    )


def _verdict(case: Case, finding: Finding, thresholds: Thresholds) -> Verdict | None:
    shown = tuple(
        _shown(case, wait)
        for rank in sorted({*finding.victims, *finding.culprits})
        for wait in case.graph.by_rank.get(rank, ())
    )
    if _is_guessed(case, finding):
        finding = replace(_unproved(finding), final=False)
    finding = unless_given_up(case, finding)
    # If no rank is missing, nothing was stuck before the last one entered.
    if finding.culprits or not finding.waits:
        age_s = max((wait.age_s for wait in shown), default=0.0)
    else:
        age_s = min(wait.age_s for wait in finding.waits)
    state = _state(case, finding, age_s, thresholds)
    if state is None:
        return None
    wait_point = finding.wait_point
    gid = wait_point.gid if isinstance(wait_point, Slot | Channel) else None
    reads = choices_of(case, finding)
    cause = cause_of(case, finding, reads)
    sure = finding if _is_old_enough(case, age_s) else _unproved(finding)
    finding = refined_by_source(case, finding, reads)
    return Verdict(
        state=state,
        kind=finding.kind,
        reason=finding.reason,
        certainty=sure.certainty,
        culprits=finding.culprits,
        victims=finding.victims,
        group=case.job.keys[gid] if gid is not None else None,
        group_name=case.job.group_name(gid) if gid is not None else "",
        collective=finding.collective,
        site=finding.site,
        victim_site=finding.victim_site,
        headline=finding.text.headline,
        explanation=finding.text.explanation,
        advice=advice(finding.kind, finding.reason, facts_of(case, finding, cause, reads)),
        waits=shown,
        stuck_age_s=age_s,
        hang=sure.hang,
        cause=cause,
    )


def _unproved(finding: Finding) -> Finding:
    hang = finding.hang and finding.hang.at_most(Certainty.LIKELY)
    return replace(finding, certainty=finding.certainty.at_most(Certainty.LIKELY), hang=hang)


def _is_guessed(case: Case, finding: Finding) -> bool:
    """Return True if the match of groups between ranks is a guess, so that nothing is proved.

    The same if a process may be about to replace a culprit that has ended.
    """
    ranks = (case.job.ranks.get(culprit) for culprit in finding.culprits)
    replaced = any(rank.process.replaced for rank in ranks if rank is not None)
    points = (finding.wait_point, *(wait.wait_point for wait in finding.waits))
    guessed = any(isinstance(p, Slot | Channel) and p.gid in case.job.guessed for p in points)
    return replaced or (guessed and finding.kind is not Kind.DIED)


def _is_old_enough(case: Case, age_s: float) -> bool:
    return case.job.snapshot.ended or age_s >= timing.PROOF_AFTER_S


def _state(case: Case, finding: Finding, age_s: float, thresholds: Thresholds) -> State | None:
    """The state to report, None if there is nothing to report so far."""
    over = bool(finding.waits) and all(wait.ended for wait in finding.waits)
    if case.job.snapshot.ended or over:
        # A job that was well may just have been ended: then no rank waited for long.
        wrong = finding.final or finding.ended or age_s >= thresholds.suspect_after_s
        return State.FAILED if wrong or gave_up(case.ended, finding.waits) else None
    if finding.final and _is_old_enough(case, age_s) and not _is_failing(case):
        return State.HANG
    if age_s >= thresholds.hang_after_s and not _is_being_compiled_for(case, finding):
        enough = finding.final or age_s >= MOST_TURNS * thresholds.hang_after_s
        if enough or _idle_s(case, finding) >= thresholds.hang_after_s:
            return State.HANG
    return State.SLOW if age_s >= thresholds.suspect_after_s else None


def _idle_s(case: Case, finding: Finding) -> float:
    """The time since the last of its ranks began to wait, or made its last call if it does not."""
    ages = [math.inf]
    for rank in {*finding.victims, *finding.culprits} - case.ended.keys():
        waits, snapshot = case.graph.by_rank.get(rank, ()), case.job.ranks.get(rank)
        if waits:
            ages.append(max(wait.age_s for wait in waits))
        elif snapshot is not None and (thread := program_thread(snapshot)) is not None:
            calls = (made for _, made in reversed(case.job.ops.get(rank, ())))
            last = next((made for made in calls if made.thread == thread.tid), None)
            ages.append(seconds(last.issued_age_s) if last is not None else math.inf)
    return min(ages)


def _is_being_compiled_for(case: Case, finding: Finding) -> bool:
    """Return True if ranks wait only for a compiler at work, which may take any time."""
    if finding.reason is not Reason.COMPILING:
        return False
    doing = [case.activity(rank).compiling for rank in finding.culprits]
    if not all(one is not None and (one.at_work or one.locked) for one in doing):
        return False
    # A rank that waits for a lock file waits for one that compiles the same.
    known = map(compiling, case.job.ranks.values())
    return any(one is not None and one.at_work for one in known)


def _is_failing(case: Case) -> bool:
    """Return True if a rank has failed so recently that the launcher may still end the job."""
    ends = case.ended.values()
    failed_s = [end.age_s for end in ends if end.how not in (How.CLEAN, How.LOST)]
    return 0.0 < max(failed_s, default=0.0) < timing.LAUNCHER_S  # 0 is not known


def _shown(case: Case, wait: Wait) -> ShownWait:
    """A wait as it is reported."""
    point = wait.wait_point
    recorded = wait.record.seq if wait.record is not None else 0
    return ShownWait(
        rank=wait.rank,
        group=None if isinstance(point, Setup) else case.job.keys[point.gid],
        seq=point.seq if isinstance(point, Slot) else recorded,
        op=wait.op or case.op_at((), point) or UNNAMED,
        waits_for=case.graph.missing.get(point, ()),
        age_s=wait.age_s,
        site=case.wait_site(wait),
    )


def _importance(case: Case, finding: Finding, verdict: Verdict) -> tuple[float, ...]:
    ends = (case.ended[rank] for rank in finding.ended if rank in case.ended)
    gone_s = max((seconds(end.age_s) for end in ends), default=0)
    return -len(verdict.victims), -max(verdict.stuck_age_s, gone_s), -gone_s
