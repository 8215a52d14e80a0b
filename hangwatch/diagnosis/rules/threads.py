"""Judges threads next to the main one: they may end a wait, or race for a group.

Ranks that wait for each other wait for ever only if nothing else in them can make the call
that is missing: a program may receive in its main thread and send in another one, out of a
timer, an event loop or a server that is idle now. So a thread has to be known to do a
library's chores, or to wait in the cycle itself, not to be one that may.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from hangwatch.diagnosis.facts.wait_points import Slot
from hangwatch.diagnosis.rules.case import Case, Finding, collective_of, name_of
from hangwatch.diagnosis.source.program import Line
from hangwatch.diagnosis.source.syntax import has_time_limit
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import Ranks, at_line, group_text
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.frames import innermost_user_site, main_thread
from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.snapshot import Frame, OpRecord, RankSnapshot, ThreadStack
from hangwatch.text import capital, the_ranks, verb

_BOOTSTRAP = re.compile(r"/threading\.py$")
"""The first Python frames of a thread of threading's."""
_NATIVE = re.compile(r"\.(?:so|c|cc|cpp|h|S)(?:[.\d]*)$|^$")
_CHORES = re.compile(
    r"/hangwatch/agent/"
    r"|/concurrent/futures/thread\.py$"  # a worker without work: another gives it some
    r"|/multiprocessing/(?:queues|pool|resource_sharer|resource_tracker)\.py$"
    r"|/logging/handlers\.py$"
    r"|/torch/(?:utils/data|_inductor)/"
    r"|/tqdm/"
    r"|/tensorboardX?/"
    r"|/(?:wandb|mlflow|comet_ml|neptune|aim|sentry_sdk)/"
)
"""Libraries whose threads call nothing of the program."""
_RUNS_CALLBACKS = "_handle_results"
"""The thread of a multiprocessing.Pool that runs the callbacks of apply_async()."""
_FOR_A_WHILE = re.compile(r"\.(?:acquire|exception|get|join|result|wait)\(\s*[^)\s]|\bsleep\(")
"""A line that waits, with a limit, or for a time."""
_AUTOGRAD = re.compile(r"/torch/(?:autograd/|_tensor\.py$)")
_STANDARD = re.compile(r"/lib(?:64)?/python3(?:\.\d+)?t?/(?!(?:site|dist)-packages/)")
"""Modules that they call, in which a timer or an event loop is seen as well."""


def unless_released(case: Case, finding: Finding) -> Finding:
    """The finding of a cycle, which is not final where another thread of a rank may end it."""
    inside = sorted({*finding.culprits, *(wait.rank for wait in finding.waits)})
    known = {rank: case.job.ranks[rank] for rank in inside if rank in case.job.ranks}
    ranks = {rank: one for rank, one in known.items() if not case.is_frozen(rank)}
    stuck: dict[int, set[int]] = {rank: set() for rank in inside}
    for wait in finding.waits:
        if wait.record is not None:
            stuck[wait.rank].add(wait.record.thread)
    acting = {
        rank: thread
        for rank, one in ranks.items()
        if (thread := acting_thread(one, stuck[rank], case.texts))
    }
    if acting:
        called = any(thread.tid in _callers(ranks[rank]) for rank, thread in acting.items())
        rank, thread = next(iter(acting.items()))
        site = innermost_user_site(thread.frames, case.texts)
        note = (
            f"{capital(the_ranks(acting))} {verb(tuple(acting), 'runs', 'run')} another thread"
            f"{at_line(site)}{'' if len(acting) == 1 else f' (rank {rank})'}, which may still "
            "make the missing call."
        )
        return _open(finding, Certainty.POSSIBLE if called else Certainty.LIKELY, note)
    hidden = {rank: one for rank, one in ranks.items() if one.process.alive and not one.threads}
    mixed = tuple(rank for rank, one in hidden.items() if _callers(one) - stuck[rank])
    if mixed:
        note = f"{capital(the_ranks(mixed))} {verb(mixed, 'calls', 'call')} from several threads."
        return _open(finding, Certainty.POSSIBLE, note)
    unseen = tuple(rank for rank, one in hidden.items() if one.threads == ())
    if unseen:
        note = f"Other threads of {the_ranks(unseen)} could not be read."
        return _open(finding, Certainty.LIKELY, note)
    return finding


def unless_given_up(case: Case, finding: Finding) -> Finding:
    """The finding, which is not final where a rank waits for a time of its own only."""
    if not finding.final or finding.ended:
        return finding
    for wait in finding.waits:
        stack = [] if wait.ended or wait.rank in case.ended else case.stack(wait.rank)
        line = Line(stack[-1].file, stack[-1].line) if stack else Line("", 0)
        if has_time_limit(case.source.program.scope_at(line), line.number):
            where = at_line(case.site_of_line(*line))
            note = f"Rank {wait.rank} waits with its own time-out{where}."
            return _open(finding, Certainty.LIKELY, note)
    return finding


