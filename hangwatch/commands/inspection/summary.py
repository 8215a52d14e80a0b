"""The activity of each rank at this moment, from its stack, its process and its page, in words.

A snapshot is no verdict: it shows where a rank is, not that it is stuck there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hangwatch.commands.runs import BlockingCall
from hangwatch.diagnosis.facts.activity import Activity, activity, waits_in_collective
from hangwatch.diagnosis.text import phrases
from hangwatch.model.frames import innermost_user_site, is_user_frame, program_thread
from hangwatch.model.kinds import Reason
from hangwatch.model.snapshot import Child, Frame, RankSnapshot, ThreadStack
from hangwatch.text import capital, duration, the_ranks, verb

_C10D = re.compile(r"/torch/distributed/distributed_c10d\.py$")
_DISTRIBUTED = re.compile(
    r"/torch/distributed/(?!checkpoint/|elastic/|launcher/|run\.py|rpc/)"
    r"|/torch/nn/parallel/distributed\.py$"
)
_BACKWARD = re.compile(r"/torch/autograd/(?:graph|__init__)\.py$|/torch/_tensor\.py$")
_STOPPED = frozenset({Reason.STOPPED, Reason.DEBUGGER})
_ADDRESS = re.compile(r"0x[0-9a-f]+")
SNAPSHOT = (
    "This is a snapshot, not a verdict: run it again and see which ranks have not moved. A rank "
    "that others wait for may only be slow."
)
ALL_WAIT = (
    "If they are still there later, they wait for something elsewhere: a rank on another node, a "
    "rank that is gone, or the network."
)


class Where(IntEnum):
    """The kinds of places that a rank may be in; the most interesting comes first."""

    STOPPED = 0
    ELSEWHERE = 1
    """It does something, and waits in no collective."""
    UNKNOWN = 2
    WAITS = 3


@dataclass(frozen=True, slots=True)
class Doing:
    """The activity of a rank, and its line: ``one`` follows ``it``, ``several`` ``they``."""

    where: Where
    one: str
    several: str
    worker: int = 0
    """Pid of the data worker that explains it, 0 if none does."""


def doing(rank: RankSnapshot, call: BlockingCall | None, sources: Mapping[str, str]) -> Doing:
    """Return what a living rank does. call: it waits in this, by its page."""
    act = activity(rank, sources)
    thread = program_thread(rank)
    frames = thread.frames if thread else ()
    at = phrases.at_line(innermost_user_site(frames, sources))
    if act.reason in _STOPPED:
        return _is(Where.STOPPED, phrases.doing(act))
    if call is not None:
        return _waits(f"{call}{phrases.at_line(call.site) or at}")
    if not frames:
        return _without_stack(rank)
    if act.compiling is None:
        if name := _collective(frames):
            return _waits(f"{name}{at}")
        if any(_BACKWARD.search(frame.file) for frame in _library_frames(frames)):
            where = Where.ELSEWHERE if rank.process.state == "R" else Where.WAITS
            return _is(where, f"in backward{at}, in which gradients are reduced")
    return _elsewhere(rank, act, at, sources)


def _elsewhere(rank: RankSnapshot, act: Activity, at: str, sources: Mapping[str, str]) -> Doing:
    if act.compiling is not None or act.reason is not Reason.USER_CODE:
        return _is(Where.ELSEWHERE, phrases.doing(act), act.worker)
    if waits_in_collective(rank, sources):
        return _is(Where.WAITS, f"waiting for work that it has enqueued{at}")
    if rank.process.state == "R":
        return _is(Where.ELSEWHERE, f"running{at}")
    return Doing(Where.ELSEWHERE, f"is in its own code{at}", f"are in their own code{at}")


def _is(where: Where, what: str, worker: int = 0) -> Doing:
    return Doing(where, f"is {what}", f"are {what}", worker)


def _waits(what: str) -> Doing:
    return Doing(Where.WAITS, f"waits in {what}", f"wait in {what}")


def _without_stack(rank: RankSnapshot) -> Doing:
    process = rank.process
    if process.state == "R":
        return _is(Where.UNKNOWN, "running; no stack could be taken")
    kernel = f" in the kernel's {process.wchan}" if process.wchan else ""
    return _is(Where.UNKNOWN, f"asleep{kernel}; no stack could be taken")


def _library_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames inside the innermost one of the user's."""
    outer = next((at for at, frame in enumerate(frames) if is_user_frame(frame)), len(frames))
    return list(frames[:outer])


