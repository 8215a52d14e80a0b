"""Packs the text of the exception that ended a rank, and of those before it, into one field.

The separator is taken out of each text.
"""

from __future__ import annotations

from collections.abc import Iterable

SEPARATOR = "\x1e"
"""ASCII's record separator."""


def packed(message: str, thrown: str, sent: str, after: Iterable[str]) -> str:
    """Return the field.

    message: the exception's text. thrown: the exception of torch's last call that failed. sent:
    the signal whose handler has raised it. after: the exceptions before it.
    """
    parts = [part.replace(SEPARATOR, " ") for part in (message, thrown, sent, *after)]
    return SEPARATOR.join(parts if any(parts[1:]) else parts[:1])


def unpacked(field: str) -> tuple[str, str, str, tuple[str, ...]]:
    """Return (message, thrown, sent, after) of what ``packed`` has made."""
    parts = field.split(SEPARATOR)
    message, thrown, sent = (*parts[:3], "", "")[:3]  # a text alone is a field, too
    return message, thrown, sent, tuple(parts[3:])
