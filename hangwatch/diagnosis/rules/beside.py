"""What may end waits that nobody ends: other threads, and who gives up.

Ranks that wait for each other wait for ever only if nothing else in them can make the call
that is missing: a program may receive in its main thread and send in another one, out of a
timer, an event loop or a server that is idle now. So a thread has to be known to do a
library's chores, or to wait in the cycle itself, not to be one that may.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.source.program import Line
from hangwatch.diagnosis.source.syntax import has_time_limit
from hangwatch.diagnosis.text.phrases import at_line
from hangwatch.model.frames import innermost_user_site, main_thread
from hangwatch.model.kinds import Certainty
from hangwatch.model.snapshot import Frame, OpRecord, RankSnapshot, ThreadStack
from hangwatch.text import capital, the_ranks, verb

_BOOTSTRAP = re.compile(r"/threading\.py$")
"""Where a thread of threading's begins, below it native frames at most."""
_NATIVE = re.compile(r"\.(?:so|c|cc|cpp|h|S)(?:[.\d]*)$|^$")
_CHORES = re.compile(
    r"/hangwatch/agent/"
    r"|/concurrent/futures/thread\.py$"  # a worker without work: who gives it some is another
    r"|/multiprocessing/(?:queues|pool|resource_sharer|resource_tracker|managers)\.py$"
    r"|/logging/handlers\.py$"
    r"|/torch/(?:utils/data|_inductor)/"
    r"|/tqdm/"
    r"|/tensorboardX?/"
    r"|/(?:wandb|mlflow|comet_ml|neptune|aim|sentry_sdk)/"
)
"""Whose threads call nothing of the program."""
_RUNS_CALLBACKS = "_handle_results"
"""The thread of a multiprocessing.Pool that runs the callbacks of apply_async()."""
_FOR_A_WHILE = re.compile(r"\.(?:acquire|exception|get|join|result|wait)\(\s*[^)\s]|\bsleep\(")
"""A line that waits, with a limit, or for a time."""
_AUTOGRAD = re.compile(r"/torch/(?:autograd/|_tensor\.py$)")
_STANDARD = re.compile(r"/lib(?:64)?/python3(?:\.\d+)?t?/(?!(?:site|dist)-packages/)")
"""What they call, and what a timer or an event loop is seen in as well."""


def unless_beside(case: Case, found: Finding) -> Finding:
    """The finding of a cycle, which is not final where a thread of a rank may still end it."""
    inside = sorted({*found.culprits, *(wait.rank for wait in found.waits)})
    known = {rank: case.job.ranks[rank] for rank in inside if rank in case.job.ranks}
    ranks = {rank: one for rank, one in known.items() if not case.is_frozen(rank)}
    inside_of = {(wait.rank, wait.record.thread) for wait in found.waits if wait.record is not None}
    stuck = {rank: {tid for one, tid in inside_of if one == rank} for rank in ranks}
    acting = {
        rank: thread
        for rank, one in ranks.items()
        if (thread := acting_thread(one, stuck[rank], case.texts))
    }
    if acting:
        called = any(thread.tid in _callers(ranks[rank]) for rank, thread in acting.items())
        rank, thread = next(iter(acting.items()))
        site = innermost_user_site(thread.frames, case.job.snapshot.sources)
        note = (
            f"{capital(the_ranks(acting))} {verb(tuple(acting), 'runs', 'run')} another thread"
            f"{at_line(site)}{'' if len(acting) == 1 else f' (rank {rank})'}, which may yet make "
            "the call that is missing."
        )
        return _open(found, Certainty.POSSIBLE if called else Certainty.LIKELY, note)
    mixed = tuple(rank for rank, one in ranks.items() if _calls_from_several(one, stuck[rank]))
    if mixed:
        note = f"{capital(the_ranks(mixed))} {verb(mixed, 'calls', 'call')} from several threads."
        return _open(found, Certainty.POSSIBLE, note)
    unseen = tuple(rank for rank, one in ranks.items() if one.process.alive and one.threads == ())
    if unseen:
        note = f"Other threads of {the_ranks(unseen)} could not be seen."
        return _open(found, Certainty.LIKELY, note)
    return found


