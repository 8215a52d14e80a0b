"""All waits of a job: the edges of the wait-for graph that start at ranks.

A rank waits at a *wait point*: a slot (the n-th collective of a group), a channel (a
send or recv that its peer has to match), or a set-up call that all ranks make
together. A call that a rank only issued, and works on meanwhile, is no wait.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.facts.activity import waits_in_collective
from hangwatch.diagnosis.facts.channels import turn
from hangwatch.diagnosis.facts.devices import oldest
from hangwatch.diagnosis.facts.endings import Cause, Ending, How, timed_out, went_on
from hangwatch.diagnosis.facts.job import NEW_GROUP, SETTING_UP, Job, seconds
from hangwatch.diagnosis.facts.stores import for_keys
from hangwatch.diagnosis.facts.wait_points import Channel, Setup, Slot, Wait, WaitPoint
from hangwatch.model.frames import program_thread, with_source
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.snapshot import GroupProgress, NewGroup, RankSnapshot

FAILED_WITHIN = 4
"""A call that raised is where a rank ended if it is among its last so many."""


def find_waits(job: Job, ended: Mapping[int, Ending], disputed: Mapping[int, int]) -> list[Wait]:
    """All waits of all ranks, living and ended, in the order of the ranks.

    A rank that ended by itself waits for nothing, whatever it was in. ``disputed``:
    gid to the first slot where its members differ, as far as that is known.
    """
    waits: list[Wait] = []
    alive = (rank for number, rank in job.ranks.items() if number not in ended)
    in_setup = (setup_of(job, rank) for rank in alive if _in_setup_s(rank) >= timing.MOMENT_S)
    setups = frozenset(setup for setup in in_setup if setup is not None)
    for number in sorted(job.ranks):
        rank = job.ranks[number]
        end = ended.get(number)
        if end is None:
            waits.extend(_of_living(job, rank, setups))
        elif end.how is not How.CLEAN and end.cause is not Cause.OWN:
            found = list(_of_ended(job, rank, ended))
            passed = _disputed_slots(job, number, end, disputed)
            points = (wait.wait_point for wait in found)
            # It has been long ago in a slot before one that it raised after.
            if all(isinstance(p, Slot) and p.seq < passed.get(p.gid, 0) for p in points):
                slots = (Slot(gid, seq) for gid, seq in passed.items())
                found = [Wait(number, p, end.age_s, is_blocked=False) for p in slots] or found
            waits.extend(wait._replace(ended=True) for wait in found)
    return waits + for_keys(job, ended, waits)


def _in_call(  # noqa: PLR0913 (the fields of a wait)
    job: Job,
    rank: int,
    position: int,
    age_s: float,
    *,
    is_blocked: bool = False,
    in_thread: bool = False,
    connects: bool = False,
) -> Iterator[Wait]:
    """The wait of a rank in one of its calls; none in one that can wait for no rank."""
    gid, record = job.ops[rank][position]
    wait_point: WaitPoint
    if record.p2p and record.peer != rank:
        sends = record.wire.startswith("send")
        before = turn(job, rank, position)
        wait_point = Channel(gid, rank, record.peer, sends, record.tag, *before)
    elif not record.p2p and record.seq > 0:
        wait_point = Slot(gid, record.seq)
    else:
        return
    yield Wait(
        rank,
        wait_point,
        age_s,
        is_blocked,
        op=record.op,
        record=record,
        site=record.site,
        in_thread=in_thread,
        connects=connects,
    )


# --- Of ranks that live ---------------------------------------------------------------


def _of_living(job: Job, rank: RankSnapshot, setups: frozenset[Setup]) -> Iterator[Wait]:
    """The waits of a rank that is alive. setups: the set-up calls in which ranks wait."""
    setup = setup_of(job, rank)
    if setup is not None and setup in setups:
        yield _in_setup(job, rank, setup, _in_setup_s(rank))
        return
    at = oldest(job, rank.rank)
    if at:
        yield from _of_device(job, rank.rank, at)
        return
    blocked = list(_blocked(job, rank))
    program = program_thread(rank)
    tids = (0, rank.pid, program.tid if program is not None else rank.pid)
    main = [wait for wait in blocked if wait.record is None or wait.record.thread in tids]
    others = [wait for wait in blocked if wait not in main]
    in_collective = waits_in_collective(rank, job.snapshot.sources)
    yield from main
    if main or in_collective is False:
        yield from (wait._replace(in_thread=True) for wait in others)
    else:
        # Autograd runs its hooks in threads of the device, for which main waits.
        yield from (wait._replace(is_blocked=in_collective is True) for wait in others)
    if main or in_collective is not False:
        taken = {wait.wait_point for wait in blocked}
        yield from (wait for wait in _pending(job, rank) if wait.wait_point not in taken)
        # Counters are old where the sampler has not run for a while.
        if not blocked and seconds(rank.gil_age_s) < timing.GIL_STALE_S:
            yield from _by_counters(job, rank)


def _of_device(job: Job, rank: int, positions: Sequence[int]) -> Iterator[Wait]:
    """The waits of a rank's device; no dump says where its program is.

    The first calls that it has to run in other groups count too: a call that no rank has reached
    may still wait for one.

    A program can be far ahead, so a call issued long ago may just have begun: a wait is no older
    than the last progress, if that is known.
    """
    still_s = job.ranks[rank].pending_age_s
    groups = {job.ops[rank][positions[0]][0]}
    for position in job.devices[rank]:
        gid, record = job.ops[rank][position]
        behind = position not in positions
        if behind and (gid in groups or record.p2p):
            continue
        groups.add(gid)
        age_s = min(seconds(record.issued_age_s), math.inf if still_s is None else still_s)
        yield from _in_call(job, rank, position, age_s, in_thread=behind)


def setup_of(job: Job, rank: RankSnapshot) -> Setup | None:
    """The set-up call that a rank is in."""
    if rank.in_call == NEW_GROUP:
        made = _new_group_of(rank)
        if made is not None and made.group.ranks:
            return Setup(NEW_GROUP, "", made.number, job.gid(made.group))
        site = rank.in_call_site
        return Setup(NEW_GROUP, f"{site.file}:{site.line}" if site else "")
    if rank.in_call == "init_process_group" or (rank.phase is Phase.INIT and not rank.in_call):
        return Setup("init_process_group")
    return None


def _in_setup(job: Job, rank: RankSnapshot, setup: Setup, age_s: float) -> Wait:
    made = _new_group_of(rank)
    slot = Slot(job.gid(SETTING_UP), made.number) if made is not None else None
    record = job.record(rank.rank, slot) if slot is not None else None
    site = rank.in_call_site
    return Wait(rank.rank, setup, age_s, is_blocked=True, op=setup.call, record=record, site=site)


def _new_group_of(rank: RankSnapshot) -> NewGroup | None:
    """The call of new_group that a rank is in, None where it is not known."""
    return rank.new_groups[-1] if rank.in_call == NEW_GROUP and rank.new_groups else None


def _in_setup_s(rank: RankSnapshot) -> float:
    return seconds(rank.in_call_age_s if rank.in_call else rank.phase_age_s)


def _blocked(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """The calls that threads of the rank are inside of."""
    for position in job.unfinished.get(rank.rank, ()):
        gid, record = job.ops[rank.rank][position]
        if record.state is not OpState.BLOCKED:
            continue
        blocked_s = record.blocked_age_s
        # A call that leaves its message to the device returns once NCCL has made the connection.
        # The call that the program posts next is not known: maybe the other half of the batch.
        progress = job.progress[rank.rank].get(gid)
        in_order = record.p2p and progress is not None and progress.in_order
        connects = in_order and (blocked_s is None or blocked_s >= record.issued_age_s)
        age_s = seconds(record.issued_age_s if blocked_s is None else blocked_s)
        is_blocked = not connects
        yield from _in_call(
            job, rank.rank, position, age_s, is_blocked=is_blocked, connects=connects
        )


def _pending(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """The earliest unfinished collective of each group.

    A call that was issued and never waited for stays ISSUED in the page for
    ever: it counts only where c10d's own record says that it is unfinished.
    """
    seen: set[int] = set()
    for position in job.unfinished.get(rank.rank, ()):
        gid, record = job.ops[rank.rank][position]
        if record.state is not OpState.ISSUED or record.p2p or record.seq < 1 or gid in seen:
            continue
        progress = job.progress.get(rank.rank, {}).get(gid)
        if rank.flight or (
            progress is not None and 0 <= _complete(job, gid, progress) < record.seq
        ):
            seen.add(gid)
            age_s = seconds(record.issued_age_s) or seconds(rank.pending_age_s)
            yield from _in_call(job, rank.rank, position, age_s)


def _by_counters(job: Job, rank: RankSnapshot) -> Iterator[Wait]:
    """The slots at which a rank waits, as far as c10d's counters show.

    They say that something is unfinished, not in which group, nor always how far all
    before it is complete: the last slot entered is taken where nothing was completed. No rank
    waits in a group for longer than it has issued nothing there.
    """
    if rank.flight or rank.pending_age_s is None:
        return
    pending_s = seconds(rank.pending_age_s)
    for gid, progress in job.progress.get(rank.rank, {}).items():
        if progress.alive and progress.enqueued > max(0, progress.completed):
            complete = _complete(job, gid, progress)
            if complete < 0 or complete >= progress.enqueued:
                complete = progress.enqueued - 1
            slot = Slot(gid, complete + 1)
            record = job.record(rank.rank, slot)
            if record is None or record.state is OpState.ISSUED:
                issued_s = progress.changed_age_s
                age_s = pending_s if issued_s is None else min(pending_s, seconds(issued_s))
                if issued_s is None or age_s >= timing.MOMENT_S:
                    yield Wait(rank.rank, slot, age_s, is_blocked=False, inferred=True)


def _complete(job: Job, gid: int, progress: GroupProgress) -> int:
    """The last slot of a group that is complete on a rank, by its counters; -1 for none.

    gloo's threads record completed calls in any order, so its count may be an old one. A slot that
    all have entered and another rank has completed is complete here too.
    """
    if progress.in_order or progress.completed < 0:
        return progress.completed
    return max(progress.completed, job.settled(gid))


# --- Of ranks that another one's end, or the launcher, ended --------------------------


def _disputed_slots(
    job: Job, rank: int, end: Ending, disputed: Mapping[int, int]
) -> dict[int, int]:
    """The disputed slots that a rank raised after: its calls failed, c10d counts them done."""
    known = ((gid, disputed[gid]) for gid in job.progress.get(rank, {}) if gid in disputed)
    passed = {gid: seq for gid, seq in known if job.arrived(rank, Slot(gid, seq))}
    return passed if end.cause is Cause.ECHO else {}


def _of_ended(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Wait]:
    """The waits of a rank when it ended.

    In a set-up call, in the call that it was blocked in or that raised, or, where
    C++ waited, in the earliest that is not complete.
    """
    end = ended[rank.rank]
    setup = setup_of(job, rank)
    position = _last_position(job, rank.rank) if setup is None else None
    if setup is not None:
        yield _in_setup(job, rank, setup, seconds(rank.in_call_age_s) or end.age_s)
    elif position is not None:
        age_s = seconds(job.ops[rank.rank][position][1].issued_age_s)
        yield from _in_call(job, rank.rank, position, age_s, is_blocked=True)
    elif end.cause is Cause.ECHO or rank.pending_age_s is not None:
        known = list(_pending(job, rank)) or list(_with_the_gone(job, rank, ended))
        yield from known or _by_counters(job, rank)


def _last_position(job: Job, rank: int) -> int | None:
    """The position of the call that a rank was blocked in, or that raised."""
    ops = job.ops.get(rank, [])
    for position in range(len(ops) - 1, -1, -1):
        gid, record = ops[position]
        if record.state is OpState.BLOCKED:
            return position
        # One that is waited for raises as late as that.
        late = position >= len(ops) - FAILED_WITHIN or record.is_async
        if record.state is OpState.FAILED and late and not went_on(job, rank, gid, record):
            return position
    return None


def _with_the_gone(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Wait]:
    """The waits that a rank was in with members that are gone, by the counters."""
    # It was in a group in which some rank has made a call.
    groups = [gid for gid in job.progress.get(rank.rank, {}) if any(job.reached[gid].values())]
    site = with_source(rank.exception.site, job.snapshot.sources) if rank.exception else None
    # C++ issues the all_reduce of DistributedDataParallel in backward.
    op = "all_reduce" if site and site.source and ".backward(" in site.source else ""
    if rank.flight and job.ops.get(rank.rank):
        slots = _in_its_last_group(job, rank, ended)
        op = op or job.ops[rank.rank][-1][1].op
    else:
        slots = _in_groups(job, rank, ended, groups)
    age_s = seconds(rank.pending_age_s) or ended[rank.rank].age_s
    for slot in slots:
        yield Wait(rank.rank, slot, age_s, is_blocked=False, op=op, inferred=len(groups) > 1)


def _in_groups(
    job: Job, rank: RankSnapshot, ended: Mapping[int, Ending], groups: Sequence[int]
) -> Iterator[Slot]:
    """The slots in some groups that ended members have not passed.

    Counters are sampled, so they may be a step behind; the counters of ranks that failed with it
    say more. c10d may count a failed call as done.
    """
    # A call of C++ raised: a group in which Python made the last call is not the one.
    by_cpp = [gid for gid in groups if not _made_by_python(job, rank.rank, gid)]
    for gid in by_cpp or groups:
        reached = job.reached[gid]
        causes = {m: ended[m].cause for m in job.members(gid) if m in ended}
        gone = [member for member, cause in causes.items() if cause is Cause.OWN]
        if not gone and timed_out(ended[rank.rank]):
            # The launcher has ended the ranks that it had waited for in vain.
            gone = [member for member, cause in causes.items() if cause is Cause.TERMINATED]
        seqs = [reached.get(member, 0) for member in causes if member not in gone]
        # A member that exited cleanly is missing from the slot after its last one.
        seqs += [reached.get(m, 0) + (ended[m].how is How.CLEAN) for m in gone]
        slot = Slot(gid, max(seqs, default=0))
        if any(not job.passed(member, slot) for member in gone):
            yield slot


def _in_its_last_group(job: Job, rank: RankSnapshot, ended: Mapping[int, Ending]) -> Iterator[Slot]:
    """The recorder knows all calls: it raised out of the last one, or one just before it."""
    gid, last = job.ops[rank.rank][-1]
    if last.p2p or not any(member in ended for member in job.members(gid)):
        return
    calls = sorted(
        (own.seq, seconds(own.issued_age_s))
        for key, own in job.ops[rank.rank]
        if key == gid and not own.p2p
    )
    others = [
        job.reached[gid].get(member, 0)
        for member in job.members(gid)
        if member != rank.rank and not _is_behind(job, gid, calls, ended.get(member), member)
    ]
    slot = Slot(gid, min([last.seq, *(seq + 1 for seq in others)]))
    if not all(job.arrived(member, slot) for member in job.members(gid)):
        yield slot


def _is_behind(
    job: Job, gid: int, calls: Sequence[tuple[int, float]], end: Ending | None, rank: int
) -> bool:
    """Return True if a rank's count is one of before its last moments: it is taken twice a second.

    Not where a rank that raised was further than that for longer, nor at the end of a program.
    calls: slots of the one that raised, in order, and for how long it has been there.
    """
    if end is None or end.in_shutdown or end.cause is Cause.ECHO or job.ranks[rank].flight:
        return False
    least = job.reached[gid].get(rank, 0) + FAILED_WITHIN
    # A call that is no longer recorded was made before the first recorded one after it.
    after = bisect_right(calls, (least, math.inf))
    return after < len(calls) and calls[after][1] - end.age_s < timing.COUNTED_S


def _made_by_python(job: Job, rank: int, gid: int) -> bool:
    """Return True if the last call in a group that is known of a rank is recorded in its page."""
    record = job.record(rank, Slot(gid, job.reached[gid].get(rank, 0)))
    return record is not None and record.source == "page"
