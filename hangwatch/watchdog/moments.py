"""The moments that the ranks of a node have noted: what each had issued, and if it waited."""

from __future__ import annotations

import platform
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hangwatch.efficiency.stragglers import RankMoment
from hangwatch.errors import PageError
from hangwatch.evidence.pages.finder import Seen
from hangwatch.evidence.pages.look import Look
from hangwatch.model.calls import GroupKey
from hangwatch.model.page import PageGroup, PageMoment, RankPage
from hangwatch.watchdog import timing

_FUTEX = {"aarch64": 98}.get(platform.machine(), 202)
"""Number of futex(2), in which a thread sleeps that waits for another one of its process."""
_LEAST_CPU_NS = 1_000_000
"""A thread that trains uses more within ASLEEP_S."""
_KEPT = 64
"""Moments that wait for those of other ranks; a page has as many (native/page.hpp)."""


@dataclass(slots=True)
class Moments:
    """Puts the moments together that the ranks of this node have noted, each for itself.

    A rank misses some while it gets no CPU, which is when the others may wait for it: one between
    two in which it is the same was as these.
    """

    _noted: dict[int, tuple[int, list[PageMoment]]] = field(default_factory=dict)
    """By rank its pid, and the moments from the last one on that was put together."""
    _done: int = 0
    """Number of the last that was put together."""

    def read(self, look: Look) -> list[dict[int, PageMoment]]:
        """Return the new moments that are known of all living ranks, oldest first."""
        ranks = [self._read(rank, look.seen[rank]) for rank in look.waiting]
        last = min((noted[-1].number if noted else 0 for noted in ranks), default=0)
        numbers = {one.number for noted in ranks for one in noted}
        known = []
        for number in sorted(n for n in numbers if self._done < n <= last):
            at = [_at(noted, number) for noted in ranks]
            whole = [one for one in at if one is not None]
            if len(whole) == len(ranks):
                known.append(dict(zip(look.waiting, whole, strict=True)))
        self._done = max(self._done, last)
        for noted in ranks:
            del noted[: max(bisect_right(noted, last, key=_number) - 1, len(noted) - _KEPT, 0)]
        return known

    def _read(self, rank: int, seen: Seen) -> list[PageMoment]:
        """The moments of a rank, with those that are new."""
        pid = seen.light.identity.pid
        before, noted = self._noted.get(rank, (pid, []))
        if before != pid:
            noted = []
        with suppress(PageError):
            noted += seen.page.moments(noted[-1].number if noted else 0)
        self._noted[rank] = pid, noted
        return noted


def _number(moment: PageMoment) -> int:
    return moment.number


def _at(noted: list[PageMoment], number: int) -> PageMoment | None:
    """A rank at a moment, None where that is not known."""
    index = bisect_left(noted, number, key=_number)
    if index == len(noted) or noted[index].number == number:
        return noted[index] if index < len(noted) else None
    before, after = noted[index - 1] if index else None, noted[index]
    same = before and (before.call, before.groups) == (after.call, after.groups)
    return after._replace(number=number) if same else None


def rank_moments(
    moment: Mapping[int, PageMoment], pages: Mapping[int, RankPage], groups: Mapping[GroupKey, int]
) -> dict[int, RankMoment]:
    """Return the ranks at a moment. groups: the number of each group."""
    ranks = {}
    for rank, at in moment.items():
        keys = {group.slot: groups.get(group.key) for group in pages[rank].groups}
        issued = {
            number: count for slot, count, _ in at.groups if (number := keys.get(slot)) is not None
        }
        blocked = at.blocked_slot >= 0
        ranks[rank] = RankMoment(
            issued,
            idle=at.call == _FUTEX or (blocked and at.call >= 0),
            unfinished=blocked or any(done < count for _, count, done in at.groups),
            peer=at.blocked_peer if blocked else -1,
        )
    return ranks


def known_groups(
    pages: Mapping[int, RankPage],
) -> tuple[dict[GroupKey, int], dict[int, tuple[int, ...]]]:
    """(number of each group, members by number) of the groups of several ranks."""
    keys = dict.fromkeys(
        group.key
        for page in pages.values()
        for group in page.groups
        if group.alive and len(group.key.ranks) > 1 and pages.keys() >= set(group.key.ranks)
    )
    numbers = {key: number for number, key in enumerate(keys)}
    return numbers, {number: key.ranks for key, number in numbers.items()}


@dataclass(slots=True)
class Sleep:
    """Knows threads that are taken for those that issue calls, and do nothing."""

    _before: dict[int, PageMoment] = field(default_factory=dict)
    """By rank a moment that its use of the CPU is compared with."""
    _asleep: dict[int, bool] = field(default_factory=dict)
    """By rank, if its thread had used no CPU between two of these."""

    def all_sleep(self, moment: Mapping[int, PageMoment]) -> bool:
        """Return True if the threads use no CPU on any rank."""
        for rank, at in moment.items():
            before = self._before.get(rank)
            if before is None or before.thread != at.thread:
                self._before[rank] = at
            elif at.at_ns - before.at_ns >= timing.ASLEEP_S * 1e9:
                self._before[rank] = at
                self._asleep[rank] = at.cpu_ns - before.cpu_ns < _LEAST_CPU_NS
        return all(self._asleep.get(rank, False) for rank in moment)


def why_unknown(look: Look, pages: Mapping[int, RankPage], moment: Mapping[int, PageMoment]) -> str:
    """Say why it cannot be known if the ranks of this node wait; empty if it can."""
    if len(pages) < len(look.seen):
        return "some ranks have ended"
    for rank, page in pages.items():
        counted = {slot for slot, _, _ in moment[rank].groups}
        in_use = {group.slot for group in page.groups if _is_in_use(group, look.now_ns)}
        if not in_use <= counted:
            return _not_counted(page)
    return ""


def _not_counted(page: RankPage) -> str:
    """Say why the rank of a page notes no calls of its groups (native/moments.cpp)."""
    groups = [group for group in page.groups if group.alive]
    names = {one.rpartition(":")[2] for group in groups for one in group.backend.split(",")}
    if names - {"gloo"}:
        return f"there are groups of {', '.join(sorted(names - {'gloo'}))}; only gloo's are counted"
    if any(group.enqueued == 0 for group in groups):
        return "some process groups have not been used yet: calls are counted once all have"
    return "c10d does not say how many calls it has issued (torch can from 2.8 on)"


def _is_in_use(group: PageGroup, now_ns: int) -> bool:
    """True for a group of several ranks in which something was issued of late."""
    of_several = group.alive and len(group.key.ranks) > 1
    return of_several and group.enqueued > 0 and now_ns - group.changed_ns < timing.IN_USE_S * 1e9
