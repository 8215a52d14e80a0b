"""Links the waits of ranks to a wait-for graph."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from hangwatch.diagnosis.facts.spots import ANYONE, Channel, Place
from hangwatch.diagnosis.graph.missing import missing_at, missing_at_place
from hangwatch.diagnosis.graph.wait_for import Graph

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hangwatch.diagnosis.facts.endings import Ending
    from hangwatch.diagnosis.facts.job import Job
    from hangwatch.diagnosis.facts.spots import Wait


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
