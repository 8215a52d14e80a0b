"""What a rank's page says of the exception that ended it: its text, and what led to it.

Both lie in one field, with a separator that no text of a program gets into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SEPARATOR = "\x1e"
"""ASCII's record separator."""


def packed(message: str, thrown: str, sent: str, after: Iterable[str]) -> str:
    """The field: the text, what a call of torch's has raised, and what led to the exception.

    sent: the signal whose handler has raised it.
    """
    parts = [part.replace(SEPARATOR, " ") for part in (message, thrown, sent, *after)]
    return SEPARATOR.join(parts if any(parts[1:]) else parts[:1])


def unpacked(field: str) -> tuple[str, str, str, tuple[str, ...]]:
    """(message, thrown, sent, after) of what ``packed`` has made."""
    parts = field.split(SEPARATOR)
    message, thrown, sent = (*parts[:3], "", "")[:3]  # a text alone is a field, too
    return message, thrown, sent, tuple(parts[3:])
