"""A map of how far each rank has come in each group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.report.schema import Report
from hangwatch.report.wording import RankSet
from hangwatch.text import shortened

EACH_RANK = 64
"""Ranks of a job of which each has a row of its own."""
MOST_ROWS = 40
MOST_COLUMNS = 12
FAR, FARTHER = 2, 10
"""Collectives behind from which a cell is darker."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The progress of a rank in a group.

    level: 0 with the furthest to 3 far behind, -1 where it is no member.
    """

    text: str
    behind: str
    level: int


@dataclass(frozen=True, slots=True)
class Row:
    """Ranks that have come equally far."""

    ranks: RankSet
    culprit: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The map. ``note`` says what is folded or left out."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str


@dataclass(frozen=True, slots=True)
class _Position:
    """A rank in a group. behind: the group's furthest member, None where that is unknown."""

    enqueued: int
    behind: int | None
    p2p: int
    alive: bool


_Positions = Mapping[int, Mapping[str, _Position]]
"""By rank, then by column."""


def progress(report: Report) -> Progress | None:
    """The map; None where no rank has issued anything."""
    columns, positions = _columns_and_positions(report)
    if not any(at.enqueued or at.p2p for mine in positions.values() for at in mine.values()):
        return None
    culprits = set(report["verdict"]["culprits"])
    whole = len(positions) <= EACH_RANK
    alike: defaultdict[Hashable, list[int]] = defaultdict(list)
    for rank, mine in positions.items():
        at = (mine.get(column) for column in columns)
        key = tuple((p.behind, p.alive, p.enqueued == 0) if p else None for p in at)
        alike[rank if whole else (rank in culprits, key)].append(rank)

    def urgency(members: Sequence[int]) -> tuple[bool, int, int]:
        behind = sum(at.behind or 0 for at in positions[members[0]].values())
        return members[0] not in culprits, -behind, members[0]

    rows = sorted(alike.values(), key=None if whole else urgency)
    shown = rows if whole else rows[:MOST_ROWS]
    return Progress(
        tuple(shortened(column, 48) for column in columns),
        tuple(_row(members, columns, positions, culprits) for members in shown),
        "" if whole else _note(rows, len(positions)),
    )


def _columns_and_positions(report: Report) -> tuple[list[str], _Positions]:
    """Columns, and the position of each rank in them.

    A column is a group, or where there are many all groups of the same kind: of one
    description and size, and made at the same point of the program.
    """
    groups = report["groups"]
    labels = Counter(group["label"] for group in groups)
    columns: Counter[str] = Counter()
    positions: defaultdict[int, dict[str, _Position]] = defaultdict(dict)
    for rank in report["ranks"]:
        seen: Counter[tuple[str, int]] = Counter()
        mine = positions[rank["rank"]]
        for entry in rank["groups"]:
            group = groups[entry["id"]]
            kind = (entry["desc"], entry["size"])
            seen[kind] += 1
            if len(groups) > MOST_COLUMNS:
                column = _kind_name(*kind, seen[kind])
            elif labels[group["label"]] > 1:
                column = f"{group['label']} ({group['ranks']})"
            else:
                column = group["label"]
            columns[column] += 1
            furthest = group["furthest"]
            behind = None if furthest is None else furthest - entry["enqueued"]
            mine[column] = _Position(entry["enqueued"], behind, entry["p2p"], entry["alive"])
    most = {column for column, _ in columns.most_common(MOST_COLUMNS)}
    return [column for column in columns if column in most], positions


def _kind_name(desc: str, size: int, count: int) -> str:
    name = desc if desc and desc != "undefined" else "group"
    nth = f" ({count})" if count > 1 else ""
    return f"{name}{nth}, {size} ranks"


def _row(
    members: Sequence[int], columns: Sequence[str], positions: _Positions, culprits: set[int]
) -> Row:
    cells = tuple(
        _cell([positions[rank][column] for rank in members if column in positions[rank]])
        for column in columns
    )
    return Row(RankSet.of(members), members[0] in culprits, cells)


def _cell(positions: Sequence[_Position]) -> Cell:
    if not positions:
        return Cell("", "", -1)
    text = _span([at.enqueued for at in positions])
    if not any(at.enqueued for at in positions) and any(at.p2p for at in positions):
        text = f"{_span([at.p2p for at in positions])} p2p"
    if not positions[0].alive:
        text = f"{text}, destroyed"
    behind = max(at.behind or 0 for at in positions)
    level = (behind > 0) + (behind >= FAR) + (behind >= FARTHER)
    return Cell(text, f"-{behind:,}" if behind else "", level)


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _note(rows: Sequence[Sequence[int]], ranks: int) -> str:
    text = f"{ranks:,} ranks have {len(rows):,} different positions."
    if len(rows) > MOST_ROWS:
        left = sum(map(len, rows[MOST_ROWS:]))
        text = f"{text} The {MOST_ROWS} furthest behind are shown, {left:,} ranks are not."
    return text
