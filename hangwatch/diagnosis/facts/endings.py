"""Finds how ranks ended, and the ranks that ended only because of another one.

The exit code of a rank says little: a peer of a dead rank fails with a connection error, the
launcher ends the rest, gloo aborts the rank with the smaller buffer. The order in which ranks
ended, and the calls that they were in, say more.
"""

from __future__ import annotations

import math
import signal
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.facts.error_texts import (
    Library,
    is_of_lost_peer,
    is_of_memory,
    is_of_time_out,
    is_of_torch,
    is_one_text,
    may_be_of_connection,
    thrown_by,
)
from hangwatch.diagnosis.facts.job import Job, seconds
from hangwatch.diagnosis.facts.wait_points import Wait
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import OpState, Phase, Reason
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.snapshot import OpRecord, ProcessState, RankSnapshot


class How(StrEnum):
    """The ways in which a rank ends."""

    CLEAN = "clean"
    """Its program reached its end."""
    RAISED = "raised"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    LOST = "lost"
    """Its node is gone."""
    GONE = "gone"
    """It is gone; its exit status is unknown."""


class Cause(StrEnum):
    """The causes of the end of a rank."""

    OWN = "own"
    """Its own failure: nothing known elsewhere explains it."""
    ECHO = "echo"
    """An effect: it raised or aborted in a collective because a peer was gone or stuck."""
    TERMINATED = "terminated"
    """The launcher or a person ended it."""


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
    abort: ExceptionRecord | None = None
    """The exception of C++ that aborted it, where that is known."""
    in_shutdown: bool = False
    """It had reached the end of its program before."""
    contested: bool = False
    """A peer was thrown out of a collective just before this end was seen."""

    @property
    def is_failure(self) -> bool:
        """Return True if the rank itself failed, before the end of its program."""
        return self.cause is Cause.OWN and self.how is not How.CLEAN


_ASKED_TO_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_ENDED_BY = {number.name for number in _ASKED_TO_END}
_END_EXCEPTIONS = {"KeyboardInterrupt", "SignalException", "SystemExit", "GeneratorExit"}


def endings(job: Job) -> dict[int, Ending]:
    """The ends of all ranks that have ended."""
    ends = {rank: end for rank, snap in job.ranks.items() if (end := _ending(snap, job))}
    _date_lost_nodes(ends)
    _excuse_the_unseen(job, ends)
    _suspect_the_unseen(job, ends)
    failed = any(end.cause is Cause.OWN for end in ends.values())
    if not failed and len(job.ranks) == len(job.world()):
        _blame_a_vague_error(job, ends)
    else:
        _find_echoes(job, ends)
        _excuse_the_later(job, ends)
    return ends


def _attribute(ends: dict[int, Ending], ranks: Sequence[int], cause: Cause) -> None:
    for rank in ranks:
        ends[rank] = replace(ends[rank], cause=cause)


def _date_lost_nodes(ends: dict[int, Ending]) -> None:
    """Let lost nodes be lost before all other ends: the time is not known.

    A lost node may be the root of all that is not explained by itself. Where another rank
    has failed by itself, the node may well have been given back after that.
    """
    others = [end for end in ends.values() if end.how is not How.LOST]
    cause = Cause.TERMINATED if any(end.is_failure for end in others) else Cause.OWN
    first_s = max((end.age_s for end in others), default=0.0)
    for rank, end in ends.items():
        if end.how is How.LOST:
            ends[rank] = replace(end, cause=cause, age_s=max(end.age_s, first_s))


def _excuse_the_unseen(job: Job, ends: dict[int, Ending]) -> None:
    """Excuse later ends of a job that is over, if a rank is known to have failed by itself.

    The launcher has ended the ranks that went after it, and that were not seen to end. Not
    where it failed in a collective: a rank that went unseen may be why.
    """
    known = (How.RAISED, How.SIGNAL, How.EXIT_CODE)
    own = {rank: end for rank, end in ends.items() if end.cause is Cause.OWN}
    ages = [e.age_s for r, e in own.items() if e.how in known and not _thrown_out_of(job, r, e)]
    if job.snapshot.ended and ages:
        # For an unobserved rank the last sign of life is known.
        least_s = max(ages) + timing.NOTICED_S
        unseen = [rank for rank, e in own.items() if e.how is How.GONE and e.age_s < least_s]
        _attribute(ends, unseen, Cause.TERMINATED)


def _suspect_the_unseen(job: Job, ends: dict[int, Ending]) -> None:
    """Doubt clean ends where no failure was seen, as in a job that was short.

    A rank that reached the end of its program may have failed there.
    """
    bad = [end for end in ends.values() if end.how is not How.CLEAN]
    if not job.snapshot.exit_code or not bad or any(end.how is not How.GONE for end in bad):
        return
    for rank, end in ends.items():
        if end.how is How.CLEAN and end.exit_code is None:
            ends[rank] = replace(end, how=How.GONE, reason=Reason.UNKNOWN, cause=Cause.OWN)