def _collective(frames: Sequence[Frame]) -> str:
    """Return the function of torch.distributed that a rank is inside of, empty for none.

    The outermost public one of distributed_c10d.py is the one that people know
    (``all_gather_object`` calls ``all_gather``); without one, the innermost of any module.
    """
    inside = [frame for frame in _library_frames(frames) if _DISTRIBUTED.search(frame.file)]
    known = [f for f in inside if _C10D.search(f.file) and not f.function.startswith("_")]
    if known:
        return known[-1].function
    named = [f for f in inside if not f.function.endswith("wrapper")]
    return f"{named[0].function} of torch.distributed" if named else ""


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a job, and what it does."""

    snapshot: RankSnapshot
    doing: Doing
    waits_s: float = 0.0
    """Age of its wait, by its page; 0 if not known."""

    @property
    def rank(self) -> int:
        """Its number, -1 if not known."""
        return self.snapshot.rank

    @property
    def worker(self) -> Child | None:
        """The data worker that it waits for, if known."""
        children = self.snapshot.children
        return next((child for child in children if child.pid == self.doing.worker), None)

    @property
    def main(self) -> ThreadStack | None:
        """The thread that runs its program."""
        return program_thread(self.snapshot)


def sentences(members: Sequence[Member]) -> Iterator[str]:
    """Yield one sentence for each place in which members are."""
    places = _by_place(members)
    if len(places) == 1 and len(members) > 1:
        yield f"All {len(members)} {_does(members)}."
        if members[0].doing.where is Where.WAITS:
            yield ALL_WAIT
        return
    anyone_waits = any(member.doing.where is Where.WAITS for member in members)
    for group in places:
        outlier = group[0].doing.where is Where.ELSEWHERE and len(group) <= len(members) / 2
        if outlier and anyone_waits:
            count = [member.rank for member in group]
            be, they = verb(count, "is", "are"), verb(count, "it", "they")
            yield (f"{capital(named(group))} {be} not where the others are: {they} {_does(group)}.")
        else:
            yield f"{capital(named(group))} {_does(group)}."


def _by_place(members: Sequence[Member]) -> list[list[Member]]:
    """Return the members of each place: first the stopped ones, then places with few ranks."""
    alike: defaultdict[tuple[Where, str], list[Member]] = defaultdict(list)
    for member in members:
        alike[member.doing.where, member.doing.one].append(member)
    return sorted(alike.values(), key=lambda group: (group[0].doing.where, len(group)))


def by_stack(members: Sequence[Member]) -> list[list[Member]]:
    """Return members with the same stack that do the same, in the order of their places."""
    stacks: list[list[Member]] = []
    for group in _by_place(members):
        alike: defaultdict[object, list[Member]] = defaultdict(list)
        for member in group:
            # py-spy names a frame without a symbol by its address, which differs between ranks.
            frames = member.main.frames if member.main else ()
            key = tuple((f.file, f.line, _ADDRESS.sub("", f.function)) for f in frames)
            alike[key].append(member)
        stacks += alike.values()
    return stacks


def named(members: Sequence[Member]) -> str:
    """``rank 2``, ``ranks 0, 1 and 3``; processes that have no rank by their pid."""
    ranks = [member.rank for member in members if member.rank >= 0]
    if ranks:
        return the_ranks(ranks)
    pids = [str(member.snapshot.pid) for member in members]
    return f"process{'' if len(pids) == 1 else 'es'} {', '.join(pids)}"


def _does(group: Sequence[Member]) -> str:
    text = group[0].doing.one if len(group) == 1 else group[0].doing.several
    longest_s = max(member.waits_s for member in group)
    return f"{text}, for {duration(longest_s)}" if longest_s else text
