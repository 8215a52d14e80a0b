"""Everything that the post-mortem page shows, worked out before the template sees it."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from hangwatch.report import schema
from hangwatch.report.html.evidence import evidence
from hangwatch.report.html.graph import Graph, graph
from hangwatch.report.html.lanes import Panel, panels
from hangwatch.report.html.nodes import Machines, machines
from hangwatch.report.html.progress import Progress, progress
from hangwatch.report.html.ranksets import RankSet, place, seconds, shortened, words
from hangwatch.report.html.stacks import Stacks, stacks
from hangwatch.report.notes import note_text
from hangwatch.report.schema import Report
from hangwatch.report.sites import call_text, causes_text, certainty_text

MOST_MOMENTS = 200
MOST_UNSEEN = 60
MOST_ALSO = 20
LEAST_S = 0.05
"""A shorter time is not known."""
LONG = 2_000
"""Characters of a sentence that comes from hangwatch, but may name what does not."""

_LINKED = re.compile(r"(.*\S)\s+(https://[\w./%#-]+)", re.DOTALL)
"""Advice that ends in the address of a page."""

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do. ``link``: to the documentation, empty where there is none."""

    parts: tuple[str, ...]
    """Text and code in turns."""
    link: str = ""

    @property
    def shown(self) -> str:
        """The link as people read it."""
        return self.link.removeprefix("https://")


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of source. ``here``: the one that it is about."""

    number: int
    text: str
    here: bool


@dataclass(frozen=True, slots=True)
class Code:
    """A line of code with those around it."""

    title: str
    file: str
    line: int
    function: str
    calls: str
    """What of an installed package the line has called, empty for nothing."""
    lines: tuple[CodeLine, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict in short."""

    state: str
    certainty: str
    headline: str
    where: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A line of the timeline. ``after``: since the one before it."""

    at: str
    what: str
    after: str


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    title: str
    state: str
    certainty: str
    certainty_means: str
    kind: str
    reason: str
    headline: str
    explanation: tuple[str, ...]
    """Text and code in turns."""
    causes: tuple[tuple[str, ...], ...]
    """The same, best first, and last what they are taken from."""
    advice: tuple[Advice, ...]
    facts: tuple[tuple[str, str], ...]
    codes: tuple[Code, ...]
    graph: Graph | None
    panels: tuple[Panel, ...]
    progress: Progress | None
    stacks: Stacks | None
    machines: Machines | None
    also: tuple[Finding, ...]
    timeline: tuple[Moment, ...]
    versions: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    notes: tuple[tuple[str, Advice], ...]
    """Costly mistakes, and what to do."""
    unseen: tuple[str, ...]
    evidence: str

    @property
    def tone(self) -> str:
        """How alarming it is."""
        return {"slow": "warn", "desync": "warn", "ok": "calm"}.get(self.state, "bad")

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Anchor and name of the parts that the page has."""
        found = {
            "waits": ("Waits", self.graph),
            "calls": ("Calls", self.panels),
            "progress": ("Progress", self.progress),
            "stacks": ("Stacks", self.stacks),
            "nodes": ("Nodes", self.machines),
            "timeline": ("Timeline", self.timeline),
            "notes": ("At a cost", self.notes),
            "unseen": ("Not seen", self.unseen),
            "evidence": ("Bug report", self.evidence),
        }
        return [(anchor, name) for anchor, (name, part) in found.items() if part]


_CERTAIN = {
    "proved": "no future event can undo it",
    "likely": "all evidence points there",
    "possible": "nothing decides between several explanations",
}


def page_of(report: Report) -> Page:
    """The content of the page for a report of this or an earlier version.

    Raises what comes of a report that has not the shape of one: KeyError, TypeError,
    AttributeError, ValueError, IndexError.
    """
    verdict, run = report["verdict"], report["run"]
    failed: list[str] = []
    pictures = (
        _drawn("the graph of who waits for whom", graph, report, failed),
        _drawn("the last calls", panels, report, failed) or (),
        _drawn("the map of progress", progress, report, failed),
        _drawn("the stacks", stacks, report, failed),
        _drawn("nodes and processes", machines, report, failed),
    )
    text = _drawn("the plain text", evidence, report, failed) or ""
    return Page(
        shortened(f"{verdict['state'].upper()}: {verdict['headline']}", 120),
        verdict["state"],
        certainty_text(verdict),
        _CERTAIN.get(verdict["certainty"], ""),
        words(verdict["kind"]),
        "" if verdict["reason"] == "unknown" else words(verdict["reason"]),
        shortened(verdict["headline"], LONG),
        tuple(shortened(verdict["explanation"], LONG).split("`")) if verdict["explanation"] else (),
        tuple(tuple(shortened(text, LONG).split("`")) for text in _causes(verdict)),
        tuple(_advice(shortened(advice, LONG)) for advice in verdict["advice"]),
        tuple(_facts(report)),
        tuple(_codes(verdict)),
        *pictures,
        tuple(_finding(other) for other in report.get("also", ())[:MOST_ALSO]),
        tuple(_moments(report)),
        tuple((name, shortened(value)) for name, value in run["versions"].items()),
        tuple((name, shortened(value)) for name, value in report["environment"].items()),
        tuple(
            (shortened(note_text(note), LONG), _advice(f"{note['advice']} {note['link']}"))
            for note in report.get("notes", ())[:MOST_ALSO]
        ),
        (*failed, *_unseen(report)),
        text,
    )


