"""The content of the page of a straggler, which straggler.html.j2 lays out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from hangwatch.console import printable
from hangwatch.report.html.page import (
    LONG,
    Advice,
    Code,
    advice_of,
    code_of,
    moment_text,
    parts_of,
    rendered,
)
from hangwatch.report.html.strip import Strip, strip
from hangwatch.report.straggler_schema import StragglerReport, ThreadShares
from hangwatch.report.terminal import format_straggler
from hangwatch.report.wording import LABEL, RankSet, site_label
from hangwatch.text import duration, percent, shortened


@dataclass(frozen=True, slots=True)
class Row:
    """A line of code. ``shares``: as parts of one, and in words; of the straggler and its like."""

    where: str
    file: str
    source: str
    shares: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """What a thread was at."""

    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page: the report, and what the template does not take from it as it is."""

    report: StragglerReport
    share: str
    cause: tuple[str, ...]
    """Text and code in turns."""
    advice: Advice
    facts: tuple[tuple[str, str], ...]
    codes: tuple[Code, ...]
    strip: Strip | None
    ranks: tuple[RankSet, ...]
    """The straggler that was profiled, and the rank beside it."""
    tables: tuple[Table, ...]
    unseen: tuple[str, ...]
    evidence: str


def render(report: StragglerReport) -> str:
    """The whole page. Raises ReportError for content that is no report."""
    return rendered("straggler.html.j2", page_of, report)


def page_of(report: StragglerReport) -> Page:
    """The content of the page. Raises the errors in DAMAGED for what is no report."""
    compared = report["compared"]
    missing = compared["missing"]
    return Page(
        report,
        percent(report["straggler"]["fraction"]),
        parts_of(report["cause"]) if report["cause"] else (),
        advice_of(report["advice"]),
        tuple(_facts(report)),
        tuple(_codes(report)),
        strip(report),
        tuple(RankSet.of([rank]) for rank in _pair(report)),
        tuple(Table(shortened(one["name"], LABEL), _rows(one)) for one in compared["threads"]),
        (shortened(f"The profiles of the ranks: {missing}", LONG),) if missing else (),
        "\n".join(shortened(printable(line), LONG) for line in _evidence(report)),
    )


def _pair(report: StragglerReport) -> list[int]:
    """The straggler that was profiled, and the rank beside it."""
    compared = report["compared"]
    return [rank for rank in (compared["rank"], compared["like"]) if rank is not None]


def _facts(report: StragglerReport) -> Iterator[tuple[str, str]]:
    straggler, run = report["straggler"], report["run"]
    length_s = straggler["until_s"] - straggler["since_s"]
    culprits = RankSet.of(straggler["ranks"])
    yield ("culprit" if culprits.count == 1 else "culprits"), culprits.text
    yield "cost", f"{percent(straggler['fraction'])} of {duration(length_s)}"
    yield "lost", duration(straggler["fraction"] * length_s)
    yield "since", f"{duration(straggler['since_s'])} after the start"
    yield "found at", moment_text(report["detected_at"])
    processes = [f"{one['pid']} on {one['node']}" for one in report["processes"][:2]]
    if processes:
        yield "process", shortened(", ".join(processes), LABEL)
    yield "job", f"{run['world_size']:,} ranks"
    yield "run", shortened(run["id"], LABEL)
    yield "command", shortened(shlex.join(map(str, run["command"])), 200)


def _codes(report: StragglerReport) -> Iterator[Code]:
    """The line that takes longer, and that of the thread that waits for it."""
    who = RankSet.of(report["straggler"]["ranks"][:1]).text
    if report["site"]:
        yield code_of(report["site"], f"What {who} takes longer for")
    if report["waits_at"]:
        yield code_of(report["waits_at"], f"Where {who} waits for that")


def _rows(thread: ThreadShares) -> tuple[Row, ...]:
    rows = []
    for line in thread["lines"]:
        site = line["site"]
        shares = tuple((share, percent(share)) for share in (line["share"], line["like_share"]))
        if site is None:
            rows.append(Row("waits for other ranks", "", "", shares))
            continue
        source = shortened(site["source"] or "", 200)
        rows.append(Row(site_label(site), f"{site['file']}:{site['line']}", source, shares))
    return tuple(rows)


def _evidence(report: StragglerReport) -> Iterator[str]:
    """The report as plain text, to be copied into a bug report."""
    run, pair = report["run"], _pair(report)
    yield from format_straggler(report, stored=False)
    yield ""
    yield f"command: {shlex.join(map(str, run['command']))}"
    yield f"ranks: {run['world_size']}"
    versions = [f"{name} {value}" for name, value in run["versions"].items()]
    yield f"versions: {', '.join(versions) or 'unknown'}"
    for thread in report["compared"]["threads"]:
        yield ""
        yield f"{thread['name']}, {' and '.join(f'rank {rank}' for rank in pair)}:"
        for line in thread["lines"]:
            at = site_label(line["site"]) or "waits for other ranks"
            yield f"  {percent(line['share']):>6} {percent(line['like_share']):>6}  {at}"
