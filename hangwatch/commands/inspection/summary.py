"""Tells where the ranks of a job are, those first that are not where the others are. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hangwatch.commands.inspection.doing import Doing, Where
from hangwatch.commands.top.view import seconds
from hangwatch.diagnosis.text.phrases import capital, the_ranks, verb
from hangwatch.model.frames import program_thread
from hangwatch.model.snapshot import Child, RankSnapshot, ThreadStack

ONE_MOMENT = (
    "This is one moment, and no verdict: look again, and see who has not moved. A rank that "
    "others wait for may only be slow."
)
ALL_WAIT = (
    "Should they stay there, then what they wait for is elsewhere: a rank on another node, a rank "
    "that is gone, or the network."
)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a job, and what it does."""

    snapshot: RankSnapshot
    doing: Doing
    waits_s: float = 0.0
    """How long it has waited, by its page; 0 where that is not known."""

    @property
    def rank(self) -> int:
        """Its number, -1 where it is not known."""
        return self.snapshot.rank

    @property
    def place(self) -> tuple[object, ...]:
        """What two ranks have in common that do the same in the same place."""
        return self.doing.where, self.doing.one

    @property
    def worker(self) -> Child | None:
        """The data worker that it waits for, if that is known."""
        children = self.snapshot.children
        return next((child for child in children if child.pid == self.doing.worker), None)

    @property
    def main(self) -> ThreadStack | None:
        """The thread that runs its program."""
        return program_thread(self.snapshot)


@dataclass(frozen=True, slots=True)
class Stack:
    """The members that have one stack."""

    members: tuple[Member, ...]

    @property
    def first(self) -> Member:
        """One that stands for all."""
        return self.members[0]


def sentences(members: Sequence[Member]) -> Iterator[str]:
    """Where they are, one sentence for each place."""
    places = by_place(members)
    if len(places) == 1 and len(members) > 1:
        yield f"All {len(members)} {_does(members)}."
        if members[0].doing.where is Where.WAITS:
            yield ALL_WAIT
        return
    for group in places:
        yield _sentence(group, members)


def by_place(members: Sequence[Member]) -> list[list[Member]]:
    """The members of each place: first who is stopped, or where few are and nobody waits."""
    alike: defaultdict[tuple[object, ...], list[Member]] = defaultdict(list)
    for member in members:
        alike[member.place].append(member)
    return sorted(alike.values(), key=lambda group: (group[0].doing.where, len(group)))


def by_stack(members: Sequence[Member]) -> list[Stack]:
    """Members with the same stack and the same thing to do, in the order of their places."""
    found = []
    for group in by_place(members):
        alike: defaultdict[object, list[Member]] = defaultdict(list)
        for member in group:
            alike[_stack_key(member)].append(member)
        found += [Stack(tuple(same)) for same in alike.values()]
    return found


def _stack_key(member: Member) -> tuple[object, ...]:
    """Where a library lies in memory, which py-spy says of frames without a name, tells nothing."""
    frames = member.main.frames if member.main else ()
    return tuple((f.file, f.line, _ADDRESS.sub("", f.function)) for f in frames)


def named(members: Sequence[Member]) -> str:
    """``rank 2``, ``ranks 0, 1 and 3``; processes that have no rank by their pid."""
    ranks = [member.rank for member in members if member.rank >= 0]
    if ranks:
        return the_ranks(ranks)
    pids = [str(member.snapshot.pid) for member in members]
    return f"process{'' if len(pids) == 1 else 'es'} {', '.join(pids)}"


def _sentence(group: Sequence[Member], everyone: Sequence[Member]) -> str:
    first = group[0]
    waiting = sum(1 for member in everyone if member.doing.where is Where.WAITS)
    others = len(everyone) - len(group)
    outlier = first.doing.where is Where.ELSEWHERE and waiting and len(group) <= others
    if not outlier:
        return f"{capital(_are(group))}."
    who, they = named(group), verb([m.rank for m in group], "it", "they")
    return f"{capital(who)} {_be(group)} not where the others are: {they} {_does(group)}."


def _are(group: Sequence[Member]) -> str:
    return f"{named(group)} {_does(group)}"


def _does(group: Sequence[Member]) -> str:
    text = group[0].doing.one if len(group) == 1 else group[0].doing.several
    longest_s = max(member.waits_s for member in group)
    return f"{text}, for {seconds(longest_s)}" if longest_s else text


def _be(group: Sequence[Member]) -> str:
    return "is" if len(group) == 1 else "are"
