"""The wait-for graph of ranks and spots, and its roots.

Bipartite: a rank has an edge to each spot that it waits at, a spot one to each
rank that it waits for. What is left when everything that something else explains
is taken away are the sinks of its strongly connected components.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.spots import ANYONE, Channel, Place, Setup
from hangwatch.diagnosis.graph.missing import missing_at, missing_at_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hangwatch.diagnosis.facts.endings import Ending
    from hangwatch.diagnosis.facts.job import Job
    from hangwatch.diagnosis.facts.spots import Spot, Wait

Node = int | Place | Channel | Setup


@dataclass(slots=True)
class Graph:
    """Waits by rank and by spot, and whom each spot waits for."""

    by_rank: dict[int, list[Wait]] = field(default_factory=lambda: defaultdict(list))
    at: dict[Spot, list[Wait]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[Spot, tuple[int, ...]] = field(default_factory=dict)
    because: dict[Spot, Spot] = field(default_factory=dict)
    """A spot to another that explains it: an earlier place, the send of a recv."""
    queued: dict[Spot, list[Spot]] = field(default_factory=lambda: defaultdict(list))
    """A full place to those that a member issued before it and that are unfinished."""
    disputed: set[Spot] = field(default_factory=set)
    """Places whose members differ: nothing earlier explains them."""
    devices: dict[int, set[Spot]] = field(default_factory=dict)
    """Where the devices of ranks are that have unfinished work for them; a stuck one nowhere."""
    _before: dict[Node, list[Node]] | None = None

    def after(self, node: Node) -> Sequence[Node]:
        """What a node waits for."""
        if isinstance(node, int):
            return [wait.spot for wait in self.by_rank.get(node, ())]
        earlier = self.because.get(node)
        if earlier is not None:
            return (earlier,)
        missing = self.missing.get(node, ())
        return missing or self.queued.get(node, ())

    def before(self) -> dict[Node, list[Node]]:
        """The edges the other way round: node to all that wait for it."""
        if self._before is None:
            self._before = defaultdict(list)
            for spot, waits in self.at.items():
                self._before[spot].extend(wait.rank for wait in waits)
                for node in self.after(spot):
                    self._before[node].append(spot)
        return self._before


@dataclass(frozen=True, slots=True)
class Root:
    """What nothing else explains: ranks that wait for nothing, a spot, or a cycle."""

    ranks: tuple[int, ...]
    spots: tuple[Spot, ...]

    @property
    def is_cycle(self) -> bool:
        """Whether its parts wait for each other."""
        return len(self.ranks) + len(self.spots) > 1


def build(
    job: Job,
    waits: Iterable[Wait],
    ended: Mapping[int, Ending],
    disputed: Mapping[int, int],
    stuck: Collection[int] = (),
) -> Graph:
    """Link the waits.

    disputed: gid to the first place where its members differ. stuck: ranks whose device
    is stuck itself; they wait for nothing.
    """
    graph = Graph()
    graph.disputed.update(Place(gid, seq) for gid, seq in disputed.items())
    graph.devices.update((rank, set()) for rank in stuck)
    for wait in _without_idle_guesses(job, waits, ended):
        if wait.rank in stuck:
            continue
        if wait.record is not None and wait.record.device and not wait.apart:
            graph.devices.setdefault(wait.rank, set()).add(wait.spot)
        graph.at[wait.spot].append(wait)
        if not wait.apart:
            graph.by_rank[wait.rank].append(wait)
    for spot in list(graph.at):
        first = disputed.get(spot.gid) if isinstance(spot, Place) else None
        if isinstance(spot, Place) and first is not None and spot.seq >= first:
            graph.missing[spot] = ()
            if spot.seq > first:
                graph.because[spot] = Place(spot.gid, first)
            continue
        graph.missing[spot] = missing_at(job, spot, graph, ended)
    _link_earlier(graph)
    _link_pairs(graph)
    _link_queues(graph)
    return graph


def _without_idle_guesses(
    job: Job, waits: Iterable[Wait], ended: Mapping[int, Ending]
) -> list[Wait]:
    """Leave out waits that only counters tell of, where all members are there.

    They do not say which of a rank's groups has the unfinished work: one that
    waits for somebody explains it better.
    """
    kept: list[Wait] = []
    idle: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        place = wait.spot if wait.vague and isinstance(wait.spot, Place) else None
        full = place is not None and not missing_at_place(job, place, Graph(), ended)
        if full and not wait.over:
            idle[wait.rank].append(wait)
        elif not full:
            kept.append(wait)
    explained = {wait.rank for wait in kept}
    return kept + [wait for r, w in idle.items() if r not in explained for wait in w]


def _link_pairs(graph: Graph) -> None:
    """A recv that is matched is stuck together with its send."""
    sends: dict[tuple[int, int, int], dict[int, Channel]] = defaultdict(dict)
    for spot in graph.at:
        if isinstance(spot, Channel) and spot.sends:
            sends[spot.gid, spot.peer, spot.tag][spot.waiter] = spot
    for spot in graph.at:
        if isinstance(spot, Channel) and not spot.sends and not graph.missing[spot]:
            known = sends.get((spot.gid, spot.waiter, spot.tag), {})
            send = next(iter(known.values()), None) if spot.peer == ANYONE else known.get(spot.peer)
            if send is not None:
                graph.because[spot] = send


def _link_queues(graph: Graph) -> None:
    """What a rank issued asynchronously waits for what it issued before.

    A device works in the order of its stream, so a place that all have reached
    can wait for another group's on one of its members.
    """
    for waits in graph.by_rank.values():
        issued = [wait.spot for wait in waits if not wait.firm and wait.record is not None]
        for before, spot in pairwise(issued):
            if isinstance(spot, Place) and _is_full(graph, spot):
                graph.queued[spot].append(before)


def _link_earlier(graph: Graph) -> None:
    """A place that all have reached waits for the unfinished ones before it."""
    waited: dict[int, list[int]] = defaultdict(list)
    for spot in graph.at:
        if isinstance(spot, Place):
            waited[spot.gid].append(spot.seq)
    for gid, seqs in waited.items():
        seqs.sort()
        for earlier, seq in pairwise(seqs):
            spot = Place(gid, seq)
            if _is_full(graph, spot):
                graph.because[spot] = Place(gid, earlier)


def _is_full(graph: Graph, spot: Place) -> bool:
    """Whether all have reached a place and nothing yet tells why it is not complete."""
    return not graph.missing[spot] and spot not in graph.because and spot not in graph.disputed


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
