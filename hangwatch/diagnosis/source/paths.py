"""The paths of a program from one line to two others, and the choices at which they diverge."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from hangwatch.diagnosis.source.flow import Branch, Choice, Expansion, Node, TooLargeError
from hangwatch.diagnosis.source.program import Line, Position, Program, first_statement

MOST_HEADS = 50
"""Most loops whose iterations are searched, the nearest ones."""
MOST_COMPARED = 1_000
"""Most nodes that are removed in turn."""
MOST_ROOTS = 3
"""Most functions that are tried as the start of the program."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The choices by which a program may reach one line instead of the other."""

    decisive: tuple[Choice, ...] = ()
    """After each of them only the one line can be reached, before a call that is known."""
    before: tuple[Choice, ...] = ()
    """Choices without which none of the decisive ones is reached."""
    around: tuple[Choice, ...] = ()
    """Each leads past the other line in one iteration of a loop that contains it."""
    others: tuple[Choice, ...] = ()
    """After each of them only the other line can be reached: they were not chosen."""
    turned_round: bool = False
    """In one iteration of each loop the program reaches one line from the other, and that one again
    by another path: it makes both calls, in either order."""


def ways(
    program: Program,
    start: Line | None,
    places: tuple[Position, Position],
    calls: Collection[Line],
    barred: Callable[[Choice], bool],
) -> Ways | None:
    """Find the choices by which a program reaches the first of two positions and not the other.

    start: the line to start from; None for the beginning of the program. calls: lines that no path
    passes, since a call there would be known. barred: True for a choice that is never made. Returns
    None if the source is not there, has no path, or is too large.
    """
    mine, theirs = (
        Position(tuple(first_statement(program, line) for line in place.frames)) for place in places
    )
    lines = [line for line in (*calls, start, mine.line, theirs.line) if line is not None]
    expansion = Expansion(program, lines, (mine, theirs))

    def never(choice: Choice) -> bool:
        # A loop is expected to have an iteration.
        return (choice.first and not choice.taken) or barred(choice)

    for root, again in product(expansion.roots[:MOST_ROOTS], (False, True)):
        try:
            entry, end = expansion.graph(root, again=again)
        except (TooLargeError, RecursionError):
            return None
        for but in (never, barred):
            found = _ways(_Graph(entry, but), (entry, end), start, (mine, theirs), calls)
            if found is not None:
                return found
    return None


def _ways(
    graph: _Graph,
    ends: tuple[Node, Node],
    start: Line | None,
    places: tuple[Position, Position],
    calls: Collection[Line],
) -> Ways | None:
    """The paths in one graph. ends: the first node of the program, and the last."""
    entry, end = ends
    to_mine, to_theirs = (graph.at(place) if place.frames else [end] for place in places)
    begin = [entry] if start is None else graph.after(start)
    if not to_mine or not to_theirs or not begin or {*to_mine} & {*to_theirs}:
        return None
    known = [node for line in calls for node in graph.at(Position((line,)))]
    entered = [node for line in calls for node in graph.entered(line)]
    came = graph.at(Position((start,))) if start is not None else []
    again = graph.entered(start) if start is not None else []
    # A call there would be known, if each time that one comes by makes one.
    for but in (entered, known, again, ()):
        found = graph.between(begin, to_mine, to_theirs, but, {*came})
        if found is not None:
            return found
    return None


