"""Shares of the time of a rank by the lines of the user's code, from its profile. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangwatch.diagnosis.facts.activity import in_backward, inside_worker, waits_in_c10d
from hangwatch.model.calls import Site
from hangwatch.model.frames import rests, site_of, user_frames
from hangwatch.model.profile import LineShare, Profile, StackSamples, ThreadShares
from hangwatch.model.snapshot import Frame

Path = tuple[Site, ...]
"""The lines of the user's code in a stack, outermost first."""
Shares = Mapping[Path, float]
"""Shares of the time of a thread, by what it is at."""
TRAINING, WORKERS = "the thread that trains", "data workers"
_NAMELESS = "without a name"
_LEAST = 0.02
"""Share of the time of either rank from which on a line is shown."""


def shares_by_line(
    slow: Profile, like: Profile, thread: str, sources: Mapping[str, str]
) -> tuple[ThreadShares, ...]:
    """Return what both ranks were at: in the thread that trains, and in data workers.

    thread: the name of another one, empty for none.
    """
    training, other = training_shares(slow, sources), training_shares(like, sources)
    table = _table(TRAINING, training.works, other.works)
    waits = LineShare(None, training.waits, other.waits)
    tables = [
        replace(table, lines=(*table.lines, waits)),
        _table(WORKERS, worker_shares(slow, sources), worker_shares(like, sources)),
    ]
    if thread:
        shares = (thread_shares(one, thread_named(one, thread), sources) for one in (slow, like))
        tables.append(_table(thread, *shares))
    return tuple(table for table in tables if table.lines)


def _table(name: str, slow: Shares, like: Shares) -> ThreadShares:
    """Those lines first for which the slow one takes longer."""
    of_slow, of_like = by_line(slow), by_line(like)
    lines = [
        LineShare(line, of_slow[line], of_like[line])
        for line in of_slow.keys() | of_like.keys()
        if max(of_slow[line], of_like[line]) >= _LEAST
    ]
    lines.sort(key=lambda one: (one.like_share - one.share, -one.share, str(one.site)))
    return ThreadShares(name, tuple(lines))


def by_line(shares: Shares) -> defaultdict[Site, float]:
    """Return the shares by the innermost line of what it was at."""
    lines: defaultdict[Site, float] = defaultdict(float)
    for path, share in shares.items():
        lines[path[-1]] += share
    return lines


@dataclass(frozen=True, slots=True)
class Training:
    """What the thread that trains does."""

    works: Shares
    backward: Shares
    """What of this it is at in backward()."""
    waits: float
    """Share of the time in which it waits for other ranks."""
    rests: float
    """Share of the time in which it waits for a thread of its own."""


def training_shares(profile: Profile, sources: Mapping[str, str]) -> Training:
    """Return what the thread that trains works at, and for how long it waits for ranks."""
    stacks = stacks_of(profile, profile.thread)
    samples = sum(one.count for one in stacks)
    total = max(samples, 1)
    working = [one for one in stacks if not waits_in_c10d(one.frames, sources)]
    inside = {one: one.count / total for one in working if in_backward(one.frames)}
    backward = sum(inside.values())
    # What C++ waits for in backward() has no frame of its own.
    seen = (samples - sum(one.count for one in working)) / total
    unseen = min(max(profile.waits - seen, 0.0), backward)
    works = 1 - unseen / backward if backward else 1.0
    gradients = _sums(
        (path_of(one.frames, sources), share * works) for one, share in inside.items()
    )
    other = _sums(
        (path_of(one.frames, sources), one.count / total) for one in working if one not in inside
    )
    both = _sums((*gradients.items(), *other.items()))
    resting = sum(one.count for one in working if rests(one.frames))
    return Training(both, gradients, seen + unseen, resting / total)


def worker_shares(profile: Profile, sources: Mapping[str, str]) -> Shares:
    """Return what its data workers are at, all of them together."""
    stacks = [
        replace(one, frames=inside)
        for one in profile.samples
        if one.pid != profile.pid and (inside := tuple(inside_worker(one.frames)))
    ]
    return _shares(stacks, sources)


def thread_shares(profile: Profile, thread: int, sources: Mapping[str, str]) -> Shares:
    """Return what a thread of the rank is at. thread: its native id."""
    return _shares(stacks_of(profile, thread), sources)


def _shares(stacks: Sequence[StackSamples], sources: Mapping[str, str]) -> Shares:
    total = sum(one.count for one in stacks)
    return _sums(
        (() if rests(one.frames) else path_of(one.frames, sources), one.count / total)
        for one in stacks
    )


def _sums(shares: Iterable[tuple[Path, float]]) -> Shares:
    """Sums by path, without those of no line of the user's."""
    sums: dict[Path, float] = {}
    for path, share in shares:
        sums[path] = sums.get(path, 0.0) + share
    sums.pop((), None)
    return sums


def path_of(frames: Sequence[Frame], sources: Mapping[str, str]) -> Path:
    """Return the lines of the user's code in a stack, given innermost first."""
    return tuple(site_of(frame, sources) for frame in reversed(user_frames(frames)))


def under(shares: Shares, path: Path) -> float:
    """Return the share of all that a path leads to."""
    return sum(share for one, share in shares.items() if one[: len(path)] == path)


def at_line(shares: Shares, line: Site) -> float:
    """Return the share of all that a line leads to, by whatever path."""
    return sum(share for one, share in shares.items() if line in one)


def stacks_of(profile: Profile, thread: int) -> list[StackSamples]:
    """Return the stacks of a thread of the rank. thread: its native id."""
    return [one for one in profile.samples if one.pid == profile.pid and one.tid == thread]


def threads_of(profile: Profile) -> list[int]:
    """Return the threads of the rank."""
    return sorted({one.tid for one in profile.samples if one.pid == profile.pid})


def thread_name(profile: Profile, thread: int) -> str:
    """Return the name of a thread of the rank."""
    return next((one.thread for one in stacks_of(profile, thread)), "") or _NAMELESS


def thread_named(profile: Profile, name: str) -> int:
    """Return a thread of that name, -1 if there is none."""
    own = (one for one in profile.samples if one.pid == profile.pid)
    return next((one.tid for one in own if (one.thread or _NAMELESS) == name), -1)
