"""Judges ranks that are missing where others wait: busy, lost, unseen, or without a set-up call.

The name of a group is the number of groups that a process created before, and the ranks of a group
find each other by that name in the store (torch/distributed/distributed_c10d.py, new_group). So the
members of two groups of one name are connected to each other: data of one group arrive in the
other, and both get stuck.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from hangwatch.diagnosis.facts.activity import Activity, may_wait
from hangwatch.diagnosis.facts.awaited import On
from hangwatch.diagnosis.facts.channels import senders, sent
from hangwatch.diagnosis.facts.endings import Cause, How, gave_up
from hangwatch.diagnosis.facts.history import AWAITS_KEY, step
from hangwatch.diagnosis.facts.job import NEW_GROUP, Job, at_least_half
from hangwatch.diagnosis.facts.stores import KEY, Setter, asked_alike, longest_owed, setter
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Setup, Slot, Wait, WaitPoint
from hangwatch.diagnosis.rules.by_source import is_by_rank
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.splits import position
from hangwatch.diagnosis.source.program import fork
from hangwatch.diagnosis.text import disagreement, wording
from hangwatch.diagnosis.text.phrases import Ranks, each_now, group_text, now
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Certainty, Kind, Reason, What
from hangwatch.text import verb


def living(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """Ranks that are busy with something else; all do the same kind of thing."""
    waits = case.waits_at(wait_point)
    of_thread = case.doing_in_thread(culprits[0], waits)
    parts = [(culprits, of_thread)] if of_thread else case.doing_by_line(culprits)
    activity, doing = parts[0][1], each_now(parts)
    if isinstance(wait_point, Setup):
        return init_incomplete(case, wait_point, culprits, doing, activity.reason)
    if isinstance(wait_point, Channel):
        return missing_peer(case, wait_point, culprits, doing, activity.reason)
    if at_least_half(culprits, case.job.members(wait_point.gid)):
        few = subset(case, wait_point, culprits, f"never did: {doing}", final=False)
        if few is not None:
            return few
    loop = _left_loop(case, culprits[0], waits)
    scene = case.scene(wait_point, culprits, activity.site)
    if of_thread:
        scene = replace(scene, sites={})  # of the main threads
    seen = activity.reason is not Reason.UNKNOWN and activity.sure
    if activity.reason is not Reason.GPU_FAULT:
        seen = seen and not any(may_wait(case.job.ranks[rank], case.texts) for rank in culprits)
    finding = Finding(
        kind=Kind.NEVER_ENTERED if loop is None else Kind.FINISHED_EARLY,
        reason=activity.reason,
        certainty=Certainty.LIKELY if seen else Certainty.POSSIBLE,
        text=wording.never_entered(scene, activity, doing, timed_out=gave_up(case.ended, waits))
        if loop is None
        else wording.left_loop(scene, "", loop),
        **case.about(wait_point, scene),
    )
    return _or_crossed(case, finding, activity)


def _or_crossed(case: Case, finding: Finding, activity: Activity) -> Finding:
    """The finding, of both sides where the lock that a culprit waits for is held during a call.

    The thread that holds the lock is in a call that a victim does not make.
    """
    blocked = activity.blocked
    if blocked is None or blocked.on is not On.LOCK or blocked.link is None:
        return finding
    kept = [
        (wait, others)
        for waits in case.graph.at.values()
        for wait in waits
        if wait.in_thread and wait.rank in finding.culprits
        if (others := {*case.graph.missing.get(wait.wait_point, ())} & {*finding.victims})
    ]
    if not kept or blocked.link.holds is None:
        return finding
    wait, others = kept[0]
    text = wording.crossed(
        finding.text, blocked.link.name, case.where(wait.wait_point), tuple(sorted(others))
    )
    return replace(finding.of_any({*finding.culprits, *others}), text=text, settled=True)


def _left_loop(case: Case, culprit: int, waits: Iterable[Wait]) -> Site | None:
    """The loop that the culprit has left for good and the waiting ranks are in."""
    here = position(case, culprit)
    there = next((at for wait in waits if (at := position(case, wait.rank)) is not None), None)
    forked = fork(case.source.program, here, there) if here and there else None
    if forked is None or not forked.left or forked.in_one_loop:
        return None
    return case.site_of_line(forked.file, forked.left[-1].lineno)


def subset(
    case: Case, wait_point: Slot, others: Ranks, went_on: str, *, final: bool
) -> Finding | None:
    """A minority waits in a collective that the others do not enter.

    None unless the source shows that the waiting ranks took a condition on the rank.
    """
    culprits, site = case.direct(wait_point), case.victims_site(case.waits_at(wait_point))
    scene = case.scene(wait_point, culprits, site, others, case.waiting_site(others[0]))
    victims = tuple(sorted({*case.victims_of(others)} - {*culprits}))
    finding = Finding(
        kind=Kind.SUBSET_ENTERED,
        certainty=Certainty.PROVED if final else Certainty.LIKELY,
        text=disagreement.subset(scene, went_on),
        final=final,
        **case.about(wait_point, scene, victims),
    )
    return finding if is_by_rank(case, finding) else None


def absent_ranks(case: Case, wait_point: WaitPoint, culprits: Ranks) -> Finding:
    """Ranks without a snapshot: not started, or on a node that does not answer."""
    if isinstance(wait_point, Setup):
        they = verb(culprits, "it has", "they have")
        return init_incomplete(case, wait_point, culprits, f"{they} not been seen", Reason.UNKNOWN)
    waits = case.waits_at(wait_point)
    scene = case.scene(wait_point, culprits)
    causes = {end.cause for end in case.ended.values() if end.how is not How.CLEAN}
    # All that is seen has failed of a peer that was gone: of one that is not seen.
    failed = Cause.OWN not in causes and any(
        wait.ended and case.ended[wait.rank].cause is Cause.ECHO for wait in waits
    )
    return Finding(
        kind=Kind.DIED if failed else Kind.NEVER_ENTERED,
        reason=Reason.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        text=wording.unseen(scene, case.job.snapshot.unseen, failed=failed),
        ended=culprits if failed else (),
        **case.about(wait_point, scene),
    )


def lost(case: Case, awaited: Iterable[int], wait_points: Iterable[WaitPoint | None]) -> Finding:
    """Ranks whose nodes cannot be reached, with all others of these nodes.

    awaited: the ranks that others wait for, or that were gone when the job ended.
    wait_points: the points at which others wait for them.
    """
    nodes = sorted({case.job.ranks[rank].node for rank in awaited})
    culprits = tuple(
        rank
        for rank, end in sorted(case.ended.items())
        if end.how is How.LOST and case.job.ranks[rank].node in nodes
    )
    known = [wait_point for wait_point in wait_points if wait_point is not None]
    wait_point = max(known, key=lambda wait_point: len(case.graph.at[wait_point]), default=None)
    waits = case.waits_at(wait_point)
    scene = case.scene(wait_point, culprits)
    alone = case.job.snapshot.cut_off
    here = sorted({snap.node for snap in case.job.ranks.values() if snap.node} - {*nodes})
    return Finding(
        kind=Kind.DIED,
        # That all others are lost at once is less likely than that this one is.
        reason=Reason.NETWORK if alone and len(nodes) > 1 else Reason.NODE_LOST,
        certainty=Certainty.POSSIBLE if alone else Certainty.LIKELY,
        text=wording.lost(
            scene, nodes, here if alone else (), failed=all(wait.ended for wait in waits)
        ),
        ended=culprits,
        **case.about(wait_point, scene),
    )


def missing_peer(
    case: Case, wait_point: Channel, culprits: Ranks, doing: str, reason: Reason
) -> Finding:
    """A send that its peer never receives, or a recv that it never sends.

    Several culprits: of a recv from any source the ranks that sent less than the others, or
    all that might have sent.
    """
    gone = reason is Reason.EXITED
    busy = [case.job.ranks[r] for r in culprits if r in case.job.ranks and r not in case.ended]
    seen = reason is not Reason.UNKNOWN and not any(may_wait(rank, case.texts) for rank in busy)
    # The message that a stopped rank waited for may have come.
    frozen = case.is_frozen(wait_point.waiter)
    certainty = Certainty.LIKELY if seen and not frozen else Certainty.POSSIBLE
    if gone and not frozen:
        certainty = Certainty.PROVED if wait_point.peer != ANYONE else Certainty.LIKELY
    fewer = _sent_less(case, wait_point, culprits)
    everyone = wait_point.peer == ANYONE and len(culprits) > 1 and not fewer
    scene = case.scene(wait_point, culprits, case.site_of(culprits[0]))
    scene = replace(scene, where=group_text(case.job, wait_point.gid))
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=reason,
        certainty=Certainty.POSSIBLE if everyone else certainty,
        text=wording.missing_peer(scene, "send" if wait_point.sends else "recv", doing, fewer),
        final=gone and not frozen,
        **case.about(wait_point, scene),
    )


def _sent_less(case: Case, wait_point: Channel, culprits: Ranks) -> tuple[int, int] | None:
    """(messages of each culprit, of each other rank) for a recv from any source, if known."""
    if wait_point.peer != ANYONE:
        return None
    counts = sent(case.job, wait_point, senders(case.job, wait_point))
    mine = {counts[rank] for rank in culprits if rank in counts}
    others = {count for rank, count in counts.items() if rank not in culprits}
    return (mine.pop(), others.pop()) if len(mine) == len(others) == 1 else None


# --- Set-up calls -----------------------------------------------------------------------


def judge_setup(case: Case, wait_point: Setup) -> Finding:
    """Judge a set-up call that all ranks have reached and that does not complete."""
    if wait_point.keys:
        return judge_key(case, wait_point)
    return (
        (judge_names(case, wait_point) if wait_point.call == NEW_GROUP else None)
        or frozen_setup(case, wait_point, case.direct(wait_point))
        or init_incomplete(case, wait_point, (), "", Reason.NETWORK)
    )


def judge_setups_in_cycle(case: Case, setups: Sequence[Setup], inside: Collection[int]) -> Finding:
    """Judge a cycle in which some ranks are in a set-up call, and the others wait elsewhere."""
    keyed = [wait_point for wait_point in setups if wait_point.keys]
    if keyed:
        return judge_key(case, longest_owed(case.job.ranks, keyed))
    wait_point = max(setups, key=lambda one: (len(case.direct(one)), one))
    misnamed = judge_names(case, wait_point) if wait_point.call == NEW_GROUP else None
    if misnamed is not None:
        return misnamed
    culprits = tuple(sorted({*inside} & {*case.graph.missing.get(wait_point, ())}))
    waits = case.waiting_text(culprits)
    finding = init_incomplete(case, wait_point, culprits, waits, Reason.USER_CODE)
    if len(setups) > 1:
        # Each makes another group: which rank left one out is not known from the lines.
        gone = {rank for rank in case.ended if rank not in finding.victims}
        everyone = tuple(sorted({*inside} | gone))
        victims = tuple(rank for rank in finding.victims if rank not in everyone)
        finding = replace(finding, culprits=everyone, victims=victims)
    if len(setups) > 1 or len(culprits) > 1:
        # new_group lets ranks through that are no members of it: not all need be missing.
        return replace(finding, certainty=Certainty.POSSIBLE)
    return finding


def init_incomplete(
    case: Case, wait_point: Setup, culprits: Ranks, doing: str, reason: Reason
) -> Finding:
    """Ranks missing from a call that all ranks make."""
    site = case.site_of(culprits[0]) if culprits else None
    scene = case.scene(wait_point, culprits, site)
    known = reason not in (Reason.UNKNOWN, Reason.NETWORK)
    return Finding(
        kind=Kind.INIT_INCOMPLETE,
        reason=reason,
        certainty=Certainty.LIKELY if known else Certainty.POSSIBLE,
        text=wording.init_incomplete(scene, doing),
        **case.about(wait_point, scene, case.victims_of(culprits, [wait_point])),
    )


def frozen_setup(case: Case, wait_point: Setup, ranks: Ranks) -> Finding | None:
    """A set-up call of which some of these ranks do not run; None if all run."""
    frozen = tuple(rank for rank in ranks if case.is_frozen(rank))
    if not frozen:
        return None
    doing = case.activity(frozen[0])
    return init_incomplete(case, wait_point, frozen, now(frozen, doing), doing.reason)


# --- Keys of a store -------------------------------------------------------------------


def judge_key(case: Case, wait_point: Setup) -> Finding:
    """A key that no rank sets: all living ranks wait (facts/stores.py).

    The rank that set keys of that form before is to blame; if none is known, any rank may be. If it
    is in a call that it never made before, the waiting ranks may ask for one key too many.
    """
    waits, waiting = case.waits_at(wait_point), case.direct(wait_point)
    known = setter(case.job.ranks, wait_point.keys)
    alike = asked_alike(case.job.ranks, waiting, known) if known is not None else ()
    if known is not None and alike:
        return _asks_for_another(case, wait_point, known, alike)
    behind = known.behind if known is not None else waiting
    others = tuple(rank for rank in waiting if rank not in behind)
    either = bool(known and known.by_form and others) and any(
        _has_gone_on(case, rank) for rank in behind
    )
    own = case.victims_site(case.graph.by_rank.get(behind[0], ())) or case.waiting_site(behind[0])
    scene = case.scene(wait_point, behind, own, others, case.victims_site(waits))
    culprits = tuple(sorted({*behind, *others})) if either else behind
    if known is None:
        text = disagreement.set_by_no_rank(scene)
    else:
        text = (disagreement.one_more if either else disagreement.never_set)(scene, known)
    gone = any(rank in case.ended for rank in culprits)
    alone = known is not None and len(culprits) == 1
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=Reason.EXITED if gone else Reason.USER_CODE if known else Reason.STORE_WAIT,
        certainty=Certainty.LIKELY if alone else Certainty.POSSIBLE,
        text=text,
        hang=Certainty.LIKELY,
        settled=True,
        **case.about(
            wait_point,
            replace(scene, culprits=culprits),
            case.victims_of(culprits, [wait_point]),
        ),
    )


def _asks_for_another(case: Case, wait_point: Setup, known: Setter, alike: Ranks) -> Finding:
    """Ranks that wait for a key while others, in the same iteration, asked for the one set."""
    waiting, site = case.direct(wait_point), case.victims_site(case.waits_at(wait_point))
    scene = Scene(waiting, alike, case.where(wait_point), site)
    return Finding(
        kind=Kind.MISSING_PEER,
        certainty=Certainty.LIKELY,
        text=disagreement.asks_for_another(scene, known),
        hang=Certainty.LIKELY,
        what=What.DIFFERENT_ARGUMENT,
        settled=True,
        differs=KEY,
        **case.about(wait_point, scene, case.victims_of(waiting, [wait_point])),
    )


def _has_gone_on(case: Case, rank: int) -> bool:
    """Return True if a rank has ended, or waits at a line where it has never been before."""
    if rank in case.ended or rank not in case.job.ranks:
        return True
    snapshot = case.job.ranks[rank]
    there = (m for m in snapshot.marks if m.kind == AWAITS_KEY and m.site == snapshot.in_call_site)
    if any(mark.count > 1 for mark in there):
        return False
    known = [wait.record for wait in case.graph.by_rank.get(rank, ()) if wait.record is not None]
    made = [record for _, record in case.job.ops.get(rank, ())]
    return not any(
        step(one) == step(record) for record in known for one in made if one is not record
    )


# --- Groups that were not made in the same order on all ranks ---------------------------


@dataclass(frozen=True, slots=True)
class _Claim:
    """A group of these members, as some ranks know it by a name."""

    members: Ranks
    ranks: Ranks

    @property
    def complete(self) -> bool:
        """Return True if all its members know it so."""
        return set(self.members) <= set(self.ranks)


def judge_names(case: Case, wait_point: Slot | Setup) -> Finding | None:
    """Blame the ranks that made groups in another order, if groups of other members share a name.

    wait_point: a stuck slot, whose group it is about, or a new_group, where it may be any.
    """
    if isinstance(wait_point, Slot):
        # What has completed a call is one group.
        number = _first_other_call(case.job, wait_point.gid) if wait_point.seq == 1 else None
    else:
        number = wait_point.number if wait_point.gid >= 0 else None
    if number is not None:
        claims = _calls(case.job, number)
    else:
        claims = _claims(case.job, wait_point.gid if isinstance(wait_point, Slot) else None)
    if len(claims) < 2:  # noqa: PLR2004 (a pair of groups)
        return None
    right = [claim for claim in claims if claim.complete]
    wrong = [claim for claim in claims if not claim.complete]
    if number is None and not (wrong and _names_compare(case.job, claims)):
        return None
    decided = bool(right and wrong)
    culprits = tuple(sorted(r for claim in (wrong if decided else claims) for r in claim.ranks))
    site = case.victims_site(case.waits_at(wait_point))
    made = [
        call.site
        for call in case.job.ranks[culprits[0]].new_groups
        if decided and call.number == number
    ]
    scene = case.scene(wait_point, culprits, next(iter(made), None), (), site)
    text = wording.cross_wired(
        culprits if decided else (),
        [(claim.ranks, claim.members) for claim in claims],
        scene.where,
        site,
    )
    return Finding(
        kind=Kind.INIT_INCOMPLETE,
        certainty=Certainty.LIKELY if decided else Certainty.POSSIBLE,
        text=text,
        what=What.GROUP_CREATION,
        **case.about(wait_point, scene, case.victims_of(culprits, [wait_point])),
    )


def _calls(job: Job, number: int) -> list[_Claim]:
    """The groups that ranks made by their calls of new_group of one number."""
    found: dict[int, set[int]] = defaultdict(set)
    for rank in job.ranks.values():
        for call in rank.new_groups:
            if call.number == number and call.group.ranks:
                found[job.gid(call.group)].add(rank.rank)
    return [_Claim(job.keys[gid].ranks, tuple(sorted(ranks))) for gid, ranks in found.items()]


def _first_other_call(job: Job, gid: int) -> int | None:
    """The number of the first call of new_group that made different groups, where it matters.

    It does for a group that its members know by different names: they never meet.
    """
    names = {groups[gid].name for groups in job.progress.values() if gid in groups}
    if len(names) < 2:  # noqa: PLR2004 (a pair of names)
        return None
    numbers = {call.number for rank in job.ranks.values() for call in rank.new_groups}
    others = (n for n in sorted(numbers) if n >= 0 and len(_calls(job, n)) > 1)
    return next(others, None)


def _claims(job: Job, gid: int | None) -> list[_Claim]:
    """The groups of different members that go by one name: that of a group, or the first."""
    held: dict[str, dict[Ranks, set[int]]] = defaultdict(lambda: defaultdict(set))
    for rank, groups in job.progress.items():
        for progress in groups.values():
            if progress.alive and progress.key.ranks:
                held[progress.name][progress.key.ranks].add(rank)
    if gid is None:
        names = {min((name for name, by in held.items() if len(by) > 1), default="")}
    else:
        names = {groups[gid].name for groups in job.progress.values() if gid in groups}
    found: dict[Ranks, set[int]] = defaultdict(set)
    for name in names & held.keys():
        for members, ranks in held[name].items():
            found[members] |= ranks
    return [_Claim(members, tuple(sorted(ranks))) for members, ranks in sorted(found.items())]


def _names_compare(job: Job, claims: Iterable[_Claim]) -> bool:
    """Return True if names are the same on all ranks, but for the groups in question."""
    asked = {claim.members for claim in claims}
    if tuple(job.world()) in asked:
        return False
    names: dict[Ranks, set[str]] = defaultdict(set)
    for groups in job.progress.values():
        for progress in groups.values():
            if progress.key.ranks not in asked:
                names[progress.key.ranks].add(progress.name)
    return all(len(known) == 1 for known in names.values())