class _Graph:
    """All nodes that can be reached, with the edges that are not barred."""

    def __init__(self, entry: Node, barred: Callable[[Choice], bool]) -> None:
        self.nodes: list[Node] = []
        self._edges: dict[Node, list[tuple[Node, Choice | None]]] = {}
        self._before: dict[Node, list[Node]] = defaultdict(list)
        seen, todo = {entry}, deque([entry])
        while todo:
            node = todo.popleft()
            self.nodes.append(node)
            edges = [edge for edge in node.edges if edge[1] is None or not barred(edge[1])]
            self._edges[node] = edges
            for target, _ in edges:
                self._before[target].append(node)
                if target not in seen:
                    seen.add(target)
                    todo.append(target)

    def at(self, position: Position) -> list[Node]:
        """The nodes of a position; by its line alone where no node has its callers."""
        line = position.frames[-1]
        there = [node for node in self.nodes if node.first and node.holds(line)]
        parts = [node for node in there if node.part]
        here = parts or list(dict.fromkeys(node.own or node for node in there))
        callers = position.frames[:-1]
        exact = [node for node in here if callers and _is_below(node.chain, callers)]
        return exact or here

    def after(self, line: Line) -> list[Node]:
        """The nodes that may come after a line."""
        here = (*self.at(Position((line,))), *self.calling_back(line))
        return [target for node in here for target, _ in self._edges[node]]

    def calling_back(self, line: Line) -> list[Node]:
        """The nodes of a line that a library calls back from, before it does."""
        return [node for node in self.nodes if node.calls_back and node.holds(line)]

    def entered(self, line: Line) -> list[Node]:
        """The nodes of a line where its call may begin."""
        return self.calling_back(line) or self.at(Position((line,)))

    def between(
        self,
        begin: Sequence[Node],
        mine: Sequence[Node],
        theirs: Sequence[Node],
        known: Sequence[Node],
        came: Collection[Node],
    ) -> Ways | None:
        """The choices between two targets, on paths that pass none of the known nodes.

        came: the nodes of the line that one comes from.
        """
        one, other = {*mine}, {*theirs}
        calls = {*known} - one - other
        to_mine = self._leading_to(one, other | calls)
        to_theirs = self._leading_to(other, one | calls)
        start = [node for node in begin if node not in calls]
        both = self._reached(start, to_mine & to_theirs)
        only_mine, only_theirs = to_mine - to_theirs, to_theirs - to_mine
        decisive = [choice for node in both for choice in self._turned(node, only_mine)]
        others = [choice for node in both for choice in self._turned(node, only_theirs)]
        if not decisive and not others:
            return None
        loops = [node for node in both if self._has_turns(node)][:MOST_HEADS]
        around = [
            choice for head in loops for choice in self._around(head, other, other | one | calls)
        ]
        ends = [node for node in both if any(self._turned(node, only_mine))]
        needed = self._needed(start, both, ends) if len(both) <= MOST_COMPARED else ()
        heads = {node for node in self.nodes if self._has_turns(node)}
        later = self._reached(one, {*self.nodes} - heads - calls)
        turned_round = one != came and not other.isdisjoint(later) and self._leads_back(one, other)
        return Ways(
            _distinct(decisive),
            _distinct(needed),
            _distinct(around),
            _distinct(others),
            turned_round,
        )

    def _leads_back(self, to: Collection[Node], begin: Iterable[Node]) -> bool:
        """Return True if the line of some nodes is reached in the same iteration of each loop."""
        lines = {(node.file, node.first) for node in to}
        turns = {node for node in self.nodes if not self._has_turns(node)}
        return any((node.file, node.first) in lines for node in self._reached(begin, turns))

    def _around(self, head: Node, targets: set[Node], but: set[Node]) -> Iterator[Choice]:
        """The choices that lead from the head of a loop back to it, past some of its nodes."""
        inside = [
            to for to, why in self._edges[head] if why and why.kind is Branch.LOOP and why.taken
        ]
        again = self._leading_to({head}, but)
        meets = self._leading_to(targets, but - targets | {head})
        past = again - meets
        for node in self._reached(inside, again & meets):
            yield from self._turned(node, past)

    def _needed(
        self, begin: Sequence[Node], within: Collection[Node], ends: Collection[Node]
    ) -> Iterator[Choice]:
        """The choices without which none of some nodes is reached."""
        inside = {*within}
        for node in within:
            for _, choice in self._edges[node]:
                if choice is not None and choice.kind is Branch.CONDITION:
                    left = self._reached(begin, inside, (node, choice))
                    if not any(end in left for end in ends):
                        yield choice

    def _leading_to(self, targets: set[Node], but: set[Node]) -> set[Node]:
        """The nodes from which a target can be reached, not through some others."""
        found, todo = set(targets), deque(targets)
        while todo:
            for node in self._before[todo.popleft()]:
                if node not in found and node not in but:
                    found.add(node)
                    todo.append(node)
        return found

    def _reached(
        self,
        begin: Iterable[Node],
        within: set[Node],
        but: tuple[Node, Choice] | None = None,
    ) -> dict[Node, None]:
        """The nodes that can be reached from some, all within a set, nearest first.

        but: not by this choice at this node.
        """
        found = dict.fromkeys(node for node in begin if node in within)
        todo = deque(found)
        while todo:
            node = todo.popleft()
            for target, choice in self._edges[node]:
                if target in within and target not in found and (node, choice) != but:
                    found[target] = None
                    todo.append(target)
        return found

    def _has_turns(self, node: Node) -> bool:
        """Return True if a loop ends or continues there."""
        return any(choice and choice.kind is Branch.LOOP for _, choice in self._edges[node])

    def _turned(self, node: Node, targets: Collection[Node]) -> Iterator[Choice]:
        """The choices at a node that lead to one of some others."""
        for target, choice in self._edges[node]:
            if choice is not None and target in targets:
                yield choice


def _distinct(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple({(id(one.node), one.taken): one for one in choices}.values())


def _is_below(chain: Sequence[tuple[str, int, int]], callers: Sequence[Line]) -> bool:
    """Return True if a chain of calls is the end of another one."""
    return len(chain) <= len(callers) and all(
        file == caller.file and first <= caller.number <= last
        for (file, first, last), caller in zip(reversed(chain), reversed(callers), strict=False)
    )
