"""What is shown of the ranks: one row for each, those in trouble first, folded to fit. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from hangwatch.model.calls import Site


class Trouble(IntEnum):
    """How much a rank deserves to be looked at, the most first."""

    CULPRIT = 0
    """The report of the incident names it."""
    ODD = 1
    """It is stopped, or has ended in another way than well."""
    LATE = 2
    """It is behind, waits for nothing, and has issued nothing for a moment."""
    WAITS = 3
    NONE = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One rank, or several that are alike. Ages in seconds; None where it is not known."""

    ranks: tuple[int, ...]
    trouble: Trouble = Trouble.NONE
    node: str = ""
    """Empty for the node that is looked at."""
    pid: int = 0
    does: str = ""
    """``stopped``, ``init``, ``all_reduce #46`` that it waits in; empty while it just runs."""
    group: str = ""
    """Of the call that it waits in."""
    waits_s: float | None = None
    """How long it has waited, None where it does not."""
    site: Site | None = None
    last: tuple[str, ...] = ()
    """The last call of each group (``default_pg #46``), of the one that moved last first."""
    rate: float | None = None
    """Calls a second."""
    fastest: float | None = None
    """The highest rate where several ranks are in one row; ``rate`` is the lowest then."""
    behind: int = 0
    """Collectives behind the furthest member of the group on this node."""
    behind_in: str = ""
    """That group."""
    beat_s: float | None = None
    """Age of its last sign of life."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Rows that are not shown."""

    rows: tuple[Row, ...]

    @property
    def ranks(self) -> int:
        """How many ranks they are."""
        return sum(len(row.ranks) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Table:
    """What fits on the screen: rows, and what had to be left out."""

    rows: tuple[Row, ...]
    folded: Folded


def arrange(rows: Iterable[Row], room: int | None = None) -> Table:
    """Order rows and make them fit on so many lines, one for what is left out among them.

    Where there are too many, those that are alike share a row; healthy ranks are left
    out first. With room None all are shown.
    """
    ordered = sorted(rows, key=_order)
    if room is None or len(ordered) <= room:
        return Table(tuple(ordered), Folded(()))
    room = max(room, 1)
    troubled = [row for row in ordered if row.trouble is not Trouble.NONE]
    healthy = ordered[len(troubled) :]
    if len(troubled) + bool(healthy) > room:
        troubled = merged(troubled)
    shown = [*troubled, *healthy][: room - 1]
    left = [*troubled, *healthy][room - 1 :]
    return Table(tuple(shown), Folded(tuple(left)))


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row for all that do the same in the same place, in the order of the first of each."""
    alike: defaultdict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        where = (row.site.file, row.site.line) if row.site else None
        alike[row.trouble, row.does, row.group, where, row.waits_s is None].append(row)
    return [_merge(found) for found in alike.values()]


def _merge(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    first = rows[0]
    last = max(rows, key=lambda row: row.behind)
    rates = [rate for row in rows for rate in (row.rate, row.fastest) if rate is not None]
    return replace(
        first,
        ranks=tuple(sorted(rank for row in rows for rank in row.ranks)),
        node=first.node if len({row.node for row in rows}) == 1 else "several",
        pid=0,
        waits_s=max((row.waits_s for row in rows if row.waits_s is not None), default=None),
        last=first.last if len({row.last for row in rows}) == 1 else (),
        rate=min(rates, default=None),
        fastest=max(rates, default=None),
        behind=last.behind,
        behind_in=last.behind_in,
        beat_s=max((row.beat_s for row in rows if row.beat_s is not None), default=None),
    )


def _order(row: Row) -> tuple[int, int, tuple[int, ...]]:
    return row.trouble, -row.behind if row.trouble is Trouble.LATE else 0, row.ranks


def seconds(age_s: float) -> str:
    """``0.3 s``, ``42 s``, ``5 min``, ``3 h 20 min``: short, and as exact as one needs."""
    if age_s < 10:  # noqa: PLR2004 (tenths matter below it)
        return f"{max(0.0, age_s):.1f} s"
    if age_s < 180:  # noqa: PLR2004 (up to three minutes people think in seconds)
        return f"{age_s:.0f} s"
    minutes = int(age_s // 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:  # noqa: PLR2004
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def counted(number: int, what: str) -> str:
    """``1 rank``, ``3 ranks``, ``no ranks``."""
    return f"{number or 'no'} {what}" + ("" if number == 1 else "s")


def rates(lowest: float | None, highest: float | None = None) -> str:
    """``41``, ``0.3``, ``40-42``, ``1.2k``: calls a second; empty where not known."""
    if lowest is None:
        return ""
    low, high = _rate(lowest), _rate(lowest if highest is None else highest)
    return low if low == high else f"{low}-{high}"


def _rate(rate: float) -> str:
    if rate >= 9999.5:  # noqa: PLR2004 (four digits)
        return f"{rate / 1000:.0f}k"
    if rate >= 9.95 or rate == 0:  # noqa: PLR2004 (two digits)
        return f"{rate:.0f}"
    return f"{rate:.1f}"
