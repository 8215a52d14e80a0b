"""The cheap look at all ranks, many times a minute: the ranks that wait, and since when.

Pages are read without their events; the events too are read only of a rank that has issued
nothing for a moment, or that may wait, less often the longer that lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hangwatch.errors import PageError
from hangwatch.evidence import timing
from hangwatch.evidence.pages.finder import OpenPage, Pages, Seen
from hangwatch.evidence.pages.worlds import start_ns
from hangwatch.evidence.processes import LaunchedRank
from hangwatch.model.calls import OF_A_STORE
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import RankPage

UNFINISHED = "unfinished_work"
"""Stands for the call where only c10d knows that something is not done."""
OVER = frozenset({Phase.EXITED, Phase.RAISED})
"""Phases of a rank that issues nothing more."""

Position = tuple[object, ...]
"""All that changes on a page when its rank issues something."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The call that a rank waits in, and since when (CLOCK_MONOTONIC)."""

    since_ns: int
    op: str
    slot: int = -1
    """Of the group on the rank's page, -1 where there is none."""

    @property
    def of_store(self) -> bool:
        """True if it waits for a key of a store."""
        return self.op.startswith(OF_A_STORE)


def position(light: RankPage) -> Position:
    """Return the position of a rank: two looks that agree mean that it issued nothing new."""
    groups = tuple((g.slot, g.enqueued, g.entered, g.left, g.p2p, g.alive) for g in light.groups)
    return light.phase, light.in_call, light.in_call_ns, groups


def moved_ns(light: RankPage) -> int:
    """Return when the rank last issued something, by its own page (CLOCK_MONOTONIC)."""
    groups = (group.changed_ns for group in light.groups)
    return max(light.phase_ns, light.in_call_ns, *groups, 0)


def may_wait(light: RankPage, now_ns: int, after_s: float) -> bool:
    """True if a page without its events leaves it open that the rank waits for longer."""
    if light.phase in OVER:
        return False
    before_ns = now_ns - after_s * 1e9
    return (
        bool(light.in_call)
        or any(g.entered > g.left and g.changed_ns < before_ns for g in light.groups)
        or 0 < light.pending_since_ns < before_ns
    )


def blocked_in(page: OpenPage) -> Waiting | None:
    """Return the oldest call that the rank of a page is blocked in. Raises PageError."""
    blocked = [
        Waiting(event["blocked_ns"] or event["issued_ns"], event["op"], event["slot"])
        for event in page.ring()
        if event["state"] == OpState.BLOCKED
    ]
    return min(blocked, key=lambda wait: wait.since_ns, default=None)