def _blame_a_vague_error(job: Job, ends: dict[int, Ending]) -> None:
    """Blame the rank whose error may be its own, where none is known to have failed by itself."""
    unclear = [
        rank
        for rank, end in ends.items()
        if end.cause is Cause.ECHO
        and end.exception
        and not _names_a_peer(job, rank, end.exception)
        and last_call(job, rank) is None
    ]
    if len(unclear) == 1 and len(ends) > 1:
        _attribute(ends, unclear, Cause.OWN)


def _find_echoes(job: Job, ends: dict[int, Ending]) -> None:
    """Find the ranks that raised in a collective because a rank that it needs had ended."""
    own = {rank: end for rank, end in ends.items() if end.cause is Cause.OWN}
    first_s = max((end.age_s for end in own.values() if end.is_failure), default=0.0)
    thrown: dict[int, list[int]] = defaultdict(list)
    for rank, end in own.items():
        call = _thrown_out_of(job, rank, end)
        if call is not None:
            thrown[job.gid(call.group)].append(rank)
    raised = {rank for ranks in thrown.values() for rank in ranks}
    for gid, ranks in thrown.items():
        members = [member for member in job.members(gid) if member in own]
        clean_s = max((own[m].age_s for m in members if own[m].how is How.CLEAN), default=0.0)
        others = [m for m in members if m not in raised and own[m].is_failure]
        noticed = {rank for rank in ranks if not _is_its_own(job, rank, own[rank])}
        raised_s, seen_s = (sorted(own[m].age_s for m in some) for some in (noticed, others))
        for rank in ranks:
            age_s = own[rank].age_s
            # It may have noticed that its peer is gone before that was seen.
            just = bisect_right(seen_s, age_s) > bisect_right(seen_s, age_s - timing.NOTICED_S)
            if (just and rank in noticed) or age_s < max(first_s, clean_s):
                ends[rank] = replace(own[rank], cause=Cause.ECHO)
        for member in others:
            age_s = own[member].age_s
            if bisect_left(raised_s, age_s + timing.NOTICED_S) > bisect_left(raised_s, age_s):
                ends[member] = replace(own[member], contested=True)
    _find_echoes_in_cpp(job, {rank: end for rank, end in own.items() if rank not in raised}, ends)


def _find_echoes_in_cpp(job: Job, own: dict[int, Ending], ends: dict[int, Ending]) -> None:
    """Find the ranks that raised because of a peer in a collective of C++, as in backward.

    It is not recorded if they raised in one. But they had issued one that a member never entered
    which had ended before.
    """
    known = dict(ends)
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
                ends[rank] = replace(end, cause=Cause.ECHO)
                break


def _ended_behind(job: Job, gid: int, ends: dict[int, Ending]) -> tuple[list[int], list[float]]:
    """The counts of members that have ended, in order; and for each the age of an end.

    It is that of the first to end by itself with that count or less, 0 where none did.
    """
    ended = []
    for member in job.members(gid):
        if member in ends and gid in job.progress.get(member, {}):
            end = ends[member]
            # That it was killed is seen a little later.
            killed = end.how is How.SIGNAL and end.signal != signal.SIGABRT
            age_s = end.age_s + timing.NOTICED_S if killed else end.age_s
            own_s = age_s if end.cause is Cause.OWN else 0.0
            ended.append((job.progress[member][gid].enqueued, own_s))
    ended.sort()
    return [count for count, _ in ended], list(accumulate((age_s for _, age_s in ended), max))


def _is_its_own(job: Job, rank: int, end: Ending) -> bool:
    """Return True if the error of a rank is known not to come of a peer's end.

    The call itself has raised something that says nothing of one.
    """
    error = end.exception
    if error is None:
        return False
    text = _thrown_by_last_call(job, rank, error)
    if not text:
        call = last_call(job, rank)
        made, raised = call.site if call else None, error.site
        straight = made and raised and (made.file, made.line) == (raised.file, raised.line)
        text = error.message if straight else ""
    return bool(text) and not is_of_lost_peer([text]) and not may_be_of_connection(text)


def _excuse_the_later(job: Job, ends: dict[int, Ending]) -> None:
    """Excuse ranks that ended with an exit code after another one had failed for sure.

    They were asked to end: a handler of SIGTERM may end a rank with any.
    """
    own = {rank: end for rank, end in ends.items() if end.cause is Cause.OWN}
    sure = [end.age_s for rank, end in own.items() if _failed_for_sure(job, rank, end)]
    first_s = max(sure, default=0.0)
    later = [r for r, end in own.items() if end.how is How.EXIT_CODE and end.age_s < first_s]
    _attribute(ends, later, Cause.TERMINATED)


