"""Facts, wording and labels that the terminal, the page and ``hangwatch top`` share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Reason
from hangwatch.model.report import Why
from hangwatch.report import schema
from hangwatch.report.straggler_schema import StragglerReport
from hangwatch.text import (
    call_name,
    code_line,
    code_location,
    duration,
    fold_ranks,
    percent,
    ranges,
    ranks_text,
    shortened,
    the_ranks,
    verb,
)

LEAST_S = 0.05
"""A shorter time counts as unknown: stored dumps may not say when they were taken."""
SHOWN_RANGES = 5
BRIEF = 28
LABEL = 60
"""Characters of a label."""


def group_label(key: GroupKey) -> str:
    """A group's description, else its ranks."""
    if key.desc and key.desc != "undefined":
        return key.desc
    return f"ranks {fold_ranks(key.ranks)}"


def call_text(site: schema.Site) -> str:
    """``Accelerator.gather of accelerate``: the call into a package at a site; empty for none."""
    call = site.get("call")
    return f"{call['function']} of {call['package']}" if call else ""


def causes_text(verdict: schema.Verdict) -> tuple[list[str], list[str]]:
    """The possible causes, each with its certainty, best first; and the evidence for them.

    Both are empty where the source does not show it.
    """
    cause = verdict["cause"]
    if cause is None or not cause["evidence"]:
        return [], []
    causes = [cause, *cause["others"]]
    whys = [cause["why"] for cause in causes]
    evidence = [text for text in cause["evidence"] if text not in whys]
    return [f"({cause['certainty']}) {cause['why']}" for cause in causes], evidence


def certainty_text(verdict: schema.Verdict) -> str:
    """``likely``, or ``proved, who did it: possible`` where it is surer that the job hangs."""
    sure, hang = verdict["certainty"], verdict["certainty_of"]["hang"]
    return sure if hang == sure else f"{hang}, who did it: {sure}"


def note_text(note: schema.Note) -> str:
    """A costly mistake and its cost, with the line of code where it is known."""
    site = note["site"]
    where = f" ({code_location(site['file'], site['line'], 1)})" if site else ""
    return f"{note['what'].removesuffix('.')}{where}. {note['costs']}"


def missing_evidence(ranks: list[schema.Rank]) -> dict[str, list[int]]:
    """Evidence that is missing, and why, to the ranks that lack it."""
    missing: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        for what in rank["missing_evidence"]:
            missing[what].append(rank["rank"])
    return missing


def towards_of(report: schema.Report) -> dict[int, int]:
    """Rank to the one through which it waits for a culprit, where there is one."""
    return {
        wait["rank"]: towards
        for wait in report["waits"]
        if (towards := wait["towards"]) is not None
    }


def chain(rank: int, towards: Mapping[int, int]) -> list[int]:
    """The ranks that a rank waits for in turn, the culprit last; empty if that is not known."""
    way: dict[int, None] = {}  # a stored report may have been tampered with, and go round
    while (following := towards.get(rank)) is not None and following not in way:
        way[following] = None
        rank = following
    return list(way)


@dataclass(frozen=True, slots=True)
class RankSet:
    """Some ranks. ``spec`` lists all of them as ``0-7,9``, for the script that finds one."""

    text: str
    spec: str
    count: int

    @classmethod
    def of(cls, ranks: Iterable[int]) -> RankSet:
        """The set of these ranks."""
        members = set(ranks)
        spec = ",".join(f"{a}-{b}" if b > a else str(a) for a, b in ranges(members))
        return cls(ranks_text(members, SHOWN_RANGES), spec, len(members))

    @property
    def brief(self) -> str:
        """A text that fits into a box of a picture."""
        return self.text if len(self.text) <= BRIEF else f"{self.count:,} ranks"


def site_label(site: schema.Site | schema.StackFrame | None, parts: int = 2) -> str:
    """``ada/train.py:9``; empty for no site."""
    return shortened(code_location(site["file"], site["line"], parts), LABEL) if site else ""


def call_label(op: str, seq: int) -> str:
    """``all_reduce #41``."""
    return shortened(call_name(op, seq), LABEL)


