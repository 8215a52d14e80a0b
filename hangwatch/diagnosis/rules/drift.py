"""Finds where a rank fell out of step with its group, long before it got stuck.

A rank that leaves one collective out, or makes one more, is paired with the next
ones of the others. If those are alike, all go on, shifted, and get stuck only
where the program changes or ends. Call sites tell: from some place on the rank
does what the others do a few places later, or earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangwatch.diagnosis.facts.history import Step

MAX_SHIFT = 8
AGREED_BEFORE = 2
"""Places directly before it that have to agree."""
AGREE_AFTER = 3
"""Places after it that have to agree, shifted: at least so many, and all that are known."""
AGREE_WITHOUT_START = 12
"""So many, where no place is known at which they were in step."""


@dataclass(frozen=True, slots=True)
class Drift:
    """From ``seq`` on a rank is ``shift`` places ahead of the others (behind if negative)."""

    seq: int
    shift: int
    known: bool = True
    """Whether ``seq`` is where it began; else it began before."""


def drift(mine: Mapping[int, Step], theirs: Mapping[int, Step]) -> Drift | None:
    """Where two sequences of calls, by their places, begin to be shifted."""
    common = sorted(mine.keys() & theirs.keys())
    first = next((seq for seq in common if mine[seq] != theirs[seq]), None)
    if first is None:
        return None
    before = [seq for seq in range(first - AGREED_BEFORE, first) if seq in mine and seq in theirs]
    later = [mine[seq] == theirs[seq] for seq in common if seq > first]
    if len(before) < AGREED_BEFORE or (later and all(later)):
        return None  # they never were in step, or are in step again
    for shift in range(1, MAX_SHIFT + 1):
        if _agree(mine, theirs, first, shift):
            return Drift(first, shift)
        if _agree(theirs, mine, first, shift):
            return Drift(first, -shift)
    return None


def shifted(mine: Mapping[int, Step], theirs: Mapping[int, Step]) -> Drift | None:
    """Two sequences that were out of step before what is known of them began.

    Where one call comes again and again, any shift agrees: the one that is meant also
    explains places in which they differ.
    """
    common = sorted(mine.keys() & theirs.keys())
    differ = [seq for seq in common if mine[seq] != theirs[seq]]
    if not differ:
        return None
    first = common[0]
    for shift in range(1, MAX_SHIFT + 1):
        for ahead, behind, sign in ((mine, theirs, 1), (theirs, mine, -1)):
            if sum(seq + shift in behind for seq in differ) < AGREE_AFTER:
                continue
            if _agree(ahead, behind, first, shift, AGREE_WITHOUT_START):
                return Drift(first, sign * shift, known=False)
    return None


def _agree(
    ahead: Mapping[int, Step],
    behind: Mapping[int, Step],
    first: int,
    shift: int,
    least: int = AGREE_AFTER,
) -> bool:
    pairs = [
        (call, behind[seq + shift])
        for seq, call in ahead.items()
        if seq >= first and seq + shift in behind
    ]
    return len(pairs) >= least and all(one == other for one, other in pairs)
