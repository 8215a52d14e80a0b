"""The last calls of ranks on a time axis, a panel for each group, and the hole in it.

A collective is a line through the marks of the ranks that issued it. Where a rank is
missing the line goes through an empty circle. Long pauses are cut out of the axis, and
how long they were is written there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hangwatch.report.page.axis import Axis, Cut
from hangwatch.report.page.ranksets import RankSet, call_name, place, seconds, shortened
from hangwatch.report.places import places_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LEFT, RIGHT, TOP, BOTTOM = 104.0, 1130.0, 30.0, 30.0
"""Where lanes begin and end, and the room above and below them, in the units of the picture."""
LANE = 30.0
LABELLED = 330.0
"""Room on the right for what a rank waits in."""
MOST_PANELS = 3
MOST_LANES = 24
FIRST_WIDTH = 100.0
"""Room of what stands at the left end of the axis."""
NAME_WIDTH = 28.0
"""Room that ``#41`` takes; a name that has none is left out."""
LAST = 8
"""Collectives of a group that are shown: the last ones up to where it is stuck."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A call when it was issued. ``kind``: done, odd (not what the others issued), failed."""

    x: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank: its calls, and how it ends at the right."""

    y: float
    rank: RankSet
    culprit: bool
    marks: tuple[Mark, ...]
    ends_at: float
    """Where its last call is."""
    waits_from: float | None
    """Where the bar of what it waits in begins; None if it waits in nothing here."""
    label: str
    hole: float | None
    """Where the call is missing that the others wait for."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One collective through all lanes."""

    points: str
    name: str
    label_x: float
    stuck: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """One group."""

    title: str
    lanes: tuple[Lane, ...]
    threads: tuple[Thread, ...]
    cuts: tuple[Cut, ...]
    first: str
    """How long ago the left end is."""
    height: float
    left: float = LEFT
    right: float = RIGHT
    labels_at: float = RIGHT - LABELLED + 20


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a rank."""

    rank: int
    op: str
    seq: int
    p2p: bool
    state: str
    age_s: float
    peer: str
    """Whom a point-to-point call is for."""
    detail: str
    site: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the group is stuck."""

    op: str
    seq: int
    waiting: frozenset[int]
    awaited: frozenset[int]
    age_s: float


def panels(report: Mapping[str, Any]) -> tuple[Panel, ...]:
    """The groups in which something is stuck; none where no calls were kept."""
    calls = _calls(report)
    stuck = _stuck(report)
    order = sorted(stuck, key=lambda number: _weight(report, stuck[number], number), reverse=True)
    wanted = order or [number for number, _ in Counter(dict(_sizes(calls))).most_common()]
    found = (_panel(report, number, calls, stuck.get(number, [])) for number in wanted)
    return tuple(panel for panel in found if panel)[:MOST_PANELS]


def _sizes(calls: Mapping[int, Sequence[_Call]]) -> Iterator[tuple[int, int]]:
    return ((number, len(found)) for number, found in calls.items())


def _weight(report: Mapping[str, Any], places: Sequence[_Place], number: int) -> tuple[int, int]:
    """Groups that wait for a culprit come first, of these that of the verdict."""
    culprits = set(report["verdict"]["culprits"])
    group = report["verdict"]["group"] or {}
    known = report["groups"][number]
    is_verdicts = (known["desc"], known["size"]) == (group.get("desc"), len(group.get("ranks", ())))
    awaited = sum(len(place.awaited & culprits) for place in places)
    return (2 * bool(awaited) + is_verdicts, sum(len(place.waiting) for place in places))


def _calls(report: Mapping[str, Any]) -> dict[int, list[_Call]]:
    """Calls by group."""
    sites = report.get("sites") or ()
    found: defaultdict[int, list[_Call]] = defaultdict(list)
    for rank in report["ranks"]:
        for call in rank.get("calls") or ():
            site = place(sites[call["site"]]) if call["site"] is not None else ""
            found[call["group_id"]].append(
                _Call(
                    rank["rank"],
                    call["op"],
                    call["seq"],
                    call["p2p"],
                    call["state"],
                    call["issued_age_s"],
                    _peer(call),
                    _detail(call),
                    site,
                )
            )
    return found


