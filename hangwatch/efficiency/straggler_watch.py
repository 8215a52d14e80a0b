"""Follows the stragglers of a run: who they are, since when, and when they are none any more. Pure.

Times are seconds since the run began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean

from hangwatch.efficiency.leads import Leads, Ranks
from hangwatch.efficiency.standstills import Standstill, Standstills
from hangwatch.efficiency.stragglers import (
    BLOCKS,
    LEAST_FRACTION,
    Waiting,
    Window,
    cost_of,
    longest_wait,
    perhaps_slow,
    stragglers_of,
)
from hangwatch.model.report import Straggler, Waits, Why

ASSESS_EVERY = 1 / 12
"""Between two assessments, as a share of the window."""
LONGER = (1, 2, 4, 8)
"""Windows that are assessed, as multiples of the shortest: what happens seldom needs a long one."""
AGREEING = 7
"""Assessments one after the other that have to name the same ranks: half a window."""
LONGEST_TURN_S = 60.0
"""What is taken for a longer turn may be an epoch."""
MAX_TOLD = 100
"""Stragglers of a run that are kept, the first ones."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The job at one moment."""

    at_s: float
    waiting: Waiting
    place: int
    """Calls that all ranks together had issued."""
    front: int
    """Calls that the rank had issued which had issued the most."""

    @property
    def awake(self) -> Ranks:
        """The ranks that did not wait."""
        return self.waiting.awake

    def is_held(self, ranks: tuple[int, ...]) -> bool:
        """True if all others wait for some ranks."""
        active = self.waiting.active
        return bool(active) and active <= frozenset(ranks)


@dataclass(frozen=True, slots=True, order=True)
class Loop:
    """The training loop, by the calls that Python issues."""

    turn_s: float = 0.0
    """What a turn takes; at least, where no line recurs often enough."""
    calls_s: float = 0.0
    """Calls a second."""
    known: bool = False
    """A line recurs often enough."""


@dataclass(frozen=True, slots=True)
class SavedWatch:
    """The part of a StragglerWatch that outlives its watchdog."""

    told: tuple[Straggler, ...] = ()
    current: Straggler | None = None
    measured_s: float = 0.0
    span_s: float = 0.0
    standstills: tuple[Standstill, ...] = ()


