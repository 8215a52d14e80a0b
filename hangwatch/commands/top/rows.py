"""The rows of ``hangwatch top``: one for each rank, made from its page and process."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from hangwatch.commands import timing
from hangwatch.commands.runs import BlockingCall, blocking_call
from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import Look
from hangwatch.evidence.timing import QUIET_S
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Phase
from hangwatch.model.page import PageGroup, RankPage
from hangwatch.report.wording import group_label

_STOPPED = frozenset("Tt")


class Trouble(IntEnum):
    """Attention that a rank deserves, most first."""

    CULPRIT = 0
    """The report of the incident names it."""
    ODD = 1
    """It is stopped, or has not ended well."""
    LATE = 2
    """It is behind, waits for nothing, and has issued nothing for a moment."""
    WAITS = 3
    NONE = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One rank, or several that are alike. Ages in seconds; None if not known."""

    ranks: tuple[int, ...]
    trouble: Trouble = Trouble.NONE
    node: str = ""
    """Empty for this node."""
    pid: int = 0
    does: str = ""
    """``stopped``, ``init``, ``all_reduce #46`` that it waits in; empty while it just runs."""
    group: str = ""
    """Of the call that it waits in."""
    waits_s: float | None = None
    """Age of its wait, None if it does not wait."""
    site: Site | None = None
    last: tuple[str, ...] = ()
    """The last call of each group (``default_pg #46``), of the one that moved last first."""
    rate: float | None = None
    """Calls a second."""
    fastest: float | None = None
    """The highest rate in a row of several ranks; ``rate`` is the lowest then."""
    behind: int = 0
    """Collectives behind the furthest member of the group on this node."""
    behind_in: str = ""
    """That group."""
    beat_s: float | None = None
    """Age of its last sign of life."""


@dataclass(slots=True)
class RankTracker:
    """Makes rows, with the memory that rates and waits need."""

    process_state: Callable[[int, int], str]
    """As RunPages.state()."""
    _calls: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    """Rank to the last few (time, calls issued by then)."""
    _waits: dict[int, tuple[int, BlockingCall]] = field(default_factory=dict)
    """Rank to (start of its wait, call): read from its page once per wait."""

    def rows(self, look: Look) -> list[Row]:
        """Return one row for each rank of this node."""
        furthest: defaultdict[GroupKey, int] = defaultdict(int)
        for seen in look.seen.values():
            for group in seen.light.groups:
                furthest[group.key] = max(furthest[group.key], group.enqueued)
        for gone in self._calls.keys() - look.seen.keys():
            del self._calls[gone]
        return [self._row(rank, seen, look, furthest) for rank, seen in look.seen.items()]

    def _row(self, rank: int, seen: Seen, look: Look, furthest: Mapping[GroupKey, int]) -> Row:
        page, now_ns = seen.light, look.now_ns
        identity = page.identity
        process = self.process_state(identity.pid, identity.start_ticks)
        since_ns = look.waits.get(rank)
        if since_ns is not None and now_ns - since_ns < QUIET_S * 1e9:
            since_ns = None
        call = self._call(rank, seen, since_ns) if since_ns is not None else None
        behind, behind_in = _behind(page.groups, furthest)
        quiet_s = (now_ns - max((g.changed_ns for g in page.groups), default=now_ns)) / 1e9
        beat_ns = max(page.heartbeat_ns, page.gil_ns)
        does, trouble = _condition(page, process)
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
            last=_last_calls(page.groups),
            rate=self._rate(rank, page, now_ns) if process else None,
            behind=behind,
            behind_in=behind_in,
            beat_s=max(0, now_ns - beat_ns) / 1e9 if beat_ns and process else None,
        )

    def _rate(self, rank: int, page: RankPage, now_ns: int) -> float | None:
        count = sum(group.enqueued + group.p2p for group in page.groups)
        counts = self._calls.setdefault(rank, deque())
        if counts and count < counts[-1][1]:
            counts.clear()  # another process is this rank now
        counts.append((now_ns, count))
        while len(counts) > 2 and now_ns - counts[1][0] >= timing.TOP_RATE_S * 1e9:  # noqa: PLR2004 (a pair)
            counts.popleft()
        then_ns, before = counts[0]
        return (count - before) / ((now_ns - then_ns) / 1e9) if now_ns > then_ns else None

    def _call(self, rank: int, seen: Seen, since_ns: int) -> BlockingCall:
        known = self._waits.get(rank)
        if known is None or known[0] != since_ns:
            known = self._waits[rank] = since_ns, blocking_call(seen)
        return known[1]


