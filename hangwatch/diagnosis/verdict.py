"""diagnose(): from a snapshot of a job to its verdicts."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

from hangwatch.diagnosis.advice.facts import facts_of
from hangwatch.diagnosis.advice.remedy import advice
from hangwatch.diagnosis.facts.aftermath import find_waits
from hangwatch.diagnosis.facts.compiling import compiling
from hangwatch.diagnosis.facts.devices import needed, not_passed, stuck_devices, without_company
from hangwatch.diagnosis.facts.endings import Cause, Ending, How, endings, gave_up, last_call
from hangwatch.diagnosis.facts.job import Job, index, seconds
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Channel, Place, Wait
from hangwatch.diagnosis.graph.build import build
from hangwatch.diagnosis.graph.wait_for import roots
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

PROOF_AFTER_S = 1.0
"""Nothing is proved by waits younger than this: pages are read one after the other,
and c10d's counters are sampled twice a second."""
MOST_TURNS = 3
"""Somebody may wait so often as long as a hang takes, where others go on meanwhile: each of them
may have its turn."""
LAUNCHER_S = 6.0
"""How long a job in which a rank has failed is left to its launcher: it ends or restarts the
others once the process is gone and it looks, torchrun every 0.1 s, an older one every 5 s."""


def diagnose(job: JobSnapshot, thresholds: Thresholds) -> tuple[Verdict, ...]:
    """All independent root causes, those that hold up most ranks first.

    ``(OK,)`` where nothing waits, or not for long enough to say anything.
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
    # What will not go on is told first, however many wait for what may.
    found.sort(key=lambda pair: (pair[1].state is State.SLOW, _importance(case, *pair)))
    return tuple(verdict for _, verdict in found) or (OK,)


def _open(snapshot: JobSnapshot) -> Case:
    job = index(snapshot)
    ended = endings(job)
    waits = find_waits(job, ended)
    disputed = disputes(job, waits, ended)
    aborted = _died_of_a_dispute(job, ended, disputed)
    if aborted:
        ended = {
            rank: replace(end, cause=Cause.ECHO) if rank in aborted else end
            for rank, end in ended.items()
        }
    if disputed:
        waits = find_waits(job, ended, disputed)
    stuck = stuck_devices(job, disputed)
    graph = build(job, needed(job, waits, stuck), ended, disputed, stuck)
    if stuck and not graph.at:
        stuck = without_company(job, stuck)
        graph = build(job, needed(job, waits, stuck), ended, disputed, stuck)
    if stuck and not graph.at:
        stuck = not_passed(job, stuck)
        graph = build(job, needed(job, waits, stuck), ended, disputed, stuck)
    return Case(job, ended, graph, Source(snapshot.sources), disputed, stuck)


def _died_of_a_dispute(job: Job, ended: dict[int, Ending], disputed: dict[int, int]) -> set[int]:
    """Ranks that aborted or raised in a disputed place, or after it in its group.

    On gloo a mismatch aborts the rank with the smaller buffer, often not the culprit.
    """
    found = set()
    for rank, end in ended.items():
        if end.cause is not Cause.OWN or end.how not in (How.RAISED, How.SIGNAL):
            continue
        call = last_call(job, rank)
        place = Place(job.gid(call.group), call.seq) if call and not call.p2p else None
        # For a call that nothing of the program waits for, a thread of gloo's aborts it.
        aborted = end.signal == signal.SIGABRT
        if any(
            (place is not None and place.gid == gid and place.seq >= first)
            or (aborted and job.arrived(rank, Place(gid, first)))
            for gid, first in disputed.items()
        ):
            found.add(rank)
    return found


def _findings(case: Case) -> list[Finding]:
    job = case.job
    dead = [r for r, e in case.ended.items() if e.cause is Cause.OWN and e.how is not How.CLEAN]
    found: list[Finding] = []
    terminals: list[int] = []
    for root in roots(case.graph, dead if job.snapshot.ended else ()):
        if root.is_cycle and (frozen := frozen_in(case, root)):
            terminals.extend(frozen)
        elif root.is_cycle:
            found.append(judge_cycle(case, root))
        elif root.ranks:
            terminals.extend(root.ranks)
        else:
            wait_point = root.wait_points[0]
            disputed = (
                isinstance(wait_point, Place)
                and case.disputed.get(wait_point.gid) == wait_point.seq
            )
            finding = (
                judge_dispute(case, wait_point)
                if isinstance(wait_point, Place) and disputed
                else None
            )
            found.append(finding or judge_stuck(case, wait_point))
    found.extend(judge_blocking(case, terminals))
    kept = [finding for finding in found if not _is_idle_guess(finding, found)]
    told = [
        finding
        if finding.settled
        else of_all_in_loop(case, decided_by_source(case, with_departure(case, finding)))
        for finding in kept
    ]
    return [with_fault(case, finding) for finding in _once(told)]


def _once(findings: list[Finding]) -> list[Finding]:
    """Of all calls of new_group that get stuck of the same ranks one."""
    found: list[Finding] = []
    groups: dict[tuple[int, ...], int] = {}
    for finding in findings:
        at = groups.get(finding.culprits, -1) if finding.makes_a_group else -1
        if at >= 0:
            victims = tuple(sorted({*found[at].victims, *finding.victims}))
            found[at] = replace(found[at], victims=victims)
            continue
        if finding.makes_a_group:
            groups[finding.culprits] = len(found)
        found.append(finding)
    return found


def _is_idle_guess(finding: Finding, others: list[Finding]) -> bool:
    """Whether counters alone tell of it, and something better explains all who wait there."""
    if finding.certainty is not Certainty.POSSIBLE or not finding.waits:
        return False
    waiting = {wait.rank for wait in finding.waits}
    return all(wait.vague for wait in finding.waits) and any(
        other.certainty is not Certainty.POSSIBLE and waiting <= {*other.victims, *other.culprits}
        for other in others
    )


def _verdict(case: Case, finding: Finding, thresholds: Thresholds) -> Verdict | None:
    shown = _waits(case, finding)
    finding = unless_given_up(case, _unless_guessed(case, finding))
    # Where nobody is missing, nothing has been stuck before the last one came.
    if finding.culprits or not finding.waits:
        age_s = max((wait.age_s for wait in shown), default=0.0)
    else:
        age_s = min(wait.age_s for wait in finding.waits)
    state = _state(case, finding, age_s, thresholds)
    if state is None:
        return None
    certainty, hang = finding.certainty, finding.hang
    if not _old_enough(case, age_s):
        certainty, hang = (
            certainty.at_most(Certainty.LIKELY),
            hang and hang.at_most(Certainty.LIKELY),
        )
    wait_point = finding.wait_point
    gid = wait_point.gid if isinstance(wait_point, Place | Channel) else None
    reads = choices_of(case, finding)
    cause = cause_of(case, finding, reads)
    finding = refined_by_source(case, finding, reads)
    return Verdict(
        state=state,
        kind=finding.kind,
        reason=finding.reason,
        certainty=certainty,
        culprits=finding.culprits,
        victims=finding.victims,
        group=case.job.keys[gid] if gid is not None else None,
        group_name=_group_name(case, gid) if gid is not None else "",
        collective=finding.collective,
        site=finding.site,
        victim_site=finding.victim_site,
        headline=finding.text.headline,
        explanation=finding.text.explanation,
        advice=advice(finding.kind, finding.reason, facts_of(case, finding, cause, reads)),
        waits=shown,
        stuck_age_s=age_s,
        hang=hang,
        cause=cause,
    )


def _unless_guessed(case: Case, finding: Finding) -> Finding:
    """The finding, which proves nothing where it is a guess which groups of ranks are one.

    Nor where somebody may be about to take the place of a culprit that has ended.
    """
    ranks = (case.job.ranks.get(culprit) for culprit in finding.culprits)
    replaced = any(rank.process.replaced for rank in ranks if rank is not None)
    wait_points = (finding.wait_point, *(wait.wait_point for wait in finding.waits))
    guessed = any(isinstance(s, Place | Channel) and s.gid in case.job.guessed for s in wait_points)
    if not replaced and (not guessed or finding.kind is Kind.DIED):
        return finding
    hang = finding.hang and finding.hang.at_most(Certainty.LIKELY)
    return replace(
        finding, final=False, certainty=finding.certainty.at_most(Certainty.LIKELY), hang=hang
    )


def _old_enough(case: Case, age_s: float) -> bool:
    return case.job.snapshot.ended or age_s >= PROOF_AFTER_S


def _state(case: Case, finding: Finding, age_s: float, thresholds: Thresholds) -> State | None:
    """None where there is nothing to say yet."""
    over = bool(finding.waits) and all(wait.over for wait in finding.waits)
    if case.job.snapshot.ended or over:
        # Somebody may just have ended a job that was well: then nobody waited for long.
        wrong = finding.final or finding.ended or age_s >= thresholds.suspect_after_s
        return State.FAILED if wrong or gave_up(case.ended, finding.waits) else None
    if finding.final and _old_enough(case, age_s) and not _is_failing(case):
        return State.HANG
    if age_s >= thresholds.hang_after_s and not _is_being_compiled_for(case, finding):
        enough = finding.final or age_s >= MOST_TURNS * thresholds.hang_after_s
        if enough or _idle_s(case, finding) >= thresholds.hang_after_s:
            return State.HANG
    return State.SLOW if age_s >= thresholds.suspect_after_s else None


def _idle_s(case: Case, finding: Finding) -> float:
    """How long ago the last of its ranks began to wait, or made its last call if it does not."""
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
    """Whether all that is waited for is a compiler at work: it takes as long as it takes."""
    if finding.reason is not Reason.COMPILING:
        return False
    doing = [case.activity(rank).compiling for rank in finding.culprits]
    if not all(one is not None and (one.at_work or one.locked) for one in doing):
        return False
    # Who waits for a lock file waits for whoever compiles the same.
    everybody = map(compiling, case.job.ranks.values())
    return any(one is not None and one.at_work for one in everybody)


def _is_failing(case: Case) -> bool:
    """Whether a rank has failed so shortly before that the launcher may still end the job."""
    ends = case.ended.values()
    failed_s = [end.age_s for end in ends if end.how not in (How.CLEAN, How.LOST)]
    return 0.0 < max(failed_s, default=0.0) < LAUNCHER_S  # 0 is not known


def _waits(case: Case, finding: Finding) -> tuple[ShownWait, ...]:
    """The waits of its victims and culprits, as they are reported."""
    graph = case.graph
    return tuple(
        ShownWait(
            rank=rank,
            group=case.job.keys[wait.wait_point.gid]
            if isinstance(wait.wait_point, Place | Channel)
            else None,
            seq=_seq(wait),
            op=wait.op or case.op_at((), wait.wait_point) or UNNAMED,
            waits_for=graph.missing.get(wait.wait_point, ()),
            age_s=wait.age_s,
            site=case.wait_site(wait),
        )
        for rank in sorted({*finding.victims, *finding.culprits})
        for wait in graph.by_rank.get(rank, ())
    )


def _seq(wait: Wait) -> int:
    if isinstance(wait.wait_point, Place):
        return wait.wait_point.seq
    return wait.record.seq if wait.record is not None else 0


def _group_name(case: Case, gid: int) -> str:
    for groups in case.job.progress.values():
        if gid in groups:
            return groups[gid].name
    return ""


def _importance(case: Case, finding: Finding, verdict: Verdict) -> tuple[float, ...]:
    gone_s = max(
        (seconds(case.ended[r].age_s) for r in finding.ended if r in case.ended), default=0
    )
    return -len(verdict.victims), -max(verdict.stuck_age_s, gone_s), -gone_s
