"""Decides which costly mistakes the ranks of a node have certainly made.

Each must show on every rank that is at hand, and whatever could explain it otherwise
silences it: a job that does nothing wrong is told nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hangwatch.efficiency.facts import LoaderFacts, RankFacts, ReplicaFacts
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Cost

LEAST_EPOCHS = 2
LEAST_DIGESTS = 8
LEAST_CALLS = 20
"""A loop with fewer averages of gradients is a trial, if not a test."""
LEAST_STEPS = 10
LEAST_SYNCS = 1.75
"""Averages a step that are certainly no exception, such as a step that was skipped."""
LEAST_READINGS = 20
_SAMPLED_EVERY = 100
"""torch counts its iterations exactly only up to 10 (kDDPRuntimeLoggingSampleRate)."""
_LEAST_ITERATIONS = 2 * _SAMPLED_EVERY
_SET_UP_CALLS = 32
"""Collectives that a module issues when it is made and at its first passes, at most."""
_UNKNOWN_SHARE = 1.1
"""Where so many more collectives were issued than are explained, something else averages."""
_SHARES_NOTHING = frozenset(
    {
        "all_gather_object",
        "all_reduce",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather_object",
        "monitored_barrier",
        "reduce",
    }
)
"""With these alone no model splits its work on one batch among ranks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake that was certainly made."""

    cost: Cost
    ranks: tuple[int, ...]
    site: Site | None = None
    count: int = 0
    """Epochs in one order; iterations that were looked at; averages a step; the GPU's index."""
    other: int = 0
    """Steps; GPUs that lie idle."""


def find_costs(ranks: Sequence[RankFacts]) -> tuple[Finding, ...]:
    """The mistakes that all of these ranks, those of one node, have made."""
    found = (_same_order(ranks), _same_data(ranks), _each_batch(ranks), _unused_search(ranks))
    return tuple(one for one in found if one is not None)


def _same_order(ranks: Sequence[RankFacts]) -> Finding | None:
    for group in _alike(ranks):
        if all(one.distributed and one.epochs >= LEAST_EPOCHS and one.orders == 1 for one in group):
            epochs = min(one.epochs for one in group)
            return Finding(Cost.SAME_ORDER, _numbers(ranks), group[0].site, epochs)
    return None


def _same_data(ranks: Sequence[RankFacts]) -> Finding | None:
    """The same batches, whole, in a model that is replicated over all ranks, and nothing else."""
    if len(ranks) < 2 or not all(_is_only_replicated(rank) for rank in ranks):  # noqa: PLR2004
        return None
    for group in _alike(ranks):
        digests = group[0].digests
        informative = len(digests) >= LEAST_DIGESTS and all(digests)
        if (
            informative
            and len(set(digests)) == len(digests)
            and all(one.digests == digests for one in group)
            and all(one.calls >= LEAST_CALLS for one in group)
            and all(_goes_in_whole(loader, rank) for loader, rank in zip(group, ranks, strict=True))
        ):
            return Finding(Cost.SAME_DATA, _numbers(ranks), group[0].site, len(digests))
    return None


def _is_only_replicated(rank: RankFacts) -> bool:
    """Whether all ranks have replicas of a model, and no others share anything among them.

    Ranks of one tensor, sequence or pipeline parallel group must read the same data.
    """
    world = tuple(range(rank.page.identity.world_size))
    groups = [group.key.ranks for group in rank.page.groups if len(group.key.ranks) > 1]
    return (
        any(one.ranks == world for one in rank.replicas)
        and all(one.plain for one in rank.replicas)
        and all(tuple(sorted(one)) == world for one in groups)
        and not any(group.p2p for group in rank.page.groups)
        and all(event.op in _SHARES_NOTHING for event in rank.page.events)
    )


def _goes_in_whole(loader: LoaderFacts, rank: RankFacts) -> bool:
    """Whether no rank takes its own part of a batch before the model sees it."""
    return any(
        loader.elements // 2 < one.elements <= loader.elements
        for one in rank.replicas
        if len(one.ranks) == rank.page.identity.world_size
    )


def _each_batch(ranks: Sequence[RankFacts]) -> Finding | None:
    """Gradients were averaged several times for one step of the optimizer."""
    counts = [_averages(rank.replicas[0], rank) if len(rank.replicas) == 1 else 0 for rank in ranks]
    if not counts or not all(counts):
        return None
    first = ranks[0].replicas[0]
    return Finding(Cost.SYNC_EACH_BATCH, _numbers(ranks), first.site, counts[0], first.steps)


def _averages(one: ReplicaFacts, rank: RankFacts) -> int:
    """About how many averages were made for each step; 0 where one may have been enough."""
    group = next((group for group in rank.page.groups if group.slot == one.slot), None)
    known = one.calls >= 0 and one.broadcasts >= 0 and one.buckets > 0 and not one.hooked
    if group is None or not known:
        return 0
    if one.iteration < _LEAST_ITERATIONS or one.steps < LEAST_STEPS:
        return 0
    average = one.buckets + one.find_unused
    forwards = one.iteration + _SAMPLED_EVERY
    issued = one.calls - group.entered - group.p2p
    explained = forwards * (average + one.broadcasts) + _SET_UP_CALLS
    # What is left when each forward pass has had its broadcasts are averages.
    least = (issued - forwards * one.broadcasts - _SET_UP_CALLS) / average
    if least < LEAST_SYNCS * one.steps or issued > explained * _UNKNOWN_SHARE:
        return 0
    return round((issued - one.iteration * one.broadcasts) / average / one.steps)


def _unused_search(ranks: Sequence[RankFacts]) -> Finding | None:
    """Each pass looks for unused parameters, and none was ever found."""
    found: list[ReplicaFacts] = []
    for rank in ranks:
        searching = [one for one in rank.replicas if one.find_unused]
        if not searching or any(
            one.readings < LEAST_READINGS or one.unused_readings or one.uneven for one in searching
        ):
            return None
        found.append(searching[0])
    if not found:
        return None
    looked_at = min(one.readings for one in found)
    return Finding(Cost.UNUSED_SEARCH, _numbers(ranks), found[0].site, looked_at)


def _alike(ranks: Sequence[RankFacts]) -> Iterator[list[LoaderFacts]]:
    """For each loop of the first rank the same loop of every rank, where all have it."""
    for first in ranks[0].loaders if ranks else ():
        group = [
            next((one for one in rank.loaders if one.site == first.site), None) for rank in ranks
        ]
        complete = [one for one in group if one is not None]
        if len(complete) == len(ranks) and first.site.file:
            yield complete


def _numbers(ranks: Sequence[RankFacts]) -> tuple[int, ...]:
    return tuple(rank.rank for rank in ranks)