def _failed_for_sure(job: Job, rank: int, end: Ending) -> bool:
    """Return True if a rank that failed by itself cannot have done so for another one's end."""
    if end.contested:
        return False
    if end.how is How.SIGNAL:
        return not may_be_of_a_library(end)
    thrown = _thrown_out_of(job, rank, end)
    return end.how is How.RAISED and (thrown is None or _is_its_own(job, rank, end))


def may_be_of_a_library(end: Ending) -> bool:
    """Return True if a library may have aborted a rank for what a peer did."""
    is_abort = end.signal == signal.SIGABRT
    return is_abort and (end.abort is None or thrown_by(end.abort) is not None)


def aborted_by(job: Job, rank: int, end: Ending) -> Library | None:
    """The library that may have aborted a rank in its program, after a call of some group."""
    if not may_be_of_a_library(end) or end.in_shutdown:
        return None
    if end.abort is not None:
        return thrown_by(end.abort)
    groups = job.progress.get(rank, {}).values()
    used = [group.in_order for group in groups if group.enqueued > 0 or group.p2p > 0]
    if not used:
        return None
    return Library.NCCL if all(used) else Library.GLOO


def gave_up(ended: Mapping[int, Ending], waits: Iterable[Wait]) -> bool:
    """Return True if the time-out of a rank's own wait has ended it, and no peer's end."""
    return any(timed_out(ended[wait.rank]) for wait in waits if wait.rank in ended)


def timed_out(end: Ending) -> bool:
    """Return True if an error of a collective's time-out ended a rank, or one made of that."""
    error = end.exception or end.abort
    return end.cause is Cause.ECHO and error is not None and is_of_time_out(error)


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
    """Return True if C++ has made calls after one of group gid, which are not recorded.

    It is not known of a call that the rank waits for later.
    """
    if call.is_async:
        return False
    groups = job.progress.get(rank, {})
    own = groups.get(gid)
    if own is not None and not call.p2p and own.enqueued > call.seq:
        return True
    ages = (group.changed_age_s for group in groups.values())
    since_s = min((seconds(age) for age in ages if age is not None), default=math.inf)
    return since_s < seconds(call.issued_age_s) - timing.SAMPLED_S


def _thrown_out_of(job: Job, rank: int, end: Ending) -> OpRecord | None:
    """The collective that a rank was in when it ended, where it may have ended for that."""
    if end.signal == signal.SIGKILL or end.reason is Reason.OUT_OF_MEMORY:
        return None
    call = last_call(job, rank)
    if end.how is How.EXIT_CODE and call is not None and call.state is OpState.FAILED:
        return call  # it has caught the exception of the collective
    return call if end.how in (How.RAISED, How.SIGNAL) else None


def _ending(rank: RankSnapshot, job: Job) -> Ending | None:
    process = rank.process
    over = rank.phase in (Phase.EXITED, Phase.RAISED)
    # Two machines may share a hostname: a rank that is seen alive is not on the lost one.
    if process.alive and not over and rank.exception is None:
        return None
    abort = rank.abort if _may_have_aborted(process) else None
    how = _how(rank, abort, lost=rank.node in job.snapshot.lost_nodes and bool(rank.node))
    # Its own times are exact; that it is gone was seen later, or it was last seen before.
    exact = [seconds(rank.exception_age_s)] if rank.exception is not None else []
    exact += [seconds(rank.abort_age_s)] if abort is not None else []
    exact += [seconds(rank.phase_age_s)] if over else []
    return Ending(
        how=how,
        cause=_cause(rank, how, abort, job),
        reason=_reason(rank, how),
        age_s=max(exact, default=0.0) or seconds(process.gone_age_s),
        exception=_with_what_was_thrown(rank, job) if how is How.RAISED else None,
        # The launcher may have sent another one while it was being aborted.
        signal=_signal(process, abort) if how is How.SIGNAL else None,
        abort=abort if how is How.SIGNAL else None,
        exit_code=process.exit_code,
        in_shutdown=rank.phase is Phase.EXITED,
    )


def _with_what_was_thrown(rank: RankSnapshot, job: Job) -> ExceptionRecord | None:
    """Its exception, with the one that its last call raised among its causes."""
    error = rank.exception
    if error is None or not _thrown_by_last_call(job, rank.rank, error):
        return error
    thrown = error.thrown.partition(": ")[2]
    known = (error.message, *(text.partition(": ")[2] for text in error.after))
    is_news = not any(is_one_text(thrown, text) for text in known)
    return replace(error, after=(*error.after, error.thrown)) if is_news else error


