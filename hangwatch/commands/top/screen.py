"""Draws a picture of a run: a table for a terminal, a line for a log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hangwatch.commands.top.rows import Trouble, arrange, known_rates, merged, rate_text
from hangwatch.console import fold_command, printable
from hangwatch.text import code_line, counted, duration, fold_ranks, ranks_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from hangwatch.commands.top.picture import Picture
    from hangwatch.commands.top.rows import Row

WIDE = 110
"""Columns from which on there is room for pids, phases and lines of source."""
MAX_SUMMARY = 3
"""Lines that a verdict may take."""
MAX_NOTES = 4
MAX_SHOWN = 3
"""Rows that a line for a log names."""
_STYLES = {
    Trouble.CULPRIT: "bold red",
    Trouble.ODD: "red",
    Trouble.LATE: "yellow",
    Trouble.WAITS: "yellow",
    Trouble.NONE: "",
}


def draw(picture: Picture, width: int, height: int | None) -> RenderableType:
    """Return the picture for so many columns and lines; height None: as long as it takes."""
    above = [_title(picture, width), *_summary(picture, width)]
    below: list[RenderableType] = [_dim(note, width) for note in picture.notes[:MAX_NOTES]]
    if picture.report is not None:
        below.insert(0, _dim(f"hangwatch report {picture.report}", width))
    room = None
    if height is not None:
        below = below[: max(0, height - len(above) - 6)]
        room = height - len(above) - len(below) - 3  # a blank line, the heading, the cursor's line
    several = len({row.node for row in picture.rows}) > 1
    shown, left_out = arrange(picture.rows, room)
    parts: list[RenderableType] = [*above, Text()]
    if picture.rows:
        parts.append(_table(shown, width, nodes=several))
    if left_out:
        parts.append(_dim(f" {_left_out_text(left_out)}", width))
    return Group(*parts, *below)


def line(picture: Picture) -> str:
    """Return the picture on one line, for a log."""
    at = time.strftime("%H:%M:%S", time.localtime(picture.at))
    rows, _ = arrange(picture.rows)
    troubled = merged(row for row in rows if row.trouble is not Trouble.NONE)
    parts = [_row_text(row) for row in troubled[:MAX_SHOWN]]
    if more := sum(len(row.ranks) for row in troubled[MAX_SHOWN:]):
        parts.append(f"{counted(more, 'rank')} elsewhere")
    return printable("; ".join([f"{at} {picture.state}: {picture.summary}", *parts]))


def _left_out_text(rows: Sequence[Row]) -> str:
    text = f"... {counted(sum(len(row.ranks) for row in rows), 'more rank')}"
    waiting = sum(len(row.ranks) for row in rows if row.waits_s is not None)
    odd = sum(len(row.ranks) for row in rows if row.trouble < Trouble.WAITS)
    if waiting:
        text += f", {waiting} of them waiting"
    if odd:
        text += f", {odd} late or odd"
    if speeds := known_rates(rows):
        text += f", {rate_text(min(speeds), max(speeds))} calls/s each"
    return text


def _title(picture: Picture, width: int) -> Text:
    facts = picture.run.facts
    left = Text(printable(picture.run.name), "bold")
    right = ""
    if facts:
        left.append(f"  {fold_command(facts.command)}", "not bold")
        right = f"for {duration(picture.age_s)}"
        right = f"{printable(facts.node)}  {right}" if facts.node else right
    left.truncate(max(0, width - len(right) - 2), overflow="ellipsis", pad=True)
    return Text.assemble(left, "  ", (right, "dim"))


def _summary(picture: Picture, width: int) -> Iterator[Text]:
    warns = picture.slowed or picture.state == "waiting"
    style = "bold red" if picture.alarming else "yellow" if warns else "green"
    text = Text.assemble((picture.state, style), ": ", printable(picture.summary))
    lines = list(text.wrap(Console(width=width), width))
    if len(lines) > MAX_SUMMARY:
        lines[MAX_SUMMARY - 1].truncate(width - 1)
        lines[MAX_SUMMARY - 1].append("…")
    yield from lines[:MAX_SUMMARY]


def _dim(text: str, width: int) -> Text:
    shown = Text(printable(text), "dim", no_wrap=True)
    shown.truncate(width, overflow="ellipsis")
    return shown


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table."""

    heading: str
    cell: Callable[[Row], str]
    right: bool = False
    most: int = 0
    """Its width at most."""
    share: int = 0
    """Of the room that the other columns leave; 0 for a column that has a fixed width."""
    keep_end: bool = False
    """True to cut the beginning of a text that does not fit: the line's number matters most."""


