"""The content of the page of an incident, which incident.html.j2 lays out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from hangwatch.console import printable
from hangwatch.report import schema
from hangwatch.report.html.graph import Graph, graph
from hangwatch.report.html.lanes import Panel, panels
from hangwatch.report.html.nodes import Machines, machines
from hangwatch.report.html.page import (
    DAMAGED,
    LONG,
    Advice,
    Code,
    advice_of,
    code_of,
    moment_text,
    parts_of,
    rendered,
    time_of,
)
from hangwatch.report.html.progress import Progress, progress
from hangwatch.report.html.stacks import Stacks, stacks
from hangwatch.report.schema import Report
from hangwatch.report.terminal import format_verdict
from hangwatch.report.wording import (
    LABEL,
    LEAST_S,
    RankSet,
    causes_text,
    certainty_text,
    missing_evidence,
    note_text,
)
from hangwatch.text import duration, shortened

MOST_MOMENTS = 200
MOST_UNSEEN = 60
MOST_ALSO = 20
MOST_LINES = 400
"""Lines of the text for a bug report."""
LONGEST_LINE = 400


Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page: the report, and what the template does not take from it as it is."""

    report: Report
    explanation: tuple[str, ...]
    """Text and code in turns."""
    causes: tuple[tuple[str, ...], ...]
    """The same, best first, and last the evidence for them."""
    advice: tuple[Advice, ...]
    facts: tuple[tuple[str, str], ...]
    codes: tuple[Code, ...]
    graph: Graph | None
    panels: tuple[Panel, ...]
    progress: Progress | None
    stacks: Stacks | None
    machines: Machines | None
    also: tuple[schema.Verdict, ...]
    timeline: tuple[tuple[str, str, str], ...]
    """Time, time since the line before, and text."""
    notes: tuple[tuple[str, Advice], ...]
    """Costly mistakes, and what to do."""
    unseen: tuple[str, ...]
    evidence: str

    @property
    def certainty(self) -> str:
        """The certainty of the verdict, and its meaning."""
        verdict = self.report["verdict"]
        meaning = _CERTAIN.get(verdict["certainty"])
        text = certainty_text(verdict)
        return f"{text}: {meaning}" if meaning else text

    @property
    def tone(self) -> str:
        """The class of the top: ``bad``, ``warn`` or ``calm``."""
        tones = {"slow": "warn", "desync": "warn", "ok": "calm"}
        return tones.get(self.report["verdict"]["state"], "bad")


_CERTAIN = {
    "proved": "no future event can undo it",
    "likely": "all evidence points there",
    "possible": "nothing decides between several explanations",
}


def render(report: Report) -> str:
    """The whole page. Raises ReportError for content that is no report."""
    return rendered("incident.html.j2", page_of, report)


def page_of(report: Report) -> Page:
    """The content of the page. Raises the errors in DAMAGED for what is no report."""
    verdict = report["verdict"]
    failed: list[str] = []
    pictures = (
        _drawn("the graph of who waits for whom", graph, report, failed),
        _drawn("the last calls", panels, report, failed) or (),
        _drawn("the map of progress", progress, report, failed),
        _drawn("the stacks", stacks, report, failed),
        _drawn("nodes and processes", machines, report, failed),
    )
    evidence = _drawn("the plain text", _evidence, report, failed) or ""
    return Page(
        report,
        parts_of(verdict["explanation"]) if verdict["explanation"] else (),
        tuple(map(parts_of, _causes(verdict))),
        tuple(map(advice_of, verdict["advice"])),
        tuple(_facts(report)),
        tuple(_codes(verdict)),
        *pictures,
        tuple(report["also"][:MOST_ALSO]),
        tuple(_timeline(report)),
        tuple(
            (shortened(note_text(note), LONG), advice_of(f"{note['advice']} {note['link']}"))
            for note in report["notes"][:MOST_ALSO]
        ),
        (*failed, *_unseen(report)),
        evidence,
    )


