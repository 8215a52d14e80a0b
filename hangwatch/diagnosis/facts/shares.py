"""How large a part of the ranks is, for who is to be believed: most, or few."""

from __future__ import annotations

from collections.abc import Sized


def is_minority(part: Sized, whole: Sized) -> bool:
    """Some, and at most half: of two halves only one has left the common program."""
    return 0 < 2 * len(part) <= len(whole)


def is_half(part: Sized, whole: Sized) -> bool:
    """At least half."""
    return 2 * len(part) >= len(whole)


def is_majority(part: Sized, whole: Sized) -> bool:
    """More than half."""
    return 2 * len(part) > len(whole)
