"""Judges the ranks that wait for nothing and that others wait for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangwatch.diagnosis import wording
from hangwatch.diagnosis.absentees import (
    absent_ranks,
    init_incomplete,
    living,
    missing_peer,
    rank_guard,
    subset,
)
from hangwatch.diagnosis.case import Finding
from hangwatch.diagnosis.endings import Cause, How
from hangwatch.diagnosis.phrases import at_line, ended, verb
from hangwatch.diagnosis.spots import Channel, Place, Setup
from hangwatch.frames import with_source
from hangwatch.types import Certainty, Kind, Phase, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangwatch.diagnosis.case import Case
    from hangwatch.diagnosis.endings import Ending
    from hangwatch.diagnosis.spots import Spot
    from hangwatch.types import Site

Ranks = tuple[int, ...]

SHUTDOWN_S = 30.0
"""Launchers take a while to end all ranks; torchrun's grace period is 30 s."""


def judge_terminals(case: Case, terminals: Iterable[int]) -> Iterator[Finding]:
    """One finding for each spot and each way in which ranks are missing from it."""
    ranks = _without_followers(case, terminals)
    by_spot: dict[Spot | None, list[int]] = defaultdict(list)
    for rank in ranks:
        by_spot[_main_spot(case, rank)].append(rank)
    for spot, missing in by_spot.items():
        yield from _judge_spot(case, spot, missing)


def _without_followers(case: Case, terminals: Iterable[int]) -> list[int]:
    """Leave out ranks that were only ended because another one had ended."""
    ranks = sorted(terminals)
    causes = {rank: case.ended[rank].cause for rank in ranks if rank in case.ended}
    if Cause.OWN not in causes.values():
        return ranks
    return [rank for rank in ranks if causes.get(rank, Cause.OWN) is Cause.OWN]


def _main_spot(case: Case, rank: int) -> Spot | None:
    """Of the spots that wait for a rank the one with most ranks in it, then the oldest."""

    def weight(spot: Spot) -> tuple[int, float, str]:
        waits = case.graph.at[spot]
        return len(waits), max(wait.age_s for wait in waits), type(spot).__name__

    spots = [spot for spot in case.graph.before().get(rank, ()) if not isinstance(spot, int)]
    return max(spots, key=weight, default=None)


def _judge_spot(case: Case, spot: Spot | None, missing: list[int]) -> Iterator[Finding]:
    dead: dict[tuple[object, ...], list[int]] = defaultdict(list)
    finished: list[int] = []
    absent: list[int] = []
    terminated: list[int] = []
    alive: dict[Reason, list[int]] = defaultdict(list)
    for rank in missing:
        end = case.ended.get(rank)
        if end is not None and end.how is How.CLEAN:
            finished.append(rank)
        elif end is not None and (end.cause is Cause.OWN or _left_behind(case, end)):
            site = end.exception.site if end.exception else None
            name = end.exception.type if end.exception else ""
            dead[end.how, name, site and (site.file, site.line), end.signal].append(rank)
        elif end is not None:
            terminated.append(rank)
        elif rank not in case.job.ranks:
            absent.append(rank)
        elif _has_finished(case, rank, spot):
            finished.append(rank)
        else:
            alive[case.activity(rank).reason].append(rank)
    for ranks in dead.values():
        yield died(case, spot, tuple(ranks))
    if spot is None:
        return
    if finished:
        yield _finished(case, spot, tuple(finished))
    if absent:
        yield absent_ranks(case, spot, tuple(absent))
    if terminated:
        yield living(case, spot, tuple(terminated))
    for ranks in alive.values():
        yield living(case, spot, tuple(ranks))


def _left_behind(case: Case, end: Ending) -> bool:
    """Whether others live on long after it was ended: nobody is ending the job."""
    return len(case.ended) < len(case.job.ranks) and end.age_s >= SHUTDOWN_S


def _has_finished(case: Case, rank: int, spot: Spot | None) -> bool:
    snapshot = case.job.ranks[rank]
    if isinstance(spot, Setup):
        return False
    if snapshot.phase is Phase.FINALIZING or snapshot.in_call == "destroy_process_group":
        return True
    return isinstance(spot, Place | Channel) and case.job.has_left(rank, spot.gid)