def longest_wait(light: RankPage, blocked: Waiting | None) -> Waiting | None:
    """Return the wait of a rank that has lasted longest, None if it waits for nothing.

    It waits in a call that it blocks in (``blocked``, of its ring), in a set-up
    call (init_process_group), or for work that c10d has not finished. Which of
    them is named is decided in this order; since when, by the longest.
    """
    if light.phase in OVER:
        return None
    waits = [] if blocked is None else [blocked]
    if light.in_call:
        waits.append(Waiting(light.in_call_ns, light.in_call))
    if light.pending_since_ns:
        waits.append(Waiting(light.pending_since_ns, UNFINISHED))
    if not waits:
        return None
    return replace(waits[0], since_ns=min(wait.since_ns for wait in waits))


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look. Ranks that have ended have no entry in ``waiting``."""

    now_ns: int
    seen: dict[int, Seen]
    waiting: dict[int, Waiting | None]
    """By rank; None if it does not wait."""
    moved: bool
    """Some rank issued something since the last look."""

    @property
    def waits(self) -> dict[int, int | None]:
        """Rank to since when it waits (CLOCK_MONOTONIC, ns), None if it does not."""
        return {
            rank: None if wait is None else wait.since_ns for rank, wait in self.waiting.items()
        }

    @property
    def longest_wait_s(self) -> float:
        """Duration of the longest wait, 0 if no rank waits."""
        since = [wait.since_ns for wait in self.waiting.values() if wait is not None]
        return (self.now_ns - min(since)) / 1e9 if since else 0.0

    def all_wait(self) -> bool:
        """True if every rank that lives waits for longer than a moment."""
        return bool(self.waiting) and all(
            wait is not None and self.now_ns - wait.since_ns >= timing.QUIET_S * 1e9
            for wait in self.waiting.values()
        )

    def needs_flight(self) -> bool:
        """True if the Flight Recorder may show what no page does.

        Where all wait: what C++ has issued and has not completed. Where a rank waits in
        work of which its page says nothing: what it has issued in a group that found no
        room there.
        """
        return self.all_wait() or any(
            wait is not None and wait.slot < 0 and self.seen[rank].light.groups_left_out > 0
            for rank, wait in self.waiting.items()
        )


def without_servers(waiting: dict[int, Waiting | None]) -> dict[int, Waiting | None]:
    """Count a wait for a key of a store only since all ranks wait, and not while one works.

    The rank may serve the others, and then waits for orders all day long.
    """
    known = [wait.since_ns for wait in waiting.values() if wait is not None]
    all_wait = len(known) == len(waiting)

    def counted(wait: Waiting | None) -> Waiting | None:
        if wait is None or not wait.of_store:
            return wait
        return replace(wait, since_ns=max(known)) if all_wait else None

    return {rank: counted(wait) for rank, wait in waiting.items()}


@dataclass(slots=True)
class _Watched:
    """The memory of one rank between looks."""

    pid: int
    at: Position
    changed_ns: int
    read_ns: int = 0
    waiting: Waiting | None = None


@dataclass(slots=True)
class Looker:
    """Looks again and again, and remembers the position of each rank.

    alive(pid, start_ticks) returns True if a rank still runs.
    """

    pages: Pages
    alive: Callable[[int, int], bool]
    now_ns: Callable[[], int]
    _ranks: dict[int, _Watched] = field(default_factory=dict)

    def look(self) -> Look:
        """Read what has changed."""
        seen = self.pages.look()
        now_ns = self.now_ns()
        moved = False
        waiting: dict[int, Waiting | None] = {}
        for rank, found in seen.items():
            identity, at = found.light.identity, position(found.light)
            watched = self._ranks.get(rank)
            if watched is None or (watched.pid, watched.at) != (identity.pid, at):
                changed_ns = min(moved_ns(found.light), now_ns)
                watched = self._ranks[rank] = _Watched(identity.pid, at, changed_ns)
                moved = True
            if self.alive(identity.pid, identity.start_ticks):
                waiting[rank] = self._waits_in(watched, found, now_ns)
        for rank in self._ranks.keys() - seen.keys():
            del self._ranks[rank]
        return Look(now_ns, seen, without_servers(waiting), moved)

    def _waits_in(self, watched: _Watched, seen: Seen, now_ns: int) -> Waiting | None:
        quiet_s = (now_ns - watched.changed_ns) / 1e9
        if quiet_s < timing.QUIET_S and not may_wait(seen.light, now_ns, timing.QUIET_S):
            return None
        patience_s = min(max(quiet_s / 4, timing.RING_LEAST_S), timing.RING_MOST_S)
        if now_ns - watched.read_ns >= patience_s * 1e9:
            watched.read_ns = now_ns
            try:
                watched.waiting = longest_wait(seen.light, blocked_in(seen.page))
            except PageError:
                watched.waiting = None
        return watched.waiting


class CallId(NamedTuple):
    """A call that a rank is inside of: no two calls of its life are equal."""

    op: str
    slot: int = -1
    """Of the group on the rank's page, -1 where there is none."""
    seq: int = 0
    number: int = 0
    """Of the event on the page, or when it began."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The position of a rank of this node, by its own page and at one moment.

    Ranks are ended by it: nothing in it has come from another node. Times are
    CLOCK_MONOTONIC in ns.
    """

    pid: int
    start_ticks: int
    waits: Mapping[CallId, int] = field(default_factory=dict)
    """Calls that it waits in, and since when."""
    at: Position = ()
    """All that changes when it makes progress by any means that is counted."""
    moved_ns: int = 0
    """Time when it last entered or left a call, as far as that is known."""
    beat_ns: int = 0
    """Last beat of its sampler, which writes what is not written at once; 0 if never."""
    has_page: bool = True

    @property
    def process(self) -> tuple[int, int]:
        """Its pid and start."""
        return self.pid, self.start_ticks

    @property
    def since_ns(self) -> int:
        """Start of its longest wait, 0 if it does not wait."""
        return min(self.waits.values(), default=0)

    def is_where(self, before: RankStatus) -> bool:
        """True if it has made no progress since, and is in the same call if in any."""
        unmoved = (self.process, self.at, self.moved_ns) == (
            before.process,
            before.at,
            before.moved_ns,
        )
        if not before.waits:
            return unmoved and not self.waits
        return unmoved and min(before.waits, key=lambda call: before.waits[call]) in self.waits


def rank_statuses(
    seen: Mapping[int, Seen], launched: Iterable[LaunchedRank]
) -> dict[int, RankStatus]:
    """Read the status of the ranks of this node from their pages, as those are now.

    A rank whose page cannot be read, or is not written any more, is left out: nothing is
    known of it. launched: ranks that have no page.
    """
    statuses = {
        process.rank: RankStatus(
            process.pid,
            process.start_ticks,
            moved_ns=start_ns(process.start_ticks),
            has_page=False,
        )
        for process in launched
    }
    for rank, rank_seen in seen.items():
        try:
            page = rank_seen.page.read(events=True)
        except PageError:
            continue
        if not page.disarmed:
            statuses[rank] = _status(page)
    return statuses


def _status(page: RankPage) -> RankStatus:
    waits: dict[CallId, int] = {}
    moved = [moved_ns(page)]
    for event in page.events:
        moved += [event.issued_ns, event.blocked_ns, event.done_ns]
        if event.state is OpState.BLOCKED:
            call = CallId(event.op, event.slot, event.seq, event.index)
            waits[call] = event.blocked_ns or event.issued_ns
    if page.in_call:
        waits[CallId(page.in_call, number=page.in_call_ns)] = page.in_call_ns
    if page.pending_since_ns:
        waits[CallId(UNFINISHED, number=page.pending_since_ns)] = page.pending_since_ns
    progress = tuple((group.completed, group.reached, group.passed) for group in page.groups)
    return RankStatus(
        page.identity.pid,
        page.identity.start_ticks,
        {} if page.phase in OVER else waits,
        (position(page), progress),
        max(moved),
        page.gil_ns,
    )
