"""The keys of torch's stores that ranks wait for, and the ranks that set keys of that form."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.facts.history import AWAITS_KEY, SETS_KEY
from hangwatch.diagnosis.facts.job import Job, seconds
from hangwatch.diagnosis.facts.wait_points import STORE, Setup, Wait
from hangwatch.model.calls import OF_A_STORE, Site
from hangwatch.model.snapshot import Mark, RankSnapshot

KEY = "key"
"""The difference where ranks ask for another key than others do."""
ALIKE = 0.75
"""Least similarity of two names by difflib: `done-9` and `done_9` have it."""
_NUMBER = re.compile(r"\d+")


class Setter(NamedTuple):
    """A line that should set a key that ranks wait for, as its earlier keys show."""

    site: Site
    key: str
    """The last key that was set there."""
    counts: Mapping[int, int]
    """Rank to the number of times that it ran the line."""
    age_s: float = 0.0
    """Time since that key was set."""
    by_form: bool = True
    """It set keys of that form. Otherwise the waiting ranks ran it more often than others."""
    behind_s: float = 0.0
    """Time since the ranks that ran it least often set their last key."""

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks that ran the line least often: all, if none ran it more often."""
        least = min(self.counts.values())
        return tuple(sorted(rank for rank, count in self.counts.items() if count == least))


def awaited_keys(rank: RankSnapshot) -> tuple[str, ...]:
    """The keys that a rank waits for in a call of a store; empty where it is in none."""
    if not rank.in_call.startswith(OF_A_STORE):
        return ()
    there = (m for m in rank.marks if m.kind == AWAITS_KEY and m.site == rank.in_call_site)
    return tuple(next((mark.text.splitlines() for mark in there), ()))


def setter(ranks: Mapping[int, RankSnapshot], keys: Collection[str]) -> Setter | None:
    """The line that should set keys, if there is only one: it set keys that differ in numbers only.

    Otherwise a line that the waiting ranks ran more often than others, as in a program in which
    the last rank to run it sets the key.
    """
    lines: dict[Site, dict[int, Mark]] = defaultdict(dict)
    for number, site, mark in _set_by(ranks):
        lines[site][number] = mark
    found = [_line(site, marks, by_form=True) for site, marks in _of_form(lines, keys)]
    if not found:
        waiting = {number for number, rank in ranks.items() if awaited_keys(rank) == (*keys,)}
        known = [_line(site, marks, by_form=False) for site, marks in lines.items()]
        found = [line for line in known if _came_by_more(line.counts, waiting)]
    return found[0] if len(found) == 1 else None


def longest_owed(ranks: Mapping[int, RankSnapshot], waits: Collection[Setup]) -> Setup:
    """The wait of a cycle whose key was due next.

    If ranks answer each other, the rank that set a key last has done its part.
    """

    def owed_s(wait_point: Setup) -> float:
        known = setter(ranks, wait_point.keys)
        return known.behind_s if known is not None else -1.0

    return max(waits, key=lambda wait_point: (owed_s(wait_point), wait_point))


def asked_alike(
    ranks: Mapping[int, RankSnapshot], waiting: Collection[int], known: Setter
) -> tuple[int, ...]:
    """The ranks that ran the waiting ranks' line as often, and asked for the key that was set.

    None if several ranks set keys of that form, or one sets several in an iteration: each key may
    be for one rank.
    """
    once = {*known.counts.values()} if len(known.counts) == 1 else set()
    asks = (m for rank in waiting for m in _asks(ranks[rank]))
    theirs = {(m.site, m.count) for m in asks if m.count in once}
    return tuple(
        number
        for number, rank in sorted(ranks.items())
        if number not in waiting
        and any((m.site, m.count) in theirs and m.text == known.key for m in _asks(rank))
    )


def _asks(rank: RankSnapshot) -> list[Mark]:
    return [mark for mark in rank.marks if mark.kind == AWAITS_KEY and mark.site is not None]


