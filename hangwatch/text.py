"""Text for people: the one place that formats ranks, counts and durations."""

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


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks with their noun: ``rank 2``, ``ranks 0, 1, 3-7``."""
    folded = fold_ranks(ranks)
    return f"rank {folded}" if folded.isdecimal() else f"ranks {folded}"


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 rank``, ``3 ranks``, ``no ranks``."""
    return f"{number or 'no'} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Short, and as exact as needed: ``0.3 s``, ``42 s``, ``5 min``, ``3 h 20 min``."""
    if seconds < 10:  # noqa: PLR2004 (tenths matter below it)
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 180:  # noqa: PLR2004 (up to three minutes people think in seconds)
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:  # noqa: PLR2004
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
