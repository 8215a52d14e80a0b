"""The job as a whole, from what this node and the others know of their ranks. Pure."""

from __future__ import annotations

from hangwatch.model.frames import know_trainers
from hangwatch.model.kinds import Phase
from hangwatch.model.page import MAX_WORLD
from hangwatch.model.snapshot import JobSnapshot, ProcessState, RankSnapshot
from hangwatch.text import fold_ranks
from hangwatch.watchdog.incident.evidence import Collected
from hangwatch.watchdog.peers.exchange import Gathered
from hangwatch.watchdog.peers.reach import Missing


def whole_job(
    collected: Collected, gathered: Gathered | None, missing: Missing, why_unknown: str
) -> JobSnapshot:
    """The snapshot of all ranks, with those of lost nodes as far as they are known.

    gathered: None where nobody was asked. why_unknown: why nothing may be known of a rank.
    """
    others = gathered.others if gathered else ()
    world_size = min(collected.world_size, MAX_WORLD)
    ranks = {
        rank: _lost(rank, node.host)
        for node in missing.lost
        for rank in node.ranks
        if rank < world_size
    }
    ranks |= {rank.rank: rank for local in others for rank in local.ranks}
    ranks |= {rank.rank: rank for rank in collected.ranks}
    sources = {file: text for local in others for file, text in local.sources.items()}
    unseen = [*(gathered.unseen if gathered else ()), *(n for o in others for n in o.unseen)]
    unseen += missing.notes
    unknown = set(range(world_size)) - ranks.keys()
    if unknown:
        which = f"rank{'s' if len(unknown) > 1 else ''} {fold_ranks(unknown)}"
        unseen.append(f"{which}: {why_unknown}")
    return JobSnapshot(
        world_size=collected.world_size,
        ranks=know_trainers(ranks[rank] for rank in sorted(ranks)),
        restart=collected.restart,
        lost_nodes=tuple(sorted({node.host for node in missing.lost})),
        cut_off=missing.cut_off,
        unseen=tuple(unseen),
        sources={**sources, **collected.sources},
    )


def _lost(rank: int, host: str) -> RankSnapshot:
    """A rank of which nothing is known but where it ran."""
    return RankSnapshot(rank, host, 0, Phase.RUNNING, ProcessState(alive=False), recorder="")
