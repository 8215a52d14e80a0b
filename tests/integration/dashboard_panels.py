"""Draws a dashboard's panels as its JSON says, in the look of Grafana, with matplotlib.

Knows what the job's dashboard has above its first heading: stat, table, status history and
time series, with their value mappings, thresholds, units, overrides and transformations.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib import ticker
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prometheus_server import Series

FONT = "Inter"
WIDTH, TOP, CELL, GAP, TITLE, ROW, LEGEND = 1400.0, 46.0, 38.0, 8.0, 34.0, 36.0, 21.0
"""In pixels: the picture, Grafana's grid, and rows of tables and of legends."""
_NAMES = "canvas panel line ink link green orange red dark-red blue purple"
_DARK = "#111217 #181b1f #2b2d33 #d5d5e0 #6e9fff #73bf69 #ff9830 #f2495c #c4162a #5794f2 #b877d9"
_LIGHT = "#f4f5f5 #ffffff #dcddde #24292e #1f62e0 #56a64b #ff780a #e02f44 #ad0317 #3274d9 #a352cc"
HUES = {
    scheme: dict(zip(_NAMES.split(), colors.split(), strict=True))
    for scheme, colors in (("dark", _DARK), ("light", _LIGHT))
}
"""Grafana's colours by their name."""
SERIES = {
    "dark": ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2"),
    "light": ("#56a64b", "#e0b400", "#5794f2", "#fa6400", "#e02f44", "#3274d9"),
}
UNITS = {"s": (1, " s"), "percentunit": (100, "%"), "cps": (1, " c/s")}
"""Factor and text behind the number."""

Settings = dict[str, Any]


class Shown(NamedTuple):
    """A panel of the JSON and the answers to its queries."""

    panel: dict[str, Any]
    answers: list[list[Series]]


class Box(NamedTuple):
    """A place, in pixels from the upper left corner."""

    x: float
    y: float
    w: float
    h: float


def settings(panel: Mapping[str, Any], name: str = "") -> Settings:
    """How a field of this name is to be shown."""
    fields = panel["fieldConfig"]
    found = dict(fields["defaults"])
    found |= {f"custom.{key}": value for key, value in found.pop("custom", {}).items()}
    for override in fields["overrides"]:
        if override["matcher"]["options"] == name:
            found |= {each["id"]: each["value"] for each in override["properties"]}
    return found


def told(value: str | float, how: Settings) -> tuple[str, str]:
    """The text and the colour of a value."""
    key = value if isinstance(value, str) else f"{value:g}"
    for mapping in how.get("mappings", ()):
        if found := mapping["options"].get(key):
            return found["text"], found["color"]
    if isinstance(value, str):
        return value, "ink"
    steps = how.get("thresholds", {}).get("steps", [{"color": "ink", "value": None}])
    color = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
    factor, unit = UNITS.get(how.get("unit", ""), (1, ""))
    digits = f".{how['decimals']}f" if "decimals" in how else ".3g"
    return f"{value * factor:{digits}}{unit}", color


def merged(shown: Shown) -> tuple[list[str], list[list[str | float]]]:
    """Headings and rows of a table: what its transformations make of the answers."""
    rows: list[dict[str, str | float]] = []
    for target, answer in zip(shown.panel["targets"], shown.answers, strict=True):
        name = f"Value #{target['refId']}"
        for series in answer:
            labels = series["metric"]
            row = next((row for row in rows if name not in row and _alike(row, labels)), None)
            if row is None:
                rows.append(row := {})
            row |= {**labels, name: float(series["value"][1])}
    order = shown.panel["transformations"][-1]["options"]
    keys = sorted(order["renameByName"], key=order["indexByName"].__getitem__)
    headings = [order["renameByName"][key] for key in keys]
    cells = [[row.get(key, "") for key in keys] for row in rows]
    for by in reversed(shown.panel["options"].get("sortBy", [])):
        at = headings.index(by["displayName"])
        cells.sort(key=lambda row: row[at], reverse=by["desc"])
    return headings, cells


def _alike(row: Mapping[str, str | float], labels: Mapping[str, str]) -> bool:
    return all(row[key] == labels[key] for key in row.keys() & labels.keys())


def points(series: Series) -> tuple[list[float], list[float]]:
    """Times and values."""
    return [float(at) for at, _ in series["values"]], [float(v) for _, v in series["values"]]


def legend(series: Series, target: Mapping[str, Any]) -> str:
    """The name of a series."""
    return re.sub(r"{{(\w+)}}", lambda found: series["metric"][found[1]], target["legendFormat"])


