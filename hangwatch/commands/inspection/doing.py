"""What a rank is doing at this moment: from its stack, its process and its page, if it has one.

One moment is no verdict: what is said is where a rank is, not that it is stuck there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hangwatch.commands.top.ranks import Call
from hangwatch.diagnosis.facts.activity import Activity, activity, waits_in_collective
from hangwatch.diagnosis.text import phrases
from hangwatch.model.frames import innermost_user_site, is_user_frame, program_thread
from hangwatch.model.kinds import Reason
from hangwatch.model.snapshot import Frame, RankSnapshot

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
