"""The facts of a finding by which advice is chosen, and which it may name."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from hangwatch.diagnosis.facts.activity import Compiler, Compiling
from hangwatch.diagnosis.facts.awaited import FULL_PIPE, Link, On
from hangwatch.diagnosis.facts.blocked import Blocked
from hangwatch.diagnosis.facts.devices import are_untimed
from hangwatch.diagnosis.facts.endings import aborted_by, gave_up
from hangwatch.diagnosis.facts.error_texts import Library
from hangwatch.diagnosis.facts.stores import KEY, setter
from hangwatch.diagnosis.facts.wait_points import Setup, Slot
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.choices import CONDITIONS, Read
from hangwatch.diagnosis.source.syntax import leaves, spans
from hangwatch.diagnosis.text.phrases import group_text, key_text
from hangwatch.model.calls import Site
from hangwatch.model.frames import is_user_frame, program_thread
from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.snapshot import Frame
from hangwatch.model.verdict import RootCause
from hangwatch.text import code_line, the_ranks


class Use(StrEnum):
    """A library, or a part of torch, that a program is built on."""

    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    TRANSFORMERS = "transformers"
    DEEPSPEED = "deepspeed"
    ZERO_3 = "zero_3"
    DDP = "ddp"
    FSDP = "fsdp"
    ZERO = "zero"
    JOIN = "join"
    NO_SYNC = "no_sync"
    COMM_HOOK = "comm_hook"
    DTENSOR = "dtensor"
    CHECKPOINT = "checkpoint"
    ASYNC_CHECKPOINT = "async_checkpoint"
    PIPELINE = "pipeline"


_PATHS = {
    Use.LIGHTNING: r"/(?:lightning|pytorch_lightning|lightning_fabric)/",
    Use.ACCELERATE: r"/accelerate/",
    Use.TRANSFORMERS: r"/transformers/trainer\w*\.py$",
    Use.DEEPSPEED: r"/deepspeed/",
    Use.ZERO_3: r"/deepspeed/runtime/zero/(?:parameter_offload|partitioned_param_coordinator)\.py$",
    Use.DDP: r"/torch/nn/parallel/distributed\.py$",
    Use.FSDP: r"/torch/distributed/(?:fsdp|_composable/fsdp)/",
    Use.ZERO: r"/torch/distributed/optim/zero_redundancy_optimizer\.py$",
    Use.JOIN: r"/torch/distributed/algorithms/join\.py$",
    Use.DTENSOR: r"/torch/distributed/(?:tensor|_tensor)/",
    Use.CHECKPOINT: r"/torch/distributed/checkpoint/",
    Use.PIPELINE: r"/torch/distributed/pipelining/",
}
_OF_FRAMES = {use: re.compile(path) for use, path in _PATHS.items()}
"""Paths of frames that show a use."""
_TEXTS = {
    Use.LIGHTNING: r"^\s*(?:import|from)\s+(?:pytorch_lightning|lightning)\b",
    Use.ACCELERATE: r"^\s*(?:import|from)\s+accelerate\b",
    Use.TRANSFORMERS: r"^\s*from\s+transformers\s.*\bTrainer\b",
    Use.DEEPSPEED: r"^\s*(?:import|from)\s+deepspeed\b",
    Use.DDP: r"\bDistributedDataParallel\b",
    Use.FSDP: r"\b(?:fully_shard|FullyShardedDataParallel)\b",
    Use.ZERO: r"\bZeroRedundancyOptimizer\b",
    Use.JOIN: r"\bJoin\(",
    Use.NO_SYNC: r"\bno_sync\(|\bset_requires_gradient_sync\(",
    Use.COMM_HOOK: r"\bregister_comm_hook\(",
    Use.CHECKPOINT: r"\btorch\.distributed\.checkpoint\b",
    # Without a group of its own.
    Use.ASYNC_CHECKPOINT: r"\basync_save\((?![\s\S]{0,400}process_group)",
    Use.DTENSOR: r"\btorch\.distributed\.tensor\b",
    Use.PIPELINE: r"\btorch\.distributed\.pipelining\b",
}
_OF_SOURCES = {use: re.compile(text, re.MULTILINE) for use, text in _TEXTS.items()}
"""Texts that show a use in the files in which ranks are."""

_DIFFERENCES = {
    **{name: name for name in ("dtype", "shape", "root", "tag", "group")},
    "splits": "split sizes",
}
"""Names of the respects in which calls that otherwise match may differ."""

_LOCK_OF_EXTENSION = (
    "the file `lock` in its folder below TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions)"
)
_LOCK_OF_CACHE = "the files `*.lock` of the compiler's cache (TORCHINDUCTOR_CACHE_DIR)"
OUTERMOST = 2
"""Functions from the user's line inwards that are the call, and not how it works."""
_CACHE = re.compile(r"^@?\w*cache|= *(?:\w+\.)?(?:lru_)?cache\w*\(")
"""Statements that keep the results of a function."""
_STOPS = re.compile(r"\b(?:all|any)\([^\[\]]* for ")
"""Conditions that stop at the first part that decides them."""
_CALLED = re.compile(r"(\w+)\s*\(")
_HIDDEN = re.compile(
    r"^(?:wrapper|wrapped_fn|inner|inner_func|decorate_context|handle_torch_function|<.*>|_.*)$"
)
"""Functions that only wrap the one that was called."""
_HOOK = re.compile(r"(?:pre|post)_\w+")
"""Functions that are never called by name."""


