"""The last calls of ranks on a time axis, a panel for each group, and the hole in it.

A collective is a line through the marks of the ranks that issued it. Where a rank is
missing the line goes through an empty circle. Long pauses are cut out of the axis, and
how long they were is written there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from hangwatch.report import schema
from hangwatch.report.html.axis import Axis, Cut
from hangwatch.report.html.history import (
    Call,
    Place,
    calls_of,
    kind_of,
    step_s,
    stuck_at,
    told,
    usual_calls,
    window,
)
from hangwatch.report.html.ranksets import RankSet, call_name, seconds, shortened
from hangwatch.report.schema import Report

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
    missing: str
    """Who is missing, in words."""
    left: float = LEFT
    right: float = RIGHT
    labels_at: float = RIGHT - LABELLED + 20


def panels(report: Report) -> tuple[Panel, ...]:
    """The groups in which something is stuck; none where no calls were kept."""
    calls = calls_of(report)
    stuck = stuck_at(report)
    order = sorted(stuck, key=lambda number: _weight(report, stuck[number], number), reverse=True)
    wanted = order or sorted(calls, key=lambda number: -len(calls[number]))
    found = (_panel(report, number, calls, stuck.get(number, [])) for number in wanted)
    return tuple(islice((panel for panel in found if panel), MOST_PANELS))


def _weight(report: Report, places: Sequence[Place], number: int) -> tuple[int, int]:
    """Groups that wait for a culprit come first, of these that of the verdict."""
    culprits = set(report["verdict"]["culprits"])
    group = report["verdict"]["group"]
    known = (report["groups"][number]["desc"], report["groups"][number]["size"])
    is_verdicts = group is not None and known == (group["desc"], len(group["ranks"]))
    awaited = sum(len(place.awaited & culprits) for place in places)
    return (2 * bool(awaited) + is_verdicts, sum(len(place.waiting) for place in places))


def _panel(
    report: Report,
    number: int,
    by_group: Mapping[int, Sequence[Call]],
    places: Sequence[Place],
) -> Panel | None:
    calls = window(by_group.get(number, ()), places)
    known = {rank["rank"] for rank in report["ranks"] if rank.get("calls") is not None}
    culprits = set(report["verdict"]["culprits"])
    awaited = {rank for at in places for rank in at.awaited}
    ranks = {call.rank for call in calls} | (awaited & known) | (awaited & culprits)
    ranks = set(sorted(ranks, key=lambda rank: (rank not in culprits, rank))[:MOST_LANES])
    if not calls or not ranks:
        return None
    axis = Axis.of([call.age_s for call in calls], step_s(calls), LEFT + 14, RIGHT - LABELLED)
    heights = {rank: TOP + LANE * (n + 0.5) for n, rank in enumerate(sorted(ranks))}
    holes = _holes(calls, places, axis, ranks)
    usual = usual_calls(calls)
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
        _missing(lanes),
    )


def _missing(lanes: Sequence[Lane]) -> str:
    """``rank 5: no all_reduce #11``, of the ranks that wait in nothing here."""
    by_label: defaultdict[str, list[int]] = defaultdict(list)
    for lane in lanes:
        if lane.hole is not None and lane.waits_from is None:
            by_label[lane.label].append(int(lane.rank.spec))
    parts = [f"{RankSet.of(ranks).text}: {label}" for label, ranks in by_label.items()]
    return "; ".join(parts[:MOST_PANELS])


def _title(group: schema.Group) -> str:
    label = shortened(group["label"] or "a group", 60)
    members = "" if label.startswith("ranks ") else f", {group['size']:,} ranks"
    if members and group["size"] < 16 and len(group["ranks"]) < 40:  # noqa: PLR2004 (fits)
        members = f", ranks {group['ranks']}"
    return f"{label}{members}"


def _holes(
    calls: Sequence[Call], places: Sequence[Place], axis: Axis, ranks: set[int]
) -> dict[int, tuple[float, str]]:
    """Rank to where its call is missing, and which call that is."""
    found: dict[int, tuple[float, str]] = {}
    waiting = {rank for at in places for rank in at.waiting}  # the bar tells of these
    for at in places:
        there = [call for call in calls if call.rank in at.waiting and call.seq == at.seq]
        ages = sorted(call.age_s for call in there) or [at.age_s]
        x = axis.x(ages[len(ages) // 2])
        p2p = any(call.p2p for call in there)
        came = {call.rank for call in calls if call.seq == at.seq and not call.p2p and not p2p}
        for rank in (at.awaited & ranks) - came - waiting:
            found[rank] = (x, _counterpart(at) if p2p else f"no {call_name(at.op, at.seq)}")
    return found


def _counterpart(at: Place) -> str:
    """The point-to-point call that is missing."""
    missing = "recv from" if "send" in at.op else "send to"
    return f"no {missing} {RankSet.of(at.waiting).brief}"


def _lane(  # noqa: PLR0913 (all that meets in a lane)
    rank: int,
    y: float,
    calls: Sequence[Call],
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
    if hole and not mine:
        label = f"{label}; what it issued is not known"
    if waits:
        last = waits[-1]
        detail = last.detail if kind_of(last, usual) == "odd" else last.peer
        label = f"{call_name(last.op, last.seq)} {detail}".strip()
        label = f"{shortened(label, 44)}, {seconds(last.age_s)}"
    return Lane(
        y,
        RankSet.of([rank]),
        culprit,
        tuple(Mark(axis.x(call.age_s), kind_of(call, usual), told(call)) for call in mine),
        axis.x(mine[-1].age_s) if mine else LEFT,
        axis.x(waits[-1].age_s) if waits else None,
        label,
        hole[0] if hole else None,
    )


def _threads(
    calls: Sequence[Call],
    heights: Mapping[int, float],
    axis: Axis,
    holes: Mapping[int, tuple[float, str]],
    places: Sequence[Place],
) -> Iterator[Thread]:
    """A line for each collective, through the hole where there is one."""
    stuck = {at.seq for at in places}
    by_seq: defaultdict[int, dict[int, Call]] = defaultdict(dict)
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
