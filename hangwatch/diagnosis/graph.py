"""The wait-for graph of ranks and wait points, and its roots.

Bipartite: a rank has an edge to each wait point that it waits at, a wait point one to each
rank that it waits for. The roots are the sink components (strongly connected): nodes whose wait
nothing else explains.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hangwatch.diagnosis.facts.channels import answers, fewest, is_posted, senders, sending, sent
from hangwatch.diagnosis.facts.devices import needed
from hangwatch.diagnosis.facts.endings import Ending, How
from hangwatch.diagnosis.facts.job import NEW_GROUP, Job
from hangwatch.diagnosis.facts.stores import setter
from hangwatch.diagnosis.facts.wait_points import (
    ANYONE,
    STORE,
    Channel,
    Setup,
    Slot,
    Wait,
    WaitPoint,
)
from hangwatch.model.kinds import Phase

Node = int | WaitPoint


@dataclass(slots=True)
class Graph:
    """Waits by rank and by wait point, and the ranks that each wait point waits for."""

    by_rank: dict[int, list[Wait]] = field(default_factory=lambda: defaultdict(list))
    at: dict[WaitPoint, list[Wait]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[WaitPoint, tuple[int, ...]] = field(default_factory=dict)
    because: dict[WaitPoint, WaitPoint] = field(default_factory=dict)
    """A wait point mapped to another one that explains it: an earlier slot, the send of a recv."""
    queued: dict[WaitPoint, list[WaitPoint]] = field(default_factory=lambda: defaultdict(list))
    """A full slot mapped to the unfinished slots that a member issued before it."""
    disputed: set[WaitPoint] = field(default_factory=set)
    """Slots whose members differ: nothing earlier explains them."""
    devices: dict[int, set[WaitPoint]] = field(default_factory=dict)
    """The wait points at which the devices of ranks are; a stuck device is at none."""
    _before: dict[Node, list[Node]] | None = None

    def after(self, node: Node) -> Sequence[Node]:
        """The nodes that a node waits for."""
        if isinstance(node, int):
            return [wait.wait_point for wait in self.by_rank.get(node, ())]
        earlier = self.because.get(node)
        if earlier is not None:
            return (earlier,)
        return self.missing.get(node, ()) or self.queued.get(node, ())

    def before(self) -> dict[Node, list[Node]]:
        """The reversed edges: node to all that wait for it."""
        if self._before is None:
            self._before = defaultdict(list)
            for wait_point, waits in self.at.items():
                self._before[wait_point].extend(wait.rank for wait in waits)
                for node in self.after(wait_point):
                    self._before[node].append(wait_point)
        return self._before

    def is_full(self, slot: Slot) -> bool:
        """Return True if all have reached a slot, and nothing explains why it does not complete."""
        return not self.missing[slot] and slot not in self.because and slot not in self.disputed


# --- Building the graph ---------------------------------------------------------------


def build(
    job: Job,
    waits: Sequence[Wait],
    ended: Mapping[int, Ending],
    disputed: Mapping[int, int],
    stuck: Collection[int] = (),
) -> Graph:
    """Link the waits.

    disputed: gid to the first slot where its members differ. stuck: ranks whose device
    is stuck itself; they wait for nothing.
    """
    graph = Graph()
    graph.disputed.update(Slot(gid, seq) for gid, seq in disputed.items())
    graph.devices.update((rank, set()) for rank in stuck)
    for wait in _without_idle_guesses(job, needed(job, waits, stuck), ended):
        if wait.record is not None and wait.record.device and not wait.in_thread:
            graph.devices.setdefault(wait.rank, set()).add(wait.wait_point)
        graph.at[wait.wait_point].append(wait)
        if not wait.in_thread:
            graph.by_rank[wait.rank].append(wait)
    for wait_point in list(graph.at):
        first = disputed.get(wait_point.gid) if isinstance(wait_point, Slot) else None
        if not isinstance(wait_point, Slot) or first is None or wait_point.seq < first:
            graph.missing[wait_point] = _missing_at(job, wait_point, graph, ended)
            continue
        graph.missing[wait_point] = ()
        if wait_point.seq > first:
            graph.because[wait_point] = Slot(wait_point.gid, first)
    _link_earlier(graph)
    _link_pairs(graph)
    _link_queues(graph)
    return graph


def _without_idle_guesses(
    job: Job, waits: Iterable[Wait], ended: Mapping[int, Ending]
) -> list[Wait]:
    """Leave out waits that only counters show, where all members are there.

    Counters do not say which of a rank's groups has the unfinished work: a wait for a missing
    rank explains it better.
    """
    kept: list[Wait] = []
    idle: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        slot = wait.wait_point if wait.inferred and isinstance(wait.wait_point, Slot) else None
        if slot is None or _missing_at_slot(job, slot, Graph(), ended):
            kept.append(wait)
        elif not wait.ended:
            idle[wait.rank].append(wait)
    explained = {wait.rank for wait in kept}
    return kept + [wait for r, w in idle.items() if r not in explained for wait in w]


def _link_earlier(graph: Graph) -> None:
    """Let a slot that all have reached wait for the unfinished ones before it."""
    waited: dict[int, list[int]] = defaultdict(list)
    for wait_point in graph.at:
        if isinstance(wait_point, Slot):
            waited[wait_point.gid].append(wait_point.seq)
    for gid, seqs in waited.items():
        for earlier, seq in pairwise(sorted(seqs)):
            if graph.is_full(slot := Slot(gid, seq)):
                graph.because[slot] = Slot(gid, earlier)


def _link_pairs(graph: Graph) -> None:
    """Let a recv that is matched wait for its send."""
    channels = [wait_point for wait_point in graph.at if isinstance(wait_point, Channel)]
    sends: dict[tuple[int, int, int], dict[int, Channel]] = defaultdict(dict)
    for send in channels:
        if send.sends:
            sends[send.gid, send.peer, send.tag][send.waiter] = send
    for recv in channels:
        if recv.sends or graph.missing[recv]:
            continue
        known = sends.get((recv.gid, recv.waiter, recv.tag), {})
        sender = next(iter(known), None) if recv.peer == ANYONE else recv.peer
        if sender in known:
            graph.because[recv] = known[sender]


def _link_queues(graph: Graph) -> None:
    """Let the asynchronous calls of a rank wait for its earlier ones.

    A device works in the order of its stream, so a slot that all have reached can wait for a slot
    of another group on one of its members.
    """
    for waits in graph.by_rank.values():
        issued = [
            wait.wait_point for wait in waits if not wait.is_blocked and wait.record is not None
        ]
        for before, wait_point in pairwise(issued):
            if isinstance(wait_point, Slot) and graph.is_full(wait_point):
                graph.queued[wait_point].append(before)


# --- The ranks that a wait point waits for --------------------------------------------


def _missing_at(
    job: Job, wait_point: WaitPoint, graph: Graph, ended: Mapping[int, Ending]
) -> tuple[int, ...]:
    if isinstance(wait_point, Setup):
        return _missing_at_setup(job, wait_point, graph, ended)
    if isinstance(wait_point, Slot):
        return _missing_at_slot(job, wait_point, graph, ended)
    peer = wait_point.peer
    if peer == ANYONE:
        return _missing_senders(job, wait_point, graph, ended)
    at = graph.devices.get(peer)
    is_elsewhere = at is not None and not any(answers(other, wait_point) for other in at)
    posted = is_posted(job, wait_point, peer) and not _is_gone(peer, wait_point, graph, ended)
    return () if posted and not is_elsewhere else (peer,)


def _missing_senders(
    job: Job, wait_point: Channel, graph: Graph, ended: Mapping[int, Ending]
) -> tuple[int, ...]:
    """The candidate senders for a recv from any source.

    The rank that has sent fewer messages than the others is missing, or else all of them.
    """
    several = senders(job, wait_point)
    present = (rank for rank in several if not _is_gone(rank, wait_point, graph, ended))
    if sum(sending(job, wait_point, rank) for rank in present) > wait_point.turn:
        return ()
    dead = tuple(rank for rank in several if rank in ended and ended[rank].is_failure)
    if dead:
        return dead
    finished = {rank for rank in several if rank in ended or job.has_left(rank, wait_point.gid)}
    left = tuple(rank for rank in several if rank not in finished) or several
    return fewest(sent(job, wait_point, left)) or left


def _missing_at_slot(
    job: Job, slot: Slot, graph: Graph, ended: Mapping[int, Ending]
) -> tuple[int, ...]:
    """The members that have not reached a slot, or that will not complete it."""
    devices = graph.devices
    if not ended and not devices:
        reached = job.reached[slot.gid]
        return tuple(r for r in job.members(slot.gid) if reached.get(r, 0) < slot.seq)
    return tuple(
        rank
        for rank in job.members(slot.gid)
        if not job.arrived(rank, slot)
        or (
            (
                (rank in devices and slot not in devices[rank])
                or (rank in ended and _is_gone(rank, slot, graph, ended))
            )
            and not job.passed(rank, slot)
        )
    )


def _is_gone(
    rank: int, wait_point: Slot | Channel, graph: Graph, ended: Mapping[int, Ending]
) -> bool:
    """Return True if a rank has ended without completing its part of a wait point.

    It failed, or left the call behind, asynchronously, and ended in, or after, another one.
    """
    end = ended.get(rank)
    if end is None:
        return False
    if end.how is How.CLEAN:
        return isinstance(wait_point, Slot)
    if end.is_failure:
        return True
    at = [wait.wait_point for wait in graph.by_rank.get(rank, ())]
    if isinstance(wait_point, Slot):
        return bool(at) and wait_point not in at
    return bool(at) and not any(answers(other, wait_point) for other in at)


def _missing_at_setup(
    job: Job, wait_point: Setup, graph: Graph, ended: Mapping[int, Ending]
) -> tuple[int, ...]:
    if wait_point.call == STORE:
        known = setter(job.ranks, wait_point.keys)
        return known.behind if known is not None else ()
    there = {wait.rank for wait in graph.at[wait_point]}
    if wait_point.gid >= 0:
        members: Sequence[int] = job.members(wait_point.gid)
        if not there <= {*members}:
            members = job.world()  # with TORCH_DIST_INIT_BARRIER=1 all ranks wait for all
        return tuple(r for r in members if r not in there and not _made(job, r, wait_point))
    if wait_point.call == "init_process_group":
        # A running rank has returned from it.
        there.update(
            number
            for number, rank in job.ranks.items()
            if rank.phase is Phase.RUNNING and number not in ended
        )
    missing = tuple(rank for rank in job.world() if rank not in there)
    if wait_point.call != NEW_GROUP:
        return missing
    # A rank that is no member does not wait there, and may have ended since.
    return tuple(r for r in missing if r not in ended or ended[r].how is not How.CLEAN) or missing


def _made(job: Job, rank: int, setup: Setup) -> bool:
    """Return True if a rank has returned from a call of new_group, together with its members."""
    known = job.ranks[rank].new_groups if rank in job.ranks else ()
    return any(c.number == setup.number and job.gid(c.group) == setup.gid for c in known)


# --- Its roots ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Root:
    """Nodes that nothing else explains: a rank that does not wait, a wait point, or a cycle."""

    ranks: tuple[int, ...]
    wait_points: tuple[WaitPoint, ...]

    @property
    def is_cycle(self) -> bool:
        """Return True if its parts wait for each other."""
        return len(self.ranks) + len(self.wait_points) > 1


def roots(graph: Graph, also: Iterable[int] = ()) -> list[Root]:
    """The components that wait for nothing outside.

    also: ranks to include though no rank waits for them.
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
        for earlier in before.get(todo.pop(), ()):
            if earlier not in seen:
                seen.add(earlier)
                todo.append(earlier)
    return {node for node in seen if isinstance(node, int)}


def _components(graph: Graph, starts: Iterable[Node]) -> Iterator[list[Node]]:
    """Strongly connected components (Tarjan 1972), without recursion."""
    low: dict[Node, float] = {}
    stack: list[Node] = []
    for start in starts:
        work: list[tuple[Node, int, int, Iterator[Node]]] = []
        entered = None if start in low else start
        while entered is not None or work:
            if entered is not None:
                work.append((entered, len(low), len(stack), iter(graph.after(entered))))
                low[entered] = len(low)
                stack.append(entered)
            node, order, height, after = work[-1]
            entered = None
            for child in after:
                at = low.get(child)
                if at is None:
                    entered = child
                    break
                low[node] = min(low[node], at)
            else:
                work.pop()
                if low[node] < order:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    continue
                component = stack[height:][::-1]
                del stack[height:]
                for done in component:
                    low[done] = math.inf  # it counts no more
                yield component
