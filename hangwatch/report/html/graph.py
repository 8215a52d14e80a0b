"""The wait-for graph as a picture: culprits on the left, waiting ranks on the right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.report import schema
from hangwatch.report.schema import Report
from hangwatch.report.wording import RankSet, call_label, chain, site_label, towards_of
from hangwatch.text import duration, shortened, words

WIDTH, HEIGHT = 244, 70
GAP_X, GAP_Y = 48, 16
FITTING = 34
"""Characters of a line that fit into a node."""
ARC = 30
"""Width of the arc of an arrow between two nodes of one column."""
HOPS = 3
"""Columns of ranks that wait; the last also holds those further away."""
MOST_NODES = 14
MOST_CULPRITS = 4
"""Culprits that have a node each; more are folded by the call that they are in."""
MOST_EDGES = 40


@dataclass(frozen=True, slots=True)
class Node:
    """Ranks that wait in the same place, or that the others wait for."""

    x: float
    y: float
    kind: str
    """``culprit``, ``victim`` or ``other``."""
    ranks: RankSet
    lines: tuple[str, ...]

    @property
    def shown(self) -> list[str]:
        """The lines as far as they fit."""
        return [shortened(line, FITTING) for line in self.lines[:2]]


@dataclass(frozen=True, slots=True)
class Edge:
    """Ranks that wait for others. ``direct``: it is on the way to a culprit."""

    path: str
    direct: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """The picture, and the same in words."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    sentences: tuple[str, ...]
    width: float
    height: float
    note: str
    node_width: int = WIDTH
    node_height: int = HEIGHT


@dataclass(slots=True)
class _Member:
    """A rank: the wait point that it is at, and the number of waits from it to a culprit."""

    rank: int
    hops: int
    waits_at: schema.WaitPoint | None
    culprit: bool


def graph(report: Report) -> Graph | None:
    """The picture; None where no rank waits."""
    points = report["places"]
    if not points:
        return None
    towards = towards_of(report)
    members = _members(points, report["verdict"]["culprits"], towards)
    key = _folding(members, report)
    nodes: dict[Hashable, list[_Member]] = defaultdict(list)
    for member in members.values():
        nodes[key(member)].append(member)
    ordered = sorted(nodes.values(), key=lambda node: (node[0].hops, -len(node), node[0].rank))
    node_of = {member.rank: number for number, node in enumerate(ordered) for member in node}
    edges = _edges(points, node_of, towards) or _disagreements(ordered)
    edges |= {(a, b): True for a, b in edges if ordered[a][0].culprit}
    at = _positions(ordered, edges)
    drawn = tuple(_node(node, at[n], report) for n, node in enumerate(ordered))
    arcs_right = any(ordered[a][0].hops == ordered[b][0].hops > 0 for a, b in edges)
    width = max(node.x for node in drawn) + WIDTH + 2 + ARC * arcs_right
    height = max(node.y for node in drawn) + HEIGHT + 2
    paths = tuple(
        Edge(_path(at[a], at[b]), direct=direct) for (a, b), direct in sorted(edges.items())
    )
    return Graph(drawn, paths, tuple(_sentences(drawn, edges)), width, height, _note(ordered))


def _members(
    points: Sequence[schema.WaitPoint], culprits: Sequence[int], towards: Mapping[int, int]
) -> dict[int, _Member]:
    """All ranks that wait, are waited for, or are culprits."""
    known = set(culprits)
    where = {rank: at for at in reversed(points) for rank in at["ranks"]}
    awaited = {rank for at in points for rank in at["for"]}
    members = {}
    for rank in sorted({*where, *known, *awaited}):
        waits = rank not in known and rank in where
        hops = min(HOPS, len(chain(rank, towards)) or 1) if waits else 0
        members[rank] = _Member(rank, hops, where.get(rank), rank in known)
    return members


