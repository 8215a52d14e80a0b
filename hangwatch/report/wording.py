"""Facts, wording and labels that the terminal, the page and ``hangwatch top`` share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hangwatch.model.calls import GroupKey
from hangwatch.report import schema
from hangwatch.text import call_name, code_location, fold_ranks, ranges, ranks_text, shortened

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
