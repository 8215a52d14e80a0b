"""Stacks of all ranks merged into one tree, alike ones folded with their ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hangwatch.report import schema
from hangwatch.report.html.ranksets import RankSet, place, shortened
from hangwatch.report.schema import Report

MOST_STACKS = 40
MOST_OTHERS = 24
"""Stacks of other threads and of workers."""
MOST_FRAMES = 200
OPEN_STACKS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One frame."""

    function: str
    where: str
    file: str
    source: str
    user: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Frames in a row that are all the user's, or all of libraries."""

    user: bool
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Frames that the same ranks have in common, and where these part, outermost first."""

    ranks: RankSet
    culprit: bool
    """Whether they are all culprits."""
    leads: bool
    """Whether one is."""
    runs: tuple[Run, ...]
    children: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """A stack of a thread that is not the main one, or of a worker, innermost frame first."""

    name: str
    ranks: RankSet
    culprit: bool
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """The tree of the main threads, and the other stacks."""

    roots: tuple[Branch, ...]
    others: tuple[Other, ...]
    note: str
    few: bool
    """Whether all of the tree can stand open."""


@dataclass(slots=True)
class _Node:
    """A frame in the tree while it is built."""

    line: Line | None = None
    ranks: set[int] = field(default_factory=set)
    children: dict[tuple[str, str], _Node] = field(default_factory=dict)


def stacks(report: Report) -> Stacks | None:
    """The tree; None where no stack was taken."""
    culprits = set(report["verdict"]["culprits"])
    known = report["stacks"]
    main: defaultdict[str, set[int]] = defaultdict(set)
    others: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for rank in report["ranks"]:
        if rank["stack"] in known:
            main[rank["stack"]].add(rank["rank"])
        for name, stack in _others(rank):
            if stack in known:
                others[name, stack].add(rank["rank"])
    if not main and not others:
        return None
    order = sorted(main, key=lambda name: (not main[name] & culprits, -len(main[name])))
    root = _Node()
    for name in order[:MOST_STACKS]:
        _grow(root, known[name]["frames"], main[name])
    left = {rank for name in order[MOST_STACKS:] for rank in main[name]}
    note = f"{len(main):,} different stacks of {sum(map(len, main.values())):,} ranks."
    if left:
        note = f"{note} The {MOST_STACKS} most frequent are shown, {len(left):,} ranks are not."
    return Stacks(
        tuple(_branches(root, culprits)),
        tuple(_shown_others(others, known, culprits)),
        note if len(main) > 1 else "",
        few=len(main) <= OPEN_STACKS,
    )


def _others(rank: schema.Rank) -> Iterator[tuple[str, str]]:
    """Name and stack of what runs beside a rank's main thread."""
    for thread in rank["threads"]:
        if thread["stack"] and thread["stack"] != rank["stack"]:
            yield f"thread {thread['name'] or thread['tid']}", thread["stack"]
    for child in rank["children"]:
        for thread in child["threads"]:
            if thread["stack"]:
                of = f"worker {child['pid']} {child['command']}"
                main = thread["name"] == "MainThread"
                name = thread["name"] or thread["tid"]
                yield of if main else f"thread {name} of {of}", thread["stack"]


def _shown_others(
    others: Mapping[tuple[str, str], set[int]],
    known: Mapping[str, schema.Stack],
    culprits: set[int],
) -> Iterator[Other]:
    """Alike ones once: workers before threads, those of culprits first."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for (name, stack), who in others.items():
        names[stack].append(name)
        ranks[stack] |= who
    order = sorted(
        names,
        key=lambda stack: (
            not names[stack][0].startswith("worker"),
            not ranks[stack] <= culprits,
            -len(names[stack]),
        ),
    )
    for stack in order[:MOST_OTHERS]:
        first, *more = names[stack]
        name = f"{shortened(first, 120)}{f' and {len(more):,} more' if more else ''}"
        lines = [_line(frame) for frame in known[stack]["frames"][:MOST_FRAMES]]
        mine = ranks[stack]
        yield Other(name, RankSet.of(mine), mine <= culprits, tuple(_runs(lines)))


def _grow(root: _Node, frames: Sequence[schema.StackFrame], ranks: set[int]) -> None:
    """Add a stack, given innermost first."""
    node = root
    for frame in reversed(frames[:MOST_FRAMES]):
        line = _line(frame)
        node = node.children.setdefault((line.file, line.function), _Node(line))
        node.ranks |= ranks


def _line(frame: schema.StackFrame) -> Line:
    return Line(
        shortened(frame["function"], 120),
        place(frame),
        f"{frame['file']}:{frame['line']}",
        shortened(frame["source"] or ""),
        bool(frame["user"]),
    )


def _branches(node: _Node, culprits: set[int]) -> Iterator[Branch]:
    """What follows a frame; frames that lead to one other for the same ranks are one branch."""
    ordered = sorted(
        node.children.values(), key=lambda child: (not child.ranks & culprits, -len(child.ranks))
    )
    for child in ordered:
        lines, end = [], child
        while True:
            if end.line:
                lines.append(end.line)
            (*_, only) = end.children.values() or (None,)
            if len(end.children) != 1 or only is None or only.ranks != end.ranks:
                break
            end = only
        yield Branch(
            RankSet.of(child.ranks),
            child.ranks <= culprits,
            bool(child.ranks & culprits),
            tuple(_runs(lines)),
            tuple(_branches(end, culprits)),
        )


def _runs(lines: Iterable[Line]) -> Iterator[Run]:
    for user, run in groupby(lines, key=lambda line: line.user):
        yield Run(user, tuple(run))