def _columns(width: int, *, nodes: bool) -> Iterator[_Column]:
    wide = width >= WIDE
    yield _Column("rank", lambda row: fold_ranks(row.ranks), most=width // 6)
    if nodes:
        yield _Column("node", lambda row: row.node or "here", most=width // 8)
    if wide:
        yield _Column("pid", lambda row: str(row.pid or ""), right=True)
    yield _Column("calls/s", lambda row: rate_text(row.rate, row.fastest), right=True)
    cramped = nodes and not wide  # the calls and their lines need the room more
    if not cramped:
        yield _Column("last", partial(_last_calls, most=width // 5), most=width // 5)
    yield _Column("behind", lambda row: str(row.behind or ""), right=True)
    if not cramped:
        yield _Column("beat", lambda row: _age(row.beat_s), right=True)
    yield _Column("waits", lambda row: _age(row.waits_s), right=True)
    yield _Column("in", partial(_in, group=wide), share=3)
    yield _Column("at", partial(_at, source=wide), share=2 if wide else 3, keep_end=not wide)


def _table(rows: Sequence[Row], width: int, *, nodes: bool) -> Table:
    """Return the rows under their headings, exactly as wide as the screen."""
    columns = list(_columns(width, nodes=nodes))
    gap = 2 if width >= WIDE else 1
    cells = [[printable(column.cell(row)) for column in columns] for row in rows]
    widths = _widths(columns, cells, width - gap * len(columns))
    drawn = Table(box=None, padding=(0, gap, 0, 0), header_style="bold dim")
    for column, taken in zip(columns, widths, strict=True):
        drawn.add_column(
            Text(column.heading),
            justify="right" if column.right else "left",
            width=taken,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row, texts in zip(rows, cells, strict=True):
        style = _STYLES[row.trouble]
        shown = [
            _end_of(text, taken) if column.keep_end else text
            for column, taken, text in zip(columns, widths, texts, strict=True)
        ]
        drawn.add_row(*(Text(text, style) for text in shown))
    return drawn


def _widths(columns: Sequence[_Column], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return what each column needs; the two with a share divide what is left."""
    needs = []
    for at, column in enumerate(columns):
        need = max([cell_len(column.heading), *(cell_len(row[at]) for row in cells)])
        needs.append(min(need, column.most) if column.most else need)
    flexible = [at for at, column in enumerate(columns) if column.share]
    left = max(0, width - sum(need for at, need in enumerate(needs) if at not in flexible))
    first, second = flexible
    a, b = columns[first].share, columns[second].share
    of_first = min(needs[first], max(left * a // (a + b), left - needs[second]))
    needs[first], needs[second] = max(of_first, 2), max(left - of_first, 2)
    return needs


def _end_of(text: str, width: int) -> str:
    """Return the last part of a text that is too wide."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"…{text}"


def _last_calls(row: Row, *, most: int) -> str:
    """Return as many groups as there is room for, and the number of the others."""
    text = ", ".join(row.last[:1])
    for number, reached in enumerate(row.last[1:], 1):
        left = len(row.last) - number
        if cell_len(f"{text}, {reached} +{left}") > most:
            return f"{text} +{left}"
        text = f"{text}, {reached}"
    return text


def _age(age_s: float | None) -> str:
    return "" if age_s is None else duration(age_s)


def _in(row: Row, *, group: bool) -> str:
    if not group:
        return row.does.replace(" rank ", " ")
    return f"{row.does} of {row.group}" if row.group else row.does


def _at(row: Row, *, source: bool) -> str:
    where = code_line(row.site)
    return f"{where}  {row.site.source}" if source and row.site and row.site.source else where


def _row_text(row: Row) -> str:
    """Return a row as a line for a log has it."""
    ranks = ranks_text(row.ranks)
    if row.waits_s is not None:
        what = f"{ranks} in {_in(row, group=True)}, {duration(row.waits_s)}"
    else:
        what = f"{ranks} {row.does}" if row.does else ranks
    if row.behind:
        what += f", {row.behind} behind" + (f" in {row.behind_in}" if row.behind_in else "")
    return f"{what}, at {_at(row, source=False)}" if row.site else what