@dataclass(frozen=True, slots=True)
class Facts:
    """``values``: the values that texts may name, each present only if it is known.

    calls, awaited: functions of libraries that the line of the culprits, and that of the
    others, is in, from the line inwards; without a stack the functions that the line names.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    uses: frozenset[Use] = frozenset()
    calls: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    error: str = ""
    """``TypeName: message`` of the exception that ended a culprit."""
    cause: What | None = None
    """The cause, where the source shows it."""
    different_calls: bool = False
    """The culprits and the others are in different calls of the program, of one operation."""


NOTHING = Facts()


def facts_of(case: Case, finding: Finding, cause: RootCause, reads: Sequence[Read] = ()) -> Facts:
    """The facts of the code that a finding is about. reads: conditions that the source shows."""
    about = finding.undecided or finding.culprits
    culprits = [rank for rank in about if rank in case.job.ranks][:1]
    others = [wait.rank for wait in finding.waits if wait.rank not in finding.culprits][:1]
    mine, theirs = (
        [frame for rank in ranks for frame in _frames(case, rank)] for ranks in (culprits, others)
    )
    uses = {
        use
        for frame in (*mine, *theirs)
        for use, path in _OF_FRAMES.items()
        if path.search(frame.file)
    }
    for site in (finding.site, finding.victim_site):
        uses |= _uses_in(case.texts.get(site.file, "") if site else "")
    calls = tuple(_called(finding.site, mine))
    awaited = tuple(_called(finding.victim_site, theirs))
    values = dict(_of_finding(finding))
    values |= _of_calls(values.get("op"), calls, awaited, seen=bool(mine))
    values |= _of_cause(cause)
    values |= _of_key(case, finding)
    values |= _of_group(case, finding, cause)
    decided = [read for read in reads if read.site == cause.site]
    values |= _of_reads(finding, decided) if decided else _without_reads(finding, cause)
    if handled := case.handled_by(finding.culprits):
        raised = case.exception_of(finding.culprits)
        here = raised is not None and code_line(raised.site) == values.get("cause_line")
        values["unwinding" if here else "raised"] = handled
    if "others" in values and gave_up(case.ended, finding.waits):
        values["impatient"] = values["others"]
    living = [case.doing(rank) for rank in culprits if rank not in case.ended]
    if cause.what is What.STUCK_LINE:
        values |= _of_wait(living[0].blocked if living else None)
        values["stuck"] = the_ranks(culprits)
    if living and living[0].compiling is not None:
        values |= _of_compiling(living[0].compiling)
    values |= _of_devices(case, finding, culprits)
    return Facts(
        values,
        frozenset(uses),
        calls,
        awaited,
        _error(case, culprits),
        cause.what if _is_shown(cause) else None,
        different_calls=finding.different_calls,
    )


@lru_cache(maxsize=64)
def _uses_in(text: str) -> frozenset[Use]:
    """The uses in a file: many verdicts are about one file."""
    return frozenset(use for use, pattern in _OF_SOURCES.items() if pattern.search(text))


def _frames(case: Case, rank: int) -> tuple[Frame, ...]:
    thread = program_thread(case.job.ranks[rank])
    return thread.frames if thread else ()


def _of_calls(
    op: str | None, calls: Sequence[str], awaited: Sequence[str], *, seen: bool
) -> Iterator[tuple[str, str]]:
    """The calls of culprits. seen: by their stack, and not by the text of their line."""
    if calls and (seen or calls[0] == op) and not _HOOK.match(calls[0]):
        yield "entered", calls[0]
    if "backward" in (*calls, *awaited):
        yield "backward", "backward"


def _called(site: Site | None, frames: Iterable[Frame]) -> Iterator[str]:
    if site is None:
        return
    inside: list[str] = []
    for frame in frames:
        if is_user_frame(frame):
            if (frame.file, frame.line) == (site.file, site.line):
                yield from inside[: -1 - OUTERMOST : -1]
                return
            break
        name = frame.function.rpartition(".")[2]  # without its class
        if not _HIDDEN.match(name):
            inside.append(name)
    yield from _CALLED.findall(site.source or "")


def _is_shown(cause: RootCause) -> bool:
    """Return True if the source shows the cause, which does not just follow from the kind."""
    if cause.what is What.STUCK_LINE:
        return False
    known = cause.what in (What.GROUP_CREATION, What.UNORDERED_THREADS)
    return bool(cause.evidence) or known


def _of_cause(cause: RootCause) -> Iterator[tuple[str, str]]:
    """The statement to change, where the source shows it."""
    if not _is_shown(cause) or cause.site is None:
        return
    text = (cause.site.source or "").partition("  #")[0].rstrip(":")
    yield "cause", text
    yield "cause_line", code_line(cause.site)
    loops = text.startswith(("for ", "while "))
    known = {
        "loop": loops,
        "asking": text.startswith("while "),
        "counted": "range(" in text,
        "unordered": cause.what is What.DIFFERENT_ORDER and text.startswith("for "),
        "messages": cause.what is What.UNMATCHED_P2P and loops,
        "takes": cause.what is What.UNEVEN_LOOP and "each element once" in cause.why,
        "override": cause.what is What.DATA_CONDITION and text.startswith("def "),
        "cached": cause.what is What.DATA_CONDITION and _CACHE.search(text) is not None,
        "stopping": cause.what is What.DATA_CONDITION and _STOPS.search(text) is not None,
        "finalizing": "__del__" in cause.why,
    }
    yield from ((name, text) for name, holds in known.items() if holds)


_AWAITED = {
    On.LOCK: "mutex",
    On.ANSWER: "answer",
    On.FILE_LOCK: "file_lock",
    On.PIPE: "pipe",
    On.FILE: "mount",
    On.INPUT: "input",
    On.KEY: "key",
}
"""Values by the kind of a wait."""
_UNTIL = {On.RETRY: "retried", On.LOOP: "rounds"}


def _of_wait(blocked: Blocked | None) -> Iterator[tuple[str, str]]:
    """The wait of a culprit outside of all collectives."""
    if blocked is None:
        return
    if blocked.on in _AWAITED:
        yield _AWAITED[blocked.on], blocked.what
    if blocked.call:
        yield "waits_in", blocked.call
    if blocked.until is not None:
        text = (blocked.until.source or "").rstrip(":")
        yield _UNTIL.get(blocked.on, "until"), text
    if blocked.instead is not None:
        yield from (("set_key", blocked.instead.key), ("set_at", code_line(blocked.instead.site)))
    if blocked.link is not None:
        yield from _of_link(blocked.link)


def _of_link(link: Link) -> Iterator[tuple[str, str]]:
    """The thread or process by which its wait would end."""
    if link.ended_by:
        yield from (("dead_thread", link.name), ("dead_at", code_line(link.site)))
        yield "dead_by", link.ended_by.partition(":")[0]
    elif link.had_by:
        if link.command:
            yield "lost_process", "a process"
        else:
            yield "idle_thread" if link.idle else "lost_thread", link.name
    elif link.command:
        yield "child", link.name
        if link.waits_for == FULL_PIPE:
            yield "filled", link.name
    elif link.site is not None:
        yield "holder" if link.holds else "other_thread", link.name
        yield "holder_at" if link.holds else "other_thread_at", code_line(link.site)
        if link.crossed is not None:
            yield "crossed_at", code_line(link.crossed)


def _of_key(case: Case, finding: Finding) -> Iterator[tuple[str, str]]:
    """The key of a store that culprits have not set, and the line that set keys of that form."""
    point = finding.wait_point
    if not isinstance(point, Setup) or (known := setter(case.job.ranks, point.keys)) is None:
        return
    if finding.differs == KEY:
        yield from (("asked", key_text(point.keys)), ("set_key", known.key))
        yield "set_at", code_line(known.site)
    else:
        either = {*finding.culprits} > {*known.behind}
        yield "either" if either else "unset", key_text(point.keys)
        at = "last_at" if either else "set_at" if known.by_form else "passed_at"
        yield at, code_line(known.site)


def _of_devices(case: Case, finding: Finding, culprits: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Ranks whose devices are not known, that made the same call, or that a library aborted."""
    ranks = the_ranks(tuple(sorted({wait.rank for wait in finding.waits})))
    if not finding.culprits and are_untimed(finding.waits):
        yield "untimed", ranks
    if finding.kind is Kind.COLLECTIVE_STUCK and finding.certainty is not Certainty.POSSIBLE:
        yield "as_one", ranks
    for rank in culprits:
        end = case.ended.get(rank)
        if end is None or end.signal != signal.SIGABRT:
            continue
        library = aborted_by(case.job, rank, end)
        if library is Library.NCCL:
            yield "abort_on_gpu", "SIGABRT"
        elif end.in_shutdown:
            yield "late_abort", "SIGABRT"
        elif library is Library.GLOO or end.abort is None:
            yield "abort", "SIGABRT"


