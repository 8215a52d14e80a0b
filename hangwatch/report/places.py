"""The places that ranks wait in, as a stored report has them."""

from __future__ import annotations

from collections.abc import Sequence

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
