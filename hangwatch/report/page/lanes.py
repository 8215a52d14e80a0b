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
    detail: str
    site: str

    @property
    def waits(self) -> bool:
        return self.state == "blocked"


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
                    _detail(call),
                    site,
                )
            )
    return found


def _detail(call: Mapping[str, Any]) -> str:
    """What tells calls of one operation apart."""
    parts = []
    if call["peer"] is not None:
        parts.append(f"{'to' if 'send' in call['op'] else 'from'} rank {call['peer']}")
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
    lanes = tuple(
        _lane(rank, heights[rank], calls, usual, axis, holes, rank in culprits)
        for rank in sorted(ranks)
    )
    group = report["groups"][number]
    return Panel(
        _title(group),
        lanes,
        tuple(_threads(calls, heights, axis, holes, places)),
        axis.cuts,
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
        for rank in at.awaited & ranks if p2p else (at.awaited & ranks) - came:
            found[rank] = (x, "no match" if p2p else f"no {call_name(at.op, at.seq)}")
    return found


def _lane(  # noqa: PLR0913 (all that meets in a lane)
    rank: int,
    y: float,
    calls: Sequence[_Call],
    usual: Mapping[int, tuple[str, str]],
    axis: Axis,
    holes: Mapping[int, tuple[float, str]],
    culprit: bool,  # noqa: FBT001
) -> Lane:
    mine = sorted((call for call in calls if call.rank == rank), key=lambda call: -call.age_s)
    marks = tuple(
        Mark(
            axis.x(call.age_s),
            _kind(call, usual),
            f"rank {rank}: {call_name(call.op, call.seq)} {call.detail}, issued "
            f"{seconds(call.age_s)} ago, {call.state}{f', at {call.site}' if call.site else ''}",
        )
        for call in mine
    )
    waiting = next((call for call in reversed(mine) if call.waits), None)
    hole, missing = holes.get(rank, (None, ""))
    label = ""
    if waiting is not None:
        odd = _kind(waiting, usual) == "odd"
        detail = f" {waiting.detail}" if waiting.detail and (odd or waiting.p2p) else ""
        label = f"{call_name(waiting.op, waiting.seq)}{detail}, {seconds(waiting.age_s)}"
    elif hole is not None:
        label = missing
    return Lane(
        y,
        RankSet.of([rank]),
        culprit,
        marks,
        marks[-1].x if marks else LEFT,
        axis.x(waiting.age_s) if waiting else None,
        shortened(label, 52),
        hole,
    )


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
    for seq, found in sorted(by_seq.items()):
        points = {rank: axis.x(call.age_s) for rank, call in found.items()}
        if seq in stuck:
            points |= {
                rank: x for rank, (x, missing) in holes.items() if missing.endswith(f"#{seq}")
            }
        path = " ".join(f"{points[rank]:.1f},{heights[rank]:.1f}" for rank in sorted(points))
        yield Thread(path, f"#{seq}", points[min(points)], seq in stuck)
