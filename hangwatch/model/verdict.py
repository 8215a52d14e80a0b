"""What diagnose() returns."""

from __future__ import annotations

from dataclasses import dataclass

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Certainty, Kind, Reason, State, What


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits, where, since when, and for whom."""

    rank: int
    group: GroupKey | None
    seq: int
    op: str
    waits_for: tuple[int, ...]
    age_s: float
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective that a verdict is about."""

    op: str
    seq: int
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RootCause:
    """Why the culprits did what they did."""

    what: What
    certainty: Certainty
    site: Site | None = None
    """The line to change, or that is stuck."""
    why: str = ""
    """One sentence."""
    evidence: tuple[str, ...] = ()
    """Where ranks parted, if the source shows how they came to it."""
    others: tuple[RootCause, ...] = ()
    """What it may be instead, best first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened, in the terms of DESIGN 4.2. ``kind`` is None for ``ok``."""

    state: State
    kind: Kind | None
    reason: Reason
    certainty: Certainty
    """Of all that it says: that it hangs, and that these ranks did it."""
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    group: GroupKey | None = None
    group_name: str = ""
    collective: Collective | None = None
    site: Site | None = None
    """Where the culprit is, or what it entered."""
    victim_site: Site | None = None
    """Where the victims wait."""
    headline: str = ""
    explanation: str = ""
    advice: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    stuck_age_s: float = 0.0
    """How long the longest-waiting rank has waited; where nobody is missing, the last to come."""
    hang: Certainty | None = None
    """That it hangs, where that is surer than who did it."""
    cause: RootCause | None = None

    @property
    def certainty_of_hang(self) -> Certainty:
        """How sure it is that it hangs, whoever did it."""
        return self.hang or self.certainty


OK = Verdict(State.OK, None, Reason.UNKNOWN, Certainty.PROVED, headline="Nothing is stuck.")