def judge_threads(case: Case, slot: Slot) -> Finding | None:
    """The finding for a slot that some entered from their main thread, others from another one.

    None unless all of them use the group from both: nothing orders the calls of two threads, so
    ranks may make them in different orders, and no rank has left the common sequence of calls. An
    asynchronous checkpoint without its own group is the usual case.
    """
    records = case.records_at(slot)
    kinds = {rank: _is_of_thread(case.job.ranks[rank], record) for rank, record in records.items()}
    main = tuple(sorted(rank for rank, is_so in kinds.items() if is_so is False))
    rest = tuple(sorted(rank for rank, is_so in kinds.items() if is_so))
    if not main or not rest or None in kinds.values():
        return None
    both = tuple(sorted(kinds))
    if not all(_uses_both(case, rank, slot.gid) for rank in both):
        return None
    sure = all(_is_started(case.job.ranks[rank], records[rank]) is not None for rank in rest)
    site = case.site_at(main[0], slot)
    scene = Scene(both, (), f"#{slot.seq} of {group_text(case.job, slot.gid)}", site)
    calls: list[tuple[Ranks, str]] = [(side, name_of(records[side[0]])) for side in (main, rest)]
    finding = Finding(
        kind=Kind.OP_MISMATCH,
        certainty=Certainty.LIKELY if sure else Certainty.POSSIBLE,
        text=disagreement.two_threads(both, calls, scene.where, site),
        final=True,
        what=What.UNORDERED_THREADS,
        **case.about(slot, scene, case.victims_of(both, [slot])),
    )
    return replace(finding, collective=collective_of(records[main[0]]))


def _uses_both(case: Case, rank: int, gid: int) -> bool:
    """Return True if a rank has made calls of a group from its main thread and from another."""
    made = [record for at, record in case.job.ops.get(rank, ()) if at == gid and not record.p2p]
    return {True, False} <= {_is_of_thread(case.job.ranks[rank], record) for record in made}


def acting_thread(
    rank: RankSnapshot, stuck: Collection[int], texts: Mapping[str, str]
) -> ThreadStack | None:
    """A thread that may still make a call, None if none was seen.

    stuck: the threads that wait in the cycle; a thread that waits for something else may get it,
    and the main one continues if its wait has a time-out. Threads that made calls come first.
    """
    callers = _callers(rank)
    main = main_thread(rank.threads, rank.pid)
    if main is not None and stuck and main.tid not in stuck and rank.pid not in stuck:
        site = innermost_user_site(main.frames, texts)
        if site is not None and _FOR_A_WHILE.search(site.source or ""):
            return main
    free = [t for t in rank.threads or () if t.tid not in stuck and not _is_main(rank, t)]
    free.sort(key=lambda thread: thread.tid not in callers)
    return next((t for t in free if t.tid in callers or not _does_chores(rank, t)), None)


def _is_of_thread(rank: RankSnapshot, record: OpRecord) -> bool | None:
    """Return True if another thread than the main one made a call; None where that is not known."""
    if record.source != "page" or record.thread == 0:
        return None
    if record.thread == rank.pid:
        return False
    return None if record.device or _is_started(rank, record) is False else True


def _is_started(rank: RankSnapshot, record: OpRecord) -> bool | None:
    """Return True if Python started the thread that made a call; None where it cannot be seen."""
    thread = next((t for t in rank.threads or () if t.tid == record.thread), None)
    if thread is None or not thread.frames:
        return None
    return _is_of_python(thread)


def _open(finding: Finding, at_most: Certainty, note: str) -> Finding:
    """The finding, which is not final, for the reason that a note states."""
    text = replace(finding.text, explanation=f"{finding.text.explanation} {note}")
    sure = finding.certainty.at_most(at_most)
    hang = finding.hang and finding.hang.at_most(at_most)
    return replace(finding, certainty=sure, hang=hang, final=False, text=text)


def _callers(rank: RankSnapshot) -> set[int]:
    """The threads next to the main one that have made calls."""
    return {record.thread for record in rank.ops if _is_of_thread(rank, record)}


def _is_main(rank: RankSnapshot, thread: ThreadStack) -> bool:
    return thread.tid == rank.pid or thread.name == "MainThread"


def _is_of_python(thread: ThreadStack) -> bool:
    return any(
        _BOOTSTRAP.search(frame.file) and "_bootstrap" in frame.function for frame in thread.frames
    )


def _does_chores(rank: RankSnapshot, thread: ThreadStack) -> bool:
    """Return True if a thread is known to run a library's chores only, or no Python code."""
    main = next((one.frames for one in rank.threads or () if _is_main(rank, one)), ())
    # The main thread waits for autograd's threads, which run its hooks.
    in_autograd = any(_AUTOGRAD.search(frame.file) for frame in main)
    if not thread.frames or (in_autograd and not _is_of_python(thread)):
        return True
    frames = [frame for frame in thread.frames if not _NATIVE.search(frame.file)]
    own = (frame for frame in frames if not _STANDARD.search(frame.file))
    return any(map(_is_chore, frames)) and all(map(_is_chore, own))


def _is_chore(frame: Frame) -> bool:
    return bool(_CHORES.search(frame.file)) and not frame.function.endswith(_RUNS_CALLBACKS)