def _of_group(case: Case, finding: Finding, cause: RootCause) -> Iterator[tuple[str, str]]:
    """Culprits that a condition led the same way, where one should have gone the other.

    And the group of just these ranks, where they are in a call of a group with more.
    """
    if finding.what is What.UNMATCHED_P2P and cause.what in CONDITIONS:
        yield "alike", the_ranks(finding.culprits)
    if isinstance(finding.wait_point, Slot) and len(finding.culprits) > 1:
        for gid, key in enumerate(case.job.keys):
            if key.ranks == finding.culprits and gid != finding.wait_point.gid:
                yield "own_group", group_text(case.job, gid)


def _without_reads(finding: Finding, cause: RootCause) -> Iterator[tuple[str, str]]:
    """The end of a generator, a repeated call, a flag for a library that all are in.

    And the condition below which something is set that a choice depends on.
    """
    text = (cause.site.source or "").rstrip(":") if cause.site is not None else ""
    if cause.what is What.EARLY_EXIT:
        yield "fed", text
    if cause.what is What.SWALLOWED_EXCEPTION and text.startswith("except"):
        yield "repeats", text
    if cause.what not in CONDITIONS:
        return
    mine, theirs = finding.site, finding.victim_site
    if mine and mine.call and theirs and code_line(mine) == code_line(theirs):
        yield "deciding", text
    elif cause.others and cause.others[0].site is not None:
        yield "set_below", text
        yield "decided", (cause.others[0].site.source or "").rstrip(":")