def _peer(call: Mapping[str, Any]) -> str:
    if call["peer"] is None:
        return ""
    return f"{'to' if 'send' in call['op'] else 'from'} rank {call['peer']}"


def _detail(call: Mapping[str, Any]) -> str:
    """What tells calls of one operation apart."""
    parts = []
    if call["root"] is not None:
        parts.append(f"root {call['root']}")
    if call["shape"] or call["dtype"]:
        parts.append(f"{call['dtype']}{call['shape']}")
    return shortened(", ".join(parts), 60)


def _stuck(report: Mapping[str, Any]) -> dict[int, list[_Place]]:
    """Where each group is stuck."""
    found: defaultdict[int, list[_Place]] = defaultdict(list)
    for at in places_of(report):
        if at.get("group_id") is not None:
            found[at["group_id"]].append(
                _Place(
                    at["op"], at["seq"], frozenset(at["ranks"]), frozenset(at["for"]), at["age_s"]
                )
            )
    return found


def _panel(
    report: Mapping[str, Any],
    number: int,
    by_group: Mapping[int, Sequence[_Call]],
    places: Sequence[_Place],
) -> Panel | None:
    calls = _window(by_group.get(number, ()), places)
    known = {rank["rank"] for rank in report["ranks"] if rank.get("calls") is not None}
    culprits = set(report["verdict"]["culprits"])
    awaited = {rank for at in places for rank in at.awaited}
    ranks = {call.rank for call in calls} | (awaited & known) | (awaited & culprits)
    ranks = set(sorted(ranks, key=lambda rank: rank not in culprits)[:MOST_LANES])
    if not calls or not ranks:
        return None
    axis = Axis.of([call.age_s for call in calls], _step_s(calls), LEFT + 14, RIGHT - LABELLED)
    heights = {rank: TOP + LANE * (n + 0.5) for n, rank in enumerate(sorted(ranks))}
    holes = _holes(calls, places, axis, ranks)
    usual = _usual(calls)
    waiting = {(rank, at.seq) for at in places for rank in at.waiting}
    lanes = tuple(
        _lane(
            rank,
            heights[rank],
            [call for call in calls if call.rank == rank],
            usual,
            axis,
            waiting,
            holes.get(rank),
            culprit=rank in culprits,
        )
        for rank in sorted(ranks)
    )
    group = report["groups"][number]
    return Panel(
        _title(group),
        lanes,
        tuple(_threads(calls, heights, axis, holes, places)),
        tuple(cut for cut in axis.cuts if cut.x > LEFT + FIRST_WIDTH),
        seconds(axis.oldest_s),
        TOP + LANE * len(ranks) + BOTTOM,
    )


def _title(group: Mapping[str, Any]) -> str:
    label = shortened(group["label"] or "a group", 60)
    members = "" if label.startswith("ranks ") else f", {group['size']:,} ranks"
    if members and group["size"] < 16 and len(group["ranks"]) < 40:  # noqa: PLR2004 (fits)
        members = f", ranks {group['ranks']}"
    return f"{label}{members}"


def _window(calls: Sequence[_Call], places: Sequence[_Place]) -> list[_Call]:
    """The last calls up to where the group is stuck, and what was issued beyond it."""
    collectives = [call for call in calls if not call.p2p]
    waiting = {at.seq for at in places}
    last = max(waiting or {call.seq for call in collectives}, default=0)
    kept = [call for call in collectives if last - LAST < call.seq <= last + 2]
    by_rank: defaultdict[int, list[_Call]] = defaultdict(list)
    for call in calls:
        if call.p2p:
            by_rank[call.rank].append(call)
    return kept + [call for mine in by_rank.values() for call in mine[-LAST:]]


