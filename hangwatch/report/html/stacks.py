"""Stacks of all ranks merged into one tree, alike ones folded with their ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hangwatch.report import schema
from hangwatch.report.schema import Report
from hangwatch.report.wording import RankSet, site_label
from hangwatch.text import shortened

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


Run = tuple[Line, ...]
"""Frames in a row that are all the user's, or all of libraries."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Frames that the same ranks have in common, outermost first, and the branches below."""

    ranks: RankSet
    culprit: bool
    """True if they are all culprits."""
    leads: bool
    """True if one is a culprit."""
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
    """True if the whole tree may be unfolded at first."""


@dataclass(slots=True)
class _Node:
    """A frame in the tree while it is built."""

    line: Line
    ranks: set[int] = field(default_factory=set)
    children: _Nodes = field(default_factory=dict)


_Nodes = dict[tuple[str, str], _Node]
"""Frames that are called from the same one, by place and function."""


def stacks(report: Report) -> Stacks | None:
    """The tree; None where no stack was taken."""
    culprits = set(report["verdict"]["culprits"])
    known = report["stacks"]
    main: defaultdict[str, set[int]] = defaultdict(set)
    names: defaultdict[str, dict[str, None]] = defaultdict(dict)
    others: defaultdict[str, set[int]] = defaultdict(set)
    for rank in report["ranks"]:
        if rank["stack"] in known:
            main[rank["stack"]].add(rank["rank"])
        for name, stack in _others(rank):
            if stack in known:
                names[stack][name] = None
                others[stack].add(rank["rank"])
    if not main and not others:
        return None
    order = sorted(main, key=lambda name: (not main[name] & culprits, -len(main[name])))
    roots: _Nodes = {}
    for name in order[:MOST_STACKS]:
        _grow(roots, known[name]["frames"], main[name])
    left = {rank for name in order[MOST_STACKS:] for rank in main[name]}
    note = f"{len(main):,} different stacks of {sum(map(len, main.values())):,} ranks."
    if left:
        note = f"{note} The {MOST_STACKS} most frequent are shown, {len(left):,} ranks are not."
    # Workers before threads, those of culprits first.
    shown = sorted(
        others,
        key=lambda stack: (
            not next(iter(names[stack])).startswith("worker"),
            not others[stack] <= culprits,
            -len(names[stack]),
        ),
    )
    return Stacks(
        tuple(_branches(roots, culprits)),
        tuple(
            _other(list(names[stack]), known[stack]["frames"], others[stack], culprits)
            for stack in shown[:MOST_OTHERS]
        ),
        note if len(main) > 1 else "",
        few=len(main) <= OPEN_STACKS,
    )


def _others(rank: schema.Rank) -> Iterator[tuple[str, str]]:
    """Name and stack of a rank's other threads and of its workers."""
    for thread in rank["threads"]:
        if thread["stack"] and thread["stack"] != rank["stack"]:
            yield f"thread {thread['name'] or thread['tid']}", thread["stack"]
    for child in rank["children"]:
        for thread in child["threads"]:
            if thread["stack"]:
                worker = f"worker {child['pid']} {child['command']}"
                main = thread["name"] == "MainThread"
                name = thread["name"] or thread["tid"]
                yield worker if main else f"thread {name} of {worker}", thread["stack"]


def _other(
    names: Sequence[str],
    frames: Sequence[schema.StackFrame],
    ranks: set[int],
    culprits: set[int],
) -> Other:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    runs = tuple(_runs(map(_line, frames[:MOST_FRAMES])))
    return Other(f"{shortened(names[0], 120)}{more}", RankSet.of(ranks), ranks <= culprits, runs)


def _grow(nodes: _Nodes, frames: Sequence[schema.StackFrame], ranks: set[int]) -> None:
    """Add a stack, given innermost first."""
    for frame in reversed(frames[:MOST_FRAMES]):
        line = _line(frame)
        node = nodes.setdefault((line.file, line.function), _Node(line))
        node.ranks |= ranks
        nodes = node.children


def _line(frame: schema.StackFrame) -> Line:
    return Line(
        shortened(frame["function"], 120),
        site_label(frame),
        f"{frame['file']}:{frame['line']}",
        shortened(frame["source"] or ""),
        bool(frame["user"]),
    )


def _branches(nodes: _Nodes, culprits: set[int]) -> Iterator[Branch]:
    """A branch for each frame, joined with the frames below that the same ranks have."""
    for node in sorted(nodes.values(), key=lambda n: (not n.ranks & culprits, -len(n.ranks))):
        ranks, lines, below = node.ranks, [node.line], node.children
        while [only.ranks for only in below.values()] == [ranks]:
            (only,) = below.values()
            lines.append(only.line)
            below = only.children
        yield Branch(
            RankSet.of(ranks),
            ranks <= culprits,
            bool(ranks & culprits),
            tuple(_runs(lines)),
            tuple(_branches(below, culprits)),
        )


def _runs(lines: Iterable[Line]) -> Iterator[Run]:
    for _, run in groupby(lines, key=lambda line: line.user):
        yield tuple(run)