def _drawn(
    what: str,
    draw: Callable[[Report], Content],
    report: Report,
    failed: list[str],
) -> Content | None:
    """A part of the page; one that cannot be drawn costs nothing but itself."""
    try:
        return draw(report)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        failed.append(f"This page lacks {what}: {type(error).__name__}: {error}")
        return None


def _advice(text: str) -> Advice:
    linked = _LINKED.fullmatch(text)
    text, link = linked.groups() if linked else (text, "")
    return Advice(tuple(text.split("`")), link)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    verdict, run = report["verdict"], report["run"]
    if verdict["stuck_age_s"] >= LEAST_S:
        yield "stuck for", seconds(verdict["stuck_age_s"])
        if verdict["stuck_since"]:
            yield "stuck since", _moment(verdict["stuck_since"])
    elif verdict["detected_at"]:
        yield "found at", _moment(verdict["detected_at"])
    if verdict["detected_after_s"] >= LEAST_S:
        yield "found after", seconds(verdict["detected_after_s"])
    if verdict["culprits"]:
        culprits = RankSet.of(verdict["culprits"])
        yield ("culprit" if culprits.count == 1 else "culprits"), culprits.text
    if verdict["victims"]:
        victims = RankSet.of(verdict["victims"])
        yield "waiting", f"{victims.count:,} of {run['world_size']:,} ranks"
    nodes = len(run["nodes"])
    yield "job", f"{run['world_size']:,} ranks on {nodes:,} node{'s' * (nodes != 1)}"
    if run.get("restart"):
        yield "restart", str(run["restart"])
    yield "run", shortened(run["id"], 60)
    yield "command", shortened(shlex.join(map(str, run["command"])), 200)


def _moment(text: str) -> str:
    """A time of report.json in UTC."""
    try:
        at = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return shortened(text, 40)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _codes(verdict: schema.Verdict) -> Iterator[Code]:
    """Where the culprit is, and where the others wait."""
    culprits = RankSet.of(verdict["culprits"])
    site, others = verdict["site"], verdict["victim_site"]
    if site:
        gone = verdict["kind"] == "died"
        one, several = ("was", "were") if gone else ("is", "are")
        yield _code(site, f"Where {culprits.text} {one if culprits.count == 1 else several}")
    if others and (not site or (others["file"], others["line"]) != (site["file"], site["line"])):
        yield _code(others, "Where the others wait" if site else "Where ranks wait")
    cause = verdict.get("cause")
    if cause and cause["evidence"] and cause["site"]:
        yield _code(cause["site"], f"Why ({cause['certainty']})")


def _causes(verdict: schema.Verdict) -> Iterator[str]:
    causes, seen = causes_text(verdict)
    yield from (f"{'Or' if number else 'Why'} {text}" for number, text in enumerate(causes))
    if seen:
        yield " ".join(seen)


def _code(site: schema.Site, title: str) -> Code:
    context = site.get("context")
    lines = []
    if context:
        for number, text in enumerate(context["lines"], context["first"]):
            here = number == site["line"]
            lines.append(CodeLine(number, shortened(text.expandtabs(4).rstrip(), 400), here))
    elif site["source"]:
        lines.append(CodeLine(site["line"], shortened(site["source"], 400), here=True))
    return Code(
        title,
        shortened(site["file"], 200),
        site["line"],
        shortened(site["function"]),
        shortened(call_text(site)),
        tuple(lines),
    )


def _finding(verdict: schema.Verdict) -> Finding:
    return Finding(
        verdict["state"],
        certainty_text(verdict),
        shortened(verdict["headline"], LONG),
        place(verdict["site"]),
    )


def _moments(report: Report) -> Iterator[Moment]:
    before = None
    for moment in report["timeline"][-MOST_MOMENTS:]:
        try:
            at = datetime.fromisoformat(moment["at"]).astimezone(UTC)
        except (ValueError, OverflowError):
            yield Moment(shortened(moment["at"], 40), shortened(moment["what"], LONG), "")
            continue
        after = f"+{seconds((at - before).total_seconds())}" if before else ""
        yield Moment(
            f"{at:%H:%M:%S}.{at.microsecond // 1000:03}", shortened(moment["what"], LONG), after
        )
        before = at


def _unseen(report: Report) -> Iterator[str]:
    """What could not be had, each thing once with its ranks."""
    yield from report["unseen"]
    missing: defaultdict[str, list[int]] = defaultdict(list)
    for rank in report["ranks"]:
        for what in rank["missing_evidence"]:
            missing[what].append(rank["rank"])
    told = [f"{RankSet.of(ranks).text}: {what}" for what, ranks in missing.items()]
    told += report.get("lost", ())
    for what in told[:MOST_UNSEEN]:
        yield shortened(f"{what[0].upper()}{what[1:]}" if what else what, LONG)
    if len(told) > MOST_UNSEEN:
        yield f"and {len(told) - MOST_UNSEEN:,} more, see report.json"