def _folding(members: Mapping[int, _Member], report: Report) -> Callable[[_Member], Hashable]:
    """The key that ranks of one node share: the finest that leaves few enough nodes."""
    waiting = [member for member in members.values() if member.waits_at and not member.culprit]
    apart = len(report["verdict"]["culprits"]) <= MOST_CULPRITS
    few = (fold for fold in _FOLDINGS if len(set(map(fold, waiting))) <= MOST_NODES)
    victim = next(few, _FOLDINGS[-1])

    def key(member: _Member) -> Hashable:
        if member.culprit:
            return ("culprit", member.rank if apart else member.waits_at and _family(member))
        return ("victim", victim(member)) if member.waits_at else "other"

    return key


def _collective(member: _Member) -> tuple[Hashable, ...]:
    """The group and the number of the call that it is blocked in."""
    return (member.waits_at["group"], member.waits_at["seq"]) if member.waits_at else (None, None)


def _family(member: _Member) -> tuple[Hashable, ...]:
    """The call and the line, of whichever group of that kind."""
    if member.waits_at is None:
        return None, "", None
    site, group = member.waits_at["site"], member.waits_at["group"] or ""
    kind = "ranks" if group.startswith("ranks ") else group
    return member.waits_at["op"], kind, (site["file"], site["line"]) if site else None


_FOLDINGS: tuple[Callable[[_Member], Hashable], ...] = (
    lambda m: (m.hops, id(m.waits_at)),
    lambda m: (m.hops, _collective(m), _family(m)),
    lambda m: (m.hops, _family(m)),
    lambda m: (m.hops, _family(m)[:2]),
    lambda m: (m.hops, _family(m)[:1]),
    lambda m: m.hops,
)


def _edges(
    points: Sequence[schema.WaitPoint], node_of: Mapping[int, int], towards: Mapping[int, int]
) -> dict[tuple[int, int], bool]:
    """From node to node, and True for those on the way to a culprit."""
    edges: dict[tuple[int, int], bool] = {}
    for at in points:
        waiting = {node_of[rank] for rank in at["ranks"]}
        for target in {node_of[rank] for rank in at["for"]}:
            edges |= {(node, target): False for node in waiting - {target}}
    for rank, target in towards.items():
        a, b = node_of.get(rank), node_of.get(target)
        if a is not None and b is not None and a != b:
            edges[a, b] = True
    direct = {edge: True for edge, on_the_way in edges.items() if on_the_way}
    return edges if len(edges) <= MOST_EDGES else direct


def _disagreements(nodes: Sequence[Sequence[_Member]]) -> dict[tuple[int, int], bool]:
    """From ranks that wait in the group of a culprit, where no rank is missing but calls differ."""
    return {
        (a, b): True
        for a, node in enumerate(nodes)
        for b, other in enumerate(nodes)
        if not node[0].culprit
        and other[0].culprit
        and node[0].waits_at
        and other[0].waits_at
        and other[0].waits_at["group"] == node[0].waits_at["group"]
    }


