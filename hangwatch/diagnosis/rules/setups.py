"""Judges set-up calls: init_process_group, new_group, and the keys of a store.

A group's name is a count of the groups that a process has made, and the ranks of a
group find each other below that name in the store (torch/distributed/distributed_c10d.py,
new_group). Two groups of one name are therefore wired to each other's members: what
one rank sends arrives in the other group, and both get stuck.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from hangwatch.diagnosis.facts.history import AWAITS_KEY, step
from hangwatch.diagnosis.facts.job import NEW_GROUP, Job
from hangwatch.diagnosis.facts.stores import KEY, Setter, asked_alike, longest_owed, setter
from hangwatch.diagnosis.facts.wait_points import Place, Setup
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.text import messages, wording
from hangwatch.diagnosis.text.phrases import Ranks, now
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.kinds import Certainty, Kind, Reason, What


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
    """A key that no rank sets: all that live wait (facts/stores.py).

    The rank that has set such keys before is to blame; where none is known, any may be. And
    where it has gone on to what it never did before, the waiting ranks may ask for one too many.
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
        text = messages.set_by_nobody(scene)
    else:
        text = (messages.one_more if either else messages.never_set)(scene, known)
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
    """Ranks that wait for a key where others, in the same turn, asked for the one that was set."""
    waiting, site = case.direct(wait_point), case.victims_site(case.waits_at(wait_point))
    scene = Scene(waiting, alike, case.where(wait_point), site)
    return Finding(
        kind=Kind.MISSING_PEER,
        certainty=Certainty.LIKELY,
        text=messages.asks_for_another(scene, known),
        hang=Certainty.LIKELY,
        what=What.DIFFERENT_ARGUMENT,
        settled=True,
        differs=KEY,
        **case.about(wait_point, scene, case.victims_of(waiting, [wait_point])),
    )


def _has_gone_on(case: Case, rank: int) -> bool:
    """True if a rank has come to its end, or waits where it has never been before."""
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
        """True if all its members know it so."""
        return set(self.members) <= set(self.ranks)


def judge_names(case: Case, wait_point: Place | Setup) -> Finding | None:
    """Blame the ranks that made groups in another order, if groups of other members share a name.

    wait_point: a stuck place, whose group it is about, or a new_group, where it may be any.
    """
    number = wait_point.number if isinstance(wait_point, Setup) and wait_point.gid >= 0 else None
    if number is not None:
        claims = _calls(case.job, number)
    else:
        claims = _claims(case.job, wait_point.gid if isinstance(wait_point, Place) else None)
    if len(claims) < 2:  # noqa: PLR2004 (a pair of groups)
        return None
    right = [claim for claim in claims if claim.complete]
    wrong = [claim for claim in claims if not claim.complete]
    if number is None and not (wrong and _names_compare(case.job, claims)):
        return None
    decided = bool(right and wrong)
    culprits = tuple(sorted(r for claim in (wrong if decided else claims) for r in claim.ranks))
    site = case.victims_site(case.waits_at(wait_point))
    scene = case.scene(wait_point, culprits, None, (), site)
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
    """True if names are the same on all ranks, but for the groups in question."""
    asked = {claim.members for claim in claims}
    if tuple(job.world()) in asked:
        return False
    names: dict[Ranks, set[str]] = defaultdict(set)
    for groups in job.progress.values():
        for progress in groups.values():
            if progress.key.ranks not in asked:
                names[progress.key.ranks].add(progress.name)
    return all(len(known) == 1 for known in names.values())