def straggler_headline(ranks: Sequence[int]) -> str:
    """What is wrong with stragglers."""
    it = verb(ranks, "it", "they")
    return (
        f"The other ranks wait for {the_ranks(ranks)} again and again, and {it} for none of them."
    )


def cost_text(report: StragglerReport) -> str:
    """What stragglers cost, and what that means."""
    straggler = report["straggler"]
    share, who = percent(straggler["fraction"]), the_ranks(straggler["ranks"])
    length = duration(straggler["until_s"] - straggler["since_s"])
    return (
        f"{share} of {length}, from {duration(straggler['since_s'])} after the start on: so much "
        f"less time would have been needed if {who} took as long as the others"
    )


_FASTER = {
    Reason.DATA_LOADING: (
        "Look what its data loader reads that takes long: a slow disk or network, larger samples, "
        "a transform. Workers (num_workers, prefetch_factor) hide what is slow now and then."
    ),
    Reason.CHECKPOINT_IO: (
        "Write checkpoints beside the training (torch.distributed.checkpoint.async_save, or a copy "
        "that another thread writes), on all ranks, or less often; read files ahead."
    ),
    Reason.GARBAGE_COLLECTION: (
        "Take the call out, or collect seldom, and on all ranks at the same step."
    ),
    Reason.CPU_CONTENTION: (
        "Look what else runs on its CPUs (top, taskset -p), and whether the limit of its container "
        "is reached (cpu.stat). Give each rank cores of its own, and no more threads than these."
    ),
    Reason.CPU_THROTTLED: (
        "Raise the limit of its container or control group (cpu.max; limits.cpu in Kubernetes), or "
        "have it start fewer threads (OMP_NUM_THREADS, num_workers)."
    ),
    Reason.UNEVEN_WORK: (
        "Give all ranks as much to do: samples of one length in a batch or batches by tokens, not "
        "by samples; layers spread evenly over stages. If the work is the same, its CPU is slower."
    ),
    Reason.USER_CODE: (
        "If other ranks do not do it, do it less often, in another process or thread, or give each "
        "rank a part of it."
    ),
}
_COMPARE = (
    "Compare what it does in a step with what another rank does: a slower data loader or disk, "
    "files or logs that only some ranks write, longer sequences, a CPU that others use, too. "
    "`py-spy record --pid` on both shows where the time goes."
)


def slow_at(rank: int, why: Why) -> list[str]:
    """What the first of some stragglers does while the others wait; none where it is not known."""
    if why.reason in _LACKS_CPU:
        return [f"Rank {rank} {_LACKS_CPU[why.reason]}, and rank {why.like} does not."]
    if why.site is None:
        if why.reason is Reason.UNEVEN_WORK:
            return [f"Rank {rank} takes longer than rank {why.like} at many lines."]
        return []
    at = code_line(why.waits_at or why.site)
    text = f"Rank {rank} is at {at} for {percent(why.share)} of its time"
    text += f", rank {why.like} for {percent(why.like_share)}"
    if why.like_site is not None:
        text += f" at {code_line(why.like_site)}"
    if why.held:
        text = f"While the others wait, rank {rank} is at {at}"
    if why.waits_at is None:
        does = "" if why.held and why.reason is Reason.UNEVEN_WORK else _DOES.get(why.reason, "")
        return [f"{text}. {does}".rstrip()]
    whose = f"its thread {why.thread}" if why.thread else "a worker of its data loader"
    return [f"{text}: it waits there for {whose}, which is at {code_line(why.site)}."]


_LACKS_CPU = {
    Reason.CPU_CONTENTION: "waits for a CPU",
    Reason.CPU_THROTTLED: "waits for a CPU, since the limit of its container is reached",
}
_DOES = {
    Reason.DATA_LOADING: "It loads data there.",
    Reason.CHECKPOINT_IO: "It writes or reads files there.",
    Reason.STORE_WAIT: "It waits for a key of the store there.",
    Reason.GARBAGE_COLLECTION: "It collects garbage there.",
    Reason.UNEVEN_WORK: "Both do the same; it has more of it, or is slower.",
}


def to_be_faster(why: Why) -> str:
    """Advice to the owner of a straggler."""
    return _FASTER.get(why.reason, _COMPARE)
