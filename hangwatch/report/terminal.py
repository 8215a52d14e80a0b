"""The verdict as a short block of text.

``format_verdict`` yields the lines and prints nothing. All that it shows comes
from report.json, so a stored report prints as it did live. Text from outside has
its control characters escaped.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hangwatch.console import printable
from hangwatch.model.report import Stragglers
from hangwatch.report import schema
from hangwatch.report.schema import Report
from hangwatch.report.straggler_schema import StragglerReport
from hangwatch.report.wording import (
    LEAST_S,
    call_text,
    causes_text,
    certainty_text,
    chain,
    cost_text,
    missing_evidence,
    note_text,
    towards_of,
)
from hangwatch.text import (
    call_name,
    code_line,
    code_location,
    duration,
    percent,
    ranks_text,
    the_ranks,
    words,
)

NARROWEST = 40
DEFAULT_WIDTH = 100
"""For output that is no terminal."""
MAX_FRAMES = 6
MAX_WAITS = 5
MAX_HOPS = 8
MAX_RANGES = 12
_LABEL = 11
"""Columns of the label on the left."""
_COLOURS = {
    **dict.fromkeys(("hang", "failed"), "1;31"),
    **dict.fromkeys(("slow", "desync", "straggler"), "1;33"),
    "ok": "1;32",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Width and colour of the output."""

    width: int = DEFAULT_WIDTH
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Style:
        """The style for a stream: colour on a terminal only, and not with NO_COLOR."""
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            return cls()
        colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(columns or DEFAULT_WIDTH, colour)

    def paint(self, text: str, code: str) -> str:
        """Text in a colour (SGR code of ECMA-48), where there is colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    @property
    def columns(self) -> int:
        """The width, but never so narrow that nothing fits."""
        return max(NARROWEST, self.width)


def colour_of(state: str) -> str:
    """The colour of the state of a verdict."""
    return _COLOURS.get(state, "1")


PLAIN = Style()


def format_verdict(
    report: Report,
    where: Path | None = None,
    style: Style = PLAIN,
    *,
    stored: bool = True,
) -> Iterator[str]:
    """The lines of the block, without line ends.

    report: the content of report.json. where: its directory, None where it
    could not be written. stored: whether it was to be written at all.
    """
    verdict = report["verdict"]
    yield from _headline(verdict, style)
    if verdict["state"] == "ok":
        return
    causes, evidence = causes_text(verdict)
    yield from _labelled("cause", [*_bullets(causes), *evidence], style)
    yield from _labelled("waiting", _waits(report), style)
    yield from _labelled("culprit", _culprits(report), style)
    yield from _site(verdict["site"], style)
    yield from _labelled("stack", _stack(report), style)
    for other in report["also"]:
        text = f"{other['state'].upper()} ({certainty_text(other)}) {other['headline']}"
        yield from _labelled("also", [text], style)
    yield from _labelled("what to do", _bullets(verdict["advice"]), style)
    notes = [f"{note_text(note)} {note['advice']}" for note in report["notes"]]
    yield from _labelled("at a cost", _bullets(notes), style)
    missing = [
        f"{ranks_text(ranks, MAX_RANGES)}: {what}"
        for what, ranks in missing_evidence(report["ranks"]).items()
    ]
    yield from _labelled("not seen", _bullets([*report["unseen"], *missing]), style)
    if stored:
        yield from _report(where, style)


def format_notes(notes: Sequence[schema.Note], style: Style = PLAIN) -> Iterator[str]:
    """The block of costly mistakes at the end of a run; no lines for no notes."""
    if not notes:
        return
    yield style.paint("hangwatch: this cost the run time or accuracy, but did not hang it", "1")
    for note in notes:
        first, *more = _wrap(note_text(note), style.columns - 4)
        yield f"  - {first}"
        more += [*_wrap(note["advice"], style.columns - 4), printable(note["link"])]
        yield from (f"    {line}" for line in more)


def format_straggler(
    report: StragglerReport,
    where: Path | None = None,
    style: Style = PLAIN,
    *,
    stored: bool = True,
) -> Iterator[str]:
    """The block about ranks that make a job slow; nothing hangs.

    report: the content of straggler.json. where, stored: as of format_verdict().
    """
    straggler, site = report["straggler"], report["site"]
    word, share = "STRAGGLER", percent(straggler["fraction"])
    yield f"hangwatch: {style.paint(word, colour_of('straggler'))} ({share} of the time)"
    for line in _wrap(report["headline"], style.columns - 2):
        yield f"  {style.paint(line, '1')}"
    yield from _labelled("cause", [report["cause"]] if report["cause"] else [], style)
    yield from _labelled("cost", [cost_text(report)], style)
    processes = [
        f"rank {one['rank']} is process {one['pid']} on {one['node']}"
        for one in report["processes"][:2]
    ]
    yield from _labelled("culprit", processes, style)
    yield from _site(site, style)
    missing = report["compared"]["missing"]
    unseen = [f"the profiles of the ranks: {missing}"] if missing else []
    yield from _labelled("not seen", unseen, style)
    yield from _labelled("what to do", [report["advice"]], style)
    if stored:
        yield from _report(where, style)


def format_stragglers(stragglers: Stragglers, style: Style = PLAIN) -> Iterator[str]:
    """The block about stragglers at the end of a run; no lines where there was none."""
    lost_s = sum(one.lost_s for one in stragglers.found)
    if not stragglers.found:
        return
    yield style.paint(f"hangwatch: stragglers have cost this run {duration(lost_s)}", "1")
    for one in stragglers.found:
        length = duration(one.until_s - one.since_s)
        text = f"- {the_ranks(one.ranks)}: {percent(one.fraction)} of {length}"
        at = f", at {code_line(one.why.site)}" if one.why.site else ""
        yield f"  {text}, from {duration(one.since_s)} after the start on{at}"


def _headline(verdict: schema.Verdict, style: Style) -> Iterator[str]:
    state = verdict["state"]
    word = state.upper()
    age_s = verdict["stuck_age_s"]
    about = certainty_text(verdict)
    if age_s >= LEAST_S:
        about = f"{about}, stuck for {age_s:.1f} s"
    first, *more = _wrap(f"hangwatch: {word} ({about})", style.columns)
    yield first.replace(word, style.paint(word, colour_of(state)))
    yield from more
    for line in _wrap(verdict["headline"], style.columns - 2):
        yield f"  {style.paint(line, '1')}"
    for line in _wrap(verdict["explanation"], style.columns - 2):
        yield f"  {line}"


def _waits(report: Report) -> list[str]:
    """One line for all ranks that wait for the same ranks in the same place."""
    verdict, points = report["verdict"], report["places"]
    culprits = set(verdict["culprits"])
    towards = towards_of(report)
    # Ranks that wait for a culprit itself come first: of a large job not all are shown.
    ordered = sorted(
        points, key=lambda point: (culprits.isdisjoint(point["for"]), -len(point["ranks"]))
    )
    lines = [_wait_line(point, towards) for point in ordered[:MAX_WAITS]]
    if len(ordered) > MAX_WAITS:
        more = len(ordered) - MAX_WAITS + 1
        lines[MAX_WAITS - 1 :] = [f"and {more} more places, see report.json"]
    if not lines and verdict["victims"]:
        lines = [ranks_text(verdict["victims"], MAX_RANGES)]
    return lines


def _wait_line(point: schema.WaitPoint, towards: Mapping[int, int]) -> str:
    what = call_name(point["op"], point["seq"])
    if point["group"]:
        what = f"{what} of {point['group']}"
    text = f"{ranks_text(point['ranks'], MAX_RANGES)} in {what}"
    if point["age_s"] >= LEAST_S:
        text = f"{text}, {point['age_s']:.1f} s"
    if site := point["site"]:
        text = f"{text}, at {code_location(site['file'], site['line'])}"
    if awaited := point["for"]:
        more = point["for_count"] - len(awaited)
        text = f"{text}, for {ranks_text(awaited, MAX_RANGES, more)}"
    if len(way := chain(point["ranks"][0], towards)) > 1:
        text = f"{text} ({_arrows(way)})"
    return text


def _arrows(way: Sequence[int]) -> str:
    """``5 -> 4 -> 2``: each waits for the one after it; cut in the middle."""
    shown = list(map(str, way))
    if len(shown) > MAX_HOPS:
        shown[MAX_HOPS - 2 : -1] = ["..."]
    return " -> ".join(shown)


def _culprits(report: Report) -> list[str]:
    verdict = report["verdict"]
    if not verdict["culprits"]:
        return []
    text = f"{ranks_text(verdict['culprits'])}: {words(verdict['kind'])}"
    if verdict["reason"] != "unknown":
        text = f"{text}, {words(verdict['reason'])}"
    lines = [text]
    by_rank = {rank["rank"]: rank for rank in report["ranks"]}
    for culprit in verdict["culprits"][:2]:
        rank = by_rank.get(culprit)
        if rank and rank["pid"]:  # a Flight Recorder dump names no process
            lines.append(f"rank {culprit} is process {rank['pid']} on {rank['node']}")
    return lines


def _site(site: schema.Site | None, style: Style) -> Iterator[str]:
    """The culprit's line of code with the lines around it."""
    if not site:
        return
    called = f", calling {call_text(site)}" if site.get("call") else ""
    where = f"{site['file']}:{site['line']}" if site["line"] else site["file"]
    text = f"{where} in {site['function']}{called}"
    yield from _labelled("code", [text], style)
    context = site.get("context")
    if not context:
        if site["source"]:
            yield _clip(f"{'':{_LABEL}}  > {printable(site['source'])}", style.columns)
        return
    digits = len(str(context["first"] + len(context["lines"])))
    for number, text in enumerate(context["lines"], context["first"]):
        here = number == site["line"]
        mark = ">" if here else " "
        line = f"{'':{_LABEL}}  {mark} {number:{digits}d}  {printable(text.expandtabs(4))}"
        line = _clip(line.rstrip(), style.columns)
        yield style.paint(line, "1") if here else line