def _drawn(
    what: str,
    draw: Callable[[Report], Content],
    report: Report,
    failed: list[str],
) -> Content | None:
    """A part of the page; if it cannot be drawn, the other parts still are."""
    try:
        return draw(report)
    except DAMAGED as error:
        failed.append(f"This page lacks {what}: {type(error).__name__}: {error}")
        return None


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    verdict, run = report["verdict"], report["run"]
    if verdict["stuck_age_s"] >= LEAST_S:
        yield "stuck for", duration(verdict["stuck_age_s"])
        if verdict["stuck_since"]:
            yield "stuck since", moment_text(verdict["stuck_since"])
    elif verdict["detected_at"]:
        yield "found at", moment_text(verdict["detected_at"])
    if verdict["detected_after_s"] >= LEAST_S:
        yield "found after", duration(verdict["detected_after_s"])
    if verdict["culprits"]:
        culprits = RankSet.of(verdict["culprits"])
        yield ("culprit" if culprits.count == 1 else "culprits"), culprits.text
    if verdict["victims"]:
        victims = RankSet.of(verdict["victims"])
        yield "waiting", f"{victims.count:,} of {run['world_size']:,} ranks"
    nodes = len(run["nodes"])
    yield "job", f"{run['world_size']:,} ranks on {nodes:,} node{'s' * (nodes != 1)}"
    if run["restart"]:
        yield "restart", str(run["restart"])
    yield "run", shortened(run["id"], LABEL)
    yield "command", shortened(shlex.join(map(str, run["command"])), 200)


def _codes(verdict: schema.Verdict) -> Iterator[Code]:
    """The lines that the culprit is at, that the others wait at, and of the cause."""
    culprits = RankSet.of(verdict["culprits"])
    site, others = verdict["site"], verdict["victim_site"]
    if site:
        died, one = verdict["kind"] == "died", culprits.count == 1
        verb = ("was" if one else "were") if died else ("is" if one else "are")
        yield code_of(site, f"Where {culprits.text} {verb}")
    if others and (not site or (others["file"], others["line"]) != (site["file"], site["line"])):
        yield code_of(others, "Where the others wait" if site else "Where ranks wait")
    cause = verdict["cause"]
    if cause and cause["evidence"] and cause["site"]:
        yield code_of(cause["site"], f"Why ({cause['certainty']})")


def _causes(verdict: schema.Verdict) -> Iterator[str]:
    causes, evidence = causes_text(verdict)
    yield from (f"{'Or' if number else 'Why'} {text}" for number, text in enumerate(causes))
    if evidence:
        yield " ".join(evidence)


def _timeline(report: Report) -> Iterator[tuple[str, str, str]]:
    before = None
    for moment in report["timeline"][-MOST_MOMENTS:]:
        what = shortened(moment["what"], LONG)
        at = time_of(moment["at"])
        if at is None:
            yield shortened(moment["at"], 40), "", what
            continue
        after = f"+{duration((at - before).total_seconds())}" if before else ""
        yield f"{at:%H:%M:%S}.{at.microsecond // 1000:03}", after, what
        before = at


def _unseen(report: Report) -> Iterator[str]:
    """Evidence that could not be had, each piece once with its ranks."""
    yield from report["unseen"]
    missing = missing_evidence(report["ranks"])
    lacking = [f"{RankSet.of(ranks).text}: {what}" for what, ranks in missing.items()]
    lacking += report["lost"]
    for what in lacking[:MOST_UNSEEN]:
        yield shortened(f"{what[:1].upper()}{what[1:]}", LONG)
    if len(lacking) > MOST_UNSEEN:
        yield f"and {len(lacking) - MOST_UNSEEN:,} more, see report.json"


def _evidence(report: Report) -> str:
    """The incident as plain text, to be copied into a bug report."""
    lines = [shortened(printable(line), LONGEST_LINE) for line in _evidence_lines(report)]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = ["..."]
    return "\n".join(lines)


def _evidence_lines(report: Report) -> Iterator[str]:
    """The output of the terminal, and the evidence that a maintainer asks for next."""
    run = report["run"]
    yield from format_verdict(report, stored=False)
    yield ""
    yield f"command: {shlex.join(map(str, run['command']))}"
    yield f"ranks: {run['world_size']} on {len(run['nodes'])} nodes, restart {run['restart']}"
    versions = [f"{name} {value}" for name, value in run["versions"].items()]
    yield f"versions: {', '.join(versions) or 'unknown'}"
    for name, value in report["environment"].items():
        yield f"environment: {name}={value}"
    for moment in report["timeline"]:
        yield f"{moment['at']} {moment['what']}"
    for rank in report["ranks"]:
        if rank["rank"] not in report["verdict"]["culprits"][:2]:
            continue
        yield ""
        names = [("main thread", rank["stack"])]
        for child in rank["children"]:
            names += [(f"worker {child['pid']}", thread["stack"]) for thread in child["threads"]]
        for name, stack in names:
            if stack in report["stacks"]:
                yield f"rank {rank['rank']}, {name}, innermost frame first:"
                for frame in report["stacks"][stack]["frames"]:
                    yield f"  {frame['file']}:{frame['line']} {frame['function']}"
