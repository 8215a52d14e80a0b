"""Links the waits of ranks to a wait-for graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from hangwatch.diagnosis.facts.endings import Ending
from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Place, Wait
from hangwatch.diagnosis.graph.missing import missing_at, missing_at_place
from hangwatch.diagnosis.graph.wait_for import Graph


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
            graph.devices.setdefault(wait.rank, set()).add(wait.wait_point)
        graph.at[wait.wait_point].append(wait)
        if not wait.apart:
            graph.by_rank[wait.rank].append(wait)
    for wait_point in list(graph.at):
        first = disputed.get(wait_point.gid) if isinstance(wait_point, Place) else None
        if isinstance(wait_point, Place) and first is not None and wait_point.seq >= first:
            graph.missing[wait_point] = ()
            if wait_point.seq > first:
                graph.because[wait_point] = Place(wait_point.gid, first)
            continue
        graph.missing[wait_point] = missing_at(job, wait_point, graph, ended)
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
        place = wait.wait_point if wait.vague and isinstance(wait.wait_point, Place) else None
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
    for wait_point in graph.at:
        if isinstance(wait_point, Channel) and wait_point.sends:
            sends[wait_point.gid, wait_point.peer, wait_point.tag][wait_point.waiter] = wait_point
    for wait_point in graph.at:
        if (
            isinstance(wait_point, Channel)
            and not wait_point.sends
            and not graph.missing[wait_point]
        ):
            known = sends.get((wait_point.gid, wait_point.waiter, wait_point.tag), {})
            send = (
                next(iter(known.values()), None)
                if wait_point.peer == ANYONE
                else known.get(wait_point.peer)
            )
            if send is not None:
                graph.because[wait_point] = send


def _link_queues(graph: Graph) -> None:
    """What a rank issued asynchronously waits for what it issued before.

    A device works in the order of its stream, so a place that all have reached
    can wait for another group's on one of its members.
    """
    for waits in graph.by_rank.values():
        issued = [wait.wait_point for wait in waits if not wait.firm and wait.record is not None]
        for before, wait_point in pairwise(issued):
            if isinstance(wait_point, Place) and _is_full(graph, wait_point):
                graph.queued[wait_point].append(before)


def _link_earlier(graph: Graph) -> None:
    """A place that all have reached waits for the unfinished ones before it."""
    waited: dict[int, list[int]] = defaultdict(list)
    for wait_point in graph.at:
        if isinstance(wait_point, Place):
            waited[wait_point.gid].append(wait_point.seq)
    for gid, seqs in waited.items():
        seqs.sort()
        for earlier, seq in pairwise(seqs):
            wait_point = Place(gid, seq)
            if _is_full(graph, wait_point):
                graph.because[wait_point] = Place(gid, earlier)


def _is_full(graph: Graph, wait_point: Place) -> bool:
    """Whether all have reached a place and nothing yet tells why it is not complete."""
    return (
        not graph.missing[wait_point]
        and wait_point not in graph.because
        and wait_point not in graph.disputed
    )
