"""How ranks ended, and whether by themselves or because another one did.

Deaths lie: the exit code of a rank says little. A peer of a dead rank dies of a
connection error, the launcher ends the rest, gloo aborts whoever has the smaller
buffer. What counts is who was gone first, and what it was doing.
"""

from __future__ import annotations

import math
import re
import signal
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from itertools import accumulate

from hangwatch.diagnosis.facts.job import Job, seconds
from hangwatch.diagnosis.facts.wait_points import Wait
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import OpState, Phase, Reason
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.snapshot import OpRecord, RankSnapshot


class How(StrEnum):
    """How a rank ended."""

    CLEAN = "clean"
    """Its program came to its end."""
    RAISED = "raised"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    LOST = "lost"
    """Its node is gone."""
    GONE = "gone"
    """It is no more, and nobody knows how."""


class Cause(StrEnum):
    """Why a rank ended."""

    OWN = "own"
    """By itself: nothing that happened elsewhere is known to explain it."""
    ECHO = "echo"
    """It raised, or aborted, out of a collective because a peer was gone or stuck."""
    TERMINATED = "terminated"
    """The launcher or a person ended it."""


class Library(Enum):
    """What ends a process by SIGABRT."""

    GLOO = auto()
    """Where it is sent more than it expects."""
    NCCL = auto()
    """PyTorch's watchdog of NCCL: after an error of the GPU, or a time-out."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one rank."""

    how: How
    cause: Cause
    reason: Reason
    age_s: float
    exception: ExceptionRecord | None = None
    signal: int | None = None
    exit_code: int | None = None
    in_shutdown: bool = False
    """It had come to the end of its program before."""
    contested: bool = False
    """A peer was thrown out of a collective just before this end was seen."""

    @property
    def is_failure(self) -> bool:
        """Return True if the rank ended by itself, before its program came to its end."""
        return self.cause is Cause.OWN and self.how is not How.CLEAN


_PEER = re.compile(
    r"gloo/transport/(?:\w+/)+(?!device|address)|ncclremoteerror|nccl communicator|recvvalue failed"
    r"|sendbytes failed|aborted comm|failed to pass monitoredbarrier",
    re.IGNORECASE,
)
"""What gloo's transport/tcp/pair.cc, ProcessGroupNCCL and TCPStore alone say of a lost peer.
An address that gloo does not find, or what NCCL says of CUDA, is the rank's own."""

_ECHO = re.compile(
    r"connection (?:was )?(?:reset|refused|aborted|lost)|connection.{0,20}by peer"
    r"|remote (?:process|peer|worker)"
    r"|broken pipe|socket (?:closed|timeout|error)|timed? ?out|timeout"
    r"|unhandled system error|network error|heartbeat|peer (?:closed|is gone)"
    r"|failed to recv|store(?:'s)? (?:socket|server)",
    re.IGNORECASE,
)
"""What may be said of a lost peer, and of other things that a program talks to."""

_OF_TORCH = frozenset(
    {"RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}
)
"""What torch's own C++ raises."""

_TIME_OUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)

_MEMORY = re.compile(
    r"OutOfMemory|MemoryError|out of memory|(?:can't|cannot|unable to) allocate", re.IGNORECASE
)
_MISTAKES = frozenset(
    {"AttributeError", "AssertionError", "ImportError", "IndexError", "KeyError"}
    | {"ModuleNotFoundError", "NameError", "TypeError", "UnboundLocalError", "ZeroDivisionError"}
)
"""What nobody raises to tell of another exception."""
SAMPLED_S = 1.0
"""So long after a call that C++ has issued it is seen at the latest."""
NOTICED_S = 1.0
"""So long after a rank has ended that is seen at the latest. Its peers are told at once, by the
connection that closes, and what they raise has the time at which they did."""
_CUT_AT_LEAST = 40
"""No text that the agent has cut is shorter."""
_ASKED_TO_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_ENDED_BY = {number.name for number in _ASKED_TO_END}
_END_EXCEPTIONS = {"KeyboardInterrupt", "SignalException", "SystemExit", "GeneratorExit"}