def _positions(
    nodes: Sequence[Sequence[_Member]], edges: Iterable[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Column, x and y of each node; columns are centred on the tallest.

    In a column nodes are as high as the nodes that they wait for, so that few arrows cross.
    """
    columns: defaultdict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        columns[node[0].hops].append(number)
    tallest = max(map(len, columns.values()))
    targets: defaultdict[int, list[int]] = defaultdict(list)
    arcs = False
    for a, b in edges:
        targets[a].append(b)
        arcs |= nodes[a][0].hops == nodes[b][0].hops
    positions: dict[int, tuple[int, int, int]] = {}
    for column, hops in enumerate(sorted(columns)):
        x = 1 + (ARC if arcs else 0) + column * (WIDTH + GAP_X)
        top = (tallest - len(columns[hops])) * (HEIGHT + GAP_Y) // 2
        heights = {
            number: [positions[target][2] for target in targets[number] if target in positions]
            for number in columns[hops]
        }
        means = {number: sum(at) / (len(at) or 1) for number, at in heights.items()}
        columns[hops].sort(key=means.__getitem__)
        for row, number in enumerate(columns[hops]):
            positions[number] = (column, x, 1 + top + row * (HEIGHT + GAP_Y))
    return [positions[number] for number in range(len(nodes))]


def _path(start: tuple[int, int, int], to: tuple[int, int, int]) -> str:
    """An arrow that ends at the side of a node; two of opposite ways lie apart."""
    (column, x1, y1), (towards, x2, y2) = start, to
    middle = HEIGHT // 2
    if column > towards:
        x2 += WIDTH + 2
        y1, y2 = y1 + middle - 7, y2 + middle - 7
        bend = (x1 - x2) / 2
        return f"M{x1} {y1}C{x1 - bend:g} {y1} {x2 + bend:g} {y2} {x2} {y2}"
    if column < towards:
        x1 += WIDTH
        y1, y2 = y1 + middle + 7, y2 + middle + 7
        bend = (x2 - x1) / 2
        return f"M{x1} {y1}C{x1 + bend:g} {y1} {x2 - bend:g} {y2} {x2 - 2} {y2}"
    side = 0 if column == 0 else WIDTH
    out = -ARC if column == 0 else ARC
    y1, y2 = y1 + middle + (9 if y2 > y1 else -9), y2 + middle + (-9 if y2 > y1 else 9)
    x1, x2 = x1 + side, x2 + side + (2 if out > 0 else -2)
    return f"M{x1} {y1}C{x1 + out} {y1} {x2 + out} {y2} {x2} {y2}"


def _node(members: Sequence[_Member], at: tuple[int, int, int], report: Report) -> Node:
    first = members[0]
    ranks = RankSet.of(member.rank for member in members)
    kind = "culprit" if first.culprit else "victim" if first.waits_at else "other"
    points = list({id(m.waits_at): m.waits_at for m in members if m.waits_at}.values())
    lines: list[str] = []
    if first.culprit:
        verdict = report["verdict"]
        done = words(verdict["kind"])
        if verdict["reason"] not in ("unknown", "user_code"):
            done = f"{done}, {words(verdict['reason'])}"
        lines.append(done)
    if points:
        age = duration(max(at["age_s"] for at in points))
        sites = {site_label(at["site"], 1) for at in points if at["site"]}
        where = f" at {sites.pop()}" if len(sites) == 1 else ""
        lines += [_in_what(points), f"{age}{where}"]
    elif first.culprit:
        lines.append(site_label(report["verdict"]["site"], 1))
    else:
        lines.append("not seen to wait")
    return Node(at[1], at[2], kind, ranks, tuple(line for line in lines if line))


def _in_what(points: Sequence[schema.WaitPoint]) -> str:
    """``all_reduce #41 of dp``; of several the parts that they share."""
    ops = sorted({at["op"] for at in points})
    numbers = sorted({at["seq"] for at in points if at["seq"]})
    groups = {at["group"] or "" for at in points}
    what = ", ".join(ops[:2])
    if len(numbers) == 1:
        what = call_label(what, numbers[0])
    elif numbers:
        what = f"{what} #{numbers[0]}-{numbers[-1]}"
    if len(groups) == 1 and (group := groups.pop()):
        ids = {at["group_id"] for at in points}
        what = f"{what} of {len(ids)} groups {group}" if len(ids) > 1 else f"{what} of {group}"
    elif len(groups) > 1:
        what = f"{what} of {len(groups)} groups"
    return shortened(what, 80)


def _sentences(nodes: Sequence[Node], edges: Mapping[tuple[int, int], bool]) -> Iterator[str]:
    """The picture in words, for people who cannot see it."""
    for number, node in enumerate(nodes):
        targets = [nodes[b].ranks.text for a, b in sorted(edges) if a == number]
        waits = f" - waits for {' and for '.join(targets)}" if targets else ""
        yield f"{node.ranks.text} ({node.kind}): {', '.join(node.lines)}{waits}"


def _note(nodes: Sequence[Sequence[_Member]]) -> str:
    """The number of places, if nodes hold several."""
    victims = [node for node in nodes if node[0].waits_at and not node[0].culprit]
    places = {id(member.waits_at) for node in victims for member in node}
    if len(places) <= len(victims):
        return ""
    waiting = sum(map(len, victims))
    return f"{waiting:,} ranks wait in {len(places):,} places, folded by what they have in common."