def _stack(report: Report) -> list[str]:
    """The culprit's stack in short: its innermost frame, and the user's own."""
    verdict = report["verdict"]
    frames = _culprit_stack(report, verdict)
    called = _called_frame(frames, verdict["site"])
    shown = [f for i, f in enumerate(frames) if i in (0, called) or f["user"]]
    lines = [f"{f['function']}  {code_location(f['file'], f['line'])}" for f in shown[:MAX_FRAMES]]
    if len(shown) > MAX_FRAMES:
        lines.append(f"... {len(shown) - MAX_FRAMES} more")
    return lines


def _culprit_stack(report: Report, verdict: schema.Verdict) -> Sequence[schema.StackFrame]:
    """The stack that shows the verdict's site; else that of the culprit's main thread."""
    site = verdict["site"]
    at = (site["file"], site["line"]) if site else None
    for rank in report["ranks"]:
        if rank["rank"] not in verdict["culprits"][:1]:
            continue
        children = [thread for child in rank["children"] for thread in child["threads"]]
        names = [rank["stack"], *(t["stack"] for t in [*rank["threads"], *children])]
        stacks = [report["stacks"][name]["frames"] for name in names if name]
        for frames in stacks:
            if any((frame["file"], frame["line"]) == at for frame in frames):
                return frames
        return stacks[0] if stacks else []
    return []


