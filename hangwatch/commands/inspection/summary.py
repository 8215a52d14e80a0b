"""What a rank is doing at this moment: from its stack, its process and its page, if it has one.

One moment is no verdict: what is said is where a rank is, not that it is stuck there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hangwatch.commands.top.ranks import Call
from hangwatch.commands.top.view import seconds
from hangwatch.diagnosis.facts.activity import Activity, activity, waits_in_collective
from hangwatch.diagnosis.text import phrases
from hangwatch.model.frames import innermost_user_site, is_user_frame, program_thread
from hangwatch.model.kinds import Reason
from hangwatch.model.snapshot import Child, Frame, RankSnapshot, ThreadStack
from hangwatch.text import capital, the_ranks, verb

_C10D = re.compile(r"/torch/distributed/distributed_c10d\.py$")
_DISTRIBUTED = re.compile(
    r"/torch/distributed/(?!checkpoint/|elastic/|launcher/|run\.py|rpc/)"
    r"|/torch/nn/parallel/distributed\.py$"
)
_BACKWARD = re.compile(r"/torch/autograd/(?:graph|__init__)\.py$|/torch/_tensor\.py$")
_STOPPED = frozenset({Reason.STOPPED, Reason.DEBUGGER})


class Where(IntEnum):
    """What kind of place a rank is in; those worth looking at come first."""

    STOPPED = 0
    ELSEWHERE = 1
    """It does something, and waits in no collective."""
    UNKNOWN = 2
    WAITS = 3


@dataclass(frozen=True, slots=True)
class Doing:
    """What a rank does, and at which line: ``one`` follows ``it``, ``several`` ``they``."""

    where: Where
    one: str
    several: str
    worker: int = 0
    """Pid of the data worker that explains it, 0 if none does."""


def doing(rank: RankSnapshot, call: Call | None, sources: Mapping[str, str]) -> Doing:
    """What a living rank does. call: what it waits in, as its page says."""
    act = activity(rank, sources)
    thread = program_thread(rank)
    frames = thread.frames if thread else ()
    at = phrases.at_line(innermost_user_site(frames, sources))
    if act.reason in _STOPPED:
        return _is(Where.STOPPED, phrases.doing(act))
    if call is not None:
        return _waits(f"{call.text}{phrases.at_line(call.site) or at}")
    if not frames:
        return _without_stack(rank)
    if act.compiling is not None:
        return _is(Where.ELSEWHERE, phrases.doing(act))
    return _in_library(rank, frames, at) or _elsewhere(rank, act, at, sources)


def _in_library(rank: RankSnapshot, frames: Sequence[Frame], at: str) -> Doing | None:
    """What its stack says where it is inside torch, in which ranks wait."""
    name = _collective(frames)
    if name:
        return _waits(f"{name}{at}")
    if any(_BACKWARD.search(frame.file) for frame in _inside(frames)):
        where = Where.ELSEWHERE if rank.process.state == "R" else Where.WAITS
        return _is(where, f"in backward{at}, in which gradients are reduced")
    return None


def _elsewhere(rank: RankSnapshot, act: Activity, at: str, sources: Mapping[str, str]) -> Doing:
    if act.reason is not Reason.USER_CODE:
        what = phrases.doing(act)
        return Doing(Where.ELSEWHERE, f"is {what}", f"are {what}", act.worker)
    if waits_in_collective(rank, sources):
        return _is(Where.WAITS, f"waiting for work that it has enqueued{at}")
    if rank.process.state == "R":
        return _is(Where.ELSEWHERE, f"running{at}")
    return Doing(Where.ELSEWHERE, f"is in its own code{at}", f"are in their own code{at}")


def _is(where: Where, what: str) -> Doing:
    return Doing(where, f"is {what}", f"are {what}")


def _waits(what: str) -> Doing:
    return Doing(Where.WAITS, f"waits in {what}", f"wait in {what}")


def _without_stack(rank: RankSnapshot) -> Doing:
    process = rank.process
    if process.state == "R":
        return _is(Where.UNKNOWN, "running; no stack could be taken")
    kernel = f" in the kernel's {process.wchan}" if process.wchan else ""
    return _is(Where.UNKNOWN, f"asleep{kernel}; no stack could be taken")


def _inside(frames: Sequence[Frame]) -> list[Frame]:
    """The frames inside the innermost one of the user's."""
    inside = []
    for frame in frames:
        if is_user_frame(frame):
            break
        inside.append(frame)
    return inside


def _collective(frames: Sequence[Frame]) -> str:
    """The function of torch.distributed that a rank is inside of, empty for none.

    The outermost public one of distributed_c10d.py is the one that people know
    (``all_gather_object`` calls ``all_gather``); without one, the innermost of any module.
    """
    inside = [frame for frame in _inside(frames) if _DISTRIBUTED.search(frame.file)]
    known = [f for f in inside if _C10D.search(f.file) and not f.function.startswith("_")]
    if known:
        return known[-1].function
    named = [f for f in inside if not f.function.endswith("wrapper")]
    return f"{named[0].function} of torch.distributed" if named else ""


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
