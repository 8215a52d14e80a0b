"""Finds the first place of a group where its members entered different things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hangwatch.diagnosis.facts.endings import Ending, last_call
from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.signatures import Split, split_of
from hangwatch.diagnosis.facts.wait_points import Place, Wait

HARMLESS_AFTER = 3
"""A difference that nobody is stuck at, and after which the members agree this many
times, is one that this program makes on purpose."""


def disputes(job: Job, waits: Iterable[Wait], ended: Mapping[int, Ending]) -> dict[int, int]:
    """The first disputed place by gid, for the groups in which somebody is stuck.

    A member may have passed it: gloo lets ranks through a mismatch, and the ones
    that went on wait for the others in a later place.
    """
    stuck: dict[int, set[int]] = {}
    for wait in waits:
        if isinstance(wait.wait_point, Place):
            stuck.setdefault(wait.wait_point.gid, set()).add(wait.wait_point.seq)
    for rank in ended:
        call = last_call(job, rank)
        if call is not None and not call.p2p:
            stuck.setdefault(job.gid(call.group), set()).add(call.seq)
    found = {}
    for gid, seqs in stuck.items():
        first = _first(job, gid, seqs)
        if first is not None:
            found[gid] = first
    return found


def _first(job: Job, gid: int, stuck: set[int]) -> int | None:
    last = max(stuck)
    places = job.places(gid)
    candidate: tuple[int, Split] | None = None
    agreed = 0
    for seq in sorted(seq for seq in places if seq <= last):
        found = split_of(places[seq])
        if candidate is None:
            if found is not None:
                candidate, agreed = (seq, found), 0
        elif found is None and _both_there(candidate[1], places[seq]):
            agreed += 1
        elif found is not None and agreed >= HARMLESS_AFTER:
            candidate, agreed = (seq, found), 0
        if candidate is not None and candidate[0] in stuck:
            return candidate[0]
        if agreed >= HARMLESS_AFTER:
            candidate = None if found is None else candidate
            agreed = 0 if candidate is None else agreed
    return candidate[0] if candidate is not None else None


def _both_there(found: Split, records: Mapping[int, object]) -> bool:
    return all(any(rank in records for rank in ranks) for _, ranks in found.parts)