def _of_reads(finding: Finding, decided: Sequence[Read]) -> Iterator[tuple[str, str]]:
    """The statement by which culprits left a loop or function below the condition.

    And the line of the others, if it is in the branch that the culprits left out.
    """
    leaving = next((read.taken[-1] for read in decided if leaves(read.taken)), None)
    if leaving is not None:
        yield "leaving", ast.unparse(leaving).partition("\n")[0]
    if finding.victim_site is not None and any(
        frame.file == read.choice.file and spans(read.other, frame.number)
        for read in decided
        for frame in read.split.theirs.frames
    ):
        yield "left_out", code_line(finding.victim_site)


def _of_finding(finding: Finding) -> Iterator[tuple[str, str]]:
    others = sorted({wait.rank for wait in finding.waits} - set(finding.culprits))
    if finding.culprits:
        yield "culprits", the_ranks(finding.culprits)
    if others:
        yield "others", the_ranks(others)
    if finding.differs in _DIFFERENCES:
        yield finding.differs, _DIFFERENCES[finding.differs]
    if finding.site is not None:
        yield "line", code_line(finding.site)
    if finding.victim_site is not None:
        yield "other_line", code_line(finding.victim_site)
    if finding.collective is not None and finding.collective.op:
        yield "op", finding.collective.op


def _of_compiling(compiling: Compiling) -> Iterator[tuple[str, str]]:
    """The compiler at work, each under a name of its own."""
    if compiling.held:
        of_extension = compiling.by is Compiler.EXTENSION
        yield "held", _LOCK_OF_EXTENSION if of_extension else _LOCK_OF_CACHE
    elif compiling.locked:
        yield "lock", "`lock`"
    elif compiling.by is Compiler.TORCH:
        yield "torch_compile", compiling.by.value
    elif compiling.by is Compiler.EXTENSION:
        yield "extension", compiling.extension or "the extension"
    else:
        yield "kernels", compiling.by.value


def _error(case: Case, culprits: Iterable[int]) -> str:
    for rank in culprits:
        exception = case.ended[rank].exception if rank in case.ended else None
        if exception is not None:
            return f"{exception.type.rpartition('.')[2]}: {exception.story}"
    return ""