def endings(job: Job) -> dict[int, Ending]:
    """The ends of all ranks that have ended."""
    found = {rank: end for rank, snap in job.ranks.items() if (end := _ending(snap, job))}
    _place_the_lost(found)
    _excuse_the_unseen(job, found)
    _suspect_the_unseen(job, found)
    if all(end.cause is not Cause.OWN for end in found.values()) and len(job.ranks) == len(
        job.world()
    ):
        _blame_the_vague(job, found)
        return found
    _find_echoes(job, found)
    _excuse_the_later(job, found)
    return found


def _find_echoes(job: Job, found: dict[int, Ending]) -> None:
    """Whoever raised in a collective after a rank that it needs had ended did it for that."""
    own = {rank: end for rank, end in found.items() if end.cause is Cause.OWN}
    first_s = max((end.age_s for end in own.values() if end.how is not How.CLEAN), default=0.0)
    thrown: dict[int, list[int]] = defaultdict(list)
    for rank, end in own.items():
        call = _thrown_out_of(job, rank, end)
        if call is not None:
            thrown[job.gid(call.group)].append(rank)
    raised = {rank for ranks in thrown.values() for rank in ranks}
    for gid, ranks in thrown.items():
        members = [member for member in job.members(gid) if member in own]
        clean_s = max((own[m].age_s for m in members if own[m].how is How.CLEAN), default=0.0)
        others = [m for m in members if m not in raised and own[m].how is not How.CLEAN]
        noticed = {rank for rank in ranks if not _is_its_own(job, rank, own[rank])}
        raised_s, seen_s = (sorted(own[m].age_s for m in some) for some in (noticed, others))
        for rank in ranks:
            age_s = own[rank].age_s
            # That its peer is gone it may have been told before anybody saw that.
            just = bisect_right(seen_s, age_s) > bisect_right(seen_s, age_s - NOTICED_S)
            if (just and rank in noticed) or age_s < max(first_s, clean_s):
                found[rank] = replace(own[rank], cause=Cause.ECHO)
        for member in others:
            age_s = own[member].age_s
            if bisect_left(raised_s, age_s + NOTICED_S) > bisect_left(raised_s, age_s):
                found[member] = replace(own[member], contested=True)
    _find_echoes_in_cpp(job, {rank: end for rank, end in own.items() if rank not in raised}, found)


def _find_echoes_in_cpp(job: Job, own: dict[int, Ending], found: dict[int, Ending]) -> None:
    """The same of those that raised amid collectives of C++, such as those of backward.

    No record tells whether it was out of one. But it had issued one that a member never came
    to which had ended before.
    """
    known = dict(found)
    behind: dict[int, tuple[list[int], list[float]]] = {}
    for rank, end in own.items():
        if end.how is not How.RAISED or end.reason is Reason.OUT_OF_MEMORY:
            continue
        for gid, progress in job.progress.get(rank, {}).items():
            if gid not in behind:
                behind[gid] = _ended_behind(job, gid, known)
            counts, seen_s = behind[gid]
            fewer = bisect_left(counts, progress.enqueued)
            if fewer and end.age_s < seen_s[fewer - 1]:
                found[rank] = replace(end, cause=Cause.ECHO)
                break


def _ended_behind(job: Job, gid: int, ends: dict[int, Ending]) -> tuple[list[int], list[float]]:
    """How far members that have ended had come, in order; and for each how long ago one ended.

    It is the first by itself of those that had come so far or less, 0 where none ended so.
    """
    ended = sorted(
        (job.progress[member][gid].enqueued, _seen_at_s(ends[member]))
        for member in job.members(gid)
        if member in ends and gid in job.progress.get(member, {})
    )
    counts = [count for count, _ in ended]
    return counts, list(accumulate((age_s for _, age_s in ended), max))


def _seen_at_s(end: Ending) -> float:
    """How long ago a rank ended by itself, at most: that it was killed is seen a little later."""
    if end.cause is not Cause.OWN:
        return 0.0
    killed = end.how is How.SIGNAL and end.signal != signal.SIGABRT
    return end.age_s + NOTICED_S if killed else end.age_s


