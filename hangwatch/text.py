"""Text for people: the one place that formats ranks."""

from __future__ import annotations

from collections.abc import Iterable


def fold_ranks(ranks: Iterable[int]) -> str:
    """Ranks as people write them: ``0, 1, 3-7``."""
    folded = []
    for first, last in ranges(ranks):
        if last - first > 1:  # two ranks are no range
            folded.append(f"{first}-{last}")
        else:
            folded.extend(str(rank) for rank in range(first, last + 1))
    return ", ".join(folded)


def ranges(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of ranks without a gap."""
    found: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found
