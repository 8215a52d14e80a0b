"""The last calls of ranks on a time axis, a panel for each group, and the call that is missing.

A collective is a line through the marks of the ranks that issued it. Where a rank is
missing the line goes through an empty circle. Long pauses are cut out of the axis, and
their length is written there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median_high

from hangwatch.report import schema
from hangwatch.report.schema import Report, WaitPoint
from hangwatch.report.wording import LABEL, RankSet, call_label, site_label
from hangwatch.text import duration, shortened

LEFT, RIGHT, TOP, BOTTOM = 104.0, 1130.0, 30.0, 30.0
"""Ends of the lanes, and the room above and below them, in the units of the picture."""
LANE = 30.0
LABELLED = 330.0
"""Room on the right for the call that a rank waits in."""
MOST_PANELS = 3
MOST_LANES = 24
LAST = 8
"""Collectives of a group that are shown: the last ones up to where it is stuck."""
LONG = 3.0
"""A pause is cut to so many usual steps."""
FIRST_WIDTH = 100.0
"""Room of the text at the left end of the axis."""
NAME_WIDTH = 28.0
"""Room that ``#41`` takes; a name that does not fit is left out."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A pause that was cut out of the axis. ``text``: its length."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis: ages in seconds to positions from left (oldest) to right."""

    ages: tuple[float, ...]
    """Falling."""
    at: tuple[float, ...]
    cuts: tuple[Cut, ...]

    @classmethod
    def of(cls, ages: Iterable[float], step_s: float, left: float, right: float) -> Axis:
        """An axis on which these ages fill the room, no pause wider than LONG steps."""
        falling = sorted(set(ages), reverse=True)
        gaps = [before - after for before, after in pairwise(falling)]
        most = LONG * step_s or max(gaps, default=0.0)
        lengths = [min(gap, most) for gap in gaps]
        scale = (right - left) / (sum(lengths) or 1.0)
        at = [left]
        for length in lengths:
            at.append(at[-1] + length * scale)
        cuts = tuple(
            Cut((before + after) / 2, duration(gap))
            for gap, (before, after) in zip(gaps, pairwise(at), strict=True)
            if gap > most
        )
        return cls(tuple(falling), tuple(at), cuts)

    def x(self, age_s: float) -> float:
        """The position of an age; one between two known ones in proportion."""
        after = bisect_right(self.ages, -age_s, key=lambda age: -age)
        if after == 0:
            return self.at[0]
        if after == len(self.ages):
            return self.at[-1]
        older, newer = self.ages[after - 1], self.ages[after]
        share = (older - age_s) / (older - newer)
        return self.at[after - 1] + share * (self.at[after] - self.at[after - 1])


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
    """Position of its last call."""
    waits_from: float | None
    """Start of the bar of the call that it waits in; None if it waits in no call here."""
    label: str
    hole: float | None
    """Position of the call that is missing, for which the others wait."""


@dataclass(frozen=True, slots=True)
class Collective:
    """The line of one collective through all lanes."""

    points: str
    name: str
    label_x: float
    stuck: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """One group."""

    title: str
    lanes: tuple[Lane, ...]
    collectives: tuple[Collective, ...]
    cuts: tuple[Cut, ...]
    first: str
    """Age of the left end."""
    height: float
    missing: str
    """The ranks that are missing, and their calls, in words."""
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
    """``to rank 3``, of a point-to-point call."""
    detail: str
    site: str

    @property
    def what(self) -> tuple[str, str]:
        """The operation and its details, which all ranks have alike in a collective."""
        return self.op, self.detail


def panels(report: Report) -> tuple[Panel, ...]:
    """The groups in which something is stuck; none where no calls were kept."""
    calls = _calls(report)
    stuck: defaultdict[int, list[WaitPoint]] = defaultdict(list)
    for at in report["places"]:
        if at["group_id"] is not None:
            stuck[at["group_id"]].append(at)
    order = sorted(stuck, key=lambda number: _weight(report, stuck[number], number), reverse=True)
    wanted = order or sorted(calls, key=lambda number: -len(calls[number]))
    drawn = (_panel(report, n, calls.get(n, ()), stuck.get(n, ())) for n in wanted)
    return tuple(islice((panel for panel in drawn if panel), MOST_PANELS))


