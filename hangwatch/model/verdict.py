"""The result of diagnose()."""

from __future__ import annotations

from dataclasses import dataclass

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Certainty, Kind, Reason, State, What


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that a rank waits in, and the ranks that it waits for."""

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
    """The reason in the source for what the culprits did."""

    what: What
    certainty: Certainty
    site: Site | None = None
    """The line to change, or that is stuck."""
    why: str = ""
    """One sentence."""
    evidence: tuple[str, ...] = ()
    """The lines where ranks took different ways, if the source shows them."""
    others: tuple[RootCause, ...] = ()
    """Other possible causes, best first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion about one incident. ``kind`` is None for ``ok``."""

    state: State
    kind: Kind | None
    reason: Reason
    certainty: Certainty
    """Of the whole verdict: that the job hangs, and that these ranks caused it."""
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    group: GroupKey | None = None
    group_name: str = ""
    collective: Collective | None = None
    site: Site | None = None
    """The line that the culprit is at, or of the call that it entered."""
    victim_site: Site | None = None
    """The line that the victims wait at."""
    headline: str = ""
    explanation: str = ""
    advice: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    stuck_age_s: float = 0.0
    """Of the rank that has waited longest; where no rank is missing, of the last to come."""
    hang: Certainty | None = None
    """Certainty that the job hangs, where it is higher than ``certainty``."""
    cause: RootCause | None = None

    @property
    def certainty_of_hang(self) -> Certainty:
        """The certainty that the job hangs, whichever rank caused it."""
        return self.hang or self.certainty


OK = Verdict(State.OK, None, Reason.UNKNOWN, Certainty.PROVED, headline="Nothing is stuck.")