def _condition(page: RankPage, process: str) -> tuple[str, Trouble]:
    """Return what a rank does, as its phase and its process show."""
    if page.phase is Phase.RAISED:
        what = page.exception.type.rpartition(".")[2] if page.exception else "an exception"
        return f"raised {what}", Trouble.ODD
    if page.phase is Phase.EXITED:
        return "exited", Trouble.NONE
    if not process:
        return "gone", Trouble.ODD
    if process in _STOPPED:
        return "stopped", Trouble.ODD
    if page.disarmed:
        return "no longer recorded", Trouble.ODD
    return ("" if page.phase is Phase.RUNNING else page.phase.value), Trouble.NONE


def _behind(groups: Iterable[PageGroup], furthest: Mapping[GroupKey, int]) -> tuple[int, str]:
    """Return the most collectives that a rank is behind, and in which group."""
    lags = [(furthest[group.key] - group.enqueued, group) for group in groups if group.alive]
    lag, group = max(lags, key=lambda pair: pair[0], default=(0, None))
    return (lag, group_label(group.key)) if lag > 0 and group else (0, "")


def _last_calls(groups: Iterable[PageGroup]) -> tuple[str, ...]:
    """Return ``default_pg #46``, ``pp 21 p2p``, of the group that moved last first."""
    used = [group for group in groups if group.alive and (group.enqueued or group.p2p)]
    reached = []
    for group in sorted(used, key=lambda group: group.changed_ns, reverse=True):
        calls = [f"#{group.enqueued}"] if group.enqueued else []
        calls += [f"{group.p2p} p2p"] if group.p2p else []
        reached.append(f"{group_label(group.key)} {' + '.join(calls)}")
    return tuple(reached)


def arrange(rows: Iterable[Row], room: int | None = None) -> tuple[list[Row], list[Row]]:
    """Order rows, worst first, and return (shown, left out) so that they fit on ``room`` lines.

    One line is kept for what is left out. If there are too many rows, similar ranks share
    one; healthy ranks are left out first. With room None all are shown.
    """
    ordered = sorted(rows, key=_order)
    if room is None or len(ordered) <= room:
        return ordered, []
    room = max(room, 1)
    troubled = [row for row in ordered if row.trouble is not Trouble.NONE]
    healthy = ordered[len(troubled) :]
    if len(troubled) + bool(healthy) > room:
        troubled = merged(troubled)
    ordered = [*troubled, *healthy]
    return ordered[: room - 1], ordered[room - 1 :]


def _order(row: Row) -> tuple[int, int, tuple[int, ...]]:
    return row.trouble, -row.behind if row.trouble is Trouble.LATE else 0, row.ranks


def merged(rows: Iterable[Row]) -> list[Row]:
    """Return one row for all ranks that do the same at the same line, in order of the first."""
    alike: defaultdict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        line = (row.site.file, row.site.line) if row.site else None
        alike[row.trouble, row.does, row.group, line, row.waits_s is None].append(row)
    return [_merge(same) for same in alike.values()]


def _merge(rows: Sequence[Row]) -> Row:
    first = rows[0]
    if len(rows) == 1:
        return first
    last = max(rows, key=lambda row: row.behind)
    speeds = known_rates(rows)
    return replace(
        first,
        ranks=tuple(sorted(rank for row in rows for rank in row.ranks)),
        node=first.node if len({row.node for row in rows}) == 1 else "several",
        pid=0,
        waits_s=max((row.waits_s for row in rows if row.waits_s is not None), default=None),
        last=first.last if len({row.last for row in rows}) == 1 else (),
        rate=min(speeds, default=None),
        fastest=max(speeds, default=None),
        behind=last.behind,
        behind_in=last.behind_in,
        beat_s=max((row.beat_s for row in rows if row.beat_s is not None), default=None),
    )


def known_rates(rows: Iterable[Row]) -> list[float]:
    """Return all rates of rows."""
    return [rate for row in rows for rate in (row.rate, row.fastest) if rate is not None]


def rate_text(lowest: float | None, highest: float | None = None) -> str:
    """Calls a second: ``41``, ``0.3``, ``40-42``, ``1.2k``; empty if not known."""
    if lowest is None:
        return ""
    low, high = _rate_text(lowest), _rate_text(lowest if highest is None else highest)
    return low if low == high else f"{low}-{high}"


def _rate_text(rate: float) -> str:
    if rate >= 9999.5:  # noqa: PLR2004 (four digits)
        return f"{rate / 1000:.0f}k"
    if rate >= 9.95 or rate == 0:  # noqa: PLR2004 (two digits)
        return f"{rate:.0f}"
    return f"{rate:.1f}"
