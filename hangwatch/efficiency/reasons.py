"""Tells why a rank takes longer than another one, from the profiles of both. Pure.

Both make the same turns in the same time. So what the slow one takes longer for is where it is for
more of the time, while the other one waits. Lines are compared by the way that leads to them: a
helper that all ranks call is no answer to the question who calls it more often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from hangwatch.diagnosis.facts.activity import in_backward, reason_by_frames
from hangwatch.efficiency.line_shares import (
    Path,
    Shares,
    Training,
    at_line,
    by_line,
    path_of,
    stacks_of,
    thread_name,
    thread_named,
    thread_shares,
    threads_of,
    training_shares,
    under,
    worker_shares,
)
from hangwatch.model.frames import rests
from hangwatch.model.kinds import Reason
from hangwatch.model.profile import Profile, StackSamples
from hangwatch.model.report import Why

_T = TypeVar("_T")

LEAST_EXTRA = 0.03
"""Share of the time that lines have to take more of."""
_MOST = 0.5
"""Share of all that takes longer, for the line that is named, with all that it calls."""
_EXPLAINED = 0.4
"""Share of the cost that all lines that take longer have to explain together."""
_ALSO, _ALSO_SHARE = 0.2, 0.02
"""From this share of the slow rank's time, or of its own, on, the other one does the same, only
less of it: five samples are no chance, and who calls it to return at once has fewer."""
_LEAST_DELAY = 0.05
"""Share of the time for which a rank has to wait for a CPU to show how readily it gets one."""
_OF_A_CPU = 0.5
"""Share of the cost that a lack of CPU has to explain, and of this lack for a limit."""


def explain(slow: Profile, like: Profile, cost: float, sources: Mapping[str, str]) -> Why:
    """Return why ``slow`` takes longer than ``like``. cost: share of the time that this costs."""
    lacks = slow.delay - _usual_delay(slow, like)
    if lacks >= _OF_A_CPU * cost:
        throttled = slow.throttled - like.throttled >= _OF_A_CPU * lacks
        return Why(Reason.CPU_THROTTLED if throttled else Reason.CPU_CONTENTION, like=like.rank)
    least = max(_EXPLAINED * cost, LEAST_EXTRA)
    of_slow, of_like = (training_shares(one, sources) for one in (slow, like))
    if of_like.rests >= max(_EXPLAINED * cost, of_like.waits):
        return Why(like=like.rank, hidden=True)
    extra = _extra(of_slow.works, of_like.works, least)
    if extra is None or not extra.path:
        return Why(Reason.UNEVEN_WORK if extra else Reason.UNKNOWN, like=like.rank)
    own = extra.path[-1]
    why = Why(extra.reason, own, extra.share, like.rank, extra.like_share)
    stacks = [
        one
        for one in stacks_of(slow, slow.thread)
        if path_of(one.frames, sources)[: len(extra.path)] == extra.path
    ]
    if why.reason is Reason.USER_CODE and _most(stacks, lambda one: in_backward(one.frames)):
        why = _backward_elsewhere(of_slow, of_like, why)
    known = _most(stacks, lambda one: reason_by_frames(one.frames, own))
    why = replace(why, reason=known or why.reason)
    if known is Reason.DATA_LOADING:
        worker = _extra(worker_shares(slow, sources), worker_shares(like, sources), least)
        return replace(why, site=worker.path[-1], waits_at=own) if worker and worker.path else why
    if known is None and "gc.collect(" in (own.source or ""):
        return replace(why, reason=Reason.GARBAGE_COLLECTION)
    waits = _most(stacks, lambda one: rests(one.frames))
    return _awaited(slow, like, why, least, sources) if waits else why


def _usual_delay(slow: Profile, like: Profile) -> float:
    """For how long the slow one would wait for a CPU if it got one as readily as the other."""
    more = slow.cpu / like.cpu if like.delay >= _LEAST_DELAY and like.cpu else 1.0
    return like.delay * max(more, 1.0)


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
    if path and not _does_too(under(like, path), under(slow, path)):
        # A line to which the other one does not come by any way says more than one that it shares.
        own = [
            at
            for at, line in enumerate(path, 1)
            if not _does_too(at_line(like, line), at_line(slow, line))
        ]
        path, reason = path[: own[-1]] if own else path, Reason.USER_CODE
    return _Extra(path, under(slow, path), under(like, path), reason)


def _backward_elsewhere(slow: Training, like: Training, why: Why) -> Why:
    """Tell the line at which the other one computes its gradients: stages have their own."""
    lines = by_line(like.backward)
    site = max(lines, key=lambda one: lines[one], default=None)
    if site is None or not _does_too(lines[site], why.share) or at_line(slow.works, site):
        return why
    return replace(why, reason=Reason.UNEVEN_WORK, like_site=site, like_share=lines[site])


def _does_too(like_share: float, share: float) -> bool:
    """True if the other rank comes to a line, too, where it is for this share of its time."""
    return like_share >= min(_ALSO * share, _ALSO_SHARE)


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


def _awaited(
    slow: Profile, like: Profile, why: Why, least: float, sources: Mapping[str, str]
) -> Why:
    """Tell the line of another thread that takes longer, if one does."""
    most = False, 0.0
    for tid in threads_of(slow):
        name = thread_name(slow, tid)
        counterpart = thread_named(like, name)
        other = thread_shares(like, counterpart, sources)
        extra = _extra(thread_shares(slow, tid, sources), other, least)
        if tid == slow.thread or extra is None or not extra.path:
            continue
        # One that only this rank has may be any: a monitor is at its line all the time.
        more = counterpart >= 0, extra.share - extra.like_share
        if more > most:
            most, at = more, why.waits_at or why.site
            why = replace(why, reason=extra.reason, site=extra.path[-1], waits_at=at, thread=name)
    return why


def _most(stacks: Iterable[StackSamples], what: Callable[[StackSamples], _T]) -> _T | None:
    """What most of these stacks have in common, None if there is no such thing."""
    counts: Counter[_T] = Counter()
    for one in stacks:
        counts[what(one)] += one.count
    for common, count in counts.most_common(1):
        return common if 2 * count > counts.total() else None
    return None