def _called_frame(frames: Sequence[schema.StackFrame], site: schema.Site | None) -> int:
    """Index of the frame of the package's function that the site calls; -1 for none."""
    call = site.get("call") if site else None
    if not call:
        return -1
    indices = (
        index
        for index, frame in reversed(list(enumerate(frames)))
        if frame["function"] == call["function"] and f"/{call['package']}" in frame["file"]
    )
    return next(indices, -1)


def _report(where: Path | None, style: Style) -> Iterator[str]:
    written = [_near(where)] if where else ["none could be written"]
    yield from _labelled("report", written, style)


def _near(path: Path) -> str:
    """A path relative to the current directory, if it is below that."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _bullets(texts: Sequence[str]) -> list[str]:
    return [f"- {text}" for text in texts] if len(texts) > 1 else list(texts)


def _labelled(label: str, texts: Sequence[str], style: Style) -> Iterator[str]:
    """Wrapped texts with a label in the left column; no lines for no texts."""
    left = style.paint(f"{label:{_LABEL}}", "2")
    for text in texts:
        hanging = ""
        for line in _wrap(text, style.columns - _LABEL - 4):
            yield f"  {left}{hanging}{line}"
            left = f"{'':{_LABEL}}"
            hanging = "  " if text.startswith("- ") else ""


def _wrap(text: str, width: int) -> list[str]:
    """Text on lines of at most width; a longer word (a path) is left whole."""
    return textwrap.wrap(printable(text), width, break_long_words=False, break_on_hyphens=False)


def _clip(text: str, width: int) -> str:
    """Text cut to width columns; wide characters count twice."""
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 (the launcher, which imports this, prints no code)

    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 3)}..."
