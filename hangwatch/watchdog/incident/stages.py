"""State machine of the one incident that a job can have at a time. Pure.

A job is healthy until a rank waits for longer than a moment; then it is suspected, which is
not announced. From there on a table says which stage each event leads to and whether it is
announced. The state can be exported, so that the next watchdog announces nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from hangwatch.model.kinds import Kind, State
from hangwatch.model.verdict import Verdict


class Stage(StrEnum):
    """A stage of the incident."""

    HEALTHY = "healthy"
    SUSPECTED = "suspected"
    """A rank waits; nothing was announced."""
    SLOW = "slow"
    HANG = "hang"
    FAILED = "failed"
    """The job ended of it."""


class Event(StrEnum):
    """An event that may change the stage."""

    WAIT = "wait"
    """A rank waits for longer than a moment."""
    SLOW = "slow"
    """The diagnosis is slow."""
    HANG = "hang"
    """The diagnosis is hang."""
    PROGRESS = "progress"
    """The ranks that waited go on."""
    DESYNC = "desync"
    """No rank waits, but ranks are out of step."""
    FAILED = "failed"
    """The command ended with an error, and the diagnosis knows why."""
    RESTART = "restart"
    """The launcher restarted the ranks."""
    RETRACTED = "retracted"
    """Another node has reported a failure, and the ranks of this one go on."""


class Announce(StrEnum):
    """An announcement to the user."""

    SLOW = "slow"
    HANG = "hang"
    DESYNC = "desync"
    RECOVERED = "recovered"
    FAILED = "failed"
    ENDED = "ended"
    """The job ended after a hang had been announced; one line."""
    RESTARTED = "restarted"


_Step = tuple[Stage, Announce | None]
TRANSITIONS: dict[tuple[Stage, Event], _Step] = {
    (Stage.HEALTHY, Event.WAIT): (Stage.SUSPECTED, None),
    (Stage.HEALTHY, Event.SLOW): (Stage.SLOW, Announce.SLOW),
    (Stage.HEALTHY, Event.HANG): (Stage.HANG, Announce.HANG),
    (Stage.HEALTHY, Event.DESYNC): (Stage.HEALTHY, Announce.DESYNC),
    (Stage.HEALTHY, Event.FAILED): (Stage.FAILED, Announce.FAILED),
    (Stage.SUSPECTED, Event.SLOW): (Stage.SLOW, Announce.SLOW),
    (Stage.SUSPECTED, Event.HANG): (Stage.HANG, Announce.HANG),
    (Stage.SUSPECTED, Event.PROGRESS): (Stage.HEALTHY, None),
    (Stage.SUSPECTED, Event.FAILED): (Stage.FAILED, Announce.FAILED),
    (Stage.SUSPECTED, Event.RESTART): (Stage.HEALTHY, None),
    (Stage.SLOW, Event.HANG): (Stage.HANG, Announce.HANG),
    (Stage.SLOW, Event.PROGRESS): (Stage.HEALTHY, Announce.RECOVERED),
    (Stage.SLOW, Event.FAILED): (Stage.FAILED, Announce.FAILED),
    (Stage.SLOW, Event.RESTART): (Stage.HEALTHY, Announce.RESTARTED),
    (Stage.HANG, Event.PROGRESS): (Stage.HEALTHY, Announce.RECOVERED),
    (Stage.HANG, Event.FAILED): (Stage.FAILED, Announce.ENDED),
    (Stage.HANG, Event.RESTART): (Stage.HEALTHY, Announce.RESTARTED),
    (Stage.FAILED, Event.RETRACTED): (Stage.HEALTHY, Announce.RECOVERED),
    (Stage.FAILED, Event.RESTART): (Stage.HEALTHY, Announce.RESTARTED),
}
"""Pairs that are not listed change nothing and announce nothing."""

_EVENTS = {State.SLOW: Event.SLOW, State.HANG: Event.HANG, State.FAILED: Event.FAILED}
_KEPT = 1000
"""Signatures that are remembered, and culprits of a verdict that is exported."""


def event_of(verdict: Verdict) -> Event | None:
    """Return the event that a verdict is, None for one that is not announced live."""
    return _EVENTS.get(verdict.state)


def signature(verdict: Verdict, incarnation: int) -> str:
    """Return a text that is equal for verdicts that are the same news."""
    group = verdict.group
    members = ",".join(map(str, group.ranks)) if group else ""
    key = f"{members}/{group.desc}/{group.index}" if group else ""
    culprits = ",".join(map(str, verdict.culprits))
    # The first call in which ranks were out of step may be unknown.
    known = verdict.collective and verdict.state is not State.DESYNC
    seq = verdict.collective.seq if verdict.collective and known else 0
    return f"{verdict.kind}|{culprits}|{key}|{seq}|{incarnation}"


@dataclass(slots=True)
class Incidents:
    """The incident at hand and the announcements so far."""

    stage: Stage = Stage.HEALTHY
    announced: tuple[str, ...] = ()
    """``<announcement>|<signature>`` of each announcement."""
    number: int = 0
    """Incidents announced so far."""
    verdict: Verdict | None = None
    """The verdict of the stage, None while nothing was announced."""
    desync: Verdict | None = None
    """The verdict that ranks are out of step, which no progress undoes."""
    verdicts: tuple[tuple[State, Kind | None], ...] = ()
    """Each verdict that was announced."""

    @property
    def current(self) -> tuple[Verdict, ...]:
        """The verdicts that hold now."""
        return tuple(held for held in (self.verdict, self.desync) if held is not None)

    def would_announce(self, event: Event) -> bool:
        """Return True if the event would be announced now."""
        return TRANSITIONS.get((self.stage, event), (None, None))[1] is not None

    def happen(
        self, event: Event, verdict: Verdict | None = None, incarnation: int = 0
    ) -> Announce | None:
        """Go on by one event; return the announcement to make, if any.

        A verdict is announced once: the same culprits in the same place of the same incarnation
        are no news, also if the job seemed to go on in between.
        """
        step = TRANSITIONS.get((self.stage, event))
        if event is Event.RESTART:
            self.desync = None
        if step is None:
            return None
        before, (self.stage, announce) = self.stage, step
        if event is Event.DESYNC:
            self.desync = verdict
        else:
            self.verdict = None if self.stage is Stage.HEALTHY else verdict or self.verdict
        if announce is None or verdict is None:
            return announce
        if not self.remember(announce, verdict, incarnation):
            return None
        if before in (Stage.HEALTHY, Stage.SUSPECTED):
            self.number += 1
        self.verdicts = (*self.verdicts, (verdict.state, verdict.kind))
        return announce

    def remember(self, announce: Announce, verdict: Verdict, incarnation: int) -> bool:
        """Note a verdict as announced; False if it was already."""
        if self.has_announced(announce, verdict, incarnation):
            return False
        news = f"{announce}|{signature(verdict, incarnation)}"
        self.announced = (*self.announced, news)[-_KEPT:]
        return True

    def has_announced(self, announce: Announce, verdict: Verdict, incarnation: int) -> bool:
        """Return True if the same was announced."""
        return f"{announce}|{signature(verdict, incarnation)}" in self.announced

    def saved(self) -> Incidents:
        """Return a copy for the next watchdog, whose verdicts are without details."""
        return replace(self, verdict=_bare(self.verdict), desync=_bare(self.desync))


def _bare(verdict: Verdict | None) -> Verdict | None:
    """Return a verdict without its details, and with a bounded number of culprits."""
    if verdict is None:
        return None
    culprits = verdict.culprits[:_KEPT]
    return Verdict(
        verdict.state, verdict.kind, verdict.reason, verdict.certainty, culprits=culprits
    )