def _step_s(calls: Sequence[_Call]) -> float:
    """The usual time from one call of a rank to its next, in seconds."""
    by_rank: defaultdict[int, list[float]] = defaultdict(list)
    for call in calls:
        by_rank[call.rank].append(call.age_s)
    gaps = sorted(
        later - sooner for ages in by_rank.values() for sooner, later in pairwise(sorted(ages))
    )
    return gaps[len(gaps) // 2] if gaps else 0.0


def _usual(calls: Iterable[_Call]) -> dict[int, tuple[str, str]]:
    """What most ranks issued at each place: the operation, and its details."""
    found: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for call in calls:
        if not call.p2p:
            found[call.seq][call.op, call.detail] += 1
    return {seq: count.most_common(1)[0][0] for seq, count in found.items()}


def _holes(
    calls: Sequence[_Call], places: Sequence[_Place], axis: Axis, ranks: set[int]
) -> dict[int, tuple[float, str]]:
    """Rank to where its call is missing, and which call that is."""
    found: dict[int, tuple[float, str]] = {}
    for at in places:
        there = [call for call in calls if call.rank in at.waiting and call.seq == at.seq]
        ages = sorted(call.age_s for call in there) or [at.age_s]
        x = axis.x(ages[len(ages) // 2])
        p2p = any(call.p2p for call in there)
        came = {call.rank for call in calls if call.seq == at.seq and not call.p2p}
        if p2p:  # a rank that waits itself is not where the chain ends
            came = {rank for other in places for rank in other.waiting}
        for rank in (at.awaited & ranks) - came:
            found[rank] = (x, "no match" if p2p else f"no {call_name(at.op, at.seq)}")
    return found


def _lane(  # noqa: PLR0913 (all that meets in a lane)
    rank: int,
    y: float,
    calls: Sequence[_Call],
    usual: Mapping[int, tuple[str, str]],
    axis: Axis,
    waiting: set[tuple[int, int]],
    hole: tuple[float, str] | None,
    *,
    culprit: bool,
) -> Lane:
    mine = sorted(calls, key=lambda call: -call.age_s)
    waits = [call for call in mine if (rank, call.seq) in waiting or call.state == "blocked"]
    label = hole[1] if hole else ""
    if waits:
        last = waits[-1]
        detail = last.detail if _kind(last, usual) == "odd" else last.peer
        label = f"{call_name(last.op, last.seq)} {detail}".strip()
        label = f"{shortened(label, 44)}, {seconds(last.age_s)}"
    return Lane(
        y,
        RankSet.of([rank]),
        culprit,
        tuple(Mark(axis.x(call.age_s), _kind(call, usual), _told(call)) for call in mine),
        axis.x(mine[-1].age_s) if mine else LEFT,
        axis.x(waits[-1].age_s) if waits else None,
        label,
        hole[0] if hole else None,
    )


def _told(call: _Call) -> str:
    """A call in words."""
    what = " ".join(filter(None, (call_name(call.op, call.seq), call.peer, call.detail)))
    at = f", at {call.site}" if call.site else ""
    return f"rank {call.rank}: {what}, issued {seconds(call.age_s)} ago, {call.state}{at}"


def _kind(call: _Call, usual: Mapping[int, tuple[str, str]]) -> str:
    if call.state == "failed":
        return "failed"
    if not call.p2p and usual.get(call.seq) != (call.op, call.detail):
        return "odd"
    return "done"


def _threads(
    calls: Sequence[_Call],
    heights: Mapping[int, float],
    axis: Axis,
    holes: Mapping[int, tuple[float, str]],
    places: Sequence[_Place],
) -> Iterator[Thread]:
    """A line for each collective, through the hole where there is one."""
    stuck = {at.seq for at in places}
    by_seq: defaultdict[int, dict[int, _Call]] = defaultdict(dict)
    for call in calls:
        if not call.p2p and call.rank in heights:
            by_seq[call.seq][call.rank] = call
    taken: list[float] = []
    for seq, found in sorted(by_seq.items(), key=lambda item: item[0] not in stuck):
        points = {rank: axis.x(call.age_s) for rank, call in found.items()}
        if seq in stuck:
            points |= {
                rank: x for rank, (x, missing) in holes.items() if missing.endswith(f"#{seq}")
            }
        path = " ".join(f"{points[rank]:.1f},{heights[rank]:.1f}" for rank in sorted(points))
        x = points[min(points)]
        apart = all(abs(x - other) > NAME_WIDTH for other in taken)
        taken += [x] if apart else []
        yield Thread(path, f"#{seq}" if apart else "", x, seq in stuck)