def _calls(report: Report) -> dict[int, list[_Call]]:
    """Calls by group."""
    sites = report["sites"]
    by_group: defaultdict[int, list[_Call]] = defaultdict(list)
    for rank in report["ranks"]:
        for call in rank["calls"] or ():
            by_group[call["group_id"]].append(
                _Call(
                    rank["rank"],
                    call["op"],
                    call["seq"],
                    call["p2p"],
                    call["state"],
                    call["issued_age_s"],
                    _peer(call),
                    _detail(call),
                    "" if call["site"] is None else site_label(sites[call["site"]]),
                )
            )
    return by_group


def _peer(call: schema.Call) -> str:
    if call["peer"] is None:
        return ""
    return f"{'to' if 'send' in call['op'] else 'from'} rank {call['peer']}"


def _detail(call: schema.Call) -> str:
    """The root, dtype and shape, which distinguish calls of one operation."""
    parts = []
    if call["root"] is not None:
        parts.append(f"root {call['root']}")
    if call["shape"] or call["dtype"]:
        parts.append(f"{call['dtype']}{call['shape']}")
    return shortened(", ".join(parts), LABEL)


def _weight(report: Report, points: Sequence[WaitPoint], number: int) -> tuple[int, int]:
    """Groups that wait for a culprit come first, of these that of the verdict."""
    culprits = set(report["verdict"]["culprits"])
    group = report["verdict"]["group"]
    known = (report["groups"][number]["desc"], report["groups"][number]["size"])
    is_verdicts = group is not None and known == (group["desc"], len(group["ranks"]))
    awaited = any(not culprits.isdisjoint(at["for"]) for at in points)
    return (2 * awaited + is_verdicts, sum(len(at["ranks"]) for at in points))


def _panel(
    report: Report, number: int, calls: Sequence[_Call], points: Sequence[WaitPoint]
) -> Panel | None:
    calls = _window(calls, points)
    known = {rank["rank"] for rank in report["ranks"] if rank["calls"] is not None}
    culprits = set(report["verdict"]["culprits"])
    awaited = {rank for at in points for rank in at["for"]}
    ranks = {call.rank for call in calls} | (awaited & (known | culprits))
    ranks = set(sorted(ranks, key=lambda rank: (rank not in culprits, rank))[:MOST_LANES])
    if not calls or not ranks:
        return None
    axis = Axis.of([call.age_s for call in calls], _step_s(calls), LEFT + 14, RIGHT - LABELLED)
    heights = {rank: TOP + LANE * (n + 0.5) for n, rank in enumerate(sorted(ranks))}
    holes = _holes(calls, points, axis, ranks)
    usual = _usual(calls)
    waiting = {(rank, at["seq"]) for at in points for rank in at["ranks"]}
    lanes = tuple(
        _lane(
            rank,
            y,
            [call for call in calls if call.rank == rank],
            usual,
            axis,
            waiting,
            holes.get(rank),
            culprit=rank in culprits,
        )
        for rank, y in heights.items()
    )
    return Panel(
        _title(report["groups"][number]),
        lanes,
        tuple(_collectives(calls, heights, axis, holes, {at["seq"] for at in points})),
        tuple(cut for cut in axis.cuts if cut.x > LEFT + FIRST_WIDTH),
        duration(axis.ages[0]),
        TOP + LANE * len(ranks) + BOTTOM,
        _missing(lanes),
    )


def _window(calls: Sequence[_Call], points: Sequence[WaitPoint]) -> list[_Call]:
    """The last calls up to where the group is stuck, and what was issued beyond it."""
    collectives = [call for call in calls if not call.p2p]
    waiting = {at["seq"] for at in points}
    last = max(waiting or {call.seq for call in collectives}, default=0)
    kept = [call for call in collectives if last - LAST < call.seq <= last + 2]
    by_rank: defaultdict[int, list[_Call]] = defaultdict(list)
    for call in calls:
        if call.p2p:
            by_rank[call.rank].append(call)
    return kept + [call for mine in by_rank.values() for call in mine[-LAST:]]


def _step_s(calls: Sequence[_Call]) -> float:
    """The median time from one call of a rank to its next, in seconds."""
    by_rank: defaultdict[int, list[float]] = defaultdict(list)
    for call in calls:
        by_rank[call.rank].append(call.age_s)
    gaps = [b - a for ages in by_rank.values() for a, b in pairwise(sorted(ages))]
    return median_high(gaps or [0.0])