def _is_its_own(job: Job, rank: int, end: Ending) -> bool:
    """Whether what a rank raised is known not to come of a peer's end.

    What the call itself has raised says nothing of one.
    """
    error = end.exception
    if error is None:
        return False
    said = error.thrown if _failed_last(job, rank) else ""
    if not said:
        call = last_call(job, rank)
        made, raised = call.site if call else None, error.site
        straight = made and raised and (made.file, made.line) == (raised.file, raised.line)
        said = error.message if straight else ""
    return bool(said) and not _PEER.search(said) and not _ECHO.search(said)


def _excuse_the_later(job: Job, found: dict[int, Ending]) -> None:
    """Whoever ended with an exit code after another one had failed for sure was asked to.

    A handler of SIGTERM may end a rank with any.
    """
    sure = [end.age_s for rank, end in found.items() if _failed_for_sure(job, rank, end)]
    first_s = max(sure, default=0.0)
    for rank, end in found.items():
        if end.cause is Cause.OWN and end.how is How.EXIT_CODE and end.age_s < first_s:
            found[rank] = replace(end, cause=Cause.TERMINATED)


def _failed_for_sure(job: Job, rank: int, end: Ending) -> bool:
    """Whether a rank failed by itself, and cannot have done so because of another one's end."""
    if end.cause is not Cause.OWN or end.contested:
        return False
    if end.how is How.SIGNAL:
        return end.signal != signal.SIGABRT
    thrown = _thrown_out_of(job, rank, end)
    return end.how is How.RAISED and (thrown is None or _is_its_own(job, rank, end))


def _place_the_lost(found: dict[int, Ending]) -> None:
    """When a node was lost nobody has seen.

    It may be the root of whatever is not explained by itself. Where another rank
    has failed by itself, its node may well have been given back after that.
    """
    others = [end for end in found.values() if end.how is not How.LOST]
    failed = any(end.is_failure for end in others)
    first_s = max((end.age_s for end in others), default=0.0)
    for rank, end in found.items():
        if end.how is How.LOST:
            cause = Cause.TERMINATED if failed else Cause.OWN
            found[rank] = replace(end, cause=cause, age_s=max(end.age_s, first_s))


def _excuse_the_unseen(job: Job, found: dict[int, Ending]) -> None:
    """The job is over, and another rank is known to have failed by itself.

    Then the launcher has ended those that went after it, and of which nobody saw how. Not
    where it failed in a collective: one that went unseen may be why.
    """
    known = (How.RAISED, How.SIGNAL, How.EXIT_CODE)
    ages = [
        end.age_s
        for rank, end in found.items()
        if end.cause is Cause.OWN and end.how in known and not _thrown_out_of(job, rank, end)
    ]
    for rank, end in found.items() if job.snapshot.ended and ages else ():
        # Of one that went unseen the last sign of life is known.
        last = end.how is How.GONE and end.age_s < max(ages) + NOTICED_S
        if last and end.cause is Cause.OWN:
            found[rank] = replace(end, cause=Cause.TERMINATED)


def _suspect_the_unseen(job: Job, found: dict[int, Ending]) -> None:
    """Nobody saw how any of those ended that did not do well, as in a job that was short.

    Then one that came to the end of its program may have failed there as well.
    """
    bad = [end for end in found.values() if end.how is not How.CLEAN]
    if not job.snapshot.exit_code or not bad or any(end.how is not How.GONE for end in bad):
        return
    for rank, end in found.items():
        if end.how is How.CLEAN and end.exit_code is None:
            found[rank] = replace(end, how=How.GONE, reason=Reason.UNKNOWN, cause=Cause.OWN)


def _blame_the_vague(job: Job, found: dict[int, Ending]) -> None:
    """Nobody is known to have failed by itself: the one whose error may be its own did."""
    vague = [
        rank
        for rank, end in found.items()
        if end.cause is Cause.ECHO
        and end.exception
        and not _tells_of_a_peer(job, rank, end.exception)
        and last_call(job, rank) is None
    ]
    if len(vague) == 1 and len(found) > 1:
        found[vague[0]] = replace(found[vague[0]], cause=Cause.OWN)


def aborted_by(job: Job, rank: int, end: Ending) -> Library | None:
    """What may have aborted a rank that ended in its program, after a call of some group."""
    groups = job.progress.get(rank, {}).values()
    used = [group.in_order for group in groups if group.enqueued > 0 or group.p2p > 0]
    if end.signal != signal.SIGABRT or end.in_shutdown or not used:
        return None
    return Library.NCCL if all(used) else Library.GLOO


