"""Draws a picture of a run: as a table for a terminal, as one line where there is none."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from hangwatch.commands.top.view import Trouble, arrange, counted, merged, rates, seconds
from hangwatch.console import fold_command, printable
from hangwatch.text import fold_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from hangwatch.commands.top.source import Picture
    from hangwatch.commands.top.view import Folded, Row, Table

WIDE = 110
"""From so many columns on there is room for pids, phases and lines of source."""
MAX_SAYS = 3
"""Lines that a verdict may take."""
MAX_NOTES = 4
MAX_SHOWN = 3
"""Places that a plain line names."""
_STYLES = {
    Trouble.CULPRIT: "bold red",
    Trouble.ODD: "red",
    Trouble.LATE: "yellow",
    Trouble.WAITS: "yellow",
    Trouble.NONE: "",
}


def draw(picture: Picture, width: int, height: int | None) -> RenderableType:
    """The whole picture on so many columns and lines; height None: as long as it takes."""
    above = [_title(picture, width), *_says(picture, width)]
    below: list[RenderableType] = [_line(note, width, "dim") for note in picture.notes[:MAX_NOTES]]
    if picture.report is not None:
        below.insert(0, _line(f"hangwatch report {picture.report}", width, "dim"))
    room = None
    if height is not None:
        below = below[: max(0, height - len(above) - 6)]
        room = height - len(above) - len(below) - 3  # a blank line, the heading, the cursor's line
    several = len({row.node for row in picture.rows}) > 1
    table = arrange(picture.rows, room)
    parts: list[RenderableType] = [*above, Text()]
    if picture.rows:
        parts.append(_table(table, width, nodes=several))
    if table.folded.rows:
        parts.append(_line(f" {folded_text(table.folded)}", width, "dim"))
    return Group(*parts, *below)


def line(picture: Picture) -> str:
    """The picture on one line, for a log."""
    at = time.strftime("%H:%M:%S", time.localtime(picture.at))
    rows = arrange(picture.rows).rows
    troubled = merged(row for row in rows if row.trouble is not Trouble.NONE)
    found = [_place(row) for row in troubled[:MAX_SHOWN]]
    if more := sum(len(row.ranks) for row in troubled[MAX_SHOWN:]):
        found.append(f"{counted(more, 'rank')} elsewhere")
    return printable("; ".join([f"{at} {picture.state}: {picture.says}", *found]))


def folded_text(folded: Folded) -> str:
    """What the rows that were left out have in common."""
    text = f"... {folded.ranks} more rank{'' if folded.ranks == 1 else 's'}"
    waiting = sum(len(row.ranks) for row in folded.rows if row.waits_s is not None)
    odd = sum(len(row.ranks) for row in folded.rows if row.trouble < Trouble.WAITS)
    if waiting:
        text += f", {waiting} of them waiting"
    if odd:
        text += f", {odd} late or odd"
    speeds = [one for row in folded.rows for one in (row.rate, row.fastest) if one is not None]
    if speeds:
        text += f", {rates(min(speeds), max(speeds))} calls/s each"
    return text


def _title(picture: Picture, width: int) -> Text:
    facts = picture.run.facts
    command = f"  {fold_command(facts.command)}" if facts else ""
    left = Text(f"{printable(picture.run.name)}", "bold")
    left.append(command, "not bold")
    right = f"for {seconds(picture.age_s)}" if facts else ""
    if facts and facts.node:
        right = f"{printable(facts.node)}  {right}"
    left.truncate(max(0, width - len(right) - 2), overflow="ellipsis", pad=True)
    return Text.assemble(left, "  ", (right, "dim"))


def _says(picture: Picture, width: int) -> Iterator[Text]:
    style = "bold red" if picture.alarming else "yellow" if picture.state == "waiting" else "green"
    text = Text.assemble((picture.state, style), ": ", printable(picture.says))
    lines = list(text.wrap(Console(width=width), width))
    for number, one in enumerate(lines[:MAX_SAYS]):
        if number == MAX_SAYS - 1 and len(lines) > MAX_SAYS:
            one.truncate(width - 1)
            one.append("…")
        yield one


def _line(text: str, width: int, style: str) -> Text:
    found = Text(printable(text), style, no_wrap=True)
    found.truncate(width, overflow="ellipsis")
    return found


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table. ``most``: its width at most."""

    heading: str
    cell: Callable[[Row], str]
    right: bool = False
    most: int = 0
    share: int = 0
    """Of what the others leave, where it gives way; else 0."""
    keep_end: bool = False
    """What does not fit is cut at its beginning: the line's number matters most."""