def _usual(calls: Iterable[_Call]) -> dict[int, tuple[str, str]]:
    """The call that most ranks issued, by sequence number."""
    counts: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for call in calls:
        if not call.p2p:
            counts[call.seq][call.what] += 1
    return {seq: count.most_common(1)[0][0] for seq, count in counts.items()}


def _kind(call: _Call, usual: Mapping[int, tuple[str, str]]) -> str:
    """The kind of its mark."""
    if call.state == "failed":
        return "failed"
    return "odd" if not call.p2p and usual.get(call.seq) != call.what else "done"


def _title(group: schema.Group) -> str:
    label = shortened(group["label"] or "a group", LABEL)
    members = "" if label.startswith("ranks ") else f", {group['size']:,} ranks"
    if members and group["size"] < 16 and len(group["ranks"]) < 40:  # noqa: PLR2004 (fits)
        members = f", ranks {group['ranks']}"
    return f"{label}{members}"


def _missing(lanes: Sequence[Lane]) -> str:
    """``rank 5: no all_reduce #11``, of the ranks that wait in no call here."""
    by_label: defaultdict[str, list[int]] = defaultdict(list)
    for lane in lanes:
        if lane.hole is not None and lane.waits_from is None:
            by_label[lane.label].append(int(lane.rank.spec))
    parts = [f"{RankSet.of(ranks).text}: {label}" for label, ranks in by_label.items()]
    return "; ".join(parts[:MOST_PANELS])


def _holes(
    calls: Sequence[_Call], points: Sequence[WaitPoint], axis: Axis, ranks: set[int]
) -> dict[int, tuple[float, str]]:
    """Rank to the position of its missing call, and that call in words."""
    holes: dict[int, tuple[float, str]] = {}
    waiting = {rank for at in points for rank in at["ranks"]}  # these have a bar
    for at in points:
        there = [call for call in calls if call.seq == at["seq"]]
        here = set(at["ranks"])
        waits = [call for call in there if call.rank in here]
        x = axis.x(median_high([call.age_s for call in waits] or [at["age_s"]]))
        missing, came = f"no {call_label(at['op'], at['seq'])}", set[int]()
        if any(call.p2p for call in waits):
            counterpart = "recv from" if "send" in at["op"] else "send to"
            missing = f"no {counterpart} {RankSet.of(at['ranks']).brief}"
        else:
            came = {call.rank for call in there if not call.p2p}
        holes |= dict.fromkeys(ranks.intersection(at["for"]) - came - waiting, (x, missing))
    return holes


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
    if hole and not mine:
        label = f"{label}; its calls are not known"
    if waits:
        last = waits[-1]
        detail = last.detail if _kind(last, usual) == "odd" else last.peer
        label = f"{call_label(last.op, last.seq)} {detail}".strip()
        label = f"{shortened(label, 44)}, {duration(last.age_s)}"
    return Lane(
        y,
        RankSet.of([rank]),
        culprit,
        tuple(Mark(axis.x(call.age_s), _kind(call, usual), _in_words(call)) for call in mine),
        axis.x(mine[-1].age_s) if mine else LEFT,
        axis.x(waits[-1].age_s) if waits else None,
        label,
        hole[0] if hole else None,
    )


def _in_words(call: _Call) -> str:
    what = " ".join(filter(None, (call_label(call.op, call.seq), call.peer, call.detail)))
    at = f", at {call.site}" if call.site else ""
    return f"rank {call.rank}: {what}, issued {duration(call.age_s)} ago, {call.state}{at}"


def _collectives(
    calls: Sequence[_Call],
    heights: Mapping[int, float],
    axis: Axis,
    holes: Mapping[int, tuple[float, str]],
    stuck: set[int],
) -> Iterator[Collective]:
    by_seq: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for call in calls:
        if not call.p2p and call.rank in heights:
            by_seq[call.seq][call.rank] = axis.x(call.age_s)
    taken: list[float] = []
    for seq, points in sorted(by_seq.items(), key=lambda item: item[0] not in stuck):
        if seq in stuck:
            points |= {rank: x for rank, (x, label) in holes.items() if label.endswith(f"#{seq}")}
        path = " ".join(f"{points[rank]:.1f},{heights[rank]:.1f}" for rank in sorted(points))
        x = points[min(points)]
        apart = all(abs(x - other) > NAME_WIDTH for other in taken)
        taken += [x] if apart else []
        yield Collective(path, f"#{seq}" if apart else "", x, seq in stuck)
