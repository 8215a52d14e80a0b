"""Ranks and groups as a map of how far each has come."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.report import schema
from hangwatch.report.html.ranksets import RankSet, shortened
from hangwatch.report.schema import Report

EACH_RANK = 64
"""Ranks of a job of which each has a row of its own."""
MOST_ROWS = 40
MOST_COLUMNS = 12
FAR, FARTHER = 2, 10
"""Collectives behind from which a cell is darker."""


@dataclass(frozen=True, slots=True)
class Cell:
    """How far a rank is in a group.

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
class _Standing:
    """A rank in a group. behind: the group's furthest member, None where that is unknown."""

    enqueued: int
    behind: int | None
    p2p: int
    alive: bool


_Standings = dict[int, dict[str, _Standing]]


def progress(report: Report) -> Progress | None:
    """The map; None where no rank has issued anything."""
    columns, standings = _standings(report)
    if not any(at.enqueued or at.p2p for found in standings.values() for at in found.values()):
        return None
    culprits = set(report["verdict"]["culprits"])
    rows: defaultdict[Hashable, list[int]] = defaultdict(list)
    for rank, found in standings.items():
        rows[_profile(rank, found, columns, len(standings), rank in culprits)].append(rank)

    def urgency(members: Sequence[int]) -> tuple[bool, int, int]:
        behind = sum(at.behind or 0 for at in standings[members[0]].values())
        return members[0] not in culprits, -behind, members[0]

    whole = len(standings) <= EACH_RANK
    ordered = sorted(rows.values()) if whole else sorted(rows.values(), key=urgency)
    shown = ordered if whole else ordered[:MOST_ROWS]
    return Progress(
        tuple(shortened(column, 48) for column in columns),
        tuple(_row(members, columns, standings, culprits) for members in shown),
        _note(ordered, len(standings), whole=whole),
    )


def _profile(
    rank: int,
    found: Mapping[str, _Standing],
    columns: Sequence[str],
    total: int,
    culprit: bool,  # noqa: FBT001
) -> Hashable:
    """What ranks of one row have alike: the rank itself in a small job."""
    if total <= EACH_RANK:
        return rank
    at = (found.get(column) for column in columns)
    return culprit, tuple((s.behind, s.alive, s.enqueued == 0) if s else None for s in at)


def _standings(report: Report) -> tuple[list[str], _Standings]:
    """Columns, and what each rank has in them.

    A column is a group, or where there are many all groups of the same kind: of one
    description and size, and made at the same point of the program.
    """
    groups: Sequence[schema.Group] = report.get("groups") or ()
    by_group = 0 < len(groups) <= MOST_COLUMNS
    labels = Counter(group["label"] for group in groups)
    columns: Counter[str] = Counter()
    standings: _Standings = {}
    world = report["run"]["world_size"]
    furthest: Counter[str] = Counter()
    for rank in report["ranks"]:
        seen: Counter[tuple[str, int]] = Counter()
        mine = standings.setdefault(rank["rank"], {})
        for entry in rank["groups"]:
            number = entry.get("id")
            kind = (entry["desc"], entry["size"])
            seen[kind] += 1
            if by_group and number is not None:
                group = groups[number]
                column = group["label"]
                if labels[column] > 1:
                    column = f"{column} ({group['ranks']})"
            else:
                column = _kind_name(*kind, seen[kind])
            ahead = groups[number]["furthest"] if groups and number is not None else None
            known = ahead is not None or entry["size"] == world
            columns[column] += 1
            furthest[column] = max(furthest[column], entry["enqueued"])
            behind = ahead - entry["enqueued"] if ahead is not None else None
            mine[column] = _Standing(
                entry["enqueued"], behind if known else None, entry["p2p"], entry["alive"]
            )
    if not groups:
        _compare(standings, furthest, report)
    order = sorted(columns, key=lambda name: -columns[name])[:MOST_COLUMNS]
    return [name for name in columns if name in order], standings


def _compare(standings: _Standings, furthest: Mapping[str, int], report: Report) -> None:
    """In a report of before only the group of all ranks tells who is behind."""
    size = report["run"]["world_size"]
    for found in standings.values():
        for column, at in found.items():
            if column.endswith(f", {size} ranks"):
                behind = furthest[column] - at.enqueued
                found[column] = _Standing(at.enqueued, behind, at.p2p, at.alive)


def _kind_name(desc: str, size: int, count: int) -> str:
    name = desc if desc and desc != "undefined" else "group"
    nth = f" ({count})" if count > 1 else ""
    return f"{name}{nth}, {size} ranks"


def _row(
    members: Sequence[int], columns: Sequence[str], standings: _Standings, culprits: set[int]
) -> Row:
    cells = tuple(
        _cell([standings[rank][column] for rank in members if column in standings[rank]])
        for column in columns
    )
    return Row(RankSet.of(members), members[0] in culprits, cells)


def _cell(found: Sequence[_Standing]) -> Cell:
    if not found:
        return Cell("", "", -1)
    low, high = min(at.enqueued for at in found), max(at.enqueued for at in found)
    text = f"{low:,}" if low == high else f"{low:,}-{high:,}"
    if high == 0 and (most := max(at.p2p for at in found)):
        least = min(at.p2p for at in found)
        text = f"{most:,} p2p" if least == most else f"{least:,}-{most:,} p2p"
    if not found[0].alive:
        text = f"{text}, destroyed"
    behind = max(at.behind or 0 for at in found)
    level = (behind > 0) + (behind >= FAR) + (behind >= FARTHER)
    return Cell(text, f"-{behind:,}" if behind else "", level)


def _note(rows: Sequence[Sequence[int]], ranks: int, *, whole: bool) -> str:
    if whole:
        return ""
    text = f"{ranks:,} ranks have {len(rows):,} different standings."
    if len(rows) > MOST_ROWS:
        left = sum(map(len, rows[MOST_ROWS:]))
        text = f"{text} The {MOST_ROWS} furthest behind are shown, {left:,} ranks are not."
    return text
