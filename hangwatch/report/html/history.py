"""The last calls of ranks by group, and where each group is stuck, as a report has them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangwatch.report import schema
from hangwatch.report.chains import places_of
from hangwatch.report.html.ranksets import call_name, place, seconds, shortened
from hangwatch.report.schema import Report

LAST = 8
"""Collectives of a group that are shown: the last ones up to where it is stuck."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a rank."""

    rank: int
    op: str
    seq: int
    p2p: bool
    state: str
    age_s: float
    peer: str
    """Whom a point-to-point call is for."""
    detail: str
    site: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where the group is stuck."""

    op: str
    seq: int
    waiting: frozenset[int]
    awaited: frozenset[int]
    age_s: float


def calls_of(report: Report) -> dict[int, list[Call]]:
    """Calls by group."""
    sites = report.get("sites") or ()
    found: defaultdict[int, list[Call]] = defaultdict(list)
    for rank in report["ranks"]:
        for call in rank.get("calls") or ():
            site = place(sites[call["site"]]) if call["site"] is not None else ""
            found[call["group_id"]].append(
                Call(
                    rank["rank"],
                    call["op"],
                    call["seq"],
                    call["p2p"],
                    call["state"],
                    call["issued_age_s"],
                    _peer(call),
                    _detail(call),
                    site,
                )
            )
    return found


def _peer(call: schema.Call) -> str:
    if call["peer"] is None:
        return ""
    return f"{'to' if 'send' in call['op'] else 'from'} rank {call['peer']}"


def _detail(call: schema.Call) -> str:
    """What tells calls of one operation apart."""
    parts = []
    if call["root"] is not None:
        parts.append(f"root {call['root']}")
    if call["shape"] or call["dtype"]:
        parts.append(f"{call['dtype']}{call['shape']}")
    return shortened(", ".join(parts), 60)


def stuck_at(report: Report) -> dict[int, list[Place]]:
    """Where each group is stuck."""
    found: defaultdict[int, list[Place]] = defaultdict(list)
    for at in places_of(report):
        if (number := at.get("group_id")) is not None:
            found[number].append(
                Place(
                    at["op"], at["seq"], frozenset(at["ranks"]), frozenset(at["for"]), at["age_s"]
                )
            )
    return found


def window(calls: Sequence[Call], places: Sequence[Place]) -> list[Call]:
    """The last calls up to where the group is stuck, and what was issued beyond it."""
    collectives = [call for call in calls if not call.p2p]
    waiting = {at.seq for at in places}
    last = max(waiting or {call.seq for call in collectives}, default=0)
    kept = [call for call in collectives if last - LAST < call.seq <= last + 2]
    by_rank: defaultdict[int, list[Call]] = defaultdict(list)
    for call in calls:
        if call.p2p:
            by_rank[call.rank].append(call)
    return kept + [call for mine in by_rank.values() for call in mine[-LAST:]]


def step_s(calls: Sequence[Call]) -> float:
    """The usual time from one call of a rank to its next, in seconds."""
    by_rank: defaultdict[int, list[float]] = defaultdict(list)
    for call in calls:
        by_rank[call.rank].append(call.age_s)
    gaps = sorted(
        later - sooner for ages in by_rank.values() for sooner, later in pairwise(sorted(ages))
    )
    return gaps[len(gaps) // 2] if gaps else 0.0


def usual_calls(calls: Iterable[Call]) -> dict[int, tuple[str, str]]:
    """What most ranks issued at each place: the operation, and its details."""
    found: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for call in calls:
        if not call.p2p:
            found[call.seq][call.op, call.detail] += 1
    return {seq: count.most_common(1)[0][0] for seq, count in found.items()}


def kind_of(call: Call, usual: Mapping[int, tuple[str, str]]) -> str:
    """How it is marked: done, odd (not what the others issued) or failed."""
    if call.state == "failed":
        return "failed"
    if not call.p2p and usual.get(call.seq) != (call.op, call.detail):
        return "odd"
    return "done"


def told(call: Call) -> str:
    """A call in words."""
    what = " ".join(filter(None, (call_name(call.op, call.seq), call.peer, call.detail)))
    at = f", at {call.site}" if call.site else ""
    return f"rank {call.rank}: {what}, issued {seconds(call.age_s)} ago, {call.state}{at}"
