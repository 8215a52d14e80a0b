"""Finds groups that were not made in the same order on all ranks.

A group's name is a count of the groups that a process has made, and the ranks of a
group find each other below that name in the store (torch/distributed/distributed_c10d.py,
new_group). Two groups of one name are therefore wired to each other's members: what
one rank sends arrives in the other group, and both get stuck.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangwatch.diagnosis import wording
from hangwatch.diagnosis.case import Finding
from hangwatch.types import Certainty, Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangwatch.diagnosis.case import Case
    from hangwatch.diagnosis.job import Job
    from hangwatch.diagnosis.phrases import Ranks
    from hangwatch.diagnosis.spots import Place


@dataclass(frozen=True, slots=True)
class _Claim:
    """Some ranks know a group by a name."""

    members: Ranks
    ranks: Ranks

    @property
    def complete(self) -> bool:
        """Whether all its members do."""
        return set(self.members) <= set(self.ranks)


def judge_names(case: Case, place: Place) -> Finding | None:
    """Blame who made groups in another order, if a stuck place's group shares its name."""
    claims = _claims(case.job, place.gid)
    if len(claims) < 2:  # noqa: PLR2004 (a pair of groups)
        return None
    right = [claim for claim in claims if claim.complete]
    wrong = [claim for claim in claims if not claim.complete]
    if not wrong or not _names_compare(case.job, claims):
        return None
    decided = bool(right)
    culprits = tuple(sorted(r for claim in (wrong if decided else claims) for r in claim.ranks))
    waits = case.waits_at(place)
    victims = set(case.victims_of(culprits, [place])) - set(culprits)
    return Finding(
        kind=Kind.INIT_INCOMPLETE,
        reason=Reason.USER_CODE,
        certainty=Certainty.LIKELY if decided else Certainty.POSSIBLE,
        culprits=culprits,
        victims=tuple(sorted(victims)),
        text=wording.cross_wired(
            culprits if decided else (),
            [(claim.ranks, claim.members) for claim in claims],
            case.where(place),
            case.victims_site(waits),
        ),
        spot=place,
        collective=case.collective(place, waits),
        victim_site=case.victims_site(waits),
        waits=waits,
    )


def _claims(job: Job, gid: int) -> list[_Claim]:
    """The groups of different members that go by the name that a group has."""
    names = {groups[gid].name for groups in job.progress.values() if gid in groups}
    held: dict[Ranks, set[int]] = defaultdict(set)
    for rank, groups in job.progress.items():
        for progress in groups.values():
            if progress.alive and progress.name in names and progress.key.ranks:
                held[progress.key.ranks].add(rank)
    return [_Claim(members, tuple(sorted(ranks))) for members, ranks in sorted(held.items())]


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
