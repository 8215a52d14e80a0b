"""Which rank uses which GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.evidence.gpu.figures import Unit
from hangwatch.model.kinds import GpuHealth

ENOUGH_TO_SHARE = 2
"""Ranks on one device that may be there by mistake, and devices that they could have."""


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A rank of this node."""

    rank: int
    pid: int
    local_rank: int = -1
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES that it was started with, None where it is not set."""
    on_device: bool = False
    """It has opened a device of NVIDIA's, whether NVML names it or not."""


@dataclass(frozen=True, slots=True)
class Use:
    """Which unit a rank uses, as its place in a sequence of units."""

    unit: int
    assumed: bool = False
    """NVML does not name the rank's process."""


def uses(ranks: Iterable[LocalRank], units: Sequence[Unit]) -> dict[int, Use]:
    """Rank to the unit on which it has most memory; ranks that use none are left out.

    NVML counts pids as the machine does, a container as it likes. A rank that has a device and
    that NVML names on none is taken to use the one that its LOCAL_RANK means.
    """
    found: dict[int, Use] = {}
    for one in ranks:
        named = [at for at, unit in enumerate(units) if one.pid in unit.processes]
        if named:
            own = min(named, key=lambda at: _preference(one, at, units[at]))
            found[one.rank] = Use(own)
        elif one.on_device:
            own_or_none = _meant(one, units)
            if own_or_none is not None:
                found[one.rank] = Use(own_or_none, assumed=True)
    return found


def _preference(rank: LocalRank, at: int, unit: Unit) -> tuple[int, bool, int]:
    return -unit.processes[rank.pid], unit.state.index != rank.local_rank, at


def _meant(rank: LocalRank, units: Sequence[Unit]) -> int | None:
    """The unit that CUDA's device LOCAL_RANK would be, as far as its variables tell."""
    at = max(rank.local_rank, 0)
    if rank.visible is None:
        return at if at < len(units) else None
    words = [word.strip() for word in rank.visible.split(",")]
    if len(words) == 1:
        at = 0
    if at >= len(words) or not words[at]:
        return None
    word = words[at]
    if word.isascii() and word.isdecimal():
        index = int(word)
        return next((n for n, unit in enumerate(units) if unit.state.index == index), None)
    return next((n for n, unit in enumerate(units) if unit.state.uuid.startswith(word)), None)


def crowded(
    ranks: Sequence[LocalRank], units: Sequence[Unit], used: Mapping[int, Use]
) -> int | None:
    """The one unit that all ranks share while others lie idle, None where that is not so.

    Not where each of them was shown one device only: then somebody wanted it.
    """
    if len(ranks) < ENOUGH_TO_SHARE or len(units) < ENOUGH_TO_SHARE:
        return None
    if any(rank.rank not in used or used[rank.rank].assumed for rank in ranks):
        return None
    shared = {use.unit for use in used.values()}
    chosen = all(rank.visible is not None and "," not in rank.visible for rank in ranks)
    idle = any(
        not unit.processes and unit.state.health is GpuHealth.OK and at not in shared
        for at, unit in enumerate(units)
    )
    return shared.pop() if len(shared) == 1 and idle and not chosen else None
