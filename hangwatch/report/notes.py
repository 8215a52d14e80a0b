"""Costly mistakes as run.json and report.json tell them, and as people read them."""

from __future__ import annotations

from collections.abc import Iterable

from hangwatch.model.report import Note
from hangwatch.report import schema
from hangwatch.report.sites import site_content


def notes_content(notes: Iterable[Note]) -> list[schema.Note]:
    """Plain values: ``notes`` of both files."""
    return [
        {
            "cost": note.cost.value,
            "ranks": list(note.ranks),
            "what": note.what,
            "costs": note.costs,
            "advice": note.advice,
            "link": note.link,
            "site": site_content(note.site, {}, context=False),
        }
        for note in notes
    ]


def note_text(note: schema.Note) -> str:
    """What it is and what it costs, with the line of code where it is known."""
    site = note["site"]
    where = f" ({site['file'].rpartition('/')[2]}:{site['line']})" if site else ""
    return f"{str(note['what']).removesuffix('.')}{where}. {note['costs']}"
