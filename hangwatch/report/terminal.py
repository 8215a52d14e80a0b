"""The verdict as a short block of text, for a tired person.

``format_verdict`` yields the lines and prints nothing. All that it shows comes
from report.json, so a stored report prints as it did live. Text from outside has
its control characters escaped.
"""

from __future__ import annotations

import os
import textwrap
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hangwatch.console import printable
from hangwatch.report import schema
from hangwatch.report.chains import chain, places_of, towards_of
from hangwatch.report.notes import note_text
from hangwatch.report.schema import Report
from hangwatch.report.sites import call_text, causes_text, certainty_text
from hangwatch.text import fold_ranks, ranges

NARROWEST = 40
DEFAULT_WIDTH = 100
"""Where the output is no terminal."""
LEAST_S = 0.05
"""A shorter time is not known: stored dumps may not tell when they were taken."""
MAX_FRAMES = 6
MAX_WAITS = 5
MAX_HOPS = 8
MAX_RANGES = 12
_LABEL = 11
"""Columns of the label on the left."""
_COLOURS = {"hang": "1;31", "failed": "1;31", "slow": "1;33", "desync": "1;33", "ok": "1;32"}


@dataclass(frozen=True, slots=True)
class Style:
    """How wide and how colourful."""

    width: int = DEFAULT_WIDTH
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Style:
        """What suits a stream: colour on a terminal only, and not with NO_COLOR."""
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
    causes, seen = causes_text(verdict)
    yield from _labelled("cause", [*_bullets(causes), *seen], style)
    yield from _waits(report, style)
    yield from _culprits(report, style)
    yield from _site(verdict, style)
    yield from _stack(report, style)
    for other in report.get("also", ()):
        yield from _labelled("also", [_sentence(other)], style)
    yield from _labelled("what to do", _bullets(verdict["advice"]), style)
    notes = [f"{note_text(note)} {note['advice']}" for note in report.get("notes", ())]
    yield from _labelled("at a cost", _bullets(notes), style)
    yield from _labelled("not seen", _bullets([*report["unseen"], *_missing(report)]), style)
    if stored:
        written = [_near(where)] if where else ["none could be written"]
        yield from _labelled("report", written, style)


def format_notes(notes: Sequence[schema.Note], style: Style = PLAIN) -> Iterator[str]:
    """The lines that tell at the end of a run what was done at a cost; none for no notes.

    notes: of run.json or report.json.
    """
    if not notes:
        return
    yield style.paint("hangwatch: this cost the run time or accuracy, and nothing hung of it", "1")
    for note in notes:
        first, *more = _wrap(note_text(note), style.columns - 4)
        yield f"  - {first}"
        told = [*more, *_wrap(note["advice"], style.columns - 4), printable(note["link"])]
        yield from (f"    {line}" for line in told)


def _headline(verdict: schema.Verdict, style: Style) -> Iterator[str]:
    state = verdict["state"]
    word = state.upper()
    age_s = verdict["stuck_age_s"]
    about = certainty_text(verdict)
    if age_s >= LEAST_S:
        about = f"{about}, stuck for {age_s:.1f} s"
    first, *more = _wrap(f"hangwatch: {word} ({about})", style.columns)
    yield first.replace(word, style.paint(word, _COLOURS.get(state, "1")))
    yield from more
    for line in _wrap(verdict["headline"], style.columns - 2):
        yield f"  {style.paint(line, '1')}"
    for line in _wrap(verdict["explanation"], style.columns - 2):
        yield f"  {line}"


def _sentence(verdict: schema.Verdict) -> str:
    return f"{verdict['state'].upper()} ({certainty_text(verdict)}) {verdict['headline']}"


def _waits(report: Report, style: Style) -> Iterator[str]:
    """Who waits where: one line for all ranks that wait for the same in the same place."""
    verdict = report["verdict"]
    places = places_of(report)
    culprits = set(verdict["culprits"])
    towards = towards_of(report)
    # Those that wait for a culprit itself come first: of a large job not all are shown.
    ordered = sorted(
        places, key=lambda place: (culprits.isdisjoint(place["for"]), -len(place["ranks"]))
    )
    lines = [_place_line(place, towards) for place in ordered[:MAX_WAITS]]
    if len(ordered) > MAX_WAITS:
        lines[MAX_WAITS - 1 :] = [
            f"and {len(ordered) - MAX_WAITS + 1} more places, see report.json"
        ]
    if not lines and verdict["victims"]:
        lines = [_ranks(_some(verdict["victims"]))]
    yield from _labelled("waiting", lines, style)