def _columns(width: int, *, nodes: bool) -> Iterator[_Column]:
    wide = width >= WIDE
    yield _Column("rank", lambda row: fold_ranks(row.ranks), most=width // 6)
    if nodes:
        yield _Column("node", lambda row: row.node or "here", most=width // 8)
    if wide:
        yield _Column("pid", lambda row: str(row.pid or ""), right=True)
    yield _Column("calls/s", lambda row: rates(row.rate, row.fastest), right=True)
    cramped = nodes and not wide  # what the calls and their lines need more
    if not cramped:
        yield _Column("last", partial(_last, most=width // 5), most=width // 5)
    yield _Column("behind", lambda row: str(row.behind or ""), right=True)
    if not cramped:
        yield _Column("beat", lambda row: _age(row.beat_s), right=True)
    yield _Column("waits", lambda row: _age(row.waits_s), right=True)
    yield _Column("in", partial(_in, group=wide), share=3)
    yield _Column("at", partial(_at, source=wide), share=2 if wide else 3, keep_end=not wide)


def _table(table: Table, width: int, *, nodes: bool) -> RichTable:
    """The rows under their headings, exactly as wide as the screen."""
    columns = list(_columns(width, nodes=nodes))
    gap = 2 if width >= WIDE else 1
    cells = [[printable(column.cell(row)) for column in columns] for row in table.rows]
    widths = _widths(columns, cells, width - gap * len(columns))
    drawn = RichTable(box=None, padding=0, pad_edge=False, header_style="bold dim")
    for column, taken in zip(columns, widths, strict=True):
        drawn.add_column(
            Text(column.heading),
            justify="right" if column.right else "left",
            width=taken,
            no_wrap=True,
            overflow="ellipsis",
        )
        drawn.add_column("", width=gap)
    for row, texts in zip(table.rows, cells, strict=True):
        style = _STYLES[row.trouble]
        shown = [
            _end_of(text, taken) if column.keep_end else text
            for column, taken, text in zip(columns, widths, texts, strict=True)
        ]
        drawn.add_row(*(part for text in shown for part in (Text(text, style), "")))
    return drawn


def _widths(columns: Sequence[_Column], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """As much as each needs; those with a share have what is left, as far as they need it."""
    needs = [
        max([cell_len(column.heading), *(cell_len(row[at]) for row in cells)])
        for at, column in enumerate(columns)
    ]
    needs = [min(need, c.most) if c.most else need for need, c in zip(needs, columns, strict=True)]
    fixed = [need for need, c in zip(needs, columns, strict=True) if not c.share]
    left = max(0, width - sum(fixed))
    giving = [(need, c.share) for need, c in zip(needs, columns, strict=True) if c.share]
    (first, a), (second, b) = giving
    of_first = min(first, max(left * a // (a + b), left - second))
    widths = iter((max(of_first, 2), max(left - of_first, 2)))
    return [next(widths) if c.share else need for need, c in zip(needs, columns, strict=True)]


def _end_of(text: str, width: int) -> str:
    """The last part of a text that is too wide."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"…{text}"


def _last(row: Row, *, most: int) -> str:
    """As many groups as there is room for, and how many more there are."""
    text = ", ".join(row.last[:1])
    for number, reached in enumerate(row.last[1:], 1):
        left = len(row.last) - number
        if cell_len(f"{text}, {reached} +{left}") > most:
            return f"{text} +{left}"
        text = f"{text}, {reached}"
    return text


def _age(age_s: float | None) -> str:
    return "" if age_s is None else seconds(age_s)


def _in(row: Row, *, group: bool) -> str:
    if not group:
        return row.does.replace(" rank ", " ")
    return f"{row.does} of {row.group}" if row.group else row.does


def _at(row: Row, *, source: bool) -> str:
    if row.site is None:
        return ""
    where = f"{row.site.file.rpartition('/')[2]}:{row.site.line}"
    return f"{where}  {row.site.source}" if source and row.site.source else where


def _place(row: Row) -> str:
    """A row as a plain line tells it."""
    ranks = f"rank{'' if len(row.ranks) == 1 else 's'} {fold_ranks(row.ranks)}"
    if row.waits_s is not None:
        what = f"{ranks} in {_in(row, group=True)}, {seconds(row.waits_s)}"
    else:
        what = f"{ranks} {row.does}" if row.does else ranks
    if row.behind:
        what += f", {row.behind} behind" + (f" in {row.behind_in}" if row.behind_in else "")
    return f"{what}, at {_at(row, source=False)}" if row.site else what
