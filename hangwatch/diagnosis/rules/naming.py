"""Finds groups that were not made in the same order on all ranks.

A group's name is a count of the groups that a process has made, and the ranks of a
group find each other below that name in the store (torch/distributed/distributed_c10d.py,
new_group). Two groups of one name are therefore wired to each other's members: what
one rank sends arrives in the other group, and both get stuck.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import Place, Setup
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.text import wording
from hangwatch.diagnosis.text.phrases import Ranks
from hangwatch.model.kinds import Certainty, Kind, Reason, What


@dataclass(frozen=True, slots=True)
class _Claim:
    """Some ranks know a group by a name."""

    members: Ranks
    ranks: Ranks

    @property
    def complete(self) -> bool:
        """Whether all its members do."""
        return set(self.members) <= set(self.ranks)


def judge_names(case: Case, wait_point: Place | Setup) -> Finding | None:
    """Blame who made groups in another order, if groups of other members share a name.

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
    waits = case.waits_at(wait_point)
    victims = set(case.victims_of(culprits, [wait_point])) - set(culprits)
    return Finding(
        kind=Kind.INIT_INCOMPLETE,
        reason=Reason.USER_CODE,
        certainty=Certainty.LIKELY if decided else Certainty.POSSIBLE,
        culprits=culprits,
        victims=tuple(sorted(victims)),
        text=wording.cross_wired(
            culprits if decided else (),
            [(claim.ranks, claim.members) for claim in claims],
            case.where(wait_point),
            case.victims_site(waits),
        ),
        wait_point=wait_point,
        collective=case.collective(wait_point, waits) if isinstance(wait_point, Place) else None,
        victim_site=case.victims_site(waits),
        waits=waits,
        what=What.GROUP_CREATION,
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
    """Whether names are the same on all ranks, but for the groups in question."""
    asked = {claim.members for claim in claims}
    if tuple(job.world()) in asked:
        return False
    names: dict[Ranks, set[str]] = defaultdict(set)
    for groups in job.progress.values():
        for progress in groups.values():
            if progress.key.ranks not in asked:
                names[progress.key.ranks].add(progress.name)
    return all(len(known) == 1 for known in names.values())
