"""Tells why a rank takes longer than another one, from the profiles of both. Pure.

Both make the same turns in the same time. So what the slow one takes longer for is where it is for
more of the time, while the other one waits. Lines are compared by the way that leads to them: a
helper that all ranks call is no answer to the question who calls it more often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hangwatch.diagnosis.facts.activity import (
    in_backward,
    inside_worker,
    reason_by_frames,
    waits_in_c10d,
)
from hangwatch.model.calls import Site
from hangwatch.model.frames import rests, site_of, user_frames
from hangwatch.model.kinds import Reason
from hangwatch.model.profile import Profile, StackSamples
from hangwatch.model.report import Why
from hangwatch.model.snapshot import Frame

_T = TypeVar("_T")

LEAST_EXTRA = 0.03
"""Share of the time that lines have to take more of."""
_MOST = 0.5
"""Share of all that takes longer, for the line that is named, with all that it calls."""
_EXPLAINED = 0.4
"""Share of the cost that all lines that take longer have to explain together."""
_ALSO = 0.2
"""From this share of the slow rank's time on, the other one does the same, only less of it."""
_OF_A_CPU = 0.5
"""Share of the cost that a lack of CPU has to explain, and of this lack for a limit."""

Path = tuple[Site, ...]
"""The lines of the user's code in a stack, outermost first."""
Shares = Mapping[Path, float]
"""Shares of the time of a thread, by what it is at."""


def explain(slow: Profile, like: Profile, cost: float, sources: Mapping[str, str]) -> Why:
    """Return why ``slow`` takes longer than ``like``. cost: share of the time that this costs."""
    lacks = slow.delay - like.delay
    if lacks >= _OF_A_CPU * cost:
        throttled = slow.throttled - like.throttled >= _OF_A_CPU * lacks
        return Why(Reason.CPU_THROTTLED if throttled else Reason.CPU_CONTENTION, like=like.rank)
    least = max(_EXPLAINED * cost, LEAST_EXTRA)
    extra = _extra(_training(slow, sources), _training(like, sources), least)
    if extra is None:
        return Why(like=like.rank)
    if not extra.path:
        return Why(Reason.UNEVEN_WORK, like=like.rank)
    own = extra.path[-1]
    why = Why(extra.reason, own, extra.share, like.rank, extra.like_share)
    stacks = [
        one
        for one in _of(slow, slow.thread)
        if _path(one.frames, sources)[: len(extra.path)] == extra.path
    ]
    known = _most(stacks, lambda one: reason_by_frames(one.frames, own))
    why = replace(why, reason=known or why.reason)
    if known is Reason.DATA_LOADING:
        worker = _extra(_workers(slow, sources), _workers(like, sources), least)
        return replace(why, site=worker.path[-1], waits_at=own) if worker and worker.path else why
    if known is None and "gc.collect(" in (own.source or ""):
        return replace(why, reason=Reason.GARBAGE_COLLECTION)
    return _awaited(slow, like, why, least, sources) if _most(stacks, _rests) else why


@dataclass(frozen=True, slots=True)
class _Extra:
    """What a thread of the slow rank takes longer for."""

    path: Path
    """Empty for many lines that have nothing in common."""
    share: float
    like_share: float
    reason: Reason


def _extra(slow: Shares, like: Shares, least: float) -> _Extra | None:
    """Compare threads; None for less than a share of the time."""
    longer = {
        path: more for path, share in slow.items() if (more := share - like.get(path, 0.0)) > 0.0
    }
    if sum(longer.values()) < least:
        return None
    path = _path_of_most(longer)
    reason = Reason.UNEVEN_WORK
    if path and _under(like, path) < _ALSO * _under(slow, path):
        # A line to which the other one does not come by any way says more than one that it shares.
        own = [at for at, line in enumerate(path, 1) if _at(like, line) < _ALSO * _at(slow, line)]
        path, reason = path[: own[-1]] if own else path, Reason.USER_CODE
    return _Extra(path, _under(slow, path), _under(like, path), reason)