def gave_up(ended: Mapping[int, Ending], waits: Iterable[Wait]) -> bool:
    """Whether the time-out of a rank's own wait has ended it: that comes of no peer's end."""
    return any(timed_out(ended[wait.rank]) for wait in waits if wait.rank in ended)


def timed_out(end: Ending) -> bool:
    """Whether a rank raised what tells of a time-out of a collective, or was made of that."""
    if end.how is not How.RAISED or end.cause is not Cause.ECHO or end.exception is None:
        return False
    return any(map(_TIME_OUT.search, (end.exception.message, *end.exception.after)))


def last_call(job: Job, rank: int) -> OpRecord | None:
    """The call that a rank was in when it ended, or raised out of."""
    ops = job.ops.get(rank, [])
    for _, record in reversed(ops):
        if record.state is OpState.BLOCKED:
            return record
    gid, last = next(reversed(ops), (0, None))
    if last is None or last.state is not OpState.FAILED or went_on(job, rank, gid, last):
        return None
    return last


def went_on(job: Job, rank: int, gid: int, call: OpRecord) -> bool:
    """Whether a rank has made calls after one of group gid that nobody has recorded: C++ has.

    Of one that it waits for later that is not known.
    """
    if call.is_async:
        return False
    groups = job.progress.get(rank, {})
    own = groups.get(gid)
    if own is not None and not call.p2p and own.enqueued > call.seq:
        return True
    ages = (group.changed_age_s for group in groups.values())
    since_s = min((seconds(age) for age in ages if age is not None), default=math.inf)
    return since_s < seconds(call.issued_age_s) - SAMPLED_S


def _thrown_out_of(job: Job, rank: int, end: Ending) -> OpRecord | None:
    """The collective that a rank was in when it ended, where that may be why it did."""
    if end.signal == signal.SIGKILL or end.reason is Reason.OUT_OF_MEMORY:
        return None
    call = last_call(job, rank)
    if end.how is How.EXIT_CODE and call is not None and call.state is OpState.FAILED:
        return call  # it has caught what the collective raised
    return call if end.how in (How.RAISED, How.SIGNAL) else None


def _ending(rank: RankSnapshot, job: Job) -> Ending | None:
    process = rank.process
    over = rank.phase in (Phase.EXITED, Phase.RAISED)
    # Two machines may share a hostname: what is seen alive is not on the lost one.
    if process.alive and not over and rank.exception is None:
        return None
    how = _how(rank, lost=rank.node in job.snapshot.lost_nodes and bool(rank.node))
    # What it said itself is exact; that it is gone was seen later, or it was last seen before.
    said = [seconds(rank.exception_age_s)] if rank.exception is not None else []
    said += [seconds(rank.phase_age_s)] if over else []
    return Ending(
        how=how,
        cause=_cause(rank, how, job),
        reason=_reason(rank, how),
        age_s=max(said, default=0.0) or seconds(process.gone_age_s),
        exception=_with_what_was_thrown(rank, job) if how is How.RAISED else None,
        signal=process.signal if how is How.SIGNAL else None,
        exit_code=process.exit_code,
        in_shutdown=rank.phase is Phase.EXITED,
    )


def _with_what_was_thrown(rank: RankSnapshot, job: Job) -> ExceptionRecord | None:
    """Its exception, with what its last call has raised among those that led to it."""
    error = rank.exception
    if error is None or not error.thrown or not _failed_last(job, rank.rank):
        return error
    thrown = error.thrown.partition(": ")[2]
    known = (error.message, *(text.partition(": ")[2] for text in error.after))
    is_news = not any(_is_one_text(thrown, text) for text in known)
    return replace(error, after=(*error.after, error.thrown)) if is_news else error


def _is_one_text(first: str, second: str) -> bool:
    """Whether two texts are the same, as far as they are there: each may have been cut."""
    shorter, longer = sorted((first, second), key=len)
    return longer.startswith(shorter) if len(shorter) >= _CUT_AT_LEAST else longer == shorter