@dataclass(slots=True)
class StragglerWatch:
    """Keeps the moments of the last minutes. window_s: the shortest window that is assessed."""

    window_s: float
    told: list[Straggler] = field(default_factory=list)
    """Those that are over."""
    current: Straggler | None = None
    loop: Loop = Loop()
    measured_s: float = 0.0
    """Time in which it was known who waits for whom."""
    lost_s: float = 0.0
    """Time that stragglers have cost the job. It never decreases."""
    _seen: deque[Observation] = field(default_factory=deque)
    _costs: list[tuple[float, float]] = field(default_factory=list)
    """Of the current ones: the time of each assessment, and what they cost in its window."""
    _named: list[Straggler] = field(default_factory=list)
    """The findings of the last assessments, as far as they agree on the ranks."""
    span_s: float = 0.0
    """Window by which the current ones were found; longer than all for those of standstills."""
    _standstills: Standstills = field(default_factory=Standstills)
    _dismissed: dict[tuple[int, ...], float] = field(default_factory=dict)
    """Ranks that cost nothing, and when that was seen."""
    _leads: Leads = field(default_factory=Leads)
    _size: int = 0
    """Ranks of the job."""
    _due_s: float = 0.0

    @property
    def current_ranks(self) -> tuple[int, ...]:
        """The ranks of the current one; none without one."""
        return self.current.ranks if self.current else ()

    def add(self, one: Observation) -> None:
        """Take the next moment."""
        if self._seen:
            self.measured_s += min(one.at_s - self._seen[-1].at_s, 1.0)
        self._seen.append(one)
        self._standstills.add(one.at_s, one.waiting.active, one.place)
        self._leads.add(one.waiting.active, self._size)
        while self._seen[0].at_s < one.at_s - LONGER[-1] * self.window_s:
            self._seen.popleft()

    def forget(self) -> None:
        """End the current ones and begin anew: the ranks have ended, or were replaced."""
        self._seen.clear()
        self._standstills.forget()
        self._leads.forget()
        self._dismissed.clear()
        self._named.clear()
        self._end(self.current.until_s if self.current else 0.0)

    def assess(self, now_s: float, members: Mapping[int, Ranks]) -> Straggler | None:
        """Return a straggler that is news: one that has begun, or one that is over.

        members: of the groups of the job. One that is over is not ``current``.
        """
        if now_s < self._due_s or not self._seen:
            return None
        self._due_s = now_s + self.window_s * ASSESS_EVERY
        self._size = len(_all(members))
        news = self._assess(now_s, members)
        self._count()
        return news

    def go_on(self, now_s: float) -> None:
        """Let the current one, of which hear() was told, go on."""
        if self.current is not None:
            self.current = replace(self.current, until_s=max(now_s, self.current.until_s))
        self._count()

    def hear(
        self, found: Straggler | None, now_s: float, window_s: float = 0.0
    ) -> Straggler | None:
        """Take in what all nodes have found; return what is news of it, as assess() does.

        window_s: the window that shows it.
        """
        current = self.current
        if found is None:
            return self._end(now_s - self.span_s)
        if current is not None and current.ranks == found.ranks:
            self._costs.append((now_s, found.fraction))
            self.current = self._costing(replace(current, until_s=now_s))
            return None
        self._end(found.since_s)
        self.span_s = window_s
        self._costs = [(now_s, found.fraction)]
        self.current = found
        return found

    def _count(self) -> None:
        now = [self.current] if self.current else []
        self.lost_s = max(self.lost_s, sum(one.lost_s for one in (*self.told, *now)))

    def _assess(self, now_s: float, members: Mapping[int, Ranks]) -> Straggler | None:
        if self._is_over(now_s, members):
            return self._end_of_current()
        known = (one for one in self._found(now_s, members) if not self._is_dismissed(one, now_s))
        found = next(known, None)
        if found is None:
            self._named.clear()
            return None
        if self._named and self._named[-1].ranks != found.ranks:
            self._named.clear()
        self._named.append(found)
        current = self.current
        if current is not None and found.ranks == current.ranks:
            self._costs.append((now_s, found.fraction))
            self.current = self._costing(replace(current, until_s=now_s))
            return None
        if len(self._named) < AGREEING:
            return None
        first = self._named[0]
        # The first window that showed it had it in a part only, if the cost has grown since.
        length_s = (first.until_s - first.since_s) * min(first.fraction / found.fraction, 1.0)
        since_s = first.until_s - length_s
        self._end(since_s)
        self._costs = [(one.until_s, one.fraction) for one in self._named]
        self.span_s = found.until_s - found.since_s
        self.current = self._costing(replace(found, since_s=since_s))
        return self.current

    def _costing(self, straggler: Straggler) -> Straggler:
        """The cost of the current ones is that of the windows that lie in their time, if any do.

        That of standstills is of all of their time.
        """
        if self.is_seldom:
            return replace(straggler, fraction=self._costs[-1][1])
        whole = [
            cost
            for at_s, cost in self._costs
            if straggler.since_s + self.span_s <= at_s <= straggler.until_s
        ]
        return replace(straggler, fraction=fmean(whole)) if whole else straggler

    def waiting_share(self, rank: int, since_s: float, until_s: float) -> float:
        """The share of the moments of some time at which a rank waited.

        Where none of them is known, of the last half of the window by which the current ones were
        found: they are in all of it.
        """
        seen = [one for one in self._seen if since_s <= one.at_s <= until_s]
        if not seen:
            half_s = self.span_s / 2
            seen = [one for one in self._seen if one.at_s >= self._seen[-1].at_s - half_s]
        return fmean(rank not in one.awake for one in seen) if seen else 0.0

    def held_s(self, ranks: tuple[int, ...]) -> float:
        """For how long all others have waited for some ranks, up to the last moment."""
        last_s = since_s = self._seen[-1].at_s if self._seen else 0.0
        for one in reversed(self._seen):
            if not one.is_held(ranks):
                break
            since_s = one.at_s
        return last_s - since_s

    def held_share(self, ranks: tuple[int, ...], since_s: float, until_s: float) -> float:
        """The share of the moments of some time at which all others waited for some ranks."""
        held = [one.is_held(ranks) for one in self._seen if since_s <= one.at_s <= until_s]
        return fmean(held) if held else 0.0

    def waits(self, ranks: tuple[int, ...], everyone: tuple[int, ...], seconds: float) -> Waits:
        """Return who has waited of late. ranks: the stragglers. everyone: the ranks of the node."""
        since_s = self._seen[-1].at_s - seconds if self._seen else 0.0
        seen = [one for one in self._seen if one.at_s >= since_s]
        return Waits(
            everyone,
            tuple(one.at_s for one in seen),
            tuple(one.awake for one in seen),
            tuple(one.is_held(ranks) for one in seen),
        )

    def explain(self, ranks: tuple[int, ...], why: Why) -> Straggler | None:
        """Add the reason of these stragglers, and return them if they still are the current."""
        if self.current is None or self.current.ranks != ranks:
            return None
        self.current = replace(self.current, why=why)
        return self.current

    def perhaps(self, members: Mapping[int, Ranks]) -> Ranks:
        """Return ranks that may be stragglers, of a run that was too short to be sure.

        members: of the groups of the job.
        """
        short = self.measured_s < LONGER[-1] * self.window_s and len(self._seen) >= BLOCKS
        if self.told or self.current is not None or self._dismissed or not short:
            return frozenset()
        return perhaps_slow(self._as_window(self._seen, members))

    def dismiss(self, ranks: tuple[int, ...], now_s: float) -> None:
        """Take it back that these cost the job time: what the others do meanwhile shows that."""
        self._dismissed[ranks] = now_s
        self._named.clear()
        if self.current is not None and self.current.ranks == ranks:
            self.current, self._costs = None, []

    def export(self) -> SavedWatch:
        """Return the state for restore()."""
        over = tuple(self._standstills.over)
        return SavedWatch(tuple(self.told), self.current, self.measured_s, self.span_s, over)

    def restore(self, saved: SavedWatch) -> None:
        """Continue for a watchdog that was killed."""
        self.told, self.current = list(saved.told), saved.current
        if saved.current:
            self._costs = [(saved.current.until_s, saved.current.fraction)]
        self.span_s = saved.span_s
        self.measured_s = saved.measured_s
        self._standstills.over.extend(saved.standstills)

    def _window(self, now_s: float, seconds: float) -> list[Observation]:
        """The moments of the last seconds; none where that is too little."""
        if self._seen[0].at_s > now_s - seconds + self.window_s * ASSESS_EVERY:
            return []
        seen = [one for one in self._seen if one.at_s >= now_s - seconds]
        return seen if len(seen) >= BLOCKS else []

    def _found(self, now_s: float, members: Mapping[int, Ranks]) -> Iterator[Straggler]:
        for factor in LONGER:
            seen = self._window(now_s, factor * self.window_s)
            if not seen:
                break
            del seen[longest_wait([one.place for one in seen])]
            found = stragglers_of(self._as_window(seen, members))
            if found is not None:
                why = Why(like=found.like)
                yield Straggler(found.ranks, found.fraction, seen[0].at_s, now_s, why)
        everyone = _all(members)
        worst = self._standstills.worst(now_s, len(everyone), self._turn_s)
        if worst is not None and worst[1] >= LEAST_FRACTION:
            ranks, fraction, since_s = worst
            like = min(everyone.difference(ranks))
            yield Straggler(ranks, fraction, since_s, now_s, Why(like=like))

    def _is_dismissed(self, one: Straggler, now_s: float) -> bool:
        return now_s < self._dismissed.get(one.ranks, -inf) + LONGER[-1] * self.window_s

    @property
    def is_seldom(self) -> bool:
        """True if the current ones are known by standstills alone (standstills.py)."""
        return self.span_s > LONGER[-1] * self.window_s

    def _is_over(self, now_s: float, members: Mapping[int, Ranks]) -> bool:
        """True if the current ones cost nothing in a window such as that they were found in."""
        current, everyone = self.current, _all(members)
        if current is None or not frozenset(current.ranks) < everyone:
            return False
        if self.is_seldom:
            return self._standstills.is_over(current.ranks, now_s)
        seen = self._window(now_s, self.span_s)
        if not seen:
            return False
        window = self._as_window(seen, members)
        return cost_of(window, frozenset(current.ranks)) < LEAST_FRACTION / 2

    @property
    def _turn_s(self) -> float:
        return min(self.loop.turn_s, LONGEST_TURN_S)

    @property
    def meeting_s(self) -> float:
        """A turn of the loop, if ranks may wait for each other several times in it; else 0.

        Where C++ issues most calls, as in DDP, they wait once in a turn, and at no line.
        """
        if not self._seen:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        passed_s = max(last.at_s - first.at_s, 1.0)
        by_python = 2 * self.loop.calls_s >= (last.front - first.front) / passed_s
        return self._turn_s if by_python else 0.0

    def _as_window(self, seen: Sequence[Observation], members: Mapping[int, Ranks]) -> Window:
        first, last = self._seen[0], self._seen[-1]
        passed_s = max(last.at_s - first.at_s, 1.0)
        apart = self.meeting_s * len(self._seen) / passed_s
        fronts = [one.front for one in seen]
        waiting = [one.waiting for one in seen]
        return Window(members, waiting, fronts, max(round(apart), 1), self._leads)

    def _end_of_current(self) -> Straggler | None:
        """End the current ones and forget their time: longer windows would name them again."""
        began_s = self._seen[-1].at_s - self.span_s
        if self.current and self.is_seldom:
            began_s = self.current.until_s
        self._standstills.forget()
        over = self._end(began_s)
        self._named.clear()
        while self._seen[0].at_s < began_s:
            self._seen.popleft()
        return over

    def _end(self, at_s: float) -> Straggler | None:
        current = self.current
        if current is None:
            return None
        over = self._costing(replace(current, until_s=max(current.since_s, at_s)))
        self.current, self._costs = None, []
        self.told = [*self.told, over][:MAX_TOLD]
        return over


def _all(members: Mapping[int, Ranks]) -> Ranks:
    return frozenset().union(*members.values())
