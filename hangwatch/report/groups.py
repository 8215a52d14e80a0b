"""The groups, lines of code and places of report.json: told once, referred to by number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.snapshot import GroupProgress, RankSnapshot
from hangwatch.model.verdict import Wait
from hangwatch.report import schema
from hangwatch.report.sites import group_label, known_group_label, known_site_content, site_content
from hangwatch.text import fold_ranks

FOR_SHOWN = 16
"""Of whom a wait is for, as many are listed with the wait itself."""
FOR_BUDGET = 200_000
"""Of whom all places wait for, as many are listed together: half of ten thousand ranks may
wait for the other half, each in a place of its own."""


class Groups:
    """The groups of a job by number, and how far the furthest member of each has come."""

    def __init__(self, ranks: Iterable[RankSnapshot]) -> None:
        self._numbers: dict[GroupKey, int] = {}
        self._furthest: defaultdict[GroupKey, int] = defaultdict(int)
        for rank in ranks:
            for group in rank.groups:
                self.number(group.key)
                self._furthest[group.key] = max(self._furthest[group.key], group.enqueued)

    def number(self, key: GroupKey) -> int:
        """The index in content() of a group."""
        return self._numbers.setdefault(key, len(self._numbers))

    def progress(self, group: GroupProgress) -> schema.GroupProgress:
        """How far a rank has come in a group of it; ``id`` is the group's number."""
        return {
            "id": self.number(group.key),
            "name": group.name,
            "desc": group.key.desc,
            "size": len(group.key.ranks),
            "enqueued": group.enqueued,
            "started": group.started,
            "completed": group.completed,
            "p2p": group.p2p,
            "alive": group.alive,
        }

    def content(self) -> list[schema.Group]:
        """Every group, its ranks as people write them."""
        return [
            {
                "label": known_group_label(key),
                "desc": key.desc,
                "index": key.index,
                "size": len(key.ranks),
                "ranks": fold_ranks(key.ranks),
                "furthest": self._furthest.get(key),
            }
            for key in self._numbers
        ]


class Sites:
    """The lines of code that calls were made from, by number."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._numbers: dict[Site, int] = {}

    def number(self, site: Site | None) -> int | None:
        """The index in content() of a line."""
        return self._numbers.setdefault(site, len(self._numbers)) if site else None

    def content(self) -> list[schema.Site]:
        """Every line, without those around it."""
        return [known_site_content(site, self._sources, context=False) for site in self._numbers]


def places_content(
    waits: Sequence[Wait], groups: Groups, sources: Mapping[str, str]
) -> tuple[list[schema.WaitPoint], list[int]]:
    """The places that ranks wait in, and for each wait the number of its place.

    A place is one call, of one group, at one line, for the same ranks. ``for`` lists all of
    them within FOR_BUDGET, then the first FOR_SHOWN; ``for_count`` is how many there are.
    """
    numbers: dict[tuple[object, ...], int] = {}
    first: list[Wait] = []
    members: list[list[Wait]] = []
    found = []
    for wait in waits:
        key = (wait.group, wait.seq, wait.op, wait.site, wait.waits_for)
        number = numbers.setdefault(key, len(numbers))
        if number == len(first):
            first.append(wait)
            members.append([])
        members[number].append(wait)
        found.append(number)
    left = FOR_BUDGET
    content: list[schema.WaitPoint] = []
    for wait, alike in zip(first, members, strict=True):
        count = len(wait.waits_for)
        shown = count if count <= left else FOR_SHOWN
        left -= min(shown, count)
        content.append(
            {
                "op": wait.op,
                "group": group_label(wait.group),
                "group_id": groups.number(wait.group) if wait.group else None,
                "seq": wait.seq,
                "site": site_content(wait.site, sources, context=False),
                "for": list(wait.waits_for[:shown]),
                "for_count": count,
                "ranks": sorted(other.rank for other in alike),
                "age_s": round(max(other.age_s for other in alike), 3),
            }
        )
    return content, found