def _failed_last(job: Job, rank: int) -> bool:
    call = last_call(job, rank)
    return call is not None and call.state is OpState.FAILED


def _how(rank: RankSnapshot, *, lost: bool) -> How:
    process = rank.process
    finished = rank.phase in (Phase.EXITED, Phase.FINALIZING)
    if process.exit_code == 0:
        return How.CLEAN
    if rank.exception is not None or rank.phase is Phase.RAISED:
        return How.RAISED
    if process.signal is not None or process.oom_killed:
        return How.SIGNAL
    if process.exit_code is not None:
        return How.EXIT_CODE
    if finished:
        return How.CLEAN
    return How.LOST if lost else How.GONE


def _reason(rank: RankSnapshot, how: How) -> Reason:
    exception = rank.exception
    of_memory = exception is not None and how is How.RAISED and _is_of_memory(exception)
    if rank.process.oom_killed or of_memory:
        return Reason.OUT_OF_MEMORY
    return {
        How.CLEAN: Reason.EXITED,
        How.RAISED: Reason.EXCEPTION,
        How.SIGNAL: Reason.SIGNAL,
        How.EXIT_CODE: Reason.EXITED,
        How.LOST: Reason.NODE_LOST,
        How.GONE: Reason.UNKNOWN,
    }[how]


def _is_of_memory(exception: ExceptionRecord) -> bool:
    """Whether it is of memory itself, or made of one that is; a mistake in a handler is neither."""
    text = f"{exception.type}: {exception.message}"
    wrapped = exception.after[:1] if exception.type not in _MISTAKES else ()
    return any(map(_MEMORY.search, (text, *wrapped)))


def _cause(rank: RankSnapshot, how: How, job: Job) -> Cause:
    exception = rank.exception
    if how is How.RAISED and exception is not None:
        if exception.type.rpartition(".")[2] in _END_EXCEPTIONS or exception.sent in _ENDED_BY:
            return Cause.TERMINATED
        vague = _ECHO.search(exception.message) and _may_be_of_torch(job, exception)
        vague = vague and _was_communicating(job, rank)
        return Cause.ECHO if vague or _tells_of_a_peer(job, rank.rank, exception) else Cause.OWN
    asked = rank.process.terminated_by_launcher or rank.process.signal in _ASKED_TO_END
    return Cause.TERMINATED if asked and how in (How.SIGNAL, How.EXIT_CODE) else Cause.OWN


def _may_be_of_torch(job: Job, exception: ExceptionRecord) -> bool:
    """Whether torch's C++ may have raised an exception, and not a line of the program."""
    site = with_source(exception.site, job.snapshot.sources)
    raises = site is not None and (site.source or "").startswith("raise ")
    return not raises and exception.type.rpartition(".")[2] in _OF_TORCH


def _tells_of_a_peer(job: Job, rank: int, exception: ExceptionRecord) -> bool:
    """Whether a lost peer led to it: the library says so, there or where its last call failed.

    Not that which it had lost in a life before, as where it restarts within its process.
    """
    thrown = exception.thrown if _failed_last(job, rank) else ""
    after = exception.after
    if any(map(_PEER.search, after)) and _has_met_again(job, rank):
        after = ()
    return any(map(_PEER.search, (exception.message, *after, thrown)))


def _has_met_again(job: Job, rank: int) -> bool:
    """Whether the members of a group in which a call of its failed have completed one since."""
    met: set[int] = set()
    for gid, record in reversed(job.ops.get(rank, [])):
        if record.state is OpState.FAILED:
            members = job.members(gid)
            return any(job.members(other) == members for other in met)
        if record.state is OpState.DONE and not record.p2p:
            met.add(gid)
    return False


def _was_communicating(job: Job, rank: RankSnapshot) -> bool:
    """Whether its last calls can have raised: one failed, or one was not complete."""
    if rank.in_call or rank.phase in (Phase.BORN, Phase.INIT):
        return True
    unfinished = (OpState.FAILED, OpState.BLOCKED, OpState.ISSUED)
    if any(record.state in unfinished for _, record in job.ops.get(rank.rank, [])):
        return True
    return any(group.completed < group.enqueued for group in rank.groups)