def died(
    case: Case, spot: Spot | None, culprits: Ranks, certainty: Certainty = Certainty.PROVED
) -> Finding:
    """Ranks that are gone, and not by coming to their end."""
    first = max(culprits, key=lambda rank: case.ended[rank].age_s)
    end = case.ended[first]
    waits = case.waits_at(spot)
    failed = bool(waits) and all(wait.over for wait in waits)
    victims = case.victims_of(culprits)
    direct = tuple(rank for rank in case.direct(spot) if rank not in culprits)
    site = with_source(end.exception.site, case.texts) if end.exception else None
    return Finding(
        kind=Kind.DIED,
        reason=end.reason,
        certainty=Certainty.LIKELY if end.how in (How.GONE, How.LOST) else certainty,
        culprits=culprits,
        victims=victims,
        text=wording.died(culprits, direct, case.where(spot), end, failed=failed),
        final=end.how is not How.LOST,
        spot=spot,
        collective=case.collective(spot, waits),
        site=site or _last_site(case, first),
        victim_site=case.victims_site(waits),
        waits=waits,
        ended=culprits,
    )


def _last_site(case: Case, rank: int) -> Site | None:
    """The line of the last call that a rank made."""
    for _, record in reversed(case.job.ops.get(rank, [])):
        if record.site is not None:
            return with_source(record.site, case.texts)
    return None


def _finished(case: Case, spot: Spot, culprits: Ranks) -> Finding:
    waits = case.waits_at(spot)
    there = case.direct(spot)
    how = _how_finished(case, culprits)
    if isinstance(spot, Channel):
        return missing_peer(case, spot, culprits[0], how, Reason.EXITED)
    if isinstance(spot, Setup):
        return init_incomplete(case, spot, culprits, how, Reason.EXITED)
    if isinstance(spot, Place) and 2 * len(culprits) >= len(case.job.members(spot.gid)):
        guard = rank_guard(case, waits)
        if guard is not None:
            return subset(case, spot, there, culprits, guard, f"{how} without it", final=True)
    if isinstance(spot, Place) and 2 * len(culprits) > len(case.job.members(spot.gid)):
        return _outlasted(case, spot, there, culprits, how)
    victim_site = case.victims_site(waits)
    # Counters alone do not say for sure that it is this group that has unfinished work.
    sure = any(wait.over or not wait.vague for wait in waits)
    return Finding(
        kind=Kind.FINISHED_EARLY,
        reason=Reason.EXITED,
        certainty=Certainty.PROVED if sure else Certainty.LIKELY,
        culprits=culprits,
        victims=case.victims_of(culprits),
        text=wording.finished(culprits, there, case.where(spot), how, victim_site),
        final=sure,
        spot=spot,
        collective=case.collective(spot, waits),
        site=_finished_site(case, culprits[0]),
        victim_site=victim_site,
        waits=waits,
        ended=tuple(rank for rank in culprits if rank in case.ended),
    )


def _outlasted(case: Case, spot: Place, culprits: Ranks, finished: Ranks, how: str) -> Finding:
    """Most members are finished, and a few still go on."""
    waits = case.waits_at(spot)
    site = case.victims_site(waits)
    return Finding(
        kind=Kind.FINISHED_EARLY,
        reason=Reason.USER_CODE,
        certainty=Certainty.PROVED,
        culprits=culprits,
        victims=tuple(sorted(set(case.victims_of(finished)) - set(culprits))),
        text=wording.outlasted(culprits, finished, case.where(spot), how, site),
        final=True,
        spot=spot,
        collective=case.collective(spot, waits),
        site=site,
        victim_site=_finished_site(case, finished[0]),
        waits=waits,
    )


def _how_finished(case: Case, culprits: Ranks) -> str:
    end = case.ended.get(culprits[0])
    they = verb(culprits, "it", "they")
    if end is None:
        site = case.job.ranks[culprits[0]].in_call_site
        return f"{they} called destroy_process_group{at_line(site)}"
    return f"{they} {ended(end)}" + (" with code 0" if end.exit_code == 0 else "")


def _finished_site(case: Case, rank: int) -> Site | None:
    snapshot = case.job.ranks[rank]
    if rank not in case.ended:
        site = with_source(snapshot.in_call_site, case.texts) or case.waiting_site(rank)
        if site is not None:
            return site
    return _last_site(case, rank)
