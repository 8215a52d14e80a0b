"""The wait-for graph of ranks and wait points, and its roots.

Bipartite: a rank has an edge to each wait point that it waits at, a wait point one to each
rank that it waits for. What is left when everything that something else explains
is taken away are the sinks of its strongly connected components.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hangwatch.diagnosis.facts.wait_points import Channel, Place, Setup, Wait, WaitPoint

Node = int | Place | Channel | Setup


@dataclass(slots=True)
class Graph:
    """Waits by rank and by wait point, and whom each wait point waits for."""

    by_rank: dict[int, list[Wait]] = field(default_factory=lambda: defaultdict(list))
    at: dict[WaitPoint, list[Wait]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[WaitPoint, tuple[int, ...]] = field(default_factory=dict)
    because: dict[WaitPoint, WaitPoint] = field(default_factory=dict)
    """A wait point to another that explains it: an earlier place, the send of a recv."""
    queued: dict[WaitPoint, list[WaitPoint]] = field(default_factory=lambda: defaultdict(list))
    """A full place to those that a member issued before it and that are unfinished."""
    disputed: set[WaitPoint] = field(default_factory=set)
    """Places whose members differ: nothing earlier explains them."""
    devices: dict[int, set[WaitPoint]] = field(default_factory=dict)
    """Where the devices of ranks are that have unfinished work for them; a stuck one nowhere."""
    _before: dict[Node, list[Node]] | None = None

    def after(self, node: Node) -> Sequence[Node]:
        """What a node waits for."""
        if isinstance(node, int):
            return [wait.wait_point for wait in self.by_rank.get(node, ())]
        earlier = self.because.get(node)
        if earlier is not None:
            return (earlier,)
        missing = self.missing.get(node, ())
        return missing or self.queued.get(node, ())

    def before(self) -> dict[Node, list[Node]]:
        """The edges the other way round: node to all that wait for it."""
        if self._before is None:
            self._before = defaultdict(list)
            for wait_point, waits in self.at.items():
                self._before[wait_point].extend(wait.rank for wait in waits)
                for node in self.after(wait_point):
                    self._before[node].append(wait_point)
        return self._before


@dataclass(frozen=True, slots=True)
class Root:
    """What nothing else explains: ranks that wait for nothing, a wait point, or a cycle."""

    ranks: tuple[int, ...]
    wait_points: tuple[WaitPoint, ...]

    @property
    def is_cycle(self) -> bool:
        """Whether its parts wait for each other."""
        return len(self.ranks) + len(self.wait_points) > 1


def roots(graph: Graph, also: Iterable[int] = ()) -> list[Root]:
    """The components that wait for nothing outside.

    ``also`` are ranks to look at though nobody waits for them.
    """
    found = []
    for component in _components(graph, [*graph.by_rank, *graph.at, *also]):
        inside = set(component)
        if all(after in inside for node in component for after in graph.after(node)):
            found.append(
                Root(
                    tuple(sorted(node for node in component if isinstance(node, int))),
                    tuple(node for node in component if not isinstance(node, int)),
                )
            )
    return found


def held_up(graph: Graph, targets: Iterable[Node]) -> set[int]:
    """All ranks from which waits lead to one of the targets, the targets included."""
    seen: set[Node] = set(targets)
    todo: list[Node] = list(seen)
    before = graph.before()
    while todo:
        node = todo.pop()
        for earlier in before.get(node, ()):
            if earlier not in seen:
                seen.add(earlier)
                todo.append(earlier)
    return {node for node in seen if isinstance(node, int)}


def _components(  # noqa: C901 (an algorithm that is known by its one piece)
    graph: Graph, starts: Iterable[Node]
) -> Iterable[list[Node]]:
    """Strongly connected components (Tarjan 1972), without recursion."""
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    for start in starts:
        if start in order:
            continue
        work: list[tuple[Node, Sequence[Node], int]] = [(start, graph.after(start), 0)]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, after, at = work.pop()
            while at < len(after):
                child = after[at]
                at += 1
                if child not in order:
                    work.append((node, after, at))
                    order[child] = low[child] = len(order)
                    stack.append(child)
                    on_stack.add(child)
                    work.append((child, graph.after(child), 0))
                    break
                if child in on_stack:
                    low[node] = min(low[node], order[child])
            else:
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    component: list[Node] = []
                    while True:
                        top = stack.pop()
                        on_stack.discard(top)
                        component.append(top)
                        if top == node:
                            break
                    yield component