def _of_form(
    lines: Mapping[Site, Mapping[int, Mark]], keys: Collection[str]
) -> Iterator[tuple[Site, Mapping[int, Mark]]]:
    """The lines of some ranks at which keys of that form were set, and not these."""
    forms = {*map(_form, keys)}
    for site, marks in lines.items():
        last = {number: {*mark.text.splitlines()} for number, mark in marks.items()}
        alike = {n: marks[n] for n, some in last.items() if forms & {*map(_form, some)}}
        if alike and not any({*keys} & last[number] for number in alike):
            yield site, alike


def _line(site: Site, marks: Mapping[int, Mark], *, by_form: bool) -> Setter:
    newest = min(marks.values(), key=lambda mark: mark.age_s)
    counts = {rank: mark.count for rank, mark in marks.items()}
    found = Setter(site, newest.text, counts, newest.age_s, by_form)
    return found._replace(behind_s=min(marks[rank].age_s for rank in found.behind))


def _came_by_more(counts: Mapping[int, int], waiting: Collection[int]) -> bool:
    """Return True if the waiting ranks ran a line equally often, and some others less often."""
    theirs = {counts.get(rank, 0) for rank in waiting}
    others = [count for rank, count in counts.items() if rank not in waiting]
    return len(theirs) == 1 and bool(others) and min(others) < min(theirs)


def nearest(ranks: Mapping[int, RankSnapshot], keys: Sequence[str]) -> Setter | None:
    """The line that has set the key whose name is most like one of these."""
    known = {key: found for found in _set_by(ranks) for key in found[2].text.splitlines()}
    for key in keys:
        for alike in get_close_matches(key, known.keys() - {key}, 1, ALIKE):
            number, site, mark = known[alike]
            return Setter(site, alike, {number: mark.count})
    return None


def _set_by(ranks: Mapping[int, RankSnapshot]) -> Iterator[tuple[int, Site, Mark]]:
    for number, rank in ranks.items():
        for mark in rank.marks:
            if mark.kind == SETS_KEY and mark.site is not None:
                yield number, mark.site, mark


def _form(key: str) -> str:
    return _NUMBER.sub("0", key)


def for_keys(job: Job, ended: Collection[int], waits: Sequence[Wait]) -> list[Wait]:
    """The waits for keys of a store, if no rank is left that might set them.

    A rank that serves the others may wait for a key all day: it is certain that no key comes only
    if all living ranks wait. Then they wait for the rank that set keys of that form before; if none
    is known, these waits count only if all ranks wait for keys.
    """
    calling = [rank for rank in job.ranks.values() if rank.in_call.startswith(OF_A_STORE)]
    if not calling or len(job.ranks) < len(job.world()):
        return []
    waited_s: dict[int, float] = defaultdict(float)
    for wait in waits:
        if not wait.in_thread:
            waited_s[wait.rank] = max(waited_s[wait.rank], wait.age_s)
    at: dict[int, tuple[str, ...]] = {}
    for rank in calling:
        age_s, keys = seconds(rank.in_call_age_s), awaited_keys(rank)
        if rank.rank not in ended and age_s >= timing.MOMENT_S and keys:
            at[rank.rank] = keys
            waited_s[rank.rank] = max(waited_s[rank.rank], age_s)
    alive = job.ranks.keys() - {*ended}
    if not at or not waited_s.keys() >= alive:
        return []
    known = {keys for keys in {*at.values()} if setter(job.ranks, keys) is not None}
    return [
        Wait(
            number,
            Setup(STORE, "\n".join(keys)),
            min(waited_s[rank] for rank in alive),  # before, one might have set it
            is_blocked=True,
            op=job.ranks[number].in_call,
            site=job.ranks[number].in_call_site,
        )
        for number, keys in at.items()
        if keys in known or len(at) == len(alive)
    ]
