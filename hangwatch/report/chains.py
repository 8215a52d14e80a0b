"""The places that ranks wait in, as a stored report has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hangwatch.model.verdict import Wait
from hangwatch.report.schema import Report, WaitPoint


def places_of(report: Report) -> Sequence[WaitPoint]:
    """Every place with its ranks and whom they wait for; reports of 0.1 have them in their waits.

    Each has what ``places_content`` (groups.py) gives it.
    """
    if report.get("places") is not None:
        return list(report["places"])
    places: dict[tuple[object, ...], WaitPoint] = {}
    for wait in report["waits"]:
        site = wait["site"]
        line = (site["file"], site["line"]) if site else None
        key = (wait["op"], wait["group"], wait["seq"], line)
        place = places.setdefault(
            (*key, tuple(wait["for"])),
            {
                "op": wait["op"],
                "group": wait["group"],
                "group_id": None,
                "seq": wait["seq"],
                "site": wait["site"],
                "for": wait["for"],
                "for_count": len(wait["for"]),
                "ranks": [],
                "age_s": 0.0,
            },
        )
        place["ranks"].append(wait["rank"])
        place["age_s"] = max(place["age_s"], wait["age_s"])
    return list(places.values())


def towards_of(report: Report) -> dict[int, int]:
    """Rank to the one that it waits for on its way to a culprit, where that is known."""
    return {
        wait["rank"]: towards
        for wait in report["waits"]
        if (towards := wait.get("towards")) is not None
    }


Ranks = tuple[int, ...]


def next_towards(waits: Iterable[Wait], culprits: Iterable[int]) -> dict[int, int]:
    """Rank to the one that it waits for on the shortest way to a culprit.

    Ranks from which no wait leads to one are left out, and the culprits themselves.
    Time is linear in the waits and in whom their places wait for: most are in the same
    few places.
    """
    waiting: defaultdict[Ranks, list[int]] = defaultdict(list)
    for wait in waits:
        waiting[wait.waits_for].append(wait.rank)
    holding: defaultdict[int, list[Ranks]] = defaultdict(list)
    for missing in waiting:
        for rank in missing:
            holding[rank].append(missing)
    known = set(culprits)
    found: dict[int, int] = {}
    reached = sorted(known)
    for towards in reached:  # grows while it is read: nearest ranks first
        for missing in holding.pop(towards, ()):
            for rank in waiting.pop(missing, ()):
                if rank not in known:
                    known.add(rank)
                    found[rank] = towards
                    reached.append(rank)
    return found


def chain(rank: int, towards: Mapping[int, int]) -> list[int]:
    """The ranks that one waits for in turn, the culprit last; empty if that is not known."""
    found: dict[int, None] = {}  # a stored report may have been tampered with, and go round
    while (following := towards.get(rank)) is not None and following not in found:
        found[following] = None
        rank = following
    return list(found)