class Picture:
    """A dashboard that is drawn.

    chosen: its variables and what is chosen of them. span_s: the time that is shown.
    """

    def __init__(
        self, scheme: str, board: Mapping[str, Any], chosen: Mapping[str, str], span_s: float
    ) -> None:
        self.hues, self.series = HUES[scheme], SERIES[scheme]
        self.board, self.chosen, self.span_s = board, chosen, span_s

    def draw(self, shown: Sequence[Shown], marks: Sequence[Series]) -> None:
        """Draw these panels; marks: the times of verdicts."""
        mpl.rcParams["font.family"] = FONT
        grids = [one.panel["gridPos"] for one in shown]
        self.height = TOP + CELL * max(grid["y"] + grid["h"] for grid in grids)
        # At 72 dots per inch a point is a pixel.
        size = (WIDTH / 72, self.height / 72)
        self.figure = Figure(size, dpi=72, facecolor=self.hues["canvas"])
        self.page = self.figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(self.height, 0))
        self.page.axis("off")
        self.marks = marks
        self._top()
        kinds = {"stat": self._stat, "table": self._table}
        kinds |= {"status-history": self._history, "timeseries": self._lines}
        wide = (WIDTH - GAP) / 24
        for one, grid in zip(shown, grids, strict=True):
            x, y = GAP + grid["x"] * wide, TOP + grid["y"] * CELL
            box = Box(x, y, grid["w"] * wide - GAP, grid["h"] * CELL - GAP)
            self._tile(box, "panel", edge="line")
            self._text(x + 9, y + 17, one.panel["title"], weight="medium", size=14)
            kinds[one.panel["type"]](one, box)

    def _color(self, name: str) -> str:
        return self.hues.get(name, name)

    def _on(self, color: str) -> str:
        """The colour of text on this one: dark on what is brighter than Grafana's limit."""
        red, green, blue = to_rgb(self._color(color))
        return "#202226" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.706 else "#f7f8fa"

    def _text(self, x: float, y: float, text: str, *, color: str = "ink", **how: Any) -> None:
        how = {"size": 12.5, "va": "center_baseline", **how}
        self.page.text(x, y, text, color=self._color(color), **how)

    def _tile(self, box: Box, color: str, *, edge: str = "none", radius: float = 3) -> None:
        style = f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0"
        fill, line = self._color(color), self._color(edge)
        self.page.add_patch(FancyBboxPatch(box[:2], box.w, box.h, style, fc=fill, ec=line, lw=1))

    def _top(self) -> None:
        """The dashboard's name and what is chosen."""
        self._text(GAP + 4, 24, self.board["title"], weight="medium", size=15)
        x = 190.0
        for name, value in self.chosen.items():
            width = 26.0 + 6.5 * len(value)
            self._tile(Box(x, 10, 46, 28), "panel", edge="line")
            self._text(x + 23, 24, name, ha="center", weight="medium", size=12)
            self._tile(Box(x + 46, 10, width, 28), "canvas", edge="line")
            self._text(x + 46 + width / 2, 24, value, ha="center", size=12)
            x += 46 + width + GAP

    def _stat(self, shown: Shown, box: Box) -> None:
        how, targets = settings(shown.panel), shown.panel["targets"]
        several = len(targets) > 1
        width = (box.w - 2 * GAP + 4) / len(targets) - 4
        for at, (target, (series,)) in enumerate(zip(targets, shown.answers, strict=True)):
            text, color = told(float(series["value"][1]), how)
            on, x = self._on(color), box.x + GAP + at * (width + 4)
            self._tile(Box(x, box.y + TITLE, width, box.h - TITLE - GAP), color)
            x, y = x + width / 2, box.y + (box.h + TITLE - GAP) / 2
            if several:
                name = target["legendFormat"]
                self._text(x, y - 28, name, color=on, ha="center", size=14, weight="medium")
            y += 10 * several
            self._text(x, y, text, color=on, ha="center", size=40, weight="semibold")

    def _table(self, shown: Shown, box: Box) -> None:
        headings, rows = merged(shown)
        width = (box.w - 2) / len(headings)
        for at, heading in enumerate(headings):
            how, x, y = settings(shown.panel, heading), box.x + 1 + at * width, box.y + TITLE
            right = any(isinstance(row[at], float) for row in rows)
            place: dict[str, Any] = {"x": x + width - 9, "ha": "right"} if right else {"x": x + 9}
            self._text(y=y + ROW / 2, text=heading, weight="medium", **place)
            for row in rows:
                y += ROW
                text, color = told(row[at], how)
                if "custom.cellOptions" in how:
                    self._tile(Box(x, y, width, ROW), color, radius=0)
                    color = self._on(color)
                color = "link" if "links" in how else color
                self._text(y=y + ROW / 2, text=text, color=color, **place)
        for line in range(1, len(rows) + 2):
            height = box.y + TITLE + line * ROW
            self.page.plot((box.x, box.x + box.w), (height, height), color=self.hues["line"], lw=1)

    def _axes(self, box: Box, left: float, below: float, end: float) -> Any:
        """A chart in a panel, with room for what is left of it and below; end: its last time."""
        x, y = box.x + left, box.y + TITLE + 4
        wide, high = box.w - left - 14, box.h - TITLE - below - 4
        place = (x / WIDTH, 1 - (y + high) / self.height, wide / WIDTH, high / self.height)
        axes = self.figure.add_axes(place, facecolor="none", xlim=(end - self.span_s, end))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, pad=6, labelsize=12, labelcolor=self.hues["ink"])
        first = -int(-(end - self.span_s + 5) // 30) * 30
        ticks = range(first, int(end) - 5, 30)  # none so near to the edge that it is cut
        clock = [time.strftime("%H:%M:%S", time.gmtime(at)) for at in ticks]
        axes.set_xticks(ticks, clock)
        axes.set_axisbelow(True)
        return axes

    def _history(self, shown: Shown, box: Box) -> None:
        how, (found,), (target,) = settings(shown.panel), shown.answers, shown.panel["targets"]
        high, alpha = shown.panel["options"]["rowHeight"], how["custom.fillOpacity"] / 100
        axes = self._axes(box, 92, 58, points(found[0])[0][-1])
        spans: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for row, series in enumerate(found):
            for at, value in zip(*points(series), strict=True):
                spans.setdefault(told(value, how), []).append((row, at))
        x = box.x + 14
        for (text, color), places in spans.items():
            rows, times = zip(*places, strict=True)
            axes.barh(rows, 1, high, times, color=self._color(color), alpha=alpha, lw=0)
            self._tile(Box(x, box.y + box.h - 18, 14, 4), color, radius=2)
            self._text(x + 20, box.y + box.h - 16, text, size=12)
            x += 42 + 7 * len(text)
        axes.set_yticks(range(len(found)), [legend(series, target) for series in found])
        axes.set_ylim(len(found) - 0.5, -0.5)

    def _lines(self, shown: Shown, box: Box) -> None:
        pairs = zip(shown.panel["targets"], shown.answers, strict=True)
        found = [(legend(one, target), *points(one)) for target, some in pairs for one in some]
        below = LEGEND * (len(found) + 1) + 32
        axes = self._axes(box, 56, below, found[0][1][-1])
        y, columns = box.y + box.h - below + 36, (box.x + box.w - 84, box.x + box.w - 14)
        for x, heading in zip(columns, ("Max", "Last *"), strict=True):
            self._text(x, y, heading, ha="right", size=12, weight="medium")
        for (name, times, values), usual in zip(found, self.series, strict=False):
            how = settings(shown.panel, name)
            color = self._color(how.get("color", {}).get("fixedColor", usual))
            dash = how.get("custom.lineStyle", {}).get("dash")
            axes.plot(times, values, color=color, lw=1.4, ls=(0, dash) if dash else "-")
            axes.fill_between(times, values, color=color, alpha=how["custom.fillOpacity"] / 100)
            y += LEGEND
            self._tile(Box(box.x + 10, y - 2, 14, 4), color, radius=2)
            self._text(box.x + 30, y, name, size=12)
            for x, value in zip(columns, (max(values), values[-1]), strict=True):
                self._text(x, y, told(value, how)[0], ha="right", size=12)
        how = settings(shown.panel)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(lambda value, _: told(value, how)[0])
        axes.set_ylim(how["min"], max(1.0, *(1.05 * max(values) for _, _, values in found)))
        axes.grid(color=self.hues["line"], lw=1)
        self._verdicts(axes)

    def _verdicts(self, axes: Any) -> None:
        """The marks of verdicts: each from its first to its last second."""
        color = self._color(self.board["annotations"]["list"][0]["iconColor"])
        for series in self.marks:
            times = points(series)[0]
            starts = (at for at in times if at - 1 not in times)
            ends = (at for at in times if at + 1 not in times)
            for start, end in zip(starts, ends, strict=True):
                axes.axvspan(start, end, color=color, alpha=0.1, lw=0)
                for edge in (start, end):
                    axes.axvline(edge, color=color, lw=1, ls=(0, (4, 3)))
