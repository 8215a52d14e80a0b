"""Makes a row of what the page of a rank says, and of what its /proc entry does."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hangwatch.commands.top.view import Row, Trouble
from hangwatch.errors import PageError
from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import QUIET_S, Look
from hangwatch.evidence.processes import PROC, read_stat
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import PageEvent, PageGroup, RankPage
from hangwatch.report.wording import group_label

RATE_S = 5.0
"""The rate is that of the last few seconds."""
STALE_S = 3.0
"""A native heart beats several times a second: without a beat for so long it is no accident."""
_STOPPED = frozenset("Tt")


@dataclass(frozen=True, slots=True)
class Call:
    """What a rank waits in, as people read it."""

    name: str
    """``all_reduce #46``, ``recv from rank 3``, ``init_process_group``."""
    group: str = ""
    site: Site | None = None

    @property
    def text(self) -> str:
        """``all_reduce #46 of default_pg``."""
        return f"{self.name} of {self.group}" if self.group else self.name


class Processes:
    """The state of each process, read once a look. ``proc`` as of evidence/processes.py."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._states: dict[tuple[int, int], str] = {}

    def forget(self) -> None:
        """A new look begins."""
        self._states.clear()

    def state(self, pid: int, start_ticks: int) -> str:
        """The letter of proc(5), empty for a process that has ended."""
        known = self._states.get((pid, start_ticks))
        if known is None:
            stat = read_stat(pid, self._proc)
            gone = stat is None or stat.ended or stat.start_ticks != start_ticks
            known = "" if gone or stat is None else stat.state
            self._states[pid, start_ticks] = known
        return known

    def alive(self, pid: int, start_ticks: int) -> bool:
        """Whether it still runs."""
        return bool(self.state(pid, start_ticks))


@dataclass(slots=True)
class Ranks:
    """Remembers of each rank what is needed to tell how fast it is and what it waits in."""

    processes: Processes
    _calls: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    """Rank to the last few (when, how many calls it had issued by then)."""
    _waits: dict[int, tuple[int, Call]] = field(default_factory=dict)
    """Rank to since when it waits, and in what: read from its page once a wait."""

    def rows(self, look: Look) -> list[Row]:
        """One row for each rank of this node."""
        frontier = _frontier(seen.light for seen in look.seen.values())
        for gone in self._calls.keys() - look.seen.keys():
            del self._calls[gone]
        return [self._row(rank, seen, look, frontier) for rank, seen in look.seen.items()]

    def _row(self, rank: int, seen: Seen, look: Look, frontier: Mapping[GroupKey, int]) -> Row:
        light, now_ns = seen.light, look.now_ns
        identity = light.identity
        process = self.processes.state(identity.pid, identity.start_ticks)
        since_ns = look.waits.get(rank)
        if since_ns is not None and now_ns - since_ns < QUIET_S * 1e9:
            since_ns = None
        call = self._call(rank, seen, since_ns) if since_ns is not None else None
        behind, behind_in = _behind(light.groups, frontier)
        quiet_s = (now_ns - max((g.changed_ns for g in light.groups), default=now_ns)) / 1e9
        beat_ns = max(light.heartbeat_ns, light.gil_ns)
        does, trouble = _standing(light, process)
        if trouble is Trouble.NONE and call is not None:
            does, trouble = call.name, Trouble.WAITS
        elif trouble is Trouble.NONE and behind and quiet_s >= QUIET_S:
            trouble = Trouble.LATE
        return Row(
            ranks=(rank,),
            trouble=trouble,
            pid=identity.pid,
            does=does,
            group=call.group if call else "",
            waits_s=None if since_ns is None else (now_ns - since_ns) / 1e9,
            site=call.site if call else None,
            last=_last(light.groups),
            rate=self._rate(rank, light, now_ns) if process else None,
            behind=behind,
            behind_in=behind_in,
            beat_s=max(0, now_ns - beat_ns) / 1e9 if beat_ns and process else None,
        )

    def _rate(self, rank: int, light: RankPage, now_ns: int) -> float | None:
        count = sum(group.enqueued + group.p2p for group in light.groups)
        counts = self._calls.setdefault(rank, deque())
        if counts and count < counts[-1][1]:
            counts.clear()  # another process is this rank now
        counts.append((now_ns, count))
        while len(counts) > 2 and now_ns - counts[1][0] >= RATE_S * 1e9:  # noqa: PLR2004 (a pair)
            counts.popleft()
        then_ns, before = counts[0]
        return (count - before) / ((now_ns - then_ns) / 1e9) if now_ns > then_ns else None

    def _call(self, rank: int, seen: Seen, since_ns: int) -> Call:
        known = self._waits.get(rank)
        if known is None or known[0] != since_ns:
            known = since_ns, waited_in(seen)
            self._waits[rank] = known
        return known[1]


def _standing(light: RankPage, process: str) -> tuple[str, Trouble]:
    """What its phase and its process say of a rank."""
    if light.phase is Phase.RAISED:
        what = light.exception.type.rpartition(".")[2] if light.exception else "an exception"
        return f"raised {what}", Trouble.ODD
    if light.phase is Phase.EXITED:
        return "exited", Trouble.NONE
    if not process:
        return "gone", Trouble.ODD
    if process in _STOPPED:
        return "stopped", Trouble.ODD
    if light.disarmed:
        return "not recorded any more", Trouble.ODD
    return ("" if light.phase is Phase.RUNNING else light.phase.value), Trouble.NONE


def waited_in(seen: Seen) -> Call:
    """The oldest call that the rank is blocked in, else what its counters say."""
    try:
        page = seen.page.read(events=True)
    except PageError:
        page = seen.light
    blocked = [event for event in page.events if event.state is OpState.BLOCKED]
    if blocked:
        event = min(blocked, key=lambda event: event.blocked_ns or event.issued_ns)
        key = next((group.key for group in page.groups if group.slot == event.slot), None)
        return Call(_called(event), group_label(key) if key else "", event.site)
    if page.in_call:
        return Call(page.in_call, site=page.in_call_site)
    # Issued by C++ (DDP's reducer): c10d has unfinished work, and no frame tells whose.
    unfinished = [g for g in page.groups if g.alive and 0 <= g.completed < g.enqueued]
    if unfinished:
        group = min(unfinished, key=lambda group: group.changed_ns)
        return Call(f"collective #{group.completed + 1}", group_label(group.key))
    return Call("a collective")


def _called(event: PageEvent) -> str:
    if event.p2p:
        towards = "to" if event.wire.startswith("send") else "from"
        peer = f"rank {event.peer}" if event.peer >= 0 else "any rank"
        return f"{event.op} {towards} {peer}"
    return f"{event.op} #{event.seq}" if event.seq > 0 else event.op


def _frontier(lights: Iterable[RankPage]) -> dict[GroupKey, int]:
    """How far the furthest member of each group on this node is."""
    furthest: defaultdict[GroupKey, int] = defaultdict(int)
    for light in lights:
        for group in light.groups:
            furthest[group.key] = max(furthest[group.key], group.enqueued)
    return furthest


def _behind(groups: Iterable[PageGroup], frontier: Mapping[GroupKey, int]) -> tuple[int, str]:
    """How many collectives a rank is behind where it is most, and in which group."""
    lags = [(frontier[group.key] - group.enqueued, group) for group in groups if group.alive]
    lag, group = max(lags, key=lambda pair: pair[0], default=(0, None))
    return (lag, group_label(group.key)) if lag > 0 and group else (0, "")


def _last(groups: Iterable[PageGroup]) -> tuple[str, ...]:
    """``default_pg #46``, ``pp 21 p2p``: of the group that moved last first."""
    used = [group for group in groups if group.alive and (group.enqueued or group.p2p)]
    used.sort(key=lambda group: group.changed_ns, reverse=True)
    return tuple(_reached(group) for group in used)


def _reached(group: PageGroup) -> str:
    calls = [f"#{group.enqueued}"] if group.enqueued else []
    if group.p2p:
        calls.append(f"{group.p2p} p2p")
    return f"{group_label(group.key)} {' + '.join(calls)}"