def unless_given_up(case: Case, found: Finding) -> Finding:
    """The finding, which is not final where a rank waits for a time of its own only."""
    if not found.final or found.ended:
        return found
    for wait in found.waits:
        stack = [] if wait.over or wait.rank in case.ended else case.stack(wait.rank)
        line = Line(stack[-1].file, stack[-1].line) if stack else Line("", 0)
        if has_time_limit(case.source.program.scope_at(line), line.number):
            where = at_line(case.site_of_line(*line))
            note = f"Rank {wait.rank} waits with a time limit of its own{where}."
            return _open(found, Certainty.LIKELY, note)
    return found


def acting_thread(
    rank: RankSnapshot, stuck: Collection[int], texts: Mapping[str, str]
) -> ThreadStack | None:
    """A thread that may yet make a call, None for none seen.

    stuck: the threads that wait in the cycle; one that waits for something else may get it, and
    the main one goes on where it waits for a while only. First those that have made calls,
    whatever they are at now.
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


def is_beside(rank: RankSnapshot, record: OpRecord) -> bool | None:
    """Whether a thread beside the main one made a call; None where that is not known."""
    if record.source != "page" or record.thread == 0:
        return None
    if record.thread == rank.pid:
        return False
    return None if record.device or is_started(rank, record) is False else True


def is_started(rank: RankSnapshot, record: OpRecord) -> bool | None:
    """Whether Python started the thread that made a call; None where it cannot be seen."""
    thread = next((t for t in rank.threads or () if t.tid == record.thread), None)
    if thread is None or not thread.frames:
        return None
    return _is_of_python(thread)


def _open(found: Finding, at_most: Certainty, note: str) -> Finding:
    text = replace(found.text, explanation=f"{found.text.explanation} {note}")
    sure = found.certainty.at_most(at_most)
    hang = found.hang and found.hang.at_most(at_most)
    return replace(found, certainty=sure, hang=hang, final=False, text=text)


def _callers(rank: RankSnapshot) -> set[int]:
    """The threads beside the main one that have made calls."""
    return {record.thread for record in rank.ops if is_beside(rank, record)}


def _calls_from_several(rank: RankSnapshot, stuck: Collection[int]) -> bool:
    """Whether a thread beside the main one has made calls, and its stack is not known."""
    if not rank.process.alive or rank.threads:
        return False
    return bool(_callers(rank).difference(stuck))


def _is_main(rank: RankSnapshot, thread: ThreadStack) -> bool:
    return thread.tid == rank.pid or thread.name == "MainThread"


def _is_of_python(thread: ThreadStack) -> bool:
    return any(
        _BOOTSTRAP.search(frame.file) and "_bootstrap" in frame.function for frame in thread.frames
    )


def _does_chores(rank: RankSnapshot, thread: ThreadStack) -> bool:
    """Return True if a thread is known to run a library's chores only, or no Python code."""
    if not thread.frames or (not _is_of_python(thread) and _is_in_autograd(rank)):
        return True
    frames = [frame for frame in thread.frames if not _NATIVE.search(frame.file)]
    own = (frame for frame in frames if not _STANDARD.search(frame.file))
    return any(map(_is_chore, frames)) and all(map(_is_chore, own))


def _is_chore(frame: Frame) -> bool:
    return bool(_CHORES.search(frame.file)) and not frame.function.endswith(_RUNS_CALLBACKS)


def _is_in_autograd(rank: RankSnapshot) -> bool:
    """Return True if the main thread waits for those of autograd, which run its hooks."""
    frames = next((t.frames for t in rank.threads or () if _is_main(rank, t)), ())
    return any(_AUTOGRAD.search(frame.file) for frame in frames)
