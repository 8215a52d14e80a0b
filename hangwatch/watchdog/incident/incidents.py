"""What is said when: the state of the one incident that a job can have at a time.

A job is healthy until somebody waits for longer than a moment; then it is
suspected, which nobody is told. From there on a table says what each event
leads to and whether it is announced. Pure: no clock, no I/O; the state can be
exported, so that a watchdog that was killed says nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.verdict import Verdict


class Stage(StrEnum):
    """How far the incident has come."""

    HEALTHY = "healthy"
    SUSPECTED = "suspected"
    """Somebody waits; nothing was said."""
    SLOW = "slow"
    HANG = "hang"
    FAILED = "failed"
    """The job ended of it."""


class Event(StrEnum):
    """What can happen to it."""

    WAIT = "wait"
    """Somebody waits for longer than a moment."""
    SLOW = "slow"
    """The diagnosis is slow."""
    HANG = "hang"
    """The diagnosis is hang."""
    PROGRESS = "progress"
    """What was waited for has come."""
    DESYNC = "desync"
    """Nobody waits, but ranks are out of step."""
    FAILED = "failed"
    """The command ended with an error, and the diagnosis knows why."""
    RESTART = "restart"
    """The launcher started the ranks anew."""
    BELIED = "belied"
    """Another node has told of a failure, and the ranks of this one go on."""


class Announce(StrEnum):
    """What people are told."""

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
    (Stage.FAILED, Event.BELIED): (Stage.HEALTHY, Announce.RECOVERED),
    (Stage.FAILED, Event.RESTART): (Stage.HEALTHY, Announce.RESTARTED),
}
"""What is not listed changes nothing and is not announced."""

_EVENTS = {State.SLOW: Event.SLOW, State.HANG: Event.HANG, State.FAILED: Event.FAILED}
_KEPT = 1000
"""Signatures that are remembered, and culprits of the verdict that stands."""


def event_of(verdict: Verdict) -> Event | None:
    """The event that a verdict is, None for one that is not told to people live."""
    return _EVENTS.get(verdict.state)


def signature(verdict: Verdict, incarnation: int) -> str:
    """What makes two verdicts the same news."""
    group = verdict.group
    members = ",".join(map(str, group.ranks)) if group else ""
    place = f"{members}/{group.desc}/{group.index}" if group else ""
    culprits = ",".join(map(str, verdict.culprits))
    # Of ranks that are out of step it may not be known since when.
    known = verdict.collective and verdict.state is not State.DESYNC
    seq = verdict.collective.seq if verdict.collective and known else 0
    return f"{verdict.kind}|{culprits}|{place}|{seq}|{incarnation}"


@dataclass(slots=True)
class Incidents:
    """The incident at hand and what has been announced so far."""

    stage: Stage = Stage.HEALTHY
    announced: tuple[str, ...] = ()
    """``<announcement>|<signature>`` of all that was announced."""
    number: int = 0
    """Incidents announced so far."""
    verdict: Verdict | None = None
    """What the stage is about, None while there is nothing that people know of."""
    desync: Verdict | None = None
    """That ranks are out of step, which no progress undoes."""
    told: Counter[tuple[State, Kind | None]] = field(default_factory=Counter)
    """Verdicts announced so far."""

    @property
    def standing(self) -> tuple[Verdict, ...]:
        """The verdicts that hold as things stand."""
        return tuple(one for one in (self.verdict, self.desync) if one is not None)

    def would_tell(self, event: Event) -> bool:
        """Whether the event would be announced now."""
        step = TRANSITIONS.get((self.stage, event))
        return step is not None and step[1] is not None

    def happen(
        self, event: Event, verdict: Verdict | None = None, incarnation: int = 0
    ) -> Announce | None:
        """Go on by one event; returns what is to be announced, if anything.

        A verdict is announced once: the same culprits in the same place of the
        same incarnation are no news, also if the job seemed to go on in between.
        """
        step = TRANSITIONS.get((self.stage, event))
        if event is Event.RESTART:
            self.desync = None
        if step is None:
            return None
        before, (self.stage, announce) = self.stage, step
        self._stands(event, verdict)
        if announce is None or verdict is None:
            return announce
        if not self.remember(announce, verdict, incarnation):
            return None
        if before in (Stage.HEALTHY, Stage.SUSPECTED):
            self.number += 1
        self.told[verdict.state, verdict.kind] += 1
        return announce

    def remember(self, announce: Announce, verdict: Verdict, incarnation: int) -> bool:
        """Note a verdict as announced; False where it was already."""
        if self.knows(announce, verdict, incarnation):
            return False
        self.announced = (*self.announced, _news(announce, verdict, incarnation))[-_KEPT:]
        return True

    def knows(self, announce: Announce, verdict: Verdict, incarnation: int) -> bool:
        """Whether the same was announced."""
        return _news(announce, verdict, incarnation) in self.announced

    def _stands(self, event: Event, verdict: Verdict | None) -> None:
        if event is Event.DESYNC:
            self.desync = verdict
        elif self.stage is Stage.HEALTHY:
            self.verdict = None
        else:
            self.verdict = verdict or self.verdict

    def export(self) -> dict[str, Any]:
        """Plain values for restored()."""
        return {
            "stage": self.stage,
            "announced": list(self.announced),
            "number": self.number,
            "verdict": _plain(self.verdict),
            "desync": _plain(self.desync),
            "told": [[state, kind, count] for (state, kind), count in self.told.items()],
        }


def _news(announce: Announce, verdict: Verdict, incarnation: int) -> str:
    return f"{announce}|{signature(verdict, incarnation)}"


def restored(values: Mapping[str, Any]) -> Incidents:
    """Undo export(). Raises KeyError, TypeError or ValueError for anything else."""
    return Incidents(
        Stage(values["stage"]),
        tuple(str(key) for key in values["announced"]),
        int(values["number"]),
        _verdict(values["verdict"]),
        _verdict(values["desync"]),
        Counter(
            {
                (State(state), None if kind is None else Kind(kind)): int(count)
                for state, kind, count in values["told"]
            }
        ),
    )


def _plain(verdict: Verdict | None) -> list[Any] | None:
    """What is known of a verdict by those who did not reach it."""
    if verdict is None:
        return None
    what = [verdict.state, verdict.kind, verdict.reason, verdict.certainty]
    return [*what, list(verdict.culprits[:_KEPT])]


def _verdict(values: list[Any] | None) -> Verdict | None:
    """Undo _plain(). Raises TypeError or ValueError for anything else."""
    if values is None:
        return None
    state, kind, reason, certainty, culprits = values
    return Verdict(
        State(state),
        None if kind is None else Kind(kind),
        Reason(reason),
        Certainty(certainty),
        culprits=tuple(int(rank) for rank in culprits),
    )
