"""Who waited for whom: a lane for each rank on a time axis, dark where it did not wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangwatch.report.straggler_schema import RankWaits, StragglerReport
from hangwatch.report.wording import RankSet
from hangwatch.text import duration, percent

LEFT, RIGHT, TOP, BOTTOM = 104.0, 990.0, 22.0, 30.0
"""Ends of the lanes, and the room above and below them, in the units of the picture."""
LANE, BAR = 26.0, 16.0
MOST_LANES = 24
PERIODS = 20
"""Periods of the loop that are drawn, where one is known and these take ..."""
LEAST_S, USUAL_S = 10.0, 30.0
"""... no less than this; of a loop that is not known so many seconds."""
MARKS = 5
"""On the axis, at most."""
STEPS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Between two of them; a report has the moments of a minute."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank. ``works``: the path of the times in which it did not wait."""

    rank: RankSet
    culprit: bool
    y: float
    works: str
    share: str
    """The share of all moments at which it waited."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The picture."""

    lanes: tuple[Lane, ...]
    held: str
    """The path of the times in which all others waited for the stragglers."""
    marks: tuple[tuple[float, str], ...]
    """Positions on the axis, and how long ago that was."""
    period: float
    """The width of a period of the loop; 0 where it is not known."""
    period_text: str
    height: float
    note: str
    left: float = LEFT
    right: float = RIGHT
    bar: float = BAR


def strip(report: StragglerReport) -> Strip | None:
    """Draw the last periods of the loop; None where no moments are known."""
    waits, period_s = report["waits"], report["period_s"] or 0.0
    at_s, culprits = waits["at_s"], set(report["straggler"]["ranks"])
    lanes = _chosen(waits["ranks"], culprits, report["compared"]["like"])
    shown_s = max(PERIODS * period_s, LEAST_S) if period_s else USUAL_S
    first = next((n for n, at in enumerate(at_s) if at >= at_s[-1] - shown_s), 0)
    shown = at_s[first:]
    if len(shown) < 2 or not lanes:  # noqa: PLR2004 (the ends of an axis)
        return None
    # What is seen at a moment is drawn from halfway to the one before to halfway to the next.
    edges = [shown[0], *((a + b) / 2 for a, b in pairwise(shown)), shown[-1]]
    scale = (RIGHT - LEFT) / (edges[-1] - edges[0])
    places = [LEFT + (edge - edges[0]) * scale for edge in edges]
    height = TOP + LANE * len(lanes) + BOTTOM
    more, run = len(waits["ranks"]) - len(lanes), report["run"]
    notes = [f"Of {run['node']} alone."] if len(waits["ranks"]) < run["world_size"] else []
    notes += [f"{more:,} more ranks are in straggler.json."] if more else []
    return Strip(
        tuple(
            Lane(
                RankSet.of([lane["rank"]]),
                lane["rank"] in culprits,
                y := TOP + LANE * number,
                _path(lane["works"][first:], places, y, BAR),
                percent(lane["works"].count("0") / len(lane["works"])),
            )
            for number, lane in enumerate(lanes)
        ),
        _path(waits["held"][first:], places, TOP - 5, LANE * len(lanes)),
        tuple(_marks(edges[-1] - edges[0], scale)),
        period_s * scale,
        duration(period_s),
        height,
        " ".join(notes),
    )


def _chosen(ranks: Sequence[RankWaits], culprits: set[int], like: int | None) -> list[RankWaits]:
    """The stragglers, the rank that one was compared with, and others, in their order."""

    def weight(lane: RankWaits) -> tuple[bool, bool, int]:
        return lane["rank"] not in culprits, lane["rank"] != like, lane["rank"]

    return sorted(sorted(ranks, key=weight)[:MOST_LANES], key=lambda lane: lane["rank"])


def _path(digits: str, places: Sequence[float], y: float, height: float) -> str:
    """Rectangles where digits are 1."""
    parts = []
    start = -1
    for at, digit in enumerate(f"{digits}0"):
        if digit == "1" and start < 0:
            start = at
        elif digit != "1" and start >= 0:
            width = places[at] - places[start]
            parts.append(f"M{places[start]:.1f} {y:g}h{width:.1f}v{height:g}h-{width:.1f}z")
            start = -1
    return "".join(parts)


def _marks(length_s: float, scale: float) -> Iterator[tuple[float, str]]:
    step_s = next((step for step in STEPS_S if length_s / step <= MARKS), STEPS_S[-1])
    for number in range(1, MARKS + 1):
        age_s = number * step_s
        if age_s < length_s:
            yield RIGHT - age_s * scale, f"{duration(age_s)} ago"