def _path_of_most(longer: Shares) -> Path:
    """The longest path under which is most of all."""
    total = sum(longer.values())
    path: Path = ()
    while True:
        under: dict[Path, float] = {}
        for one, more in longer.items():
            if len(one) > len(path) and one[: len(path)] == path:
                step = one[: len(path) + 1]
                under[step] = under.get(step, 0.0) + more
        best = max(under, key=lambda one: under[one], default=())
        if not best or under[best] < _MOST * total:
            return path
        path = best


def _under(shares: Shares, path: Path) -> float:
    return sum(share for one, share in shares.items() if one[: len(path)] == path)


def _at(shares: Shares, line: Site) -> float:
    return sum(share for one, share in shares.items() if line in one)


def _awaited(
    slow: Profile, like: Profile, why: Why, least: float, sources: Mapping[str, str]
) -> Why:
    """Tell the line of another thread that takes longer, if one does."""
    most = 0.0
    for tid in _threads(slow):
        name = _name(slow, tid)
        other = _shares(_of(like, _named(like, name)), sources)
        extra = _extra(_shares(_of(slow, tid), sources), other, least)
        if tid == slow.thread or extra is None or not extra.path:
            continue
        if extra.share - extra.like_share > most:
            most = extra.share - extra.like_share
            at = why.waits_at or why.site
            why = replace(why, reason=extra.reason, site=extra.path[-1], waits_at=at, thread=name)
    return why


def _training(profile: Profile, sources: Mapping[str, str]) -> Shares:
    """What the thread that trains works at. The time in which it waits for ranks is left out."""
    stacks = _of(profile, profile.thread)
    total = max(sum(one.count for one in stacks), 1)
    working = [one for one in stacks if not waits_in_c10d(one.frames, sources)]
    inside = {one: one.count / total for one in working if in_backward(one.frames)}
    backward = sum(inside.values())
    # What C++ waits for in backward() has no frame of its own.
    seen = 1 - sum(one.count for one in working) / total
    works = 1 - min(max(profile.waits - seen, 0.0) / backward, 1.0) if backward else 1.0
    shares: dict[Path, float] = {}
    for one in working:
        path = _path(one.frames, sources)
        share = inside[one] * works if one in inside else one.count / total
        shares[path] = shares.get(path, 0.0) + share
    shares.pop((), None)
    return shares


def _workers(profile: Profile, sources: Mapping[str, str]) -> Shares:
    """What its data workers are at, all of them together."""
    stacks = [
        replace(one, frames=inside)
        for one in profile.samples
        if one.pid != profile.pid and (inside := tuple(inside_worker(one.frames)))
    ]
    return _shares(stacks, sources)


def _shares(stacks: Sequence[StackSamples], sources: Mapping[str, str]) -> Shares:
    total = sum(one.count for one in stacks)
    shares: dict[Path, float] = {}
    for one in stacks:
        path = () if _rests(one) else _path(one.frames, sources)
        shares[path] = shares.get(path, 0.0) + one.count / total
    shares.pop((), None)
    return shares


def _path(frames: Sequence[Frame], sources: Mapping[str, str]) -> Path:
    return tuple(site_of(frame, sources) for frame in reversed(user_frames(frames)))


def _rests(one: StackSamples) -> bool:
    return rests(one.frames)


def _of(profile: Profile, thread: int) -> list[StackSamples]:
    return [one for one in profile.samples if one.pid == profile.pid and one.tid == thread]


def _threads(profile: Profile) -> list[int]:
    return sorted({one.tid for one in profile.samples if one.pid == profile.pid})


def _name(profile: Profile, thread: int) -> str:
    return next((one.thread for one in _of(profile, thread)), "")


def _named(profile: Profile, name: str) -> int:
    """A thread of that name, -1 if there is none."""
    tids = (one.tid for one in profile.samples if one.pid == profile.pid and one.thread == name)
    return next(tids, -1)


def _most(stacks: Iterable[StackSamples], what: Callable[[StackSamples], _T]) -> _T | None:
    """What most of these stacks have in common, None if there is no such thing."""
    counts: Counter[_T] = Counter()
    for one in stacks:
        counts[what(one)] += one.count
    for common, count in counts.most_common(1):
        return common if 2 * count > counts.total() else None
    return None