def _place_line(place: schema.WaitPoint, towards: Mapping[int, int]) -> str:
    what = f"{place['op']} #{place['seq']}" if place["seq"] else place["op"]
    if place["group"]:
        what = f"{what} of {place['group']}"
    text = f"{_ranks(_some(place['ranks']))} in {what}"
    if place["age_s"] >= LEAST_S:
        text = f"{text}, {place['age_s']:.1f} s"
    if place["site"]:
        text = f"{text}, at {_place(place['site'])}"
    if place["for"]:
        text = f"{text}, for {_ranks(_some(place['for'], place['for_count']))}"
    if len(way := chain(place["ranks"][0], towards)) > 1:
        text = f"{text} ({_arrows(way)})"
    return text


def _arrows(way: Sequence[int]) -> str:
    """``5 -> 4 -> 2``: each waits for the one after it; cut in the middle."""
    shown = list(map(str, way))
    if len(shown) > MAX_HOPS:
        shown[MAX_HOPS - 2 : -1] = ["..."]
    return " -> ".join(shown)


def _culprits(report: Report, style: Style) -> Iterator[str]:
    verdict = report["verdict"]
    if not verdict["culprits"]:
        return
    text = f"{_ranks(fold_ranks(verdict['culprits']))}: {_words(verdict['kind'])}"
    if verdict["reason"] != "unknown":
        text = f"{text}, {_words(verdict['reason'])}"
    lines = [text]
    by_rank = {rank["rank"]: rank for rank in report["ranks"]}
    for culprit in verdict["culprits"][:2]:
        rank = by_rank.get(culprit)
        if rank and rank["pid"]:  # a Flight Recorder dump tells no process
            lines.append(f"rank {culprit} is process {rank['pid']} on {rank['node']}")
    yield from _labelled("culprit", lines, style)


def _site(verdict: schema.Verdict, style: Style) -> Iterator[str]:
    """The culprit's line of code with the lines around it."""
    site = verdict["site"]
    if not site:
        return
    called = f", calling {call_text(site)}" if site.get("call") else ""
    text = f"{_place(site, full=True)} in {site['function']}{called}"
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


def _stack(report: Report, style: Style) -> Iterator[str]:
    """The culprit's stack in short: where it is, and how the user's code got there."""
    verdict = report["verdict"]
    frames = _culprit_stack(report, verdict)
    if not frames:
        return
    called = _called_frame(frames, verdict["site"])
    shown = [f for i, f in enumerate(frames) if i in (0, called) or f["user"]]
    lines = [f"{frame['function']}  {_place(frame)}" for frame in shown[:MAX_FRAMES]]
    if len(shown) > MAX_FRAMES:
        lines.append(f"... {len(shown) - MAX_FRAMES} more")
    yield from _labelled("stack", lines, style)


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
                return list(frames)
        return list(stacks[0]) if stacks else []
    return []


def _called_frame(frames: Sequence[schema.StackFrame], site: schema.Site | None) -> int:
    """Which frame of a stack is the package's function that the site calls; -1 for none."""
    call = site.get("call") if site else None
    if not call:
        return -1
    found = [
        index
        for index, frame in enumerate(frames)
        if frame["function"] == call["function"] and f"/{call['package']}" in frame["file"]
    ]
    return found[-1] if found else -1


def _missing(report: Report) -> list[str]:
    """What could not be had of ranks, each thing once with its ranks."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank in report["ranks"]:
        for what in rank["missing_evidence"]:
            ranks[what].append(rank["rank"])
    return [f"{_ranks(_some(who))}: {what}" for what, who in ranks.items()]


def _ranks(folded: str) -> str:
    return f"rank {folded}" if folded.isdigit() else f"ranks {folded}"


def _some(ranks: Sequence[int], count: int = 0) -> str:
    """Ranks folded; of ten thousand that are no ranges the first, and how many more.

    count: how many they are where not all are at hand.
    """
    more = max(0, count - len(ranks))
    if len(ranges(ranks)) > MAX_RANGES:
        shown = sorted(ranks)[:MAX_RANGES]
        return f"{fold_ranks(shown)} and {len(ranks) - len(shown) + more} more"
    return f"{fold_ranks(ranks)} and {more} more" if more else fold_ranks(ranks)


def _words(name: str | None) -> str:
    return (name or "").replace("_", " ")


def _place(site: schema.Site | schema.StackFrame, *, full: bool = False) -> str:
    """File and line; the last two parts of a path are enough to know it by."""
    file = site["file"] if full else "/".join(site["file"].rsplit("/", 2)[-2:])
    return f"{file}:{site['line']}" if site["line"] else str(file)


def _near(path: Path) -> str:
    """A path as it is reached from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _bullets(texts: Sequence[str]) -> list[str]:
    return [f"- {text}" for text in texts] if len(texts) > 1 else list(texts)


def _labelled(label: str, texts: Sequence[str], style: Style) -> Iterator[str]:
    """Wrapped text with a label in the left column; nothing for no text."""
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
    if _columns(text) <= width:
        return text
    kept = ""
    used = 3
    for character in text:
        used += _columns(character)
        if used > width:
            break
        kept += character
    return f"{kept}..."


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
