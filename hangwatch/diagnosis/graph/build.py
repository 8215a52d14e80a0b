"""Builds the wait-for graph: from the waits of ranks to the ranks that they wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from hangwatch.diagnosis.facts.channels import answers, fewest, is_posted, senders, sending, sent
from hangwatch.diagnosis.facts.endings import Cause, Ending, How
from hangwatch.diagnosis.facts.job import NEW_GROUP, Job
from hangwatch.diagnosis.facts.stores import setter
from hangwatch.diagnosis.facts.wait_points import (
    ANYONE,
    STORE,
    Channel,
    Place,
    Setup,
    Wait,
    WaitPoint,
)
from hangwatch.diagnosis.graph.wait_for import Graph
from hangwatch.model.kinds import Phase


def missing_at(
    job: Job, wait_point: WaitPoint, graph: Graph, ended: Mapping[int, Ending]
) -> tuple[int, ...]:
    """The ranks that a wait point waits for."""
    if isinstance(wait_point, Setup):
        return _missing_at_setup(job, wait_point, graph, ended)
    if isinstance(wait_point, Place):
        return missing_at_place(job, wait_point, graph, ended)
    if wait_point.peer == ANYONE:
        return _missing_senders(job, wait_point, graph, ended)
    there = is_posted(job, wait_point, wait_point.peer) and not _is_gone(
        wait_point.peer, wait_point, graph, ended
    )
    return () if there and not _is_away(graph, wait_point) else (wait_point.peer,)


def _missing_senders(
    job: Job, wait_point: Channel, graph: Graph, ended: Mapping[int, Ending]
) -> tuple[int, ...]:
    """Of all that may send what a recv from any source waits for those who should have.

    Any of them would do: the one that has sent less than the others is missing, else all.
    """
    several = senders(job, wait_point)
    gone = {rank for rank in several if _is_gone(rank, wait_point, graph, ended)}
    if (
        sum(sending(job, wait_point, rank) for rank in several if rank not in gone)
        > wait_point.turn
    ):
        return ()
    dead = tuple(rank for rank in several if _died_by_itself(rank, ended))
    if dead:
        return dead
    finished = {rank for rank in several if rank in ended or job.has_left(rank, wait_point.gid)}
    left = tuple(rank for rank in several if rank not in finished) or several
    return fewest(sent(job, wait_point, left)) or left


def _is_gone(rank: int, wait_point: Channel, graph: Graph, ended: Mapping[int, Ending]) -> bool:
    """Whether a peer has ended without completing what it posted."""
    return _died_by_itself(rank, ended) or _went_elsewhere(rank, wait_point, graph, ended)


def _is_away(graph: Graph, wait_point: Channel) -> bool:
    """Whether the peer has issued its call, and its device is at something else."""
    at = graph.devices.get(wait_point.peer)
    return at is not None and not any(answers(other, wait_point) for other in at)


def missing_at_place(
    job: Job, place: Place, graph: Graph, ended: Mapping[int, Ending]
) -> tuple[int, ...]:
    """The members that have not come to a place, or that will not complete it."""
    devices = graph.devices
    if not ended and not devices:
        reached = job.reached[place.gid]
        return tuple(r for r in job.members(place.gid) if reached.get(r, 0) < place.seq)
    return tuple(
        rank
        for rank in job.members(place.gid)
        if not job.arrived(rank, place)
        or (_died_by_itself(rank, ended) and not job.passed(rank, place))
        or (rank in devices and place not in devices[rank] and not job.passed(rank, place))
        or (
            rank in ended
            and _went_elsewhere(rank, place, graph, ended)
            and not job.passed(rank, place)
        )
    )


def _went_elsewhere(
    rank: int, wait_point: WaitPoint, graph: Graph, ended: Mapping[int, Ending]
) -> bool:
    """Whether a rank left a wait point, asynchronously, and ended in, or after, something else."""
    end = ended.get(rank)
    if end is None:
        return False
    if end.how is How.CLEAN:
        return isinstance(wait_point, Place)
    at = [wait.wait_point for wait in graph.by_rank.get(rank, ())]
    if not isinstance(wait_point, Channel):
        return bool(at) and wait_point not in at
    return bool(at) and not any(answers(other, wait_point) for other in at)


def _died_by_itself(rank: int, ended: Mapping[int, Ending]) -> bool:
    end = ended.get(rank)
    return end is not None and end.cause is Cause.OWN and end.how is not How.CLEAN


def _made(job: Job, rank: int, setup: Setup) -> bool:
    """Whether a rank has come through a call of new_group: its members let it go on together."""
    known = job.ranks[rank].new_groups if rank in job.ranks else ()
    called = (call for call in known if call.number == setup.number)
    return any(job.gid(call.group) == setup.gid for call in called)


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
        # Who has come through it has been there.
        there.update(
            number
            for number, rank in job.ranks.items()
            if rank.phase is Phase.RUNNING and number not in ended
        )
    missing = tuple(rank for rank in job.world() if rank not in there)
    if wait_point.call == NEW_GROUP:
        # Who is no member is let through, and may have come to its end since.
        left = tuple(r for r in missing if r not in ended or ended[r].how is not How.CLEAN)
        return left or missing
    return missing


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