def _thrown_by_last_call(job: Job, rank: int, error: ExceptionRecord) -> str:
    """The exception that the last call of a rank has raised; empty if it did not fail."""
    call = last_call(job, rank) if error.thrown else None
    return error.thrown if call is not None and call.state is OpState.FAILED else ""


def _signal(process: ProcessState, abort: ExceptionRecord | None) -> int | None:
    return process.signal if abort is None else signal.SIGABRT


def _may_have_aborted(process: ProcessState) -> bool:
    """Return True if std::terminate may have ended it: a handler of the program may do otherwise.

    The launcher may have sent its signal while it was being aborted.
    """
    unknown = process.exit_code is None and process.signal is None and not process.oom_killed
    return unknown or process.signal == signal.SIGABRT or process.terminated_by_launcher


def _how(rank: RankSnapshot, abort: ExceptionRecord | None, *, lost: bool) -> How:
    process = rank.process
    if process.exit_code == 0:
        return How.CLEAN
    if rank.exception is not None or rank.phase is Phase.RAISED:
        return How.RAISED
    if process.signal is not None or process.oom_killed or abort is not None:
        return How.SIGNAL
    if process.exit_code is not None:
        return How.EXIT_CODE
    if rank.phase in (Phase.EXITED, Phase.FINALIZING):
        return How.CLEAN
    return How.LOST if lost else How.GONE


_REASONS = {
    How.CLEAN: Reason.EXITED,
    How.RAISED: Reason.EXCEPTION,
    How.SIGNAL: Reason.SIGNAL,
    How.EXIT_CODE: Reason.EXITED,
    How.LOST: Reason.NODE_LOST,
    How.GONE: Reason.UNKNOWN,
}


def _reason(rank: RankSnapshot, how: How) -> Reason:
    exception = rank.exception if how is How.RAISED else None
    of_memory = exception is not None and is_of_memory(exception)
    return Reason.OUT_OF_MEMORY if rank.process.oom_killed or of_memory else _REASONS[how]


def _cause(rank: RankSnapshot, how: How, abort: ExceptionRecord | None, job: Job) -> Cause:
    exception = rank.exception
    if how is How.RAISED and exception is not None:
        if exception.type.rpartition(".")[2] in _END_EXCEPTIONS or exception.sent in _ENDED_BY:
            return Cause.TERMINATED
        unclear = may_be_of_connection(exception.message) and _may_be_of_torch(job, exception)
        unclear = unclear and _was_communicating(job, rank)
        return Cause.ECHO if unclear or _names_a_peer(job, rank.rank, exception) else Cause.OWN
    if how is How.SIGNAL and abort is not None:
        is_echo = thrown_by(abort) is not None and is_of_time_out(abort)
        return Cause.ECHO if is_echo else Cause.OWN
    asked = rank.process.terminated_by_launcher or rank.process.signal in _ASKED_TO_END
    return Cause.TERMINATED if asked and how in (How.SIGNAL, How.EXIT_CODE) else Cause.OWN


def _may_be_of_torch(job: Job, exception: ExceptionRecord) -> bool:
    """Return True if torch's C++ may have raised an exception, and not a line of the program."""
    site = with_source(exception.site, job.snapshot.sources)
    raises = site is not None and (site.source or "").startswith("raise ")
    return not raises and is_of_torch(exception)


def _names_a_peer(job: Job, rank: int, exception: ExceptionRecord) -> bool:
    """Return True if a lost peer led to it, by the library, there or where its last call failed.

    Not a peer that it had lost in a life before, as where it restarts within its process.
    """
    thrown = _thrown_by_last_call(job, rank, exception)
    after = exception.after
    if is_of_lost_peer(after) and _has_met_again(job, rank):
        after = ()
    return is_of_lost_peer((exception.message, *after, thrown))


def _has_met_again(job: Job, rank: int) -> bool:
    """Return True if members of a group in which a call failed have completed one since."""
    met: set[int] = set()
    for gid, record in reversed(job.ops.get(rank, [])):
        if record.state is OpState.FAILED:
            members = job.members(gid)
            return any(job.members(other) == members for other in met)
        if record.state is OpState.DONE and not record.p2p:
            met.add(gid)
    return False


def _was_communicating(job: Job, rank: RankSnapshot) -> bool:
    """Return True if its last calls can have raised: one failed, or one was not complete."""
    if rank.in_call or rank.phase in (Phase.BORN, Phase.INIT):
        return True
    unfinished = (OpState.FAILED, OpState.BLOCKED, OpState.ISSUED)
    if any(record.state in unfinished for _, record in job.ops.get(rank.rank, [])):
        return True
    return any(group.completed < group.enqueued for group in rank.groups)
